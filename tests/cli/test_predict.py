"""``wdsbench predict``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from builders import Packed, make_dataset
from cli.runner import run
from image_files import random_pixels, write_tiff

from wdsbench import TraceLoader
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.train.checkpoint import save_detector
from wdsbench.train.fitted import FittedDetector, StoredImages, StoredTraces


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), traces=90)


@pytest.fixture
def checkpoint(packed: Packed, tmp_path: Path) -> Path:
    traces = StoredTraces.of(TraceLoader(packed.folder).index)
    fitted = FittedDetector(detector_spec("length"), sign=-1, threshold=-3.0, traces=traces)
    save_detector(fitted, tmp_path / "length")
    return tmp_path / "length"


def test_scores_are_written_and_summarised(
    packed: Packed, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.csv"
    words = ("predict", str(checkpoint), str(packed.folder), "--out", str(out))
    assert run(*words, "--split", "all") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("length: 90 traces, ")
    assert "; AUROC 0." in printed
    assert "including those it may have been trained on" in printed
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["question_id"] for row in rows] == sorted(packed.raws)
    for row in rows:
        raw = packed.raws[row["question_id"]]
        answer = len(raw["tokens"]) - raw["prompt_length"]
        assert float(row["score"]) == -answer
        assert row["hallucinated"] == str(int(answer <= 3))
    assert run(*words, "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["samples"] == report["n_pos"] + report["n_neg"] < 90
    assert (report["detector"], report["split"], report["out"]) == ("length", "test", str(out))


def test_errors_are_one_line(
    packed: Packed, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        ((str(tmp_path / "none"), str(packed.folder)), "no checkpoint at"),
        ((str(checkpoint), str(tmp_path / "none")), "no data set here"),
        ((str(checkpoint), str(packed.folder), "--split", "dev"), "'dev' is not one of"),
    ):
        assert run("predict", *words, "--out", str(tmp_path / "scores.csv")) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert expected in error
    assert not (tmp_path / "scores.csv").exists()


def test_image_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiff(tmp_path / "in" / "a.tif", random_pixels(20, 30))
    write_tiff(tmp_path / "in" / "b.tif", random_pixels(20, 30, channels=1))
    shape = DetectorShape(3, 16, hidden=4)
    spec = detector_spec("pca")
    assert spec.build is not None
    traces = StoredTraces(3, 16, images=StoredImages("uint8", "image"))
    save_detector(
        FittedDetector(spec, shape, spec.build(shape), threshold=0.1, traces=traces),
        tmp_path / "pca",
    )
    out = tmp_path / "out"
    words = ("predict", str(tmp_path / "pca"), str(tmp_path / "in" / "a.tif"), "--out", str(out))
    assert run(*words, "--join", "max", "--stride", "5", "--device", "cpu") == 0
    assert capsys.readouterr().out == f"pca: 1 images, 1 above the threshold -> {out}\n"
    folder = (*words[:2], str(tmp_path / "in"), *words[3:])
    assert run(*folder) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"file {tmp_path}/in/b.tif: has 1 channels, the detector was trained on 3" in error
    assert run(*folder, "--on-error", "record") == 0
    assert "note: 1 images were left out; see failures.jsonl" in capsys.readouterr().out
    assert run(*folder, "--on-error", "record", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["images"], report["left_out"], report["out"]) == (1, 1, str(out))
    for others, expected in (
        (folder[:3], "--out is missing; give the folder"),
        ((*words[:2], str(tmp_path / "none.tif"), "--out", str(out)), "no image in"),
        ((*words[:3], str(tmp_path / "in"), "--stride", "17", *words[3:]), "--stride is 17"),
        ((*words[:2], str(tmp_path), str(tmp_path / "pca"), *words[3:]), "2 sources ("),
    ):
        assert run(*others) == 1
        assert expected in capsys.readouterr().err
