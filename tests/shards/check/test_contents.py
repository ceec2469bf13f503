"""What a right hash does not prove: members that are no trace, tables that disagree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import Packed, make_dataset
from shards.damage import Sample, load, npy, rewritten, spot

from wdsbench.pack import PackOptions
from wdsbench.shards.check.verify import verify_dataset
from wdsbench.shards.format.names import make_key
from wdsbench.shards.read.index import DatasetIndex


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Return a smaller data set, since every test writes one."""
    options = PackOptions(attention=("edges", "heads", "sketch", "full"), threads=1)
    return make_dataset(tmp_path_factory.mktemp("data"), traces=10, shard_mb=0.05, options=options)


# Wrong values in a member or the table, with hashes that are right: (what, change of a sample,
# kind, member, place in the member's data, words).
def _states(change: Callable[[Any], Any]) -> Callable[[Sample], None]:
    def apply(sample: Sample) -> None:
        states = load(sample.members["hidden.npy"])
        sample.members["hidden.npy"] = npy(change(states))

    return apply


def _nan(states: Any) -> Any:
    states[1, 2, 3] = np.nan
    return states


def _infinity(states: Any) -> Any:
    states[2, 0, 0] = -np.inf
    return states


def _array(member: str, place: Any, value: Any) -> Callable[[Sample], None]:
    def apply(sample: Sample) -> None:
        array = load(sample.members[member])
        array[place] = value
        sample.members[member] = npy(array)

    return apply


def _meta(**values: Any) -> Callable[[Sample], None]:
    def apply(sample: Sample) -> None:
        meta = json.loads(sample.members["meta.json"])
        sample.members["meta.json"] = json.dumps({**meta, **values}).encode()

    return apply


def _without(member: str) -> Callable[[Sample], None]:
    return lambda sample: sample.members.pop(member) and None


def _put(member: str, data: bytes) -> Callable[[Sample], None]:
    return lambda sample: sample.members.update({member: data})


def _row(**values: Any) -> Callable[[Sample], None]:
    return lambda sample: sample.change(**values)


def _after_nan(sample: Sample) -> int:
    states = load(sample.members["hidden.npy"])
    return int(128 + 2 * np.ravel_multi_index((1, 2, 3), states.shape))


