"""One step over several ranks is the step one rank would take with all their samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scripts import run_ranks
from torch import nn
from trials import FULL

from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.step import Signals, Stepper, balanced_weight

CONFIG = TrainConfig(learning_rate=1e-2, clip_norm=0.5)


def batch(labels: list[float], seed: int = 0) -> Batch:
    hidden = torch.randn(len(labels), 2, 3, generator=torch.Generator().manual_seed(seed))
    return Batch(
        label=torch.tensor(labels),
        score=torch.tensor(labels),
        token_count=torch.ones(len(labels), dtype=torch.int64),
        prompt_length=torch.zeros(len(labels), dtype=torch.int64),
        question_ids=[str(i) for i in range(len(labels))],
        keys=[str(i) for i in range(len(labels))],
        hidden=hidden,
    )


def part(whole: Batch, first: int, last: int) -> Batch:
    assert whole.hidden is not None
    keys = whole.keys[first:last]
    return replace(whole, label=whole.label[first:last], hidden=whole.hidden[first:last], keys=keys)


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        self.unused = nn.Linear(2, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(hidden).squeeze(-1)
        return logits


def stepper(detector: nn.Module, config: TrainConfig = CONFIG, **options: object) -> Stepper:
    return Stepper(detector, lambda found: (found.hidden,), config, **options)  # type: ignore[arg-type, return-value]


LABELS = [1.0, 0.0, math.nan, 1.0, 1.0, 0.0, 0.0, math.nan]

SCRIPT = """
import sys
import torch
from train.test_step import Flat, LABELS, batch, part, stepper
from wdsbench.train.ranks import open_ranks
from wdsbench.train.step import Signals

with open_ranks("cpu", 30) as ranks:
    for cuts in sys.argv[2:]:
        first, last = map(int, cuts.split(",")[ranks.rank : ranks.rank + 2])
        detector = Flat()
        steps = stepper(detector, ranks=ranks, positive_weight=1.5)
        for number in range(3):
            mine = part(batch(LABELS, seed=number), first, last)
            taken = steps.step(mine, number, Signals(stop=ranks.rank == 1 and number == 2))
            assert taken.signals == Signals(stop=number == 2), taken
            assert (taken.used, taken.left_out) == (6, 2)
        torch.save(detector.state_dict(), f"{sys.argv[1]}/{cuts}.{ranks.rank}")
"""
#: Bounds of the parts of a batch that two ranks have.
CUTS = ("0,3,8", "0,8,8", "0,4,8", "0,0,8")


def test_two_ranks_step_as_one(tmp_path: Path) -> None:
    detector = Flat()
    alone = stepper(detector, positive_weight=1.5)
    for number in range(3):
        alone.step(batch(LABELS, seed=number), number, Signals())
    run_ranks(SCRIPT, tmp_path, *CUTS)
    for cuts in CUTS:
        found = [torch.load(tmp_path / f"{cuts}.{rank}") for rank in range(2)]
        for name, weight in detector.state_dict().items():
            assert torch.equal(found[0][name], found[1][name])
            if not name.startswith("unused"):
                torch.testing.assert_close(found[0][name], weight, rtol=1e-5, atol=1e-6)


def test_nothing_is_done_without_a_label() -> None:
    detector = Flat()
    before = {name: weight.clone() for name, weight in detector.state_dict().items()}
    taken = stepper(detector).step(batch([math.nan, math.nan]), 0, Signals(save=True))
    assert (taken.used, taken.left_out, taken.signals.save) == (0, 2, True)
    empty = stepper(detector).step(batch([]), 0, Signals())
    assert (empty.used, empty.left_out) == (0, 0)
    assert all(torch.equal(before[name], w) for name, w in detector.state_dict().items())


def test_learning_rates() -> None:
    constant = stepper(Flat())
    assert {constant.learning_rate(step) for step in (0, 5, 1000)} == {1e-2}
    cosine = stepper(Flat(), replace(CONFIG, schedule="cosine"), total_steps=100)
    rates = [cosine.learning_rate(step) for step in range(101)]
    assert rates[0] == 1e-2
    assert rates[50] == pytest.approx(5e-3)
    assert rates[100] == pytest.approx(0, abs=1e-12)
    assert rates == sorted(rates, reverse=True)
    with pytest.raises(DetectorError, match="schedule cosine needs the number of steps"):
        stepper(Flat(), replace(CONFIG, schedule="cosine"))


def test_a_balanced_loss_weighs_classes_alike() -> None:
    assert balanced_weight(25, 75) == 3
    with pytest.raises(DetectorError, match="0 hallucinated, 5 right"):
        balanced_weight(0, 5)
    # Of one hallucinated and three right samples with logit 0 the gradients then cancel out.
    detector = Flat()
    nn.init.zeros_(detector.layers[3].weight)  # type: ignore[arg-type]
    nn.init.zeros_(detector.layers[3].bias)  # type: ignore[arg-type]
    for weight, gradient in ((3.0, 0.0), (None, 0.25)):
        steps = stepper(detector, replace(CONFIG, clip_norm=1e9), positive_weight=weight)
        logits = detector(batch([1.0, 0.0, 0.0, 0.0]).hidden)
        assert not logits.any()
        steps._summed_loss(
            batch([1.0, 0.0, 0.0, 0.0]), torch.ones(4, dtype=torch.bool), 4
        ).backward()  # type: ignore[no-untyped-call]
        bias = detector.layers[3].bias
        assert bias.grad is not None
        assert float(bias.grad) / 4 == pytest.approx(gradient)
        detector.zero_grad()


@pytest.mark.trials
def test_bf16_and_compile_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FULL:  # a compiler takes 5 seconds

        def twice(forward: nn.Module, *, dynamic: bool) -> Callable[..., torch.Tensor]:
            assert dynamic
            return lambda *inputs: 2 * forward(*inputs)

        monkeypatch.setattr(torch, "compile", twice)
    losses = {}
    for name, config in (
        ("float32", CONFIG),
        ("bf16", replace(CONFIG, precision="bf16")),
        ("compile", replace(CONFIG, compile=True)),
    ):
        steps = stepper(Flat(), config)
        losses[name] = [float(steps.step(batch(LABELS), n, Signals()).loss) for n in range(20)]
    assert losses["float32"][-1] < losses["float32"][0]
    if FULL:
        assert losses["compile"] == pytest.approx(losses["float32"], rel=1e-4)
    else:
        assert losses["compile"] != losses["float32"]  # what compile returned is what is trained
        assert losses["compile"][-1] < losses["compile"][0]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=2e-2)
    assert losses["bf16"] != losses["float32"]
