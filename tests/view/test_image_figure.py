"""``view`` of a data set of images."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli.runner import run
from images import Patches, make_patches

from wdsbench import jobs
from wdsbench.detect.registry import DetectorShape, detector_spec
from wdsbench.train.checkpoint import save_detector
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.view import image_figure
from wdsbench.view.image_figure import ShownPatches


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return make_patches(tmp_path_factory.mktemp("data"), samples=12)


@pytest.fixture
def pca() -> FittedDetector:
    """Return a detector of channels 2 and 0 whose reconstructions are 0."""
    shape = DetectorShape(2, 16, hidden=3)
    spec = detector_spec("pca")
    assert spec.build is not None
    stored = StoredTraces(3, 16)
    module = spec.build(shape).eval()
    return FittedDetector(spec, shape, module, layers=(2, 0), threshold=0.3, traces=stored)


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image_figure, "DOTS_PER_INCH", 30)


def test_what_is_drawn(
    patches: Patches, pca: FittedDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[ShownPatches] = []

    def draw(path: Path, shown: ShownPatches) -> Path:
        drawn.append(shown)
        return path

    monkeypatch.setattr(image_figure, "draw_patches", draw)
    save_detector(pca, Path("pca"))
    job = jobs.ViewJob(path=str(patches.folder), trace=3, scores=Path("pca"))
    report = jobs.view(job)
    keys = report.trace.split(" to ")
    assert report.description.startswith("8 patches of scene-")
    assert report.panels == ["patches", "reconstructions", "errors"]
    (shown,) = drawn
    pixels = patches.pixels(keys[0], [2, 0])
    np.testing.assert_allclose(shown.patches[0], pixels)
    assert shown.reconstructions is not None
    assert shown.errors is not None
    assert not shown.reconstructions.any()
    np.testing.assert_allclose(shown.errors[0], (pixels**2).mean(axis=0), rtol=1e-6)
    assert (len(shown.names), shown.threshold) == (8, 0.3)
    assert shown.names[0] == report.description.removeprefix("8 patches of ").split(",")[0] + " 0"
    one = jobs.view(replace(job, trace=None, sample=keys[1], scores=None))
    assert (one.trace, one.panels) == (keys[1], ["patches"])
    np.testing.assert_allclose(drawn[1].patches, patches.pixels(keys[1])[None])
    assert len(jobs.view(replace(job, trace=10)).trace.split(" to ")) == 2


def test_picture_and_page(
    patches: Patches, pca: FittedDetector, capsys: pytest.CaptureFixture[str]
) -> None:
    save_detector(pca, Path("pca"))
    assert run("view", patches.folder, "--scores", "pca", "--trace", "10", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    picture = Path(report["out"]).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    words = ("--scores", "pca", "--trace", "10", "--out", "page.html")
    assert run("view", patches.folder, *words) == 0
    page = Path("page.html").read_text()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(data) == picture
    assert run("view", patches.folder, "--sample", report["trace"].split(" to ")[0]) == 0


def test_refusals(
    patches: Patches, pca: FittedDetector, capsys: pytest.CaptureFixture[str]
) -> None:
    save_detector(FittedDetector(detector_spec("length")), Path("length"))
    save_detector(replace(pca, traces=StoredTraces(4, 16)), Path("four"))
    for words, expected in (
        (("--layers", "0"), "--layers is for traces"),
        (("--norms",), "--norms is for traces"),
        (("--trace", "12"), "--trace 12: "),
        (("--sample", "none"), "--sample none: not among the 12"),
        (("--scores", "length"), "length scores traces; pass a detector of images"),
        (("--scores", "four"), "channels are 3, the detector was trained on 4"),
    ):
        assert run("view", patches.folder, *words) == 1
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1
    assert not [*Path().glob("view-*")]