CONTENTS: list[tuple[str, Callable[[Sample], None], str, str | None, Any, str]] = [
    ("NaN", _states(_nan), "value", "hidden.npy", _after_nan, "NaN in layer 1, token 2, feature 3"),
    ("an infinity", _states(_infinity), "value", None, None, "layer 2: 1 infinities, the index"),
    ("wide states", _states(lambda s: s * 100), "value", None, None, "reaches"),
    ("dtype", _states(lambda s: s.astype("<f4")), "npy", "hidden.npy", 0, "expected .* of <f2"),
    ("layers", _states(lambda s: s[:2]), "npy", "hidden.npy", 0, r"expected \(3, "),
    ("tokens", _states(lambda s: s[:, 1:]), "npy", "hidden.npy", 0, "expected"),
    ("Fortran", _states(np.asfortranarray), "npy", "hidden.npy", 44, "Fortran"),
    ("no npy", _put("hidden.npy", b"x" * 300), "npy", "hidden.npy", 0, "magic"),
    ("an unknown dtype", _states(lambda s: s.astype(">f2")), "npy", "hidden.npy", 20, "descr"),
    ("a scale", _put("hidden_scale.npy", npy(np.array([1, 3, 1], "f4"))), "value",
     "hidden_scale.npy", 132, "power of two"),
    ("scales", _put("hidden_scale.npy", npy(np.array([2, 1], "f4"))), "npy",
     "hidden_scale.npy", 0, "expected"),
    ("a pointer", _array("edges_ptr.npy", 1, 10**6), "value", "edges_ptr.npy", 136, "never fall"),
    ("first pointer", _array("heads_ptr.npy", 0, 1), "value", "heads_ptr.npy", 128, "start at 0"),
    ("an edge backwards", _array("edges_index.npy", (0, 1), 200), "value", "edges_index.npy", 129,
     "smaller to a larger"),
    ("an edge out of range", _array("heads_index.npy", (1, 0), 255), "value", "heads_index.npy",
     128, "smaller to a larger index below"),
    ("edge weights", _array("edges_weight.npy", 2, np.inf), "value", "edges_weight.npy", 132,
     "is inf"),
    ("a head's weight", _array("heads_weight.npy", 0, np.nan), "value", "heads_weight.npy", 128,
     "is nan"),
    ("edges without weights", _without("edges_weight.npy"), "member", "edges_index.npy", None,
     "stored without edges_weight.npy"),
    ("edge order", lambda s: _swap_edges(s), "value", "edges_index.npy", None, "ordered"),
    ("a sketch", _array("sketch.npy", (0, 0, 0, 3), np.nan), "value", "sketch.npy", 134, "entropy"),
    ("an infinite lookback", _array("sketch.npy", (0, 0, 0, 2), np.inf), "value", "sketch.npy", 132,
     "lookback"),
    ("sketch shape", _put("sketch.npy", npy(np.zeros((3, 2, 1, 4), "f2"))), "npy", "sketch.npy", 0,
     "expected"),
    ("a map", _array("attention.npy", (0, 1, 0), np.nan), "value", "attention.npy", None, "finite"),
    ("meta.json", _put("meta.json", b'{"question_id": '), "meta", "meta.json", 16, "not JSON"),
    ("meta of a list", _put("meta.json", b"[]"), "meta", "meta.json", 0, "expected an object"),
    ("meta's question", _meta(question_id="other"), "meta", "meta.json", 0, "'other', the table"),
    ("meta's tokens", _meta(tokens=[1]), "meta", "meta.json", 0, "tokens: 1, the table"),
    ("meta's texts", _meta(token_texts=["a"]), "meta", "meta.json", 0, "token_texts: 1, exp"),
    ("meta's prompt", _meta(prompt_length=None), "meta", "meta.json", 0, "prompt_length is None"),
    ("meta's logprobs", _meta(token_logprobs=[]), "meta", "meta.json", 0, "logprobs: 0"),
    ("a logprob", lambda s: _positive_logprob(s), "meta", "meta.json", 0, "not the logarithm"),
    ("meta's trace", _meta(trace=7), "meta", "meta.json", 0, "trace is 7"),
    ("no states", _without("hidden.npy"), "member", "hidden.npy", None, "every sample has one"),
    ("a label", _row(label=0.5), "table", "", None, "label 0.5 is not 0, 1"),
    ("a wrong label", lambda s: s.change(label=1 - s.row.label), "table", "", None, "threshold"),
    ("a score", _row(score=np.inf, label=0.0), "table", "", None, "score inf"),
    ("a prompt", _row(prompt_length=99), "table", "", None, "prompt of 99 tokens"),
    ("states of some tokens", lambda s: _cut_states(s, 1), "table", "", None,
     r"states of \d+ tokens of \d+ \(prompt \d+\)"),
    ("a key", _row(key="k-0123456789abcdef"), "table", "", None, "question and trace give"),
    ("a dotted key", _row(key="a.b"), "table", "", None, "question and trace give"),
]  # fmt: skip


def _positive_logprob(sample: Sample) -> None:
    logprobs = json.loads(sample.members["meta.json"])["token_logprobs"]
    _meta(token_logprobs=[0.5, *logprobs[1:]])(sample)


def _cut_states(sample: Sample, first: int) -> None:
    """Leave the first states out, in the member and in the table."""
    _states(lambda states: states[:, first:].copy())(sample)
    sample.change(state_tokens=sample.row.tokens - first)


