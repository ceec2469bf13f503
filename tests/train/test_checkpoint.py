"""Checkpoints come back as they were saved, and damaged ones are refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from train.planted import FakeStore, make_samples

from wdsbench.detect.probe import LogisticProbe
from wdsbench.detect.registry import DETECTOR_NAMES, DetectorShape, detector_spec
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.checkpoint import CARD_NAME, load_detector, save_detector
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.loop import seeded

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
    """Return batches as the loader gives them to this detector."""
    samples = make_samples(40, signal=1, seed=0)
    needs = detector.spec.needs
    batches = [
        copied(batch)
        for batch in FakeStore(samples)(
            "x", split="test", **needs.arguments(), batch_size=4, shuffle=0, seed=0, layers=None
        )
    ]
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        if detector.spec.chooses_token:
            lengths = batch.token_count - batch.prompt_length
            batch.offsets = torch.tensor([0, *lengths.cumsum(0).tolist()])
            batch.hidden = torch.randn(1, int(lengths.sum()), 8, generator=generator)
        elif "sketch" in needs.fields:
            batch.sketch = [
                torch.rand(3, 1, int(tokens), 4, generator=generator)
                for tokens in batch.token_count
            ]
    return batches


def copied(batch: Batch) -> Batch:
    """Return ``batch`` out of the memory that the next one overwrites."""
    return replace(batch, hidden=None if batch.hidden is None else batch.hidden.clone())


@pytest.mark.parametrize("name", DETECTOR_NAMES)
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


def as_format_1(card: Path) -> None:
    """Rewrite a card as the first format had it."""
    content = json.loads(card.read_text())
    for name in ("temperature", "token", "traces"):
        del content[name]
    card.write_text(json.dumps({**content, "format": 1}))


@pytest.mark.parametrize("name", ["length", "lstm", "gvae"])
def test_format_1_is_read(name: str, tmp_path: Path) -> None:
    detector = fitted(name)
    as_format_1(save_detector(detector, tmp_path))
    loaded = load_detector(tmp_path)
    assert replace(loaded, module=None) == replace(
        detector, module=None, temperature=None, traces=None
    )
    batches = batches_for(detector)
    assert loaded.scores(batches) == detector.scores(batches)


def test_probe_of_format_1_reads_one_of_its_layers(tmp_path: Path) -> None:
    spec = detector_spec("probe_logistic")
    probe = LogisticProbe(8, num_layers=3)
    probe.scale.set_moments(torch.rand(3, 8), torch.rand(3, 8) + 0.5)
    probe.set_weights(1, torch.randn(8), 0.5)
    old = FittedDetector(spec, SHAPE, probe.eval(), (0, 4, 6), threshold=0.4)
    as_format_1(save_detector(old, tmp_path))
    loaded = load_detector(tmp_path)
    assert loaded.chosen == {"layer": 4, "token": "last_answer"}
    assert loaded.needs.tokens == "last_answer"
    samples = make_samples(40, signal=1, seed=0)
    loader = FakeStore(samples)(
        "x", split="test", **loaded.needs.arguments(), batch_size=4, shuffle=0, seed=0
    )
    expected = {
        sample.key: float(probe(torch.from_numpy(sample.hidden[:, -1])[None]).detach().sigmoid())
        for sample in samples
        if sample.split == "test"
    }
    assert loaded.scores(loader) == pytest.approx(expected, abs=1e-6)


def test_charm_of_format_1_had_no_gate(tmp_path: Path) -> None:
    detector = fitted("charm")
    assert detector.module is not None
    batches = batches_for(detector)
    scores = detector.scores(batches)
    with torch.no_grad():
        for name, weight in detector.module.named_parameters():
            if name.endswith(".gate"):
                weight.zero_()
    without = detector.scores(batches)
    assert without != scores
    card = save_detector(detector, tmp_path)
    as_format_1(card)
    content = json.loads(card.read_text())
    file = tmp_path / content["weights"]
    tensors = {name: t for name, t in load_file(file).items() if not name.endswith(".gate")}
    save_file(tensors, file)
    assert load_detector(tmp_path).scores(batches) == without


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


def test_card_without_heads_is_read_where_none_are_needed(tmp_path: Path) -> None:
    for name in ("gnn", "charm"):
        path = save_detector(fitted(name), tmp_path / name)
        card = json.loads(path.read_text())
        del card["shape"]["num_heads"]
        path.write_text(json.dumps(card))
    loaded = load_detector(tmp_path / "gnn")
    assert loaded.shape is not None
    assert loaded.shape.num_heads == 0
    with pytest.raises(DetectorError, match=r"detector\.json: shape: .*attention heads"):
        load_detector(tmp_path / "charm")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"detector": "oracle"}, "'oracle' is not one of"),
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
