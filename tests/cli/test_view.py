"""``wdsbench view``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders import FEATURES, LAYERS, Packed, make_dataset, make_raw, write_pickle
from cli.runner import run
from pictures import draw_coarsely

from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.pack import PackOptions
from wdsbench.train.checkpoint import save_detector
from wdsbench.train.fitted import FittedDetector

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A data set as packed by default: without whole maps."""
    return make_dataset(tmp_path_factory.mktemp("data"), traces=12)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    options = PackOptions(attention=("full",))
    return make_dataset(tmp_path_factory.mktemp("full"), traces=12, options=options)


@pytest.fixture
def lstm(tmp_path: Path) -> Path:
    shape = DetectorShape(LAYERS, FEATURES, hidden=8)
    spec = detector_spec("lstm")
    assert spec.build is not None
    torch.manual_seed(0)
    fitted = FittedDetector(spec, shape=shape, module=spec.build(shape).eval(), threshold=0.5)
    save_detector(fitted, tmp_path / "lstm")
    return tmp_path / "lstm"


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a temporary folder, where unnamed pictures are written."""
    monkeypatch.chdir(tmp_path)
    draw_coarsely(monkeypatch)


def test_default_is_a_picture_named_after_the_trace(
    full: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("view", str(full.folder), "--question", "q/3.é") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("question q/3.é: ")
    assert "note" not in captured.err
    (picture,) = tmp_path.glob("*.png")
    assert picture.name.startswith("view-q_3__-")
    assert picture.read_bytes().startswith(PNG)


def test_raw_file(full: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = str(full.folder.parent / "traces_data" / "batch_0002.pkl")
    words = ("--trace", "2", "--layers", "0,-1", "--heatmap", "--json")
    assert run("view", raw, *words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["out"] == "view-batch_0002-2.png"
    assert (report["layers"], report["panels"]) == ([0, LAYERS - 1], ["heatmap"])
    assert report["trace"] == "question q/8.é"
    assert (tmp_path / report["out"]).stat().st_size == report["bytes"]


def test_layers_are_numbered_as_in_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {**make_raw("q", seed=0), "layers": [0, 15, 31]}
    path = str(write_pickle(tmp_path / "a.pkl", [raw]))
    for text, layers in (("31,0", [31, 0]), ("15", [15]), ("-1,31,-3", [31, 0])):
        assert run("view", path, "--layers", text, "--out", "a.html", "--json") == 0
        assert json.loads(capsys.readouterr().out)["layers"] == layers
    assert run("view", path, "--out", "a.html", "--json") == 0
    assert json.loads(capsys.readouterr().out)["layers"] == [0, 15, 31]
    for text in ("1", "-4", "32"):
        assert run("view", path, "--layers", text) == 1
        assert (
            f"--layers: {text} is not a layer; the trace has 0, 15, 31 (-1"
            in capsys.readouterr().err
        )


def test_missing_maps_are_noted_with_the_option_that_keeps_them(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("view", str(packed.folder), "--heatmap", "--out", "a.html") == 0
    assert "repack with --attention full" in capsys.readouterr().err
    assert run("view", str(packed.folder), "--head", "0", "--out", "b.png") == 1
    error = capsys.readouterr().err
    assert "single heads are not stored; repack with --attention heads" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "b.png").exists()


def test_nothing_to_draw_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = make_dataset(tmp_path / "bare", traces=12, options=PackOptions(attention=()))
    assert run("view", str(bare.folder), "--heatmap") == 1
    assert "repack with --attention full" in capsys.readouterr().err
    assert run("view", str(bare.folder), "--graph") == 1
    assert "repack with --attention edges" in capsys.readouterr().err
    assert list(tmp_path.glob("*.png")) == []
    assert run("view", str(bare.folder)) == 0  # norms can be drawn
    assert "repack with --attention full" in capsys.readouterr().err


def test_page_with_scores(full: Packed, lstm: Path, tmp_path: Path) -> None:
    words = ("--scores", str(lstm), "--out", "page.html")
    assert run("view", str(full.folder), *words) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"detector":"lstm"' in text
    assert "plotly.js v" in text


def test_detectors_without_token_scores_are_refused(
    full: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_detector(FittedDetector(detector_spec("length")), tmp_path / "length")
    assert run("view", str(full.folder), "--scores", str(tmp_path / "length")) == 1
    assert "length scores whole traces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--layers", "9"), "--layers: 9 is not a layer; the trace has 0 to 2"),
        (("--layers", "x"), "--layers 'x' is not a comma list of integers"),
        (("--layers", ""), "--layers is empty; the trace has 0 to 2"),
        (("--head", "7"), "the trace has heads 0 to 1"),
        (("--out", "a.pdf"), "--out is a.pdf; the name must end in .png"),
        (("--trace", "0", "--question", "q"), "give one of them"),
        (("--trace", "99"), "holds 12 traces, 0 to 11"),
    ],
)
def test_wrong_options(
    full: Packed,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    expected: str,
) -> None:
    assert run("view", str(full.folder), *words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert expected in error
    assert list(tmp_path.glob("*.png")) == []


def test_too_many_layers_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = make_dataset(tmp_path / "deep", traces=4, layers=10)
    every = ",".join(map(str, range(10)))
    assert run("view", str(deep.folder), "--layers", every) == 1
    assert "10 layers; at most 8 fit side by side" in capsys.readouterr().err
    # A repeated layer is drawn once.
    assert run("view", str(deep.folder), "--layers", "1,1,-9", "--norms", "--json") == 0
    assert json.loads(capsys.readouterr().out)["layers"] == [1]


def test_no_such_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("view", str(tmp_path)) == 1
    assert "no data set here" in capsys.readouterr().err
    assert run("view", str(tmp_path / "none.pkl")) == 1
    assert "cannot be read" in capsys.readouterr().err
