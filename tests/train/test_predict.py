"""Scores by checkpoint are those of the detector that was saved, on the data sets it fits."""

from __future__ import annotations

import csv
import json
import math
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import FEATURES, HEADS, LAYERS, Packed, make_dataset, write_pickle, write_scores
from train.probing import Opener
from trials import FULL, FULL_ONLY

from wdsbench import TraceLoader
from wdsbench.detect.registry import TRACE_DETECTORS, DetectorShape, detector_spec
from wdsbench.detect.scale import RunningMoments, Standardise
from wdsbench.errors import DetectorError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train import probe_states, solvers
from wdsbench.train.checkpoint import load_detector, save_detector
from wdsbench.train.config import PredictOptions, TrainConfig
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.metrics import sigmoid
from wdsbench.train.predict import COLUMNS, find_checkpoint, predict, write_predictions
from wdsbench.train.probe import fit_probe
from wdsbench.train.run import train
from wdsbench.train.scoring import seeded

pytestmark = pytest.mark.usefixtures("no_plots", "no_controls")

CONFIG = TrainConfig(epochs=1, batch_size=16, hidden=6, resamples=200, threads=1)
OPTIONS = PackOptions(attention=("edges", "heads", "sketch"), threads=1)
TRACES = 64  # of the data set that most tests read


