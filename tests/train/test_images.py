"""Detectors on images: complete runs with and without labels, cancelled ones, predictions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import Patches, make_patches, make_scenes
from pictures import draw_coarsely
from rich.console import Console
from scripts import run_ranks
from train.planted import make_samples, store
from trials import full_only

from wdsbench import TraceLoader, jobs
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.errors import DetectorError, StoppedError
from wdsbench.train.checkpoint import load_detector, save_detector
from wdsbench.train.config import PredictOptions, TrainConfig, TrainOptions
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.predict import Predictions, predict
from wdsbench.train.report import print_results
from wdsbench.train.results import Results, load_results
from wdsbench.train.run import train
from wdsbench.train.search import search
from wdsbench.train.seeds import train_seeds
from wdsbench.train.state import load_state

BOTH = ("autoencoder", "pca")
QUICK = TrainConfig.for_images(
    epochs=4,
    batch_size=16,
    hidden=12,
    depth=2,
    learning_rate=4e-3,
    percentile=90.0,
    resamples=50,
    threads=1,
    device="cpu",
)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return make_scenes(tmp_path_factory.mktemp("scenes"), channels=2)


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return make_scenes(tmp_path_factory.mktemp("unlabelled"), channels=2, labels=False)


@pytest.fixture(scope="module")
def done(scenes: Patches, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """Return a run with labels, without figures."""
    out = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for plot in ("plot_roc", "plot_errors", "plot_training"):
            patch.setattr(f"wdsbench.train.output.{plot}", lambda *_, **__: None)
        return train(scenes.folder, BOTH, out, QUICK), out


def predicted(folder: Path, out: Path, name: str, split: str) -> Predictions:
    options = PredictOptions(split=split, device="cpu", threads=1, batch_size=7)
    return predict(out / "checkpoints" / name, folder, options)


def normal_errors(folder: Path, out: Path, name: str) -> list[float]:
    """Return the errors of the validation samples without label 1."""
    return [s.score for s in predicted(folder, out, name, "val").samples if s.label != 1]


@pytest.mark.parametrize("name", BOTH)
def test_planted_anomalies_are_found(
    done: tuple[Results, Path], scenes: Patches, name: str
) -> None:
    results, out = done
    result = results.detectors[name]
    assert result.auroc is not None
    assert result.auroc > 0.95
    assert result.auroc_interval is not None
    assert (result.sign, result.temperature, result.ece) == (1, None, None)
    assert (result.n_pos, result.n_unlabelled) == (results.dataset["splits"]["test"]["n_pos"], 0)
    errors = normal_errors(scenes.folder, out, name)
    assert result.threshold == pytest.approx(np.percentile(errors, 90), rel=1e-5)
    assert result.errors is not None
    assert result.errors.validation_mean == pytest.approx(np.mean(errors), rel=1e-5)
    if result.epochs is not None:
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        best = min(lines, key=lambda line: line["val_error"])
        assert best["epoch"] == result.best_epoch
        assert best["val_error"] == pytest.approx(np.mean(errors), rel=1e-5)
        assert lines[0]["val_auroc"] is None
    with (out / "scores.csv").open(newline="") as file:
        scores = np.array([float(row[name]) for row in csv.DictReader(file)])
    assert result.errors.above_threshold == np.mean(scores > result.threshold)
    assert result.errors.quantiles["75"] == np.percentile(scores, 75)
    assert load_results(out) == results


def test_predictions_are_those_of_the_run(done: tuple[Results, Path], scenes: Patches) -> None:
    _, out = done
    with (out / "scores.csv").open(newline="") as file:
        expected = {row["key"]: float(row["pca"]) for row in csv.DictReader(file)}
    job = jobs.PredictJob(
        checkpoint=out / "checkpoints" / "pca", sources=(str(scenes.folder),), out=out / "s.csv"
    )
    found = jobs.predict(job)
    fitted = found.detector
    assert {s.key: s.score for s in found.samples} == pytest.approx(expected, rel=1e-4)
    assert all(s.hallucinated == (s.score > fitted.threshold) for s in found.samples)  # type: ignore[operator]
    with (out / "s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["key"]: row["above_threshold"] for row in rows} == {
        s.key: str(int(bool(s.hallucinated))) for s in found.samples
    }
    (batch,) = TraceLoader(
        scenes.folder, "test", **fitted.needs.arguments(), batch_size=500, threads=1
    )
    assert batch.image is not None
    maps = fitted.error_map(batch.image)
    assert maps.shape == (len(expected), 16, 16)
    means = dict(zip(batch.keys, maps.mean((1, 2)).tolist(), strict=True))
    assert means == pytest.approx(expected, rel=1e-4)


def test_label_1_is_left_out_of_fitting(done: tuple[Results, Path], scenes: Patches) -> None:
    results, out = done
    fitted = load_detector(out / "checkpoints" / "pca")
    assert fitted.module is not None
    batches = TraceLoader(scenes.folder, "train", **fitted.needs.arguments(), threads=1)
    normal = np.concatenate(
        [b.image.numpy()[b.label.numpy() == 0] for b in batches if b.image is not None]
    )
    assert len(normal) == results.dataset["splits"]["train"]["n_neg"]
    mean = fitted.module.get_parameter("mean").numpy()
    np.testing.assert_allclose(mean, normal.reshape(len(normal), -1).mean(0), atol=1e-6)
    assert fitted.shape is not None
    sizes = (fitted.shape.num_layers, fitted.shape.num_features, fitted.shape.hidden)
    assert sizes == (2, 16, 12)
    assert load_detector(out / "checkpoints" / "autoencoder").shape == fitted.shape


def test_nothing_fails_without_labels(
    unlabelled: Patches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_coarsely(monkeypatch)
    results = train(unlabelled.folder, BOTH, tmp_path, replace(QUICK, epochs=2))
    assert_unlabelled(results, tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"curves.png", "errors.png"}
    loaded = predicted(unlabelled.folder, tmp_path, "pca", "val")
    errors = [sample.score for sample in loaded.samples]
    assert loaded.detector.threshold == pytest.approx(np.percentile(errors, 90), rel=1e-5)
    assert loaded.summary()["auroc"] is None


def assert_unlabelled(results: Results, out: Path) -> None:
    assert results.best is None
    assert load_results(out) == results
    assert list(results.detectors) == list(BOTH)
    for result in results.detectors.values():
        assert result.auroc is result.val_auroc is result.f1 is result.difference_to_best is None
        assert result.errors is not None
        assert 0 < result.errors.above_threshold < 1
    text = (out / "report.md").read_text()
    assert "no AUROC" in text
    assert "## Percentiles of test errors" in text
    assert "| val | 0 | 0 | 29 |" in text
    wide, narrow = (shown(results, width) for width in (200, 60))
    for name, result in results.detectors.items():
        assert f"{result.threshold:.4g}" in wide
        assert name in narrow


def shown(results: Results, width: int) -> str:
    """Return what is printed on a terminal of a width."""
    console = Console(width=width, file=io.StringIO())
    print_results(results, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.usefixtures("no_plots")
def test_means_over_seeds_without_labels(unlabelled: Patches, tmp_path: Path) -> None:
    results = train_seeds(unlabelled.folder, BOTH, tmp_path, replace(QUICK, epochs=1), 2)
    assert_unlabelled(results, tmp_path)
    seeds = [load_results(tmp_path / f"seed-000{n}").detectors["autoencoder"] for n in (0, 1)]
    spread = [seed.errors.validation_mean for seed in seeds if seed.errors is not None]
    result = results.detectors["autoencoder"]
    assert result.errors is not None
    assert result.errors.validation_mean == pytest.approx(np.mean(spread))
    assert spread[0] != spread[1]


def after(batches: int) -> Callable[[], bool]:
    """Return a callback that asks to stop before batch ``batches``, from 0."""
    left = [batches]

    def cancel() -> bool:
        left[0] -= 1
        assert left[0] >= -1, "it goes on after it was cancelled"
        return left[0] < 0

    return cancel


def content(out: Path) -> dict[str, bytes]:
    """Return the scores and the files of the checkpoints."""
    paths = [out / "scores.csv", *(out / "checkpoints").rglob("*.*")]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


@pytest.mark.usefixtures("no_plots")
def test_cancelled_anywhere_and_resumed_it_is_the_same(
    done: tuple[Results, Path], scenes: Patches, tmp_path: Path
) -> None:
    def run(**options: Any) -> None:
        train(scenes.folder, BOTH, tmp_path, QUICK, **options)

    # Of 10 batches per epoch and 2 of validation, beside those that read the labels (13).
    steps = []
    for batches in (13 + 4, 13 + 10, 13 + 7, 13 + 25):
        with pytest.raises(StoppedError, match=r"cancelled .*--resume"):
            run(resume=True, cancel=after(batches))
        state = load_state(tmp_path / "state" / "autoencoder")
        assert state is not None
        steps.append(state.progress.step)
    assert state.progress.batches == 10  # in validation
    assert steps == sorted(set(steps))
    run(resume=True)
    assert content(tmp_path) == content(done[1])


def test_a_closed_form_is_cancelled_too(scenes: Patches, tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="cancelled; --resume continues"):
        train(scenes.folder, ("pca",), tmp_path, QUICK, cancel=after(20))
    assert not (tmp_path / "results.json").exists()


@pytest.mark.usefixtures("no_plots")
def test_runs_with_several_seeds_are_cancelled_too(scenes: Patches, tmp_path: Path) -> None:
    first = tmp_path / "seed-0000" / "results.json"
    options = replace(QUICK, epochs=1)
    job = jobs.TrainJob(
        shards=scenes.folder,
        out=tmp_path,
        seeds=3,
        **{each.name: getattr(options, each.name) for each in fields(TrainConfig)},
    )
    with pytest.raises(StoppedError, match="cancelled"):
        jobs.train(job, cancel=first.exists)
    assert list(load_results(first.parent).detectors) == ["autoencoder"]
    assert not (tmp_path / "seed-0001" / "results.json").exists()


def test_the_default_detectors_and_settings_are_those_of_the_data() -> None:
    assert TrainOptions().names(images=True) == ("autoencoder",)
    assert TrainOptions().names(images=False) == ("lstm",)
    options = TrainOptions(detectors=("all",), depth=1)
    assert options.names(images=True) == BOTH
    assert options.names(images=False)[0] == "length"
    assert options.config(images=True) == TrainConfig.for_images(depth=1)
    assert options.config(images=False) == TrainConfig(depth=1)
    assert TrainConfig.for_images().hidden == 128
    with pytest.raises(ValueError, match="depth is 0"):
        TrainOptions(depth=0)
    with pytest.raises(ValueError, match=r"percentile is 101.* 0 \.\. 100"):
        TrainOptions(percentile=101)
    with pytest.raises(ValueError, match="autoencoder cannot be searched"):
        search("x", "autoencoder", Path("x"), TrainConfig(), 1)


@pytest.mark.usefixtures("no_plots")
def test_detectors_of_traces_are_not_available(scenes: Patches, tmp_path: Path) -> None:
    job = jobs.TrainJob(
        shards=scenes.folder,
        detectors=("pca", "length", "lstm", "autoencoder"),
        out=tmp_path,
        depth=5,
        device="cpu",
    )
    results = jobs.train(job)
    assert list(results.detectors) == ["pca"]
    for name in ("length", "lstm"):
        assert results.not_available[name] == (
            "not available: it scores traces; pack raw traces; this data set holds images"
        )
    assert "not a multiple of 32" in results.not_available["autoencoder"]
    assert "--depth 4" in results.not_available["autoencoder"]


def test_checkpoints_are_refused_for_other_data(done: tuple[Results, Path], tmp_path: Path) -> None:
    _, out = done
    for sizes, words in (
        ({"channels": 3}, "channels are 3, the detector was trained on 2; score images"),
        ({"pixels": 8}, "pixels of a side are 8, the detector was trained on 16"),
    ):
        other = make_scenes(tmp_path / str(sizes), samples=30, **{"channels": 2, **sizes})
        with pytest.raises(DetectorError, match=words):
            predicted(other.folder, out, "autoencoder", "train")


def test_traces_and_images_are_not_mixed(
    done: tuple[Results, Path], scenes: Patches, tmp_path: Path
) -> None:
    traces = store(make_samples(40, signal=1.0, seed=1)).folder
    with pytest.raises(DetectorError, match=r"not every sample has image\.npy, pack images with"):
        predicted(traces, done[1], "pca", "test")
    shape, spec = DetectorShape(2, 16, hidden=4), detector_spec("lstm")
    assert spec.build is not None
    save_detector(FittedDetector(spec, shape, spec.build(shape)), tmp_path)
    with pytest.raises(DetectorError, match="it scores traces; pack raw traces"):
        predict(tmp_path, scenes.folder, PredictOptions(device="cpu", threads=1))


def test_channels_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdsbench.train.output.plot_errors", lambda *_, **__: None)
    made = make_scenes(tmp_path / "data", samples=60, channels=3, labels=False)
    train(made.folder, ("pca",), tmp_path / "out", replace(QUICK, layers=(0, 2)))
    found = predicted(made.folder, tmp_path / "out", "pca", "test")
    assert found.detector.shape is not None
    assert found.detector.shape.num_layers == 2
    other = make_scenes(tmp_path / "other", samples=60, channels=2, labels=False)
    with pytest.raises(DetectorError, match="channels are 2, the detector was trained on 3"):
        predicted(other.folder, tmp_path / "out", "pca", "test")


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    made = make_scenes(tmp_path / "data", samples=1)
    with pytest.raises(DetectorError, match=r"is empty \(images: train \d.*: pack more images"):
        train(made.folder, ("pca",), tmp_path / "out", QUICK)


def test_a_split_of_anomalies_only_is_refused(tmp_path: Path) -> None:
    made = make_scenes(tmp_path / "data", samples=40, anomalies=1.0)
    with pytest.raises(DetectorError, match=r"split train has \d+ samples of label 1 and no other"):
        train(made.folder, ("pca",), tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_plots")
def test_constant_patches(tmp_path: Path) -> None:
    def draw(_rng: object, _number: int, shape: tuple[int, ...]) -> tuple[np.ndarray, float]:
        return np.full(shape, 7, np.uint8), np.nan

    made = make_patches(tmp_path / "data", samples=60, channels=1, draw=draw)
    results = train(made.folder, BOTH, tmp_path / "out", replace(QUICK, epochs=1))
    for name in BOTH:
        errors = results.detectors[name].errors
        assert errors is not None
        assert errors.above_threshold == 0  # all are equal
    assert results.detectors["pca"].threshold == 0


RANKS = """
import sys
from pathlib import Path
from train.test_images import BOTH, QUICK
from wdsbench.train.run import train

train(sys.argv[1], BOTH, Path(sys.argv[2]), QUICK)
"""


@full_only
def test_two_ranks_train_as_one(
    done: tuple[Results, Path], scenes: Patches, tmp_path: Path
) -> None:
    run_ranks(RANKS, scenes.folder, tmp_path)
    found = load_results(tmp_path)
    one, two = done[0].detectors["pca"], found.detectors["pca"]
    assert two.threshold == pytest.approx(one.threshold, rel=1e-3)
    assert two.auroc == one.auroc
    assert found.detectors["autoencoder"].auroc > 0.9  # type: ignore[operator]
