"""A loaded checkpoint equals the saved detector; damaged files are refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train.planted import make_samples, store

from wdsbench.detect.registry import TRACE_DETECTORS, DetectorShape, detector_spec
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.checkpoint import CARD_NAME, load_detector, save_detector
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.scoring import seeded

SHAPE = DetectorShape(num_layers=3, num_features=8, hidden=6, num_heads=1)
TRACES = StoredTraces(3, 8, 1, "pca:8", "0123456789abcdef", "top:0.35", 0.05)


def fitted(name: str) -> FittedDetector:
    spec = detector_spec(name)
    if spec.build is None:
        return FittedDetector(spec, sign=-1, threshold=-2.5, traces=TRACES)
    shape = replace(SHAPE, num_layers=1) if spec.chooses_token else SHAPE
    with seeded(0, name):
        module = spec.build(shape)
        with torch.no_grad():
            for buffer in module.buffers():
                if buffer.is_floating_point() and buffer.dim() == 2:
                    buffer.copy_(torch.rand_like(buffer) + 0.5)
    detector = FittedDetector(
        spec, shape, module.eval(), (0, 1, 2), threshold=0.4, temperature=1.25, traces=TRACES
    )
    if spec.chooses_token:
        return replace(detector, layers=(2,), token="mean_answer")
    return detector


def batches_for(detector: FittedDetector) -> list[Batch]:
    """Return the test batches of a data set, as this detector reads them."""
    loader = store(make_samples(40, signal=1, seed=0)).open(
        "test", **detector.needs.arguments(), layers=detector.layers, batch_size=4
    )
    return list(loader)


@pytest.mark.parametrize("name", TRACE_DETECTORS)
def test_scores_are_the_same_after_a_round_trip(name: str, tmp_path: Path) -> None:
    detector = fitted(name)
    card = save_detector(detector, tmp_path / name)
    loaded = load_detector(tmp_path / name)
    assert load_detector(card).threshold == detector.threshold
    assert replace(loaded, module=None) == replace(detector, module=None)
    assert (loaded.needs, loaded.chosen) == (detector.needs, detector.chosen)
    batches = batches_for(detector)
    scores = detector.scores(batches)
    assert len(scores) == 8
    assert loaded.scores(batches) == scores


def test_temperature_divides_logits(tmp_path: Path) -> None:
    save_detector(fitted("lstm"), tmp_path)
    loaded = load_detector(tmp_path)
    assert loaded.probabilities([2.5, 0.0]).tolist() == pytest.approx([1 / (1 + math.exp(-2)), 0.5])
    assert replace(loaded, temperature=None).probabilities([0.0]).tolist() == [0.5]


def test_saving_again_leaves_one_pair_of_files(tmp_path: Path) -> None:
    save_detector(fitted("lstm"), tmp_path)
    detector = fitted("lstm")
    assert detector.module is not None
    with torch.no_grad():
        next(detector.module.parameters()).zero_()
    save_detector(detector, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == CARD_NAME
    assert len(names) == 2
    loaded = load_detector(tmp_path).module
    assert loaded is not None
    assert not next(loaded.parameters()).any()


def test_same_detector_gives_same_bytes(tmp_path: Path) -> None:
    for place in ("a", "b"):
        save_detector(fitted("gnn"), tmp_path / place)
    files = [{f.name: f.read_bytes() for f in (tmp_path / p).iterdir()} for p in ("a", "b")]
    assert files[0] == files[1]


def test_card_is_readable(tmp_path: Path) -> None:
    card = json.loads(save_detector(fitted("gnn"), tmp_path).read_text())
    assert card["detector"] == "gnn"
    assert card["threshold"] == 0.4
    assert card["shape"]["num_features"] == 8
    assert (card["format"], card["temperature"], card["token"]) == (2, 1.25, "last_answer")
    assert card["traces"] == {
        "num_layers": 3,
        "num_features": 8,
        "num_heads": 1,
        "reduce": "pca:8",
        "reduction": "0123456789abcdef",
        "edge_rule": "top:0.35",
        "head_threshold": 0.05,
    }


def test_card_with_too_few_heads_is_refused(tmp_path: Path) -> None:
    path = save_detector(fitted("charm"), tmp_path)
    card = json.loads(path.read_text())
    card["shape"]["num_heads"] = 0
    path.write_text(json.dumps(card))
    with pytest.raises(DetectorError, match=r"detector\.json: shape: .*attention heads"):
        load_detector(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"detector": "oracle"}, "'oracle' is not one of"),
        ({"format": 1}, "format"),
        ({"format": 3}, "format"),
        ({"temperature": 0.0}, "temperature"),
        ({"token": "some"}, "token"),
        ({"traces": {"num_layers": 3}}, "traces.num_features"),
        ({"weights": "../../elsewhere.safetensors"}, "weights"),
        ({"weights": "weights-0123456789abcdef.safetensors"}, "cannot be used as weights"),
        ({"weights": None}, "needs a shape and weights"),
        ({"shape": {"num_layers": 3}}, "shape.num_features"),
        ({"extra": 1}, "extra"),
        (
            {
                "shape": {
                    "num_layers": 4,
                    "num_features": 8,
                    "hidden": 6,
                    "depth": 2,
                    "dropout": 0.3,
                    "num_heads": 1,
                }
            },
            "size mismatch",
        ),
    ],
)
def test_damaged_card_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    path = save_detector(fitted("lstm"), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DetectorError, match=words) as caught:
        load_detector(tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DetectorError, match="no checkpoint"):
        load_detector(tmp_path)
    path = save_detector(fitted("lstm"), tmp_path)
    weights = next(tmp_path.glob("weights-*"))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(DetectorError, match="cannot be used"):
        load_detector(tmp_path)
    path.write_text("{")
    with pytest.raises(DetectorError, match="Invalid JSON"):
        load_detector(tmp_path)
