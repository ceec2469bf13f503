"""Plots are complete PNG files and draw the right curves; their appearance is not tested."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray
from pictures import draw_coarsely
from sklearn.metrics import auc, roc_auc_score
from trials import FULL_ONLY, full_only

from wdsbench.train import plots
from wdsbench.train.plots import (
    COLOURS,
    ReliabilityCurve,
    RocCurve,
    plot_reliability,
    plot_roc,
    plot_training,
)

PNG = b"\x89PNG\r\n\x1a\n"
NAMES = [f"charm_shuffled_edges_{number}" for number in range(13)]
GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.random(200) < 0.5


@dataclass(frozen=True)
class FakeBins:
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    share: NDArray[np.float64]


def size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content.startswith(PNG)
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


def is_whole(path: Path) -> bool:
    """Return whether the picture's edge is white: nothing is cut off there."""
    pixels = imread(path)[:, :, :3]
    edges = (pixels[:6], pixels[-6:], pixels[:, :6], pixels[:, -6:])
    return all((edge == 1).all() for edge in edges)


def make_bins(counts: list[int]) -> FakeBins:
    count = np.array(counts)
    middle = (np.arange(len(counts)) + 0.5) / len(counts)
    return FakeBins(count, np.where(count > 0, middle, np.nan), np.where(count > 0, 0.4, np.nan))


def make_curve(name: str) -> ReliabilityCurve:
    return ReliabilityCurve(
        name, make_bins([9, 0, 3, 0, 1]), make_bins([2, 5, 5, 1, 0]), 0.3, 0.1, 2.5
    )


def make_records(names: list[str], epochs: int) -> list[dict[str, Any]]:
    return [
        {"detector": name, "epoch": epoch, "loss": 0.7 / (epoch + 1), "val_auroc": 0.5 + epoch / 99}
        for name in names
        for epoch in range(epochs)
    ]


@pytest.mark.parametrize(
    "count",
    [*(pytest.param(count, marks=FULL_ONLY) for count in (1, len(COLOURS) + 2)), 13],
)
def test_roc(count: int, tmp_path: Path) -> None:
    curves = [
        RocCurve(name, GENERATOR.normal(size=200) + LABELS, 0.8 - number / 50, (0.7, 0.9))
        for number, name in enumerate(NAMES[:count])
    ]
    path = plot_roc(tmp_path / "new" / "roc.png", LABELS, curves)
    assert path == tmp_path / "new" / "roc.png"
    assert min(size(path)) >= 600
    assert is_whole(path)
    assert [file.name for file in path.parent.iterdir()] == ["roc.png"]


def test_roc_of_no_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_coarsely(monkeypatch)
    assert is_whole(plot_roc(tmp_path / "roc.png", LABELS, []))


def test_curve_of_several_trainings_has_the_mean_of_their_areas() -> None:
    scores = np.stack([np.round(GENERATOR.normal(size=200) + s * LABELS, 1) for s in (0.3, 1, 2)])
    false_rate, true_rate = plots._roc(LABELS, scores)
    expected = np.mean([roc_auc_score(LABELS, row) for row in scores])
    assert auc(false_rate, true_rate) == pytest.approx(expected, abs=1e-3)
    assert (false_rate[0], true_rate[0], false_rate[-1], true_rate[-1]) == (0, 0, 1, 1)
    same = np.stack([scores[1], scores[1]])
    assert auc(*plots._roc(LABELS, same)) == pytest.approx(
        auc(*plots._roc(LABELS, scores[1])), abs=1e-3
    )


def test_thirteen_lines_look_like_thirteen() -> None:
    looks = [plots._look(place) for place in range(13)]
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == 13


@pytest.mark.parametrize("count", [1, *(pytest.param(n, marks=FULL_ONLY) for n in (5, 13))])
def test_reliability(count: int, tmp_path: Path) -> None:
    curves = [make_curve(name) for name in NAMES[:count]]
    path = plot_reliability(tmp_path / "r.png", curves)
    assert min(size(path)) >= 600
    assert is_whole(path)
    if count == 1:  # the same figures give the same file
        again = plot_reliability(tmp_path / "again.png", curves)
        assert again.read_bytes() == path.read_bytes()


def test_reliability_shows_every_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, _: figures.append(figure))
    plot_reliability(tmp_path / "r.png", [make_curve("lstm")])
    above, below = figures[0].axes
    assert "0.300" in above.get_title()
    assert "0.100" in above.get_title()
    assert "2.50" in above.get_title()
    # Bars hold empty bins too, points do not.
    after, before = (patch.get_data().values.tolist() for patch in below.patches)
    assert (before, after) == ([9, 0, 3, 0, 1], [2, 5, 5, 1, 0])
    assert [len(points.get_offsets()) for points in above.collections] == [3, 4]


def test_reliability_of_no_detector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="curves is empty"):
        plot_reliability(tmp_path / "r.png", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("count", "epochs"),
    [*(pytest.param(*sizes, marks=FULL_ONLY) for sizes in ((1, 1), (2, 3))), (13, 20)],
)
def test_training(count: int, epochs: int, tmp_path: Path) -> None:
    path = plot_training(tmp_path / "curves.png", make_records(NAMES[:count], epochs))
    assert min(size(path)) >= 600
    assert is_whole(path)


@pytest.mark.parametrize(("loss", "scale"), [(0.6, "linear"), (90.0, "log"), (0.0, "linear")])
def test_losses_far_apart_are_drawn_on_a_logarithmic_axis(
    loss: float, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, _: figures.append(figure))
    records = [*make_records(["lstm"], 3), *make_records(["gvae"], 1)]
    records[-1]["loss"] = loss
    plot_training(tmp_path / "curves.png", records)
    left, right = figures[0].axes
    assert left.get_yscale() == scale
    assert right.get_yscale() == "linear"


@full_only
def test_same_records_give_the_same_file(tmp_path: Path) -> None:
    records = make_records(["lstm"], 1)
    one = plot_training(tmp_path / "a.png", records).read_bytes()
    assert plot_training(tmp_path / "b.png", records).read_bytes() == one