def _swap_edges(sample: Sample) -> None:
    index = load(sample.members["edges_index.npy"])
    pointer = load(sample.members["edges_ptr.npy"])
    assert pointer[1] > 1
    index[:, [0, 1]] = index[:, [1, 0]]
    sample.members["edges_index.npy"] = npy(index)


@pytest.mark.parametrize("what", CONTENTS, ids=[row[0] for row in CONTENTS])
def test_what_a_right_hash_does_not_prove(packed: Packed, tmp_path: Path, what: Any) -> None:
    _, change, kind, member, place, words = what
    row = 3
    places_of: list[Any] = []

    def apply(samples: list[Sample]) -> None:
        if callable(place):
            places_of.append(place(samples[row]))
        change(samples[row])

    out = rewritten(packed.folder, tmp_path / "out", apply)
    problems = [
        problem
        for problem in verify_dataset(out).problems
        if (problem.kind, problem.shard) != ("index", "index.json")  # counts that changed with it
    ]
    relevant = [problem for problem in problems if problem.kind == kind]
    assert relevant, problems
    first = relevant[0]
    assert any(re.search(words, problem.detail) for problem in relevant), problems
    if member is None:  # known of the data set as a whole
        assert first.shard == "index.json"
        return
    index = DatasetIndex.open(out)
    assert first.question_id == index.question_id(row)
    if not member:
        assert first.member == index.key(row)
        return
    assert first.member == index.member_name(row, member)
    where = spot(out, row, member)
    inside = places_of[0] if places_of else place
    if inside is not None:
        assert first.offset_bytes == where.offset + inside
    assert {problem.question_id for problem in problems} == {first.question_id}


def test_rewriting_alone_changes_nothing(packed: Packed, tmp_path: Path) -> None:
    assert verify_dataset(rewritten(packed.folder, tmp_path / "out", lambda _: None)).sound


@pytest.mark.parametrize("kept", ["answer", "last"])
def test_states_of_the_last_tokens_are_sound(packed: Packed, tmp_path: Path, kept: str) -> None:
    def change(samples: list[Sample]) -> None:
        for sample in samples:
            row = sample.row
            _cut_states(sample, row.prompt_length if kept == "answer" else row.tokens - 1)

    assert verify_dataset(rewritten(packed.folder, tmp_path / "out", change)).sound


def test_damaged_states_of_an_answer_are_told_by_their_token(
    packed: Packed, tmp_path: Path
) -> None:
    tokens: list[int] = []

    def change(samples: list[Sample]) -> None:
        sample = next(sample for sample in samples if sample.row.prompt_length > 2)
        _cut_states(sample, sample.row.prompt_length)
        _array("hidden.npy", (1, 1, 3), np.nan)(sample)
        tokens.append(sample.row.prompt_length + 1)

    (problem,) = verify_dataset(rewritten(packed.folder, tmp_path / "out", change)).problems
    assert f"NaN in layer 1, token {tokens[0]}, feature 3" in problem.detail


def test_a_key_twice(packed: Packed, tmp_path: Path) -> None:
    out = rewritten(packed.folder, tmp_path / "out", lambda samples: samples.insert(1, samples[0]))
    index = DatasetIndex.open(out)
    (problem,) = [p for p in verify_dataset(out).problems if p.kind == "table"]
    assert (problem.shard, problem.member) == ("train-000000.tar", index.key(0))
    assert "twice" in problem.detail


def test_a_question_in_two_splits(packed: Packed, tmp_path: Path) -> None:
    def change(samples: list[Sample]) -> None:
        question = samples[0].row.question_id
        extra = Sample("test", samples[0].row, dict(samples[0].members))
        extra.change(key=make_key(question, 1), trace=1)
        _meta(trace=1)(extra)
        samples.append(extra)

    out = rewritten(packed.folder, tmp_path / "out", change)
    question = DatasetIndex.open(out).question_id(0)
    (problem,) = [p for p in verify_dataset(out).problems if p.kind != "index"]
    assert problem.kind == "split"
    assert f"question {question!r} is in split train and in test" in problem.detail
