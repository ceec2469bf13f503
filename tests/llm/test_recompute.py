"""Stored traces are run again: valid ones agree, and every kind of fault is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import write_scores
from llm.tiny import LAYERS, MODELS, extract, make_model, make_questions, make_tokenizer
from trials import FULL_ONLY, trials

import wdsbench
from wdsbench.errors import ModelError, ShardError
from wdsbench.llm.model import load_model
from wdsbench.llm.options import ModelOptions
from wdsbench.llm.questions import read_questions
from wdsbench.llm.recompute import _UNIT_ROUNDOFF, RecomputeReport, recompute
from wdsbench.llm.stored import StoredTrace, pick_from_dataset, pick_from_raw
from wdsbench.pack import PackOptions, pack
from wdsbench.records import EdgeLists
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.plain import index_tars
from wdsbench.traces.files import open_raw
from wdsbench.traces.unpickle import load_pickle
from wdsbench.traces.write import write_traces

KINDS = ("full", "edges", "heads")
TRACES = 12
DEMO = Path(wdsbench.__file__).parent / "demo"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 traces of the Llama, batched and padded, in three files; and a data set of them."""
    out = tmp_path_factory.mktemp("traces")
    model, questions = make_model(), make_questions(TRACES)
    options: dict[str, Any] = {"batch_size": 6, "max_new_tokens": 6, "traces_per_file": TRACES // 3}
    extract(model, tokenizer, questions, out / "raw", attention=KINDS, **options)
    scores = write_scores(out / "scores.csv", {q.question_id: 0.4 for q in questions})
    pack(
        [str(out / "raw" / "*.pkl.gz")],
        out / "shards",
        scores=scores,
        options=PackOptions(attention=KINDS, threads=1),
    )
    return out


def kinds(report: RecomputeReport) -> set[str]:
    return {found.kind for found in report.deviations}


def wrong_kinds(report: RecomputeReport) -> set[str]:
    return {found.kind for found in report.deviations if not found.ratio <= 1}


@pytest.mark.parametrize("source", ["raw", "shards"])
def test_sound_traces_agree(folder: Path, tokenizer: Any, source: str) -> None:
    traces = (
        pick_from_raw([folder / "raw"], TRACES)
        if source == "raw"
        else pick_from_dataset(DatasetIndex.open(folder / "shards"), TRACES)
    )
    report = recompute(traces, make_model(), tokenizer)
    assert report.sound
    assert report.traces == len(traces)
    # A data set keeps the edges of the maps, a raw file both.
    assert kinds(report) == {"states", "logprobs", "attention", "edges", "heads"}
    assert {f.layer for f in report.deviations if f.kind == "states"} == set(range(LAYERS))
    assert max(found.ratio for found in report.deviations) < 0.75
    assert max(f.deviation for f in report.deviations if f.kind == "attention") < 2**-11
    assert json.loads(json.dumps(report.as_json()))["sound"] is True


@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    model = MODELS[kind]()
    extract(
        model,
        tokenizer,
        make_questions(5),
        tmp_path,
        batch_size=4,
        max_new_tokens=4,
        attention=KINDS,
    )
    traces = pick_from_raw([tmp_path], 5)
    report = recompute(traces, model, tokenizer)
    assert report.sound, report.deviations
    other = MODELS[kind](seed=1)
    assert len(recompute(traces, other, tokenizer).wrong) == len(traces)


@pytest.mark.trials
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=FULL_ONLY)])
def test_half_precision(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of half precision in a trained model are within the bound."""
    model, tokenizer = load_model(DEMO / "model", ModelOptions(dtype=dtype))
    count = trials(4, 16)
    questions = read_questions(DEMO / "questions.jsonl.gz", count)
    extract(model, tokenizer, questions, tmp_path, batch_size=4, max_new_tokens=8, attention=KINDS)
    traces = pick_from_raw([tmp_path], count)
    assert recompute(traces, model, tokenizer).sound
    exact, _ = load_model(DEMO / "model")
    # In float32's own bound, it is a deviation.
    assert not recompute(traces, exact, tokenizer).sound
    monkeypatch.setitem(_UNIT_ROUNDOFF, torch.float32, _UNIT_ROUNDOFF[model.dtype])
    report = recompute(traces, exact, tokenizer)
    assert report.sound
    assert 0.2 < max(found.ratio for found in report.deviations) < 0.8
    # The bound is narrow enough to tell a layer from its neighbour.
    shifted = [replace(t, hidden=None if t.hidden is None else t.hidden[::-1]) for t in traces]
    assert len(recompute(shifted, model, tokenizer).wrong) == len(traces)


def raws(folder: Path) -> list[dict[str, Any]]:
    with open_raw(folder / "raw" / "batch_0001.pkl.gz") as stream:
        found: Any = load_pickle(stream)
    return [dict(raw) for raw in found]


def _layer_off_by_one(raw: dict[str, Any]) -> None:
    states = raw["hidden_states"]
    raw["hidden_states"] = [states[0], *states[:-1]]


def _token(raw: dict[str, Any]) -> None:
    raw["tokens"] = [*raw["tokens"][:-1], (raw["tokens"][-1] + 1) % 12]


def _noise(raw: dict[str, Any]) -> None:
    states = raw["hidden_states"][1].copy()
    states[1] = states[1] * np.float16(1.01)
    raw["hidden_states"] = [raw["hidden_states"][0], states, raw["hidden_states"][2]]


def _logprob(raw: dict[str, Any]) -> None:
    raw["token_logprobs"] = raw["token_logprobs"] - np.float32(0.001)


def _head(raw: dict[str, Any]) -> None:
    raw["attentions"] = [layer[::-1].copy() for layer in raw["attentions"]]


def _reduced(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(raw: dict[str, Any]) -> None:
        reduced = dict(raw["reduced_attention"])
        reduced[name] = change(reduced[name].copy())
        raw["reduced_attention"] = reduced

    return apply


def _lighter(weights: Any) -> Any:
    return (weights * np.float16(0.98)).astype(np.float16)


def _without_last_edge(raw: dict[str, Any]) -> None:
    """Remove the heaviest edge of a token."""
    reduced = dict(raw["reduced_attention"])
    start, end = (int(reduced["edges_ptr"][place]) for place in (0, 1))
    place = start + int(reduced["edges_weight"][start:end].argmax())
    target = reduced["edges_index"][1, place]
    # A token with one edge left over knows no limit; give the token's place to a lighter edge.
    taken = reduced["edges_index"][0, start:end][reduced["edges_index"][1, start:end] == target]
    free = [source for source in range(int(target)) if source not in taken]
    if not free:
        reduced["edges_weight"] = _lighter(reduced["edges_weight"])
    else:
        reduced["edges_weight"] = reduced["edges_weight"].copy()
        reduced["edges_weight"][place] = 0
    raw["reduced_attention"] = reduced


FAULTS: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("a layer off by one", _layer_off_by_one, "states"),
    ("another token", _token, "states"),
    ("one percent of one state", _noise, "states"),
    ("log-probabilities", _logprob, "logprobs"),
    ("heads in another order", _head, "attention"),
    ("weights of edges", _reduced("edges_weight", _lighter), "edges"),
    ("weights of heads", _reduced("heads_weight", _lighter), "heads"),
    ("an edge that does not weigh what it should", _without_last_edge, "edges"),
]


@pytest.mark.parametrize("what", FAULTS, ids=[row[0] for row in FAULTS])
def test_faults_are_found(folder: Path, tokenizer: Any, tmp_path: Path, what: Any) -> None:
    _, change, kind = what
    changed = raws(folder)
    changed = [raw for raw in changed if len(raw["tokens"]) > 6]
    for raw in changed:
        change(raw)
    write_traces(tmp_path / "a.pkl.gz", changed)
    report = recompute(pick_from_raw([tmp_path], len(changed)), make_model(), tokenizer)
    assert len(report.wrong) == len(changed)
    assert kind in wrong_kinds(report)
    if kind not in ("states",):
        assert wrong_kinds(report) == {kind}


def test_a_missing_edge_is_found(folder: Path, tokenizer: Any) -> None:
    """The list of a threshold holds all edges above it."""
    traces = pick_from_raw([folder / "raw"], 8)
    trace = max(traces, key=lambda trace: len(trace.tokens))
    assert trace.heads is not None
    pointer = trace.heads.pointer.copy()
    heaviest = int(trace.heads.weight[: pointer[1]].argmax())
    keep = np.arange(trace.heads.weight.size) != heaviest
    pointer[1:] -= 1
    lists = EdgeLists(trace.heads.index[:, keep], trace.heads.weight[keep], pointer)
    report = recompute([replace(trace, heads=lists)], make_model(), tokenizer)
    assert wrong_kinds(report) == {"heads"}


@pytest.mark.trials
@pytest.mark.parametrize("tokens", ["answer", "last"])
def test_chosen_tokens_and_layers(tokenizer: Any, tmp_path: Path, tokens: str) -> None:
    """Traces name their layers, in raw files, shards and shards without an index."""
    count = trials(4, 8)
    model, questions = make_model(), make_questions(count)
    chosen: dict[str, Any] = {"tokens": tokens, "layers": [0, 2], "max_new_tokens": trials(4, 8)}
    extract(model, tokenizer, questions, tmp_path / "raw", attention=KINDS, **chosen)
    shards = tmp_path / "shards"
    options = PackOptions(attention=KINDS, threads=1, missing_score="keep")
    pack([str(tmp_path / "raw" / "*.pkl.gz")], shards, options=options)
    for traces in (
        pick_from_raw([tmp_path / "raw"], count),
        pick_from_dataset(DatasetIndex.open(shards), count),
        pick_from_dataset(index_tars(sorted(shards.glob("*.tar"))), count),
    ):
        for trace in traces:
            assert trace.layers == (0, 2)
            assert trace.hidden is not None
            assert trace.prompt_length is not None
            kept = 1 if tokens == "last" else len(trace.tokens) - trace.prompt_length
            assert trace.hidden.shape[:2] == (2, kept)
        for layers in (None, [0, 2]):
            report = recompute(traces, model, tokenizer, layers=layers)
            assert report.sound
            assert report.traces == len(traces) == count
            assert kinds(report) == {"states", "logprobs", "attention", "edges", "heads"}
            states = [found for found in report.deviations if found.kind == "states"]
            assert {found.layer for found in states} == {0, 2}
            answers = {trace.question_id: trace.prompt_length for trace in traces}
            assert all(found.token >= answers[found.question_id] for found in states)
        with pytest.raises(
            ValueError, match=r"holds layers 0, 2, not layers 0, 1 as in --layers; omit"
        ):
            recompute(traces, model, tokenizer, layers=[0, 1])
        # The state of a neighbour, or of another layer, is not taken for it.
        shifted = [replace(t, hidden=np.roll(t.hidden, 1, axis=0)) for t in traces]  # type: ignore[arg-type]
        assert len(recompute(shifted, model, tokenizer).wrong) == count
        if tokens == "answer":
            long = [t for t in traces if t.hidden is not None and t.hidden.shape[1] > 1]
            shifted = [replace(t, hidden=np.roll(t.hidden, 1, axis=1)) for t in long]  # type: ignore[arg-type]
            assert len(recompute(shifted, model, tokenizer).wrong) == len(long) > count // 2
        # Traces of another extractor may not name their layers; the caller does.
        unnamed = [replace(trace, layers=None) for trace in traces]
        assert recompute(unnamed, model, tokenizer, layers=[0, 2]).sound
        assert not recompute(unnamed, model, tokenizer, layers=[0, 1]).sound
        with pytest.raises(ModelError, match="2 layers of 16 features, the model has 3"):
            recompute(unnamed, model, tokenizer)


def test_layers_that_the_model_does_not_have(tokenizer: Any, tmp_path: Path) -> None:
    extract(make_model(), tokenizer, make_questions(2), tmp_path, layers=[1])
    traces = [replace(trace, layers=(7,)) for trace in pick_from_raw([tmp_path], 2)]
    with pytest.raises(ModelError, match=r"layer 7 is asked for, but the model returns 3 layers"):
        recompute(traces, make_model(), tokenizer)


def test_reduced_states_and_imports_are_reported(
    folder: Path, tokenizer: Any, tmp_path: Path
) -> None:
    pack(
        [str(folder / "raw" / "*.pkl.gz")],
        tmp_path / "shards",
        scores=folder / "scores.csv",
        options=PackOptions(attention=("edges",), reduce="pca:4", threads=1),
    )
    traces = pick_from_dataset(DatasetIndex.open(tmp_path / "shards"), 3)
    report = recompute(traces, make_model(), tokenizer)
    assert report.sound
    assert kinds(report) == {"logprobs", "edges"}
    assert "reduced to components" in report.notes[0]
    empty = StoredTrace(
        "a", "q", [], None, np.zeros((3, 1, 16)), None, None, None, None, None, None
    )
    report = recompute([empty], make_model(), tokenizer)
    assert "without token ids" in report.notes[0]
    assert not report.deviations
    assert not report.sound  # nothing was compared
    assert report.traces == 0


def test_picks_are_seeded_and_spread(folder: Path) -> None:
    index = DatasetIndex.open(folder / "shards")
    first, again, other = (
        [trace.place for trace in pick_from_dataset(index, 6, seed)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first)) == 6
    assert len(pick_from_dataset(index, 99)) == TRACES
    raw = [folder / "raw"]
    first, again, other = ([t.place for t in pick_from_raw(raw, 6, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert len({place.split(",")[0] for place in first}) == 3  # each file has its share
    assert len(set(first)) == 6


def test_another_models_tokens(folder: Path, tokenizer: Any) -> None:
    (trace, *_) = pick_from_raw([folder / "raw"], 1)
    with pytest.raises(ModelError, match="token 999, the model has 16"):
        recompute([replace(trace, tokens=[1, 999])], make_model(), tokenizer)
    with pytest.raises(ModelError, match="60 tokens, the model has 48 positions"):
        recompute([replace(trace, tokens=[1] * 60)], make_model(), tokenizer)


def test_a_cut_shard_is_named(folder: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(folder / "shards", tmp_path / "cut"))
    for shard in out.glob("*.tar"):
        with shard.open("r+b") as file:
            file.truncate(3000)
    with pytest.raises(ShardError, match="wdsbench verify"):
        pick_from_dataset(DatasetIndex.open(out), TRACES)
