"""The training loop finds a planted signal, finds none in noise, and is reproducible."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from train.planted import Sample, make_placed_samples, make_samples, store
from trials import FULL, FULL_ONLY, full_only, trials

from wdsbench import TraceLoader
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.detect.scale import RunningMoments
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.examples import read_examples
from wdsbench.train.log import EpochRecord, FitResult
from wdsbench.train.loop import FitData, fit
from wdsbench.train.metrics import auroc
from wdsbench.train.scoring import score_batches, seeded

QUICK = TrainConfig(epochs=12, batch_size=32, hidden=16, patience=4, learning_rate=3e-3)


def loader(samples: list[Sample], name: str, split: str, **arguments: Any) -> TraceLoader:
    needs = detector_spec(name).needs.arguments()
    return store(samples).open(split, **{**needs, "batch_size": QUICK.batch_size, **arguments})


def fit_once(
    samples: list[Sample], name: str, config: TrainConfig = QUICK, num_heads: int = 1
) -> tuple[FitResult, torch.nn.Module, float]:
    """Return the fit, the detector and its AUROC on the test split."""
    spec = detector_spec(name)
    assert spec.build is not None
    assert spec.inputs is not None
    moments = RunningMoments()
    for batch in loader(samples, "lstm", "train"):
        assert batch.hidden is not None
        moments.update(batch.hidden)
    val = loader(samples, name, "val")
    with seeded(config.seed, name):
        module = spec.build(DetectorShape(3, 8, hidden=config.hidden, num_heads=num_heads))
        module.scale.set_moments(*moments.finish())  # type: ignore[union-attr, operator]
        train = loader(samples, name, "train", shuffle=1000)
        result = fit(module, FitData(spec.inputs, train, val, read_examples(val)), config)
        test = loader(samples, name, "test")
        examples = read_examples(test)
        scores = examples.align(score_batches(module, spec.inputs, test))
    return result, module, auroc(examples.known_labels, scores[examples.known])


@pytest.mark.trials
@pytest.mark.parametrize(
    "name",
    [
        "charm",
        *(
            pytest.param(name, marks=FULL_ONLY)
            for name in ("lstm", "gnn", "gvae", "charm_no_edges")
        ),
    ],
)
def test_planted_signal_is_found(name: str) -> None:
    # The best possible AUROC is Phi(2 * sqrt(3) / sqrt(2)) = 0.993.
    config = replace(QUICK, epochs=trials(8, 12), learning_rate=3e-3 if FULL else 1e-2)
    _, _, found = fit_once(make_samples(trials(300, 800), signal=2.0, seed=1), name, config)
    assert found > 0.9


@pytest.mark.trials
@pytest.mark.parametrize(
    "name", ["lstm", *(pytest.param(name, marks=FULL_ONLY) for name in ("gnn", "gvae", "charm"))]
)
def test_nothing_is_found_where_nothing_is(name: str) -> None:
    # Three standard errors of AUROC, 0.04 with 100 + 100 test samples, 0.083 with 24 + 24.
    count = trials(240, 1000)
    config = replace(QUICK, epochs=trials(3, 12))
    _, _, found = fit_once(make_samples(count, signal=0.0, seed=2), name, config)
    assert abs(found - 0.5) < 0.13 * math.sqrt(1000 / count)


@full_only
@pytest.mark.parametrize("name", ["charm", "charm_no_edges", "charm_shuffled_edges"])
def test_signal_in_the_place_of_edges_is_for_who_sees_places(name: str) -> None:
    # Which mark goes with which strength is an exclusive or: nothing shows at first.
    # The controls learn nothing in any number of epochs.
    config = replace(QUICK, epochs=20, patience=20)
    _, _, found = fit_once(make_placed_samples(600, seed=11), name, config, num_heads=2)
    if name == "charm":
        assert found > 0.95
    else:
        # Standard error of AUROC with 60 + 60 test samples is 0.05.
        assert abs(found - 0.5) < 0.17


@pytest.mark.trials
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=FULL_ONLY) for name in ("lstm", "gnn", "charm")),
        "gvae",  # draws random numbers in a step
        "charm_shuffled_edges",  # in a graph
    ],
)
def test_same_seed_gives_same_numbers(name: str) -> None:
    samples = make_samples(trials(60, 300), signal=1.0, seed=3)
    config = replace(QUICK, epochs=trials(2, 3))
    first, second = fit_once(samples, name, config), fit_once(samples, name, config)
    for one, other in zip(first[0].records, second[0].records, strict=True):
        assert (one.loss, one.val_auroc) == (other.loss, other.val_auroc)
    weights = [module.state_dict() for module in (first[1], second[1])]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    changed = fit_once(samples, name, replace(config, seed=1))
    assert changed[0].records[0].loss != first[0].records[0].loss


@pytest.mark.trials
def test_best_epoch_is_kept_and_training_stops_without_progress() -> None:
    samples = make_samples(trials(150, 400), signal=0.5, seed=4)
    config = replace(QUICK, epochs=60, patience=3, learning_rate=1e-2)
    result, module, _ = fit_once(samples, "lstm", config)
    aurocs = [record.val_auroc for record in result.records]
    assert result.best_epoch == int(np.argmax(aurocs))
    assert len(aurocs) == result.best_epoch + 1 + 3
    assert [r.epoch for r in result.records if r.best][-1] == result.best_epoch
    val = loader(samples, "lstm", "val")
    examples = read_examples(val)
    spec = detector_spec("lstm")
    assert spec.inputs is not None
    scores = examples.align(score_batches(module, spec.inputs, val))
    assert auroc(examples.labels, scores) == pytest.approx(aurocs[result.best_epoch])
    assert not module.training


@pytest.mark.trials
def test_unlabelled_samples_are_left_out_and_counted() -> None:
    samples = make_samples(trials(160, 300), signal=2.0, seed=5)
    train = [place for place, sample in enumerate(samples) if sample.split == "train"]
    for place in train[:40]:  # more than a whole batch has no label at all
        samples[place] = replace(samples[place], label=math.nan)
    val = next(place for place, sample in enumerate(samples) if sample.split == "val")
    samples[val] = replace(samples[val], label=math.nan)
    config = QUICK if FULL else replace(QUICK, epochs=6, learning_rate=1e-2)
    result, _, found = fit_once(samples, "lstm", config)
    assert result.left_out == 40
    assert all(math.isfinite(record.loss) for record in result.records)
    assert found > 0.85


def test_unlabelled_samples_do_not_change_the_fit() -> None:
    class WithBlanks(TraceLoader):
        """Follows every batch by itself without labels."""

        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                yield batch
                yield replace(batch, label=torch.full_like(batch.label, math.nan))

    samples = make_samples(120, signal=1.0, seed=6)
    spec = detector_spec("lstm")
    assert spec.build is not None
    assert spec.inputs is not None
    losses = []
    for kind in (TraceLoader, WithBlanks):
        folder, needs = store(samples).folder, spec.needs.arguments()
        train = kind(folder, "train", **needs, batch_size=32, shuffle=0, threads=1)
        val = loader(samples, "lstm", "val")
        with seeded(0, "lstm"):
            module = spec.build(DetectorShape(3, 8, hidden=4, dropout=0.0))
            config = replace(QUICK, epochs=2)
            result = fit(module, FitData(spec.inputs, train, val, read_examples(val)), config)
        losses.append([record.loss for record in result.records])
    assert losses[0] == losses[1]


class Fined(torch.nn.Module):
    """A detector with one weight and a penalty that pulls it to the mean of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        return 0 * self.weight * hidden[:, 0, 0]

    def forward_with_penalty(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self(hidden), (self.weight - hidden[:, 0, 0]).square()


@pytest.mark.parametrize("batch_size", [12, 72])
def test_penalty_of_labelled_samples_is_part_of_the_loss(batch_size: int) -> None:
    samples = make_samples(120, signal=1.0, seed=6)
    for place, sample in enumerate(samples):
        sample.hidden[0, -1, 0] = 5.0
        if place % 3 == 0 and sample.split == "train":
            sample.hidden[0, -1, 0] = 1000.0
            samples[place] = replace(sample, label=math.nan)
    spec = detector_spec("lstm")
    assert spec.inputs is not None
    train = loader(samples, "lstm", "train", batch_size=batch_size)
    val = loader(samples, "lstm", "val")
    detector = Fined()
    config = replace(QUICK, epochs=1, weight_decay=0.0)
    result = fit(detector, FitData(spec.inputs, train, val, read_examples(val)), config)
    assert result.records[0].loss == pytest.approx(25 + math.log(2), rel=0.02)
    assert detector.weight > 0


def test_no_label_at_all_is_refused() -> None:
    samples = make_samples(60, signal=1.0, seed=7)
    blank = [replace(s, label=math.nan) if s.split == "train" else s for s in samples]
    with pytest.raises(DetectorError, match=r"no training sample has a label.*with --scores"):
        fit_once(blank, "lstm")


def test_one_class_in_validation_is_refused() -> None:
    samples = make_samples(60, signal=1.0, seed=7)
    same = [replace(s, label=1.0) if s.split == "val" else s for s in samples]
    with pytest.raises(DetectorError, match="one class only"):
        fit_once(same, "lstm")


def test_states_that_are_not_finite_are_refused() -> None:
    spec = detector_spec("lstm")
    assert spec.build is not None
    assert spec.inputs is not None
    damaged, moments = [], RunningMoments()  # packing refuses NaN: damaged after reading
    for batch in loader(make_samples(60, signal=1.0, seed=7), "lstm", "train"):
        assert batch.hidden is not None
        damaged.append(replace(batch, hidden=batch.hidden.clone()))
        damaged[-1].hidden[0, 1, 0] = math.nan  # type: ignore[index]
        moments.update(damaged[-1].hidden)  # type: ignore[arg-type]
    with pytest.raises(DetectorError, match=r"layers \[1\]"):
        moments.finish()
    with pytest.raises(DetectorError, match=r"has score nan.*pack again"):
        score_batches(spec.build(DetectorShape(3, 8, hidden=4)), spec.inputs, damaged)


def test_epochs_reach_the_loader_and_the_callback() -> None:
    samples = make_samples(120, signal=1.0, seed=8)
    train, val = loader(samples, "lstm", "train", shuffle=9), loader(samples, "lstm", "val")
    spec = detector_spec("lstm")
    assert spec.build is not None
    assert spec.inputs is not None
    seen: list[EpochRecord] = []
    bars: list[str] = []

    def progress(items: object, total: int | None, what: str) -> object:
        bars.append(f"{what} {total}")
        return items

    result = fit(
        spec.build(DetectorShape(3, 8, hidden=4)),
        FitData(spec.inputs, train, val, read_examples(val)),
        replace(QUICK, epochs=3),
        on_epoch=seen.append,
        what="training x",
        progress=progress,  # type: ignore[arg-type]
    )
    assert train.epoch == 3
    assert seen == result.records
    assert bars == ["training x 3"]
    assert all(record.samples_per_second > 0 for record in seen)


def test_seeding_gives_the_callers_generator_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded(0, "lstm"):
        one = torch.rand(1)
    with seeded(0, "gnn"):
        other = torch.rand(1)
    assert one != other
    assert torch.equal(torch.rand(2), expected)


def test_sample_that_comes_twice_is_refused() -> None:
    samples = make_samples(60, signal=1.0, seed=7)
    spec = detector_spec("lstm")
    assert spec.build is not None
    assert spec.inputs is not None
    test = loader(samples, "lstm", "test")
    again = loader(samples, "lstm", "test", batch_size=1)
    with pytest.raises(DetectorError, match="12 samples occur twice; pack again"):
        score_batches(spec.build(DetectorShape(3, 8, hidden=4)), spec.inputs, chain(test, again))
