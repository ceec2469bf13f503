"""Means and spreads over seeds, with a fake run and with real ones."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import draw_coarsely, draw_nothing
from train.planted import make_samples, store
from trials import FULL

from wdsbench.errors import DetectorError
from wdsbench.files import write_json
from wdsbench.train import metrics
from wdsbench.train.bootstrap import auroc_interval, compare
from wdsbench.train.config import TrainConfig
from wdsbench.train.means import seed_folder
from wdsbench.train.results import DetectorResult, Results, load_results
from wdsbench.train.seeds import train_seeds

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")

CONFIG = TrainConfig(seed=3, resamples=200)
COUNT = 120
LABELS = (np.arange(COUNT) % 3 == 0).astype(float)
LABELS[-10:] = np.nan
KNOWN = ~np.isnan(LABELS)
# Further apart: easier; what a seed adds is the same for every detector.
SHIFTS = {"logprob_mean": 0.5, "lstm": 1.5, "gnn": 1.0}


def scores_of(name: str, seed: int) -> NDArray[np.float64]:
    """Return test scores; those of the closed form do not depend on the seed."""
    fixed = np.random.default_rng(77).normal(size=COUNT) + SHIFTS[name] * (np.nan_to_num(LABELS))
    if name == "logprob_mean":
        return fixed
    return fixed + 0.7 * np.random.default_rng([seed, len(name)]).normal(size=COUNT)


class FakeTrain:
    """Writes the files of a run; ``failing`` are pairs of a seed and a detector."""

    def __init__(self, failing: Sequence[tuple[int, str]] = ()) -> None:
        self.failing = failing
        self.calls: list[tuple[Path, TrainConfig]] = []
        self.labels = LABELS

    def __call__(
        self, shards: Any, detectors: Any, out: Any, config: TrainConfig, progress: Any
    ) -> Results:
        assert shards == "shards"
        self.calls.append((Path(out), config))
        list(progress([1], 1, "training"))
        results, scores = {}, {}
        reasons = {
            n: "not available: broken" for n in detectors if (config.seed, n) in self.failing
        }
        for name in detectors:
            if name in reasons:
                continue
            scores[name] = scores_of(name, config.seed)
            results[name] = self.result(name, scores[name], config.seed)
        found = Results(
            results, reasons, {"shards": "shards"}, {**config.as_json(), "detectors": [*detectors]}
        )
        Path(out).mkdir(parents=True, exist_ok=True)
        with (Path(out) / "scores.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["question_id", "key", "label", *scores])
            for row, label in enumerate(self.labels):
                cells = [repr(float(values[row])) for values in scores.values()]
                writer.writerow(["q", f"k{row}", "" if np.isnan(label) else int(label), *cells])
        write_json(Path(out) / "results.json", found.as_json())
        if not results:
            raise DetectorError("none of the detectors could be run")
        return found

    def result(self, name: str, scores: NDArray[np.float64], seed: int) -> DetectorResult:
        labels, own = LABELS[KNOWN], scores[KNOWN]
        still = name == "logprob_mean"
        return DetectorResult(
            auroc=metrics.auroc(labels, own),
            auroc_interval=(0.0, 1.0),
            auprc=metrics.auprc(labels, own),
            f1=0.5 if still else 0.5 + seed / 100,
            accuracy=0.5,
            threshold=0.1,
            fpr95=metrics.false_positive_rate(labels, own),
            ece=None if still else 0.1 * seed,
            n_pos=int(labels.sum()),
            n_neg=int((1 - labels).sum()),
            n_unlabelled=10,
            # The lstm is best in the mean of seeds 3, 4, 5, the gnn with seed 3.
            val_auroc={"logprob_mean": 0.5, "lstm": 0.6 + seed / 100, "gnn": 0.64}[name],
            parameters=0 if still else 9,
            epochs=None if still else seed,
            seconds_per_epoch=None if still else 1.0,
            sign=-1 if still else 1,
            chosen={} if still else {"layer": seed % 2, "token": "last"},
        )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    out = tmp_path_factory.mktemp("seeds")
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        return run(out), out


def run(tmp_path: Path, fake: FakeTrain | None = None, seeds: int = 3) -> Results:
    return train_seeds("shards", list(SHIFTS), tmp_path, CONFIG, seeds, train=fake or FakeTrain())


def test_seeds_follow_each_other_into_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    draw_coarsely(monkeypatch)
    fake, bars = FakeTrain(), []

    def progress(items: Any, total: Any, what: str) -> Any:  # noqa: ARG001
        bars.append(what)
        return items

    results = train_seeds(
        "shards", list(SHIFTS), tmp_path, CONFIG, 3, train=fake, progress=progress
    )
    assert [path.name for path, _ in fake.calls] == ["seed-0003", "seed-0004", "seed-0005"]
    assert [config for _, config in fake.calls] == [replace(CONFIG, seed=s) for s in (3, 4, 5)]
    assert bars[1] == "seed 4 (2 of 3): training"
    assert results.config["seeds"] == [3, 4, 5]
    assert results.config["seed"] == 3
    assert list(results.detectors) == list(SHIFTS)
    assert {path.name for path in tmp_path.iterdir()} == {
        *(path.name for path, _ in fake.calls),
        "results.json",
        "report.md",
        "roc.png",
    }
    assert load_results(tmp_path) == results
    assert "means over 3 trainings" in (tmp_path / "report.md").read_text()


def test_figures_are_means_with_their_spread(done: tuple[Results, Path]) -> None:
    results, out = done
    result = results.detectors["lstm"]
    runs = [load_results(seed_folder(out, seed)).detectors["lstm"] for seed in (3, 4, 5)]
    assert result.seeds is not None
    assert result.seeds.n == 3
    assert result.seeds.varies
    for figure in ("auroc", "auprc", "f1", "fpr95", "ece", "val_auroc", "epochs"):
        values = [getattr(one, figure) for one in runs]
        assert getattr(result, figure) == pytest.approx(np.mean(values))
        spread = result.seeds.figures[figure]
        assert spread.mean == pytest.approx(np.mean(values))
        assert spread.std == pytest.approx(statistics.stdev(values))
        assert (spread.min, spread.max) == (min(values), max(values))
    written = json.loads((out / "results.json").read_text())["detectors"]["lstm"]["seeds"]
    assert written["n"] == 3
    assert set(written["auroc"]) == {"mean", "std", "min", "max"}
    assert written["auroc"]["std"] > 0
    assert "brier" not in written  # no run had one


def test_what_was_chosen_is_named_for_every_seed(done: tuple[Results, Path]) -> None:
    results, _ = done
    result = results.detectors["lstm"]
    assert result.chosen == {"layer": "1/0/1", "token": "last"}
    assert result.sign == 1


def test_closed_forms_have_no_spread(done: tuple[Results, Path]) -> None:
    results, out = done
    seeds = results.detectors["logprob_mean"].seeds
    assert seeds is not None
    assert not seeds.varies
    assert {spread.std for spread in seeds.figures.values()} == {0.0}
    text = (out / "report.md").read_text()
    assert "they do not depend on the seed: logprob_mean." in text


def test_interval_is_that_of_the_mean_over_seeds(done: tuple[Results, Path]) -> None:
    results, _ = done
    scores = np.stack([scores_of("lstm", seed)[KNOWN] for seed in (3, 4, 5)])
    options: Any = {"seed": 3, "resamples": 200}
    alone = [compare(LABELS[KNOWN], {"a": row}, **options).draws["a"] for row in scores]
    low, high = np.quantile(np.mean(alone, axis=0), [0.025, 0.975])
    lstm, baseline = results.detectors["lstm"], results.detectors["logprob_mean"]
    assert lstm.auroc_interval == pytest.approx((low, high))
    assert low < lstm.auroc < high
    # Where nothing varies it is that of one training.
    once = auroc_interval(LABELS[KNOWN], scores_of("logprob_mean", 0)[KNOWN], **options)
    assert baseline.auroc_interval == pytest.approx((once.low, once.high))


def test_best_is_the_best_on_validation_in_the_mean(done: tuple[Results, Path]) -> None:
    results, out = done
    assert load_results(seed_folder(out, 3)).best == "gnn"
    assert results.best == "lstm"
    assert results.detectors["lstm"].difference_to_best is None
    for name in ("gnn", "logprob_mean"):
        difference = results.detectors[name].difference_to_best
        assert difference is not None
        assert difference.to == "lstm"
        assert difference.difference == pytest.approx(
            results.detectors[name].auroc - results.detectors["lstm"].auroc
        )


def test_one_seed_is_a_run_with_no_spread(tmp_path: Path) -> None:
    seeds = run(tmp_path, seeds=1).detectors["lstm"].seeds
    assert seeds is not None
    assert (seeds.n, seeds.figures["auroc"].std) == (1, 0)


def test_detector_that_failed_once_has_no_mean(tmp_path: Path) -> None:
    results = run(tmp_path, FakeTrain(failing=[(4, "gnn")]))
    assert list(results.detectors) == ["logprob_mean", "lstm"]
    assert results.not_available == {
        "gnn": "failed with 1 of 3 seeds: seed 4: not available: broken; no mean is reported, "
        "see seed-0003, seed-0005 for the other seeds"
    }
    assert "`gnn`: failed with 1 of 3 seeds" in (tmp_path / "report.md").read_text()


def test_detector_that_failed_always_gives_its_reason_once(tmp_path: Path) -> None:
    results = run(tmp_path, FakeTrain(failing=[(seed, "gnn") for seed in (3, 4, 5)]))
    assert results.not_available == {"gnn": "not available: broken"}


def test_seed_without_any_detector_is_a_failure_of_all(tmp_path: Path) -> None:
    fake = FakeTrain(failing=[(4, name) for name in SHIFTS])
    with pytest.raises(DetectorError, match="no detector could be run with every seed: logprob_m"):
        run(tmp_path, fake)
    written = json.loads((tmp_path / "results.json").read_text())
    assert set(written["not_available"]) == set(SHIFTS)
    assert len(fake.calls) == 3


def test_refused_data_end_the_whole_at_once(tmp_path: Path) -> None:
    run(tmp_path)  # earlier results in the same folders are not taken for this run's
    calls = []

    def refusing(*arguments: Any) -> Results:
        calls.append(arguments)
        raise DetectorError("split test has one class only")

    with pytest.raises(DetectorError, match="one class only"):
        train_seeds("shards", ["lstm"], tmp_path, CONFIG, 3, train=refusing)
    assert len(calls) == 1
    assert not (tmp_path / "results.json").exists()


def test_other_test_samples_are_refused(tmp_path: Path) -> None:
    class Changing(FakeTrain):
        def __call__(self, *arguments: Any) -> Results:
            self.labels = np.roll(LABELS, len(self.calls))
            return super().__call__(*arguments)

    with pytest.raises(DetectorError, match="seeds 3 and 4 were measured on different test"):
        run(tmp_path, Changing())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no scores at"),
        ("key,lstm\nk0,1\n", r"is not a scores\.csv"),
        ("", "scores.csv has 0 labelled samples, results.json"),
    ],
)
def test_scores_that_cannot_be_read_are_named(
    content: str | None, words: str, tmp_path: Path
) -> None:
    class Losing(FakeTrain):
        def __call__(self, *arguments: Any) -> Results:
            results = super().__call__(*arguments)
            path = Path(arguments[2]) / "scores.csv"
            path.unlink()
            if content is not None:
                path.write_text(content)
            return results

    with pytest.raises(DetectorError, match=words):
        run(tmp_path, Losing())


def test_number_of_seeds_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seeds is 0; it must be at least 1"):
        run(tmp_path, seeds=0)
    with pytest.raises(ValueError, match="seed is 9223372036854775808"):
        train_seeds("x", ["lstm"], tmp_path, replace(CONFIG, seed=2**63 - 1), 2, train=FakeTrain())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.trials
def test_real_runs(tmp_path: Path) -> None:
    samples = make_samples(120, signal=1.0, seed=1, logprob_signal=0.3)
    samples = [replace(s, label=np.nan) if s.number == 119 else s for s in samples]
    config = TrainConfig(epochs=2, hidden=8, batch_size=32, resamples=200, shuffle=100)
    names = ("logprob_mean", *(("probe_logistic",) if FULL else ()), "lstm")
    results = train_seeds(store(samples).folder, names, tmp_path, config, 2)
    runs = [load_results(tmp_path / folder) for folder in ("seed-0000", "seed-0001")]
    for name, result in results.detectors.items():
        values = [found.detectors[name].auroc for found in runs]
        assert result.auroc == pytest.approx(np.mean(values))
        assert result.auroc_interval[0] <= result.auroc <= result.auroc_interval[1]
        assert result.seeds is not None
        assert result.seeds.varies == (name == "lstm")
    assert results.detectors["lstm"].epochs == 2
