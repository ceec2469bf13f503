"""Complete runs: written files, refused data, and the test split is not read early."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import draw_coarsely
from sklearn.metrics import roc_auc_score
from train.planted import Opened, Sample, make_placed_samples, make_samples, store

from wdsbench import TraceLoader
from wdsbench.errors import DetectorError
from wdsbench.train.checkpoint import load_detector
from wdsbench.train.config import TrainConfig
from wdsbench.train.examples import Examples, require_separate_questions
from wdsbench.train.output import result_files
from wdsbench.train.results import Results, load_results
from wdsbench.train.run import train

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")

QUICK = TrainConfig(epochs=3, batch_size=32, hidden=8, resamples=300, learning_rate=5e-3)
ALL = ("length", "logprob_mean", "logprob_min", "probe_logistic", "lstm", "gnn")
#: Part of every run; here of `done`.
TEXT = ("text_control", "question_control")
SAMPLES = make_samples(400, signal=1.5, seed=1, logprob_signal=0.3)
#: Where no figure matters.
FEW = make_samples(100, signal=1.5, seed=1, logprob_signal=0.3)


def run(
    samples: list[Sample], names: tuple[str, ...], out: Path, config: TrainConfig = QUICK
) -> Results:
    return train(store(samples).folder, names, out, config)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    out = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        draw_coarsely(patch)
        return run(SAMPLES, ALL, out), out


def test_results_have_every_detector_and_every_figure(done: tuple[Results, Path]) -> None:
    results, out = done
    written = json.loads((out / "results.json").read_text())
    assert set(written) == {"verdict", "detectors", "not_available", "dataset", "config"}
    assert list(results.detectors) == [*ALL, *TEXT]
    assert written["not_available"] == {}
    for entry in written["detectors"].values():
        low, high = entry["auroc_interval"]
        assert 0 <= low <= entry["auroc"] <= high <= 1
        for name in ("auprc", "f1", "accuracy", "fpr95"):
            assert 0 <= entry[name] <= 1
        assert entry["n_pos"] + entry["n_neg"] == 80
    assert written["detectors"]["length"]["ece"] is None
    assert written["detectors"]["lstm"]["ece"] > 0
    assert written["detectors"]["gnn"]["epochs"] == 3
    assert written["detectors"]["gnn"]["seconds_per_epoch"] > 0
    assert written["detectors"]["gnn"]["parameters"] > 1000
    assert written["config"]["seed"] == 0
    assert written["dataset"]["shards"] == str(store(SAMPLES).folder)
    assert written["dataset"]["splits"]["train"]["n"] == 240
    assert written["dataset"]["num_layers"] == 3


def test_results_come_back_from_the_file(done: tuple[Results, Path]) -> None:
    results, out = done
    assert load_results(out) == results
    assert list(load_results(out / "results.json").detectors) == [*ALL, *TEXT]


def test_planted_signal_is_found_by_whoever_sees_it(done: tuple[Results, Path]) -> None:
    found = {name: result.auroc for name, result in done[0].detectors.items()}
    assert found["lstm"] > 0.85
    assert found["gnn"] > 0.8
    assert found["probe_logistic"] > 0.8
    assert abs(found["length"] - 0.5) < 0.2


def test_differences_are_to_logprob_mean_and_to_the_best_on_validation(
    done: tuple[Results, Path],
) -> None:
    detectors = done[0].detectors
    best = max(detectors, key=lambda name: detectors[name].val_auroc)
    for name, result in detectors.items():
        for difference, other in (
            (result.difference_to_logprob_mean, "logprob_mean"),
            (result.difference_to_best, best),
        ):
            if name == other:
                assert difference is None
                continue
            assert difference is not None
            assert difference.to == other
            assert difference.difference == pytest.approx(result.auroc - detectors[other].auroc)
            assert difference.interval[0] <= difference.difference <= difference.interval[1]


def test_scores_give_the_reported_figures(done: tuple[Results, Path]) -> None:
    results, out = done
    with (out / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    combined = [f"text_control+{name}" for name in (*ALL, "question_control")]
    assert list(rows[0]) == ["question_id", "key", "label", *ALL, *TEXT, *combined]
    assert [row["question_id"] for row in rows] == [
        s.question_id for s in SAMPLES if s.split == "test"
    ]
    labels = [int(row["label"]) for row in rows]
    assert labels == [int(s.label) for s in SAMPLES if s.split == "test"]
    for name, result in results.detectors.items():
        scores = np.array([float(row[name]) for row in rows])
        assert roc_auc_score(labels, scores) == pytest.approx(result.auroc, abs=1e-9)
        assert np.mean((scores >= result.threshold) == labels) == pytest.approx(result.accuracy)


def test_checkpoints_score_as_the_run_did(done: tuple[Results, Path]) -> None:
    results, out = done
    with (out / "scores.csv").open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    for name in ALL:
        detector = load_detector(out / "checkpoints" / name)
        assert detector.threshold == results.detectors[name].threshold
        loader = store(SAMPLES).open(
            "test", **detector.needs.arguments(), layers=detector.layers, batch_size=7
        )
        for key, score in detector.scores(loader).items():
            assert score == pytest.approx(float(rows[key][name]), abs=1e-5)


def test_metrics_have_one_line_per_epoch(done: tuple[Results, Path]) -> None:
    lines = [json.loads(line) for line in (done[1] / "metrics.jsonl").read_text().splitlines()]
    assert [(line["detector"], line["epoch"]) for line in lines] == [
        (name, epoch) for name in ("lstm", "gnn") for epoch in range(3)
    ]
    assert {"loss", "val_auroc", "seconds", "samples_per_second"} <= set(lines[0])


def test_every_file_is_there_and_none_is_left_over(done: tuple[Results, Path]) -> None:
    out = done[1]
    expected = {
        "results.json",
        "report.md",
        "scores.csv",
        "metrics.jsonl",
        "roc.png",
        "curves.png",
        "reliability.png",
        "checkpoints",
    }
    assert {path.name for path in out.iterdir()} == expected
    assert {path.name for path in result_files(out)} == expected


def test_same_seed_gives_the_same_results(done: tuple[Results, Path], tmp_path: Path) -> None:
    # In another order and without some of the others: a detector's numbers are its own.
    again = run(SAMPLES, ("gnn", "lstm", "logprob_mean"), tmp_path)
    for name, result in again.detectors.items():
        first = done[0].detectors[name]
        others = ("seconds_per_epoch", "difference_to_best", "difference_to_control")
        neither = dict.fromkeys((*others, "adds_to_text", "verdict"))
        assert replace(result, **neither) == replace(first, **neither)


def test_sign_is_chosen_on_validation_not_on_test(tmp_path: Path) -> None:
    # Long answers are hallucinated in validation, short ones in test: the honest AUROC is 0.
    samples = []
    for sample in make_samples(100, signal=0.0, seed=2):
        long = (sample.label == 1) == (sample.split == "val")
        samples.append(
            replace(
                sample,
                prompt_length=1 if long else 3,
                hidden=sample.hidden[:, :4],
                maps=sample.maps[..., :4, :4],
                logprobs=None,
            )
        )
    results = run(samples, ("length",), tmp_path)
    assert results.detectors["length"].val_auroc == 1
    assert results.detectors["length"].auroc == 0


def test_what_is_not_available_is_recorded_by_name(tmp_path: Path) -> None:
    samples = [replace(s, logprobs=None, prompt_length=-1) for s in FEW]
    folder = store(samples, attention=("heads", "sketch")).folder
    results = train(folder, ALL, tmp_path, replace(QUICK, epochs=1))
    assert list(results.detectors) == ["probe_logistic", "lstm"]
    assert results.detectors["lstm"].difference_to_logprob_mean is None
    assert (results.dataset["num_layers"], results.dataset["num_features"]) == (3, 8)
    reasons = json.loads((tmp_path / "results.json").read_text())["not_available"]
    assert "prompt length" in reasons["length"]
    assert "log-probabilities" in reasons["logprob_mean"]
    assert "log-probabilities" in reasons["logprob_min"]
    assert "repack with --attention edges" in reasons["gnn"]
    assert all(reason.startswith("not available: ") for reason in reasons.values())
    assert "repack with --attention edges" in (tmp_path / "report.md").read_text()


CHARMS = ("charm", "charm_no_edges", "charm_shuffled_edges")


def test_graph_detectors_that_need_heads_say_so_where_none_are_kept(tmp_path: Path) -> None:
    folder = store(FEW, attention=("edges",)).folder
    results = train(folder, ("logprob_mean", *CHARMS), tmp_path, replace(QUICK, epochs=1))
    assert list(results.not_available) == list(CHARMS)
    for reason in results.not_available.values():
        assert reason == (
            "not available: not every sample has heads_weight.npy, repack with --attention heads"
            " from traces that have attention maps"
        )


def test_number_of_heads_comes_from_the_index(tmp_path: Path) -> None:
    samples = make_placed_samples(60, seed=3, num_heads=2)
    names = ("gnn", "gvae", *CHARMS)
    config = replace(QUICK, epochs=1)
    results = run(samples, names, tmp_path, config)
    assert list(results.detectors) == list(names)
    for name in names:
        detector = load_detector(tmp_path / "checkpoints" / name)
        assert detector.shape is not None
        assert detector.shape.num_heads == 2
    figures = [results.detectors[name].parameters for name in CHARMS]
    assert len(set(figures)) == 1


def test_what_the_loader_cannot_give_is_recorded_too(tmp_path: Path) -> None:
    samples = [replace(s, hidden=s.hidden[:, -1:]) for s in FEW]
    results = run(samples, ("logprob_mean", "gnn"), tmp_path)
    assert list(results.detectors) == ["logprob_mean"]
    assert re.match(r"not available: .*states of one token only", results.not_available["gnn"])


def test_nothing_available_is_an_error_and_recorded(tmp_path: Path) -> None:
    samples = [replace(s, logprobs=None) for s in FEW]
    with pytest.raises(DetectorError, match="none of the detectors could be run: logprob_mean"):
        run(samples, ("logprob_mean",), tmp_path)
    assert "logprob_mean" in json.loads((tmp_path / "results.json").read_text())["not_available"]


def test_unlabelled_samples_are_counted_and_scored_but_not_measured(tmp_path: Path) -> None:
    samples = list(FEW)
    places = [place for place, sample in enumerate(samples) if sample.split == "test"][:5]
    for place in places:
        samples[place] = replace(samples[place], label=math.nan)
    results = run(samples, ("logprob_mean", "lstm"), tmp_path, replace(QUICK, epochs=1))
    assert results.dataset["splits"]["test"]["n_unlabelled"] == 5
    assert results.detectors["lstm"].n_pos + results.detectors["lstm"].n_neg == 15
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    assert [row["label"] for row in rows].count("") == 5


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_split_with_one_class_is_refused_before_anything_is_written(
    split: str, tmp_path: Path
) -> None:
    samples = [replace(s, label=1.0) if s.split == split else s for s in FEW]
    with pytest.raises(
        DetectorError, match=rf"split {split} has \d+ hallucinated, 0 right.*--threshold"
    ):
        run(samples, ("length",), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_question_in_two_splits_is_refused() -> None:
    one, other = (Examples([key], ["q"], np.zeros(1)) for key in ("q-0", "q-1"))
    words = "question q is in the splits train and test: pack again"
    with pytest.raises(DetectorError, match=words):
        require_separate_questions({"train": one, "test": other})


def test_empty_split_is_refused(tmp_path: Path) -> None:
    samples = [s for s in FEW if s.split != "val"]
    with pytest.raises(DetectorError, match="split val has 0 hallucinated, 0 right"):
        run(samples, ("length",), tmp_path)


def test_names_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'oracle' is not one of"):
        run(SAMPLES, ("length", "oracle"), tmp_path / "out")
    with pytest.raises(ValueError, match="no detector"):
        run(SAMPLES, (), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_loader_is_asked_as_the_detectors_need(tmp_path: Path) -> None:
    class WithoutWorkers(Opened):
        """Records how many workers are asked for, and starts none."""

        def __call__(self, shards: Path, **arguments: Any) -> TraceLoader:
            self.calls.append(arguments)
            return TraceLoader(shards, **{**arguments, "num_workers": 0})

    opened = WithoutWorkers()
    config = replace(QUICK, epochs=1, layers=(0, 1, 2), num_workers=2, threads=1, seed=4)
    folder = store(FEW).folder
    train(folder, ("logprob_mean", "gnn"), tmp_path, config, open_loader=opened)
    graphs = [asked for asked in opened.calls if asked["layout"] == "graph"]
    assert {asked["tokens"] for asked in graphs} == {"all"}
    assert {asked["shuffle"] for asked in graphs if asked["split"] != "train"} == {0}
    assert 1000 in {asked["shuffle"] for asked in graphs if asked["split"] == "train"}
    for asked in opened.calls:
        assert asked["layers"] == [0, 1, 2]
        assert asked["seed"] == 4
        assert asked["threads"] == 1
        assert asked["device"] is None
        assert asked["num_workers"] == (2 if "hidden" in asked["fields"] else 0)


@pytest.mark.parametrize("device", ["foo", "meta", "cuda", "cuda:0", "cpu:7", ""])
def test_device_that_is_not_there_is_refused_before_reading(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    opened = Opened()
    words = rf"device is '{device}'; must be one of cpu \(torch finds no GPU\)"
    with pytest.raises(ValueError, match=words):
        train("x", ("length",), tmp_path, replace(QUICK, device=device), open_loader=opened)
    assert opened.calls == []


def test_device_beyond_the_last_gpu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"'cuda:2'; must be one of cpu, cuda, cuda:0, cuda:1$"):
        run(SAMPLES, ("length",), tmp_path, replace(QUICK, device="cuda:2"))


def test_a_run_removes_what_an_earlier_one_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plot in ("plot_roc", "plot_reliability", "plot_training"):
        monkeypatch.setattr(f"wdsbench.train.output.{plot}", lambda path, *_, **__: path.touch())
    run(FEW, ("length", "probe_logistic", "lstm"), tmp_path, replace(QUICK, epochs=1))
    assert (tmp_path / "curves.png").exists()
    others = [tmp_path / "notes.txt", tmp_path / "checkpoints" / "mine" / "detector.json"]
    others.append(tmp_path / "checkpoints" / "lstm" / "notes.txt")
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    seen: set[str] = set()

    class Watching(Opened):
        def __call__(self, shards: Path, **arguments: Any) -> TraceLoader:
            if arguments["fields"]:  # the first detector reads; the run has begun
                files = (path for path in tmp_path.rglob("*") if path.is_file())
                seen.update(str(path.relative_to(tmp_path)) for path in files)
            return super().__call__(shards, **arguments)

    train(store(FEW).folder, ("logprob_mean",), tmp_path, QUICK, open_loader=Watching())
    kept = {str(other.relative_to(tmp_path)) for other in others}
    card = "checkpoints/logprob_mean/detector.json"  # there when the test split is read
    assert seen == {*kept, "metrics.jsonl", card}
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    made = {"results.json", "report.md", "scores.csv", "roc.png"}
    assert left == seen | made


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"batch_size": -1},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"dropout": 1.0},
        {"confidence": 95.0},
        {"layers": ()},
        {"torch_threads": 0},
        {"seed": -1},
        {"seed": 2**63},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(change))} is .*must be"):
        replace(QUICK, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "{}", '{"detectors": {"lstm": {}}}', "[]"])
def test_other_files_are_no_results(content: str, tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match="no results at"):
        load_results(tmp_path / "results.json")
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(DetectorError, match=r"is not a results\.json"):
        load_results(tmp_path)
