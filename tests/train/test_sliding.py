"""Scores along an answer; at a detector's own token they equal those of ``wdsbench predict``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import Packed, make_dataset

from wdsbench import TraceLoader
from wdsbench.detect.probe import LogisticProbe
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.errors import DetectorError
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.sliding import slide

TOKENS, PROMPT, LAYERS, FEATURES = 9, 5, 3, 8
HIDDEN = np.random.default_rng(0).normal(size=(LAYERS, TOKENS, FEATURES)).astype(np.float32)


def make_fitted(
    name: str, layers: tuple[int, ...] | None = None, token: str = "last_answer"
) -> FittedDetector:
    spec = detector_spec(name)
    assert spec.build is not None
    torch.manual_seed(0)
    shape = DetectorShape(LAYERS if layers is None else len(layers), FEATURES, hidden=8)
    module = spec.build(shape).eval()
    if isinstance(module, LogisticProbe):
        module.set_weights(shape.num_layers - 1, torch.randn(FEATURES), 0.1)
    traces = StoredTraces(LAYERS, FEATURES)
    return FittedDetector(spec, shape, module, layers, threshold=0.4, token=token, traces=traces)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=20)


@pytest.mark.parametrize(
    ("name", "layers", "token", "at"),
    [
        ("lstm", None, "last_answer", -1),
        ("probe_logistic", (1,), "last_answer", -1),
        ("probe_logistic", (2,), "first_answer", 0),
        ("probe_mlp", (0,), "mean_answer", -1),
        ("probe_mlp", (0,), "last_prompt", 0),
    ],
)
def test_own_token_has_the_score_that_predict_writes(
    packed: Packed, name: str, layers: tuple[int, ...] | None, token: str, at: int
) -> None:
    fitted = make_fitted(name, layers, token)
    arguments = {**fitted.needs.arguments(), "layers": layers, "batch_size": 4}
    loader = TraceLoader(packed.folder, split="train", **arguments)
    rows = np.arange(len(loader.index))
    names = dict(zip(loader.index.keys(rows), loader.index.question_ids(rows), strict=True))
    wanted = fitted.scores(loader)
    assert wanted
    for key, score in wanted.items():
        raw = packed.raws[names[key]]
        found = slide(
            fitted,
            packed.hidden(names[key]),
            tokens=len(raw["tokens"]),
            prompt_length=raw["prompt_length"],
        )
        assert found.scores[at] == pytest.approx(score, abs=1e-5)


def test_lstm_slides_over_the_answer() -> None:
    fitted = make_fitted("lstm")
    found = slide(fitted, HIDDEN, tokens=TOKENS, prompt_length=PROMPT)
    assert found.positions.tolist() == [5, 6, 7, 8]
    assert fitted.module is not None
    with torch.inference_mode():
        logits = fitted.module(torch.from_numpy(HIDDEN[:, PROMPT:].transpose(1, 0, 2).copy()))
    np.testing.assert_allclose(found.scores, torch.sigmoid(logits).numpy(), rtol=1e-5)
    assert found.threshold == 0.4
    assert found.signed
    assert found.by_layer is not None
    assert found.by_layer.shape == (LAYERS, 4)
    assert "training mean" in found.remark


@pytest.mark.parametrize("token", ["last_answer", "first_answer", "mean_answer", "last_prompt"])
@pytest.mark.parametrize("prompt", [5, 8])
def test_states_of_the_answer_alone_give_the_same_scores(token: str, prompt: int) -> None:
    """Where the prompt's last token is wanted, too, but for that token."""
    fitted = make_fitted("probe_mlp", (0,), token)
    whole = slide(fitted, HIDDEN, tokens=TOKENS, prompt_length=prompt)
    cut = slide(fitted, HIDDEN[:, prompt:], tokens=TOKENS, prompt_length=prompt)
    assert cut.positions.tolist() == list(range(prompt, TOKENS))
    np.testing.assert_allclose(cut.scores, whole.scores[-len(cut.scores) :], rtol=1e-6)
    assert ("only the last token's states" in cut.remark) == (prompt == TOKENS - 1)