@pytest.fixture(autouse=True)
def quick_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the descent of the MLP probe; its quality is tested in test_probe.py."""
    if not FULL:
        for name, value in (("TURN_STEPS", 2), ("MLP_TURNS", 2), ("SCREEN_TURNS", 1)):
            monkeypatch.setattr(solvers, name, value)
        monkeypatch.setattr(probe_states, "SHORTLIST", 1)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("packed")
    return make_dataset(folder, traces=TRACES, seed=10, options=OPTIONS)


def make_fitted(packed: Packed, name: str, layers: tuple[int, ...] | None) -> FittedDetector:
    """Return a detector that was not trained, with its data set and input scale set."""
    spec = detector_spec(name)
    if spec.kind == "probe":
        config = replace(CONFIG, layers=layers)
        opener = Opener(packed.folder)
        fitted = fit_probe(
            spec,
            lambda split, needs, asked=None: opener(split, needs, asked or layers),  # type: ignore[misc]
            config=config,
        )
        return replace(fitted, threshold=0.5, temperature=1.5)
    index = TraceLoader(packed.folder).index
    traces = StoredTraces.of(index)
    if spec.build is None:
        return FittedDetector(spec, layers=layers, sign=-1, threshold=-3.0, traces=traces)
    moments = RunningMoments()
    for batch in TraceLoader(packed.folder, layers=layers, threads=1):
        assert batch.hidden is not None
        moments.update(batch.hidden)
    mean, std = moments.finish()
    shape = DetectorShape(mean.shape[0], mean.shape[1], hidden=6, num_heads=HEADS)
    with seeded(0, name):
        module = spec.build(shape)
    scale = module.get_submodule("scale")
    assert isinstance(scale, Standardise)
    scale.set_moments(mean, std)
    return FittedDetector(spec, shape, module.eval(), layers, 1, 0.5, 0.7, traces=traces)


def own_scores(fitted: FittedDetector, packed: Packed, split: str = "test") -> dict[str, float]:
    with closing(
        TraceLoader(
            packed.folder,
            split=split,
            **fitted.needs.arguments(),
            layers=fitted.layers,
            batch_size=5,
            threads=1,
        )
    ) as loader:
        return fitted.scores(loader)


@pytest.mark.trials
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        *((name, None) for name in TRACE_DETECTORS),
        *(
            pytest.param(name, (0, 2), marks=() if name in ("length", "gnn") else FULL_ONLY)
            for name in TRACE_DETECTORS
        ),
    ],
)
def test_scores_are_those_of_the_detector(
    packed: Packed, name: str, layers: tuple[int, ...] | None, tmp_path: Path
) -> None:
    fitted = make_fitted(packed, name, layers)
    save_detector(fitted, tmp_path)
    found = predict(tmp_path, packed.folder, PredictOptions(device="cpu", batch_size=7, threads=1))
    expected = own_scores(fitted, packed)
    assert {sample.key for sample in found.samples} == set(expected)
    for sample in found.samples:
        assert sample.score == pytest.approx(expected[sample.key], abs=1e-6)
        assert sample.hallucinated == (sample.score >= fitted.threshold)  # type: ignore[operator]
        assert sample.split == "test"
        assert sample.trace == 0
        if fitted.module is None:
            assert sample.probability is None
        else:
            logit = math.log(sample.score / (1 - sample.score))
            assert fitted.temperature is not None
            cooled = float(sigmoid(logit / fitted.temperature))
            assert sample.probability == pytest.approx(cooled, abs=1e-6)


@pytest.mark.trials
def test_scores_are_those_of_the_run(packed: Packed, tmp_path: Path) -> None:
    # One of each kind in `make test`.
    names = TRACE_DETECTORS if FULL else ("length", "probe_logistic", "attention_logistic", "charm")
    results = train(packed.folder, names, tmp_path, CONFIG)
    assert results.not_available == {}
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    for name in names:
        found = predict(tmp_path / "checkpoints" / name, packed.folder, PredictOptions(threads=1))
        assert len(found.samples) == len(rows)
        for sample in found.samples:
            assert sample.score == pytest.approx(float(rows[sample.key][name]), abs=1e-5)
            assert str(sample.label) == rows[sample.key]["label"]
        assert found.summary()["auroc"] == pytest.approx(results.detectors[name].auroc)
        card = json.loads((tmp_path / "checkpoints" / name / "detector.json").read_text())
        assert card["traces"]["num_layers"] == LAYERS
    with pytest.raises(DetectorError, match=r"holds \d+ detectors: checkpoints/attention_logistic"):
        predict(tmp_path, packed.folder)


def test_samples_are_in_one_order_whatever_the_split(packed: Packed, tmp_path: Path) -> None:
    save_detector(make_fitted(packed, "length", None), tmp_path)
    every = predict(tmp_path, packed.folder, PredictOptions(split="all")).samples
    assert len(every) == TRACES
    assert [sample.question_id for sample in every] == sorted(packed.raws)
    parts = {
        split: predict(tmp_path, packed.folder, PredictOptions(split=split)).samples
        for split in ("train", "val", "test")
    }
    for split, samples in parts.items():
        assert samples == [sample for sample in every if sample.split == split]
    assert sum(len(samples) for samples in parts.values()) == TRACES
    for sample in every:
        assert sample.label == int(packed.scores[sample.question_id] < 0.5)


def test_file_has_a_line_per_sample(packed: Packed, tmp_path: Path) -> None:
    save_detector(make_fitted(packed, "lstm", None), tmp_path / "lstm")
    found = predict(tmp_path / "lstm", packed.folder)
    out = tmp_path / "new" / "scores.csv"
    write_predictions(found, out)
    assert [path.name for path in out.parent.iterdir()] == ["scores.csv"]
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(found.samples)
    for row, sample in zip(rows, found.samples, strict=True):
        assert (row["question_id"], row["key"]) == (sample.question_id, sample.key)
        assert float(row["score"]) == pytest.approx(sample.score, rel=1e-8)
        assert float(row["probability"]) == pytest.approx(sample.probability, rel=1e-8)
        assert row["hallucinated"] == str(int(bool(sample.hallucinated)))
        assert row["label"] == str(sample.label)
        assert (row["trace"], row["split"]) == ("0", "test")


def test_what_is_not_known_is_empty(packed: Packed, tmp_path: Path) -> None:
    fitted = replace(make_fitted(packed, "length", None), threshold=None)
    save_detector(fitted, tmp_path)
    found = predict(tmp_path, packed.folder)
    found = replace(found, samples=[replace(found.samples[0], label=None, trace=None)])
    write_predictions(found, tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert [row[name] for name in ("label", "trace", "probability", "hallucinated")] == [""] * 4
    summary = found.summary()
    assert (summary["hallucinated"], summary["auroc"], summary["n_unlabelled"]) == (None, None, 1)


def test_a_run_with_one_detector_is_a_checkpoint(packed: Packed, tmp_path: Path) -> None:
    save_detector(make_fitted(packed, "length", None), tmp_path / "checkpoints" / "length")
    for place in (
        tmp_path,
        tmp_path / "checkpoints",
        tmp_path / "checkpoints/length/detector.json",
    ):
        assert predict(place, packed.folder).detector.spec.name == "length"
    save_detector(
        make_fitted(packed, "logprob_min", None), tmp_path / "checkpoints" / "logprob_min"
    )
    for place in (tmp_path, tmp_path / "checkpoints"):
        with pytest.raises(DetectorError, match=r"2 detectors: .*length, .*logprob_min; name one"):
            find_checkpoint(place)
    with pytest.raises(DetectorError, match="no checkpoint at"):
        predict(packed.folder, packed.folder)


def test_words_are_checked_first(packed: Packed, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split 'dev' is not one of train, val, test, all"):
        predict(tmp_path, packed.folder, PredictOptions(split="dev"))
    save_detector(make_fitted(packed, "length", None), tmp_path)
    with pytest.raises(ValueError, match="device is 'tpu'"):
        predict(tmp_path, packed.folder, PredictOptions(device="tpu"))


@dataclass(frozen=True)
class Other:
    """Another data set, and the errors of detectors that do not fit it."""

    arguments: dict[str, Any]
    refused: dict[str, str]
    taken: tuple[str, ...] = ()


READING_STATES = ("probe_logistic", "lstm", "gnn", "charm")
OTHERS = {
    "layers": Other(
        {"layers": LAYERS + 1},
        dict.fromkeys(
            (*READING_STATES, "attention_logistic"),
            f"layers are {LAYERS + 1}, the detector was trained on {LAYERS}",
        ),
        ("length", "logprob_mean"),
    ),
    "features": Other(
        {"features": FEATURES + 2},
        dict.fromkeys(
            READING_STATES, f"features are {FEATURES + 2}, the detector was trained on {FEATURES}"
        ),
        ("length", "attention_logistic"),
    ),
    "reduction": Other(
        {"options": replace(OPTIONS, reduce=f"pca:{FEATURES}")},
        dict.fromkeys(
            READING_STATES,
            f"states are reduced by pca:{FEATURES}, the detector was trained on nothing",
        ),
        ("attention_logistic",),
    ),
    "edges": Other(
        {"options": replace(OPTIONS, edge_rule="threshold:0.1")},
        {"gnn": r"edges are threshold:0\.1, the detector was trained on top:0\.35"},
        ("lstm", "charm"),
    ),
    "heads": Other(
        {"options": replace(OPTIONS, head_threshold=0.1)},
        {"charm": r"heads' edges are from 0\.1, the detector was trained on 0\.05"},
        ("gnn", "attention_logistic"),
    ),
    "none kept": Other(
        {"options": PackOptions(attention=(), threads=1)},
        {
            "attention_logistic": "not every sample has sketch.npy, repack with --attention sketch",
            "charm": "not every sample has heads_weight.npy, repack with --attention heads",
            "gnn": "not every sample has edges_weight.npy, repack with --attention edges",
        },
        ("lstm", "probe_logistic"),
    ),
}


@pytest.fixture(scope="module")
def checkpoints(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("length", "logprob_mean", "attention_logistic", *READING_STATES):
        save_detector(make_fitted(packed, name, None), folder / name)
    return folder


@pytest.mark.parametrize("what", OTHERS)
def test_another_kind_of_data_set_is_refused(what: str, checkpoints: Path, tmp_path: Path) -> None:
    other = OTHERS[what]
    arguments = {"options": OPTIONS, "traces": 16, **other.arguments}
    shards = make_dataset(tmp_path, seed=6, **arguments).folder
    for name, words in other.refused.items():
        with pytest.raises(DetectorError, match=words):
            predict(checkpoints / name, shards)
    for name in other.taken:
        assert predict(checkpoints / name, shards).samples


def test_two_reductions_of_one_name_are_two(tmp_path: Path) -> None:
    options = replace(OPTIONS, reduce="pca:3")
    one, other = (
        make_dataset(tmp_path / str(seed), seed=seed, traces=30, options=options) for seed in (1, 2)
    )
    fitted = make_fitted(one, "lstm", None)
    save_detector(fitted, tmp_path / "lstm")
    (file,) = one.folder.glob("reduction-*")
    loaded = load_detector(tmp_path / "lstm")
    assert loaded.traces is not None
    assert (loaded.traces.reduce, f"reduction-{loaded.traces.reduction}") == ("pca:3", file.stem)
    assert predict(tmp_path / "lstm", one.folder).samples
    with pytest.raises(DetectorError, match=r"lstm does not fit the data set: the reduction is"):
        predict(tmp_path / "lstm", other.folder)


def pack_changed(folder: Path, packed: Packed, **changes: Any) -> Path:
    """Pack the traces of a data set again, with keys changed; return the new one's folder.

    A change is a value, or a function of the raw trace.
    """
    raws = [
        {**raw, **{key: new(raw) if callable(new) else new for key, new in changes.items()}}
        for raw in packed.raws.values()
    ]
    write_pickle(folder / "t.pkl", raws)
    scores = write_scores(folder / "s.csv", packed.scores)
    pack([str(folder / "t.pkl")], folder / "shards", scores=scores, options=OPTIONS)
    return folder / "shards"


def test_other_layers_of_the_model_are_other_inputs(packed: Packed, tmp_path: Path) -> None:
    """The same numbers of layers and features, but another model or reduction."""
    one = pack_changed(tmp_path / "one", packed, layers=[0, 4, 31])
    other = pack_changed(tmp_path / "other", packed, layers=[0, 5, 31])
    for name in ("length", "lstm", "gnn", "probe_logistic", "attention_logistic"):
        save_detector(make_fitted(replace(packed, folder=one), name, None), tmp_path / name)
        assert predict(tmp_path / name, one).samples
        if name == "length":  # of no layer
            assert predict(tmp_path / name, other).samples
            continue
        assert load_detector(tmp_path / name).traces == StoredTraces.of(DatasetIndex.open(one))
        trained = "the detector was trained on 0, 4, 31"
        for shards, there in ((other, "0, 5, 31"), (packed.folder, "all")):
            with pytest.raises(DetectorError, match=f"the model's layers are {there}, {trained}"):
                predict(tmp_path / name, shards)


def test_states_of_answers_alone_are_scored_the_same(packed: Packed, tmp_path: Path) -> None:
    """By what reads the answer; what needs the prompt's states says so."""
    cut = pack_changed(
        tmp_path,
        packed,
        hidden_states=lambda raw: [s[raw["prompt_length"] :] for s in raw["hidden_states"]],
        states_of=lambda _: "answer",
    )
    for name in ("length", "lstm", "attention_logistic"):
        save_detector(make_fitted(packed, name, None), tmp_path / name)
        whole, alone = (predict(tmp_path / name, shards) for shards in (packed.folder, cut))
        assert [s.score for s in whole.samples] == [s.score for s in alone.samples]
    for name, layout in (("gnn", "graph"), ("charm", "union-graph")):
        save_detector(make_fitted(packed, name, None), tmp_path / name)
        with pytest.raises(DetectorError, match=f"layout='{layout}' is not available: .* extract"):
            predict(tmp_path / name, cut)


