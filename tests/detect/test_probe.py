"""Probes apply what they were given to the layer they were given, and find a token's states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wdsbench.detect.probe import PROBE_TOKENS, LogisticProbe, MLPProbe, token_states
from wdsbench.detect.registry import DetectorShape
from wdsbench.records import Batch


def test_probe_reads_one_layer() -> None:
    probe = LogisticProbe(DetectorShape(3, 2))
    probe.scale.set_moments(torch.ones(3, 2), torch.full((3, 2), 2.0))
    probe.set_weights(1, torch.tensor([1.0, -1.0], dtype=torch.float64), 0.5)
    x = torch.zeros(1, 3, 2)
    x[0, 1] = torch.tensor([5.0, 3.0])
    # Standardised: (2, 1); 2 - 1 + 0.5.
    assert probe(x).tolist() == [1.5]
    assert probe.state_dict()["layer"] == 1


def test_mlp_is_one_hidden_layer_on_standardised_states() -> None:
    torch.manual_seed(0)
    probe = MLPProbe(DetectorShape(1, 4, hidden=5)).eval()
    probe.scale.set_moments(torch.randn(1, 4), torch.rand(1, 4) + 0.5)
    x = torch.randn(3, 1, 4)
    weights = {name: tensor.detach().numpy() for name, tensor in probe.state_dict().items()}
    for row, logit in zip(x.numpy(), probe(x).tolist(), strict=True):
        scaled = (row[0] - weights["scale.mean"][0]) / weights["scale.std"][0]
        units = np.maximum(weights["units.0.weight"] @ scaled + weights["units.0.bias"], 0)
        expected = weights["units.3.weight"] @ units + weights["units.3.bias"]
        assert logit == pytest.approx(float(expected[0]), abs=1e-5)


def test_other_layers_are_refused() -> None:
    shape = DetectorShape(1, 4)
    for probe in (LogisticProbe(shape), MLPProbe(shape)):
        with pytest.raises(
            ValueError, match=r"states of \(3, 4\).* do not fit a probe of \(1, 4\)"
        ):
            probe(torch.zeros(2, 3, 4))


# Tokens and prompt of each trace: the third has no answer, the fourth no prompt.
TRACES = [(7, 3), (4, 3), (5, 5), (3, 0)]


def make_batch(choice: Any) -> tuple[Batch, list[NDArray[np.float32]]]:
    """Return a jagged batch of what the loader's ``tokens=choice`` gives, and all states."""
    rng = np.random.default_rng(0)
    states = [rng.normal(size=(2, tokens, 3)).astype(np.float32) for tokens, _ in TRACES]
    first = [
        {"all": 0, "answer": prompt}[choice] if isinstance(choice, str) else max(tokens - choice, 0)
        for tokens, prompt in TRACES
    ]
    parts = [state[:, start:] for state, start in zip(states, first, strict=True)]
    offsets = np.cumsum([0, *(part.shape[1] for part in parts)])
    zeros = torch.zeros(len(TRACES))
    keys = [f"q{i}" for i in range(len(TRACES))]
    batch = Batch(
        zeros,
        zeros,
        torch.tensor([tokens for tokens, _ in TRACES]),
        torch.tensor([prompt for _, prompt in TRACES]),
        keys,
        keys,
        hidden=torch.from_numpy(np.concatenate(parts, axis=1)),
        offsets=torch.from_numpy(offsets),
    )
    return batch, states


def slow_token(states: NDArray[np.float32], prompt: int, token: str) -> NDArray[np.float32] | None:
    tokens = states.shape[1]
    wanted = {
        "last_answer": [tokens - 1],
        "first_answer": [prompt] if prompt < tokens else [],
        "mean_answer": list(range(prompt, tokens)),
        "last_prompt": [prompt - 1] if prompt else [],
    }[token]
    if not wanted:
        return None
    result: NDArray[np.float32] = sum(states[:, place] for place in wanted) / len(wanted)
    return result


@pytest.mark.parametrize("token", PROBE_TOKENS)
@pytest.mark.parametrize("choice", ["all", "answer", 5])
def test_token_states(choice: Any, token: str) -> None:
    batch, states = make_batch(choice)
    if choice == "answer" and token in ("last_prompt", "last_answer"):
        with pytest.raises(AssertionError, match="was not asked for"):
            token_states(batch, token)
        return
    found, present = token_states(batch, token)
    assert found.shape == (len(TRACES), 2, 3)
    for place, (state, (_, prompt)) in enumerate(zip(states, TRACES, strict=True)):
        expected = slow_token(state, prompt, token)
        assert bool(present[place]) == (expected is not None)
        if expected is None:
            assert not found[place].any()
        else:
            np.testing.assert_allclose(found[place], expected, rtol=1e-6)


def test_one_token_a_sample_is_taken_as_it_is() -> None:
    batch, _ = make_batch("all")
    batch.offsets, batch.hidden = None, torch.randn(len(TRACES), 2, 3)
    found, present = token_states(batch, "last_answer")
    assert torch.equal(found, batch.hidden)
    assert present.all()