def test_a_layer_that_stands_at_its_mean_adds_nothing() -> None:
    still = HIDDEN.copy()
    still[1] = 0  # the mean before any moments are set
    found = slide(make_fitted("lstm"), still, tokens=TOKENS, prompt_length=PROMPT)
    assert found.by_layer is not None
    np.testing.assert_allclose(found.by_layer[1], 0, atol=1e-7)
    assert np.abs(found.by_layer[[0, 2]]).max() > 1e-4


def test_a_probe_of_all_layers_has_a_score_at_each() -> None:
    found = slide(make_fitted("probe_logistic"), HIDDEN, tokens=TOKENS, prompt_length=PROMPT)
    assert found.by_layer is not None
    np.testing.assert_allclose(found.by_layer[LAYERS - 1], found.scores, rtol=1e-5)
    assert not found.signed


@pytest.mark.parametrize("name", ["probe_logistic", "probe_mlp"])
def test_a_probe_of_one_layer_says_so(name: str) -> None:
    found = slide(make_fitted(name, (2,)), HIDDEN, tokens=TOKENS, prompt_length=PROMPT)
    assert found.by_layer is None
    assert f"{name} reads only layer 2: no score per layer" in found.remark


@pytest.mark.parametrize(
    ("token", "prompt", "positions"),
    [
        ("last_answer", PROMPT, [5, 6, 7, 8]),
        ("last_prompt", PROMPT, [4, 5, 6, 7, 8]),
        ("mean_answer", PROMPT, [5, 6, 7, 8]),
        ("last_answer", None, list(range(TOKENS))),
    ],
)
def test_positions(token: str, prompt: int | None, positions: list[int]) -> None:
    fitted = make_fitted("probe_mlp", (0,), token)
    found = slide(fitted, HIDDEN, tokens=TOKENS, prompt_length=prompt)
    assert found.positions.tolist() == positions
    assert ("every token is scored" in found.remark) == (prompt is None)


def test_states_of_the_last_token_alone() -> None:
    found = slide(make_fitted("lstm"), HIDDEN[:, -1:], tokens=TOKENS, prompt_length=PROMPT)
    assert found.positions.tolist() == [TOKENS - 1]
    assert "only the last token's states are stored" in found.remark


@pytest.mark.parametrize("name", ["length", "logprob_mean", "attention_logistic", "gnn", "charm"])
def test_detectors_of_whole_traces_say_so(name: str) -> None:
    fitted = FittedDetector(detector_spec(name))
    with pytest.raises(DetectorError, match=f"{name} scores whole traces"):
        slide(fitted, HIDDEN, tokens=TOKENS, prompt_length=PROMPT)


def test_traces_of_another_model() -> None:
    with pytest.raises(DetectorError, match="features are 4, the detector was trained on 8"):
        slide(make_fitted("lstm"), HIDDEN[..., :4], tokens=TOKENS, prompt_length=PROMPT)


def test_infinite_states() -> None:
    wide = HIDDEN.copy()
    wide[:, 6] = np.nan
    with pytest.raises(DetectorError, match="a score is not finite"):
        slide(make_fitted("lstm"), wide, tokens=TOKENS, prompt_length=PROMPT)


def test_saved_and_loaded(tmp_path: Path) -> None:
    from wdsbench.train.checkpoint import load_detector, save_detector

    fitted = make_fitted("probe_logistic", (1,))
    save_detector(fitted, tmp_path / "probe")
    again = load_detector(tmp_path / "probe")
    one, two = (
        slide(each, HIDDEN, tokens=TOKENS, prompt_length=PROMPT) for each in (fitted, again)
    )
    np.testing.assert_array_equal(one.scores, two.scores)