def test_without_an_index_shapes_are_compared(packed: Packed, tmp_path: Path) -> None:
    # A checkpoint of format 1 knows its shape alone.
    fitted = replace(make_fitted(packed, "lstm", None), traces=None)
    save_detector(fitted, tmp_path / "lstm")
    assert predict(tmp_path / "lstm", packed.folder).samples
    other = make_dataset(tmp_path, traces=16, layers=LAYERS + 1)
    with pytest.raises(DetectorError, match="layers are 4, the detector was trained on 3"):
        predict(tmp_path / "lstm", other.folder)


def test_an_empty_split_is_said(tmp_path: Path) -> None:
    few = make_dataset(tmp_path, traces=2, seed=3)
    save_detector(make_fitted(few, "length", None), tmp_path / "length")
    counts = TraceLoader(few.folder, split=None).index.counts
    empty = next(split for split, count in counts.items() if count == 0)
    with pytest.raises(DetectorError, match=f"has no sample in split {empty}"):
        predict(tmp_path / "length", few.folder, PredictOptions(split=empty))
    assert len(predict(tmp_path / "length", few.folder, PredictOptions(split="all")).samples) == 2


def test_random_state_is_left_alone(packed: Packed, tmp_path: Path) -> None:
    save_detector(make_fitted(packed, "gvae", None), tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = predict(tmp_path, packed.folder).samples
    assert first == predict(tmp_path, packed.folder).samples
    assert torch.rand(1) == expected
    assert np.isfinite([sample.score for sample in first]).all()
