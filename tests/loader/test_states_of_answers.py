"""Data sets with only the states of answers: every choice of tokens gives the right rows, or an
error that says what is stored.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import LAYERS, Packed, make_raw, write_pickle, write_scores
from loaded import assert_same, by_sample, check_states, states_of, wanted
from trials import FULL_ONLY

from wdsbench import DecodeError, TraceDataset, TraceLoader
from wdsbench.loader.plan import select_tokens
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.read.index import DatasetIndex

ATTENTION = PackOptions(attention=("edges", "heads", "sketch"), shard_mb=0.01)


def pack_cut(folder: Path, traces: list[dict[str, Any]], keep: list[int]) -> Packed:
    """Pack traces with only the last ``keep[i]`` states; ``raws`` hold all."""
    raws = {raw["question_id"]: raw for raw in traces}
    cut = [
        {
            **raw,
            "hidden_states": [layer[len(layer) - count :] for layer in raw["hidden_states"]],
            "states_of": {len(raw["tokens"]): "all", answer_of(raw): "answer"}.get(count, "last"),
        }
        for raw, count in zip(traces, keep, strict=True)
    ]
    write_pickle(folder / "t.pkl", cut)
    scores = {question_id: 0.25 * (i % 4) for i, question_id in enumerate(raws)}
    pack(
        [str(folder / "t.pkl")],
        folder / "shards",
        scores=write_scores(folder / "s.csv", scores),
        options=ATTENTION,
    )
    return Packed(folder / "shards", raws, scores)


def answer_of(raw: dict[str, Any]) -> int:
    return len(raw["tokens"]) - raw["prompt_length"]


def make_traces(count: int, least: int = 1, **raw: Any) -> list[dict[str, Any]]:
    """Return traces whose answers have at least ``least`` tokens."""
    traces = []
    for number in range(count):
        made = make_raw(f"q{number}", seed=number, **raw)
        made["prompt_length"] = max(1, min(number % 5 + 1, len(made["tokens"]) - least))
        made["token_logprobs"] = np.full(answer_of(made), -0.5, np.float32)
        traces.append(made)
    return traces


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Answers of one to ten tokens."""
    traces = make_traces(40)
    packed = pack_cut(tmp_path_factory.mktemp("answers"), traces, [answer_of(t) for t in traces])
    lengths = {answer_of(raw) for raw in packed.raws.values()}
    assert {1, 2, 6} < lengths
    return packed


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Every second trace has the states of all its tokens."""
    traces = make_traces(30, least=2)
    keep = [len(t["tokens"]) if i % 2 else answer_of(t) for i, t in enumerate(traces)]
    return pack_cut(tmp_path_factory.mktemp("mixed"), traces, keep)


#: (source, tokens, layout) that workers read in `make test`.
OF_WORKERS = [("answers", "last_answer", "pad"), ("mixed", "answer", "jagged")]


@pytest.mark.parametrize(
    ("source", "tokens", "layout", "workers"),
    [
        pytest.param(
            *choice, workers, marks=FULL_ONLY if workers and choice not in OF_WORKERS else ()
        )
        for choice in itertools.product(
            ["answers", "mixed"], ["answer", "last", "last_answer", 1], ["pad", "jagged"]
        )
        for workers in (0, 2)
    ],
)
def test_rows_are_those_of_the_tokens(
    source: str, tokens: Any, layout: str, workers: int, request: pytest.FixtureRequest
) -> None:
    packed: Packed = request.getfixturevalue(source)
    loader = TraceLoader(
        packed.folder, split=None, tokens=tokens, layout=layout, batch_size=7, num_workers=workers
    )
    seen = []
    for batch in loader:
        check_states(batch, packed, tokens)
        seen += batch.question_ids
        lengths = [wanted(packed, question, tokens).shape[1] for question in batch.question_ids]
        assert batch.lengths is not None
        assert batch.lengths.tolist() == lengths
        assert batch.hidden is not None
        if layout == "jagged":
            assert batch.offsets is not None
            assert batch.offsets.tolist() == [0, *np.cumsum(lengths)]
            assert batch.hidden.shape[1] == sum(lengths)
        else:
            assert batch.hidden.shape[:3] == (len(batch), LAYERS, max(lengths))
        tokens_of = [len(packed.raws[question]["tokens"]) for question in batch.question_ids]
        assert batch.token_count.tolist() == tokens_of  # of the sequence, not of its states
    assert sorted(seen) == sorted(packed.raws)


@pytest.mark.parametrize(
    ("tokens", "workers"),
    [("last", 0), ("last_answer", 0), ("last", 1), pytest.param("last_answer", 1, marks=FULL_ONLY)],
)
def test_one_token_stacks(answers: Packed, tokens: str, workers: int) -> None:
    loader = TraceLoader(answers.folder, split=None, tokens=tokens, layers=[2, 0],
                         num_workers=workers, batch_size=16)  # fmt: skip
    for batch in loader:
        assert batch.hidden is not None
        assert batch.hidden.shape[1:] == (2, 8)
        for i, question in enumerate(batch.question_ids):
            expected = wanted(answers, question, "last", [2, 0])
            np.testing.assert_array_equal(states_of(batch, i), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_last_k_within_every_answer(mixed: Packed, workers: int) -> None:
    loader = TraceLoader(
        mixed.folder, split=None, tokens=2, batch_size=8, num_workers=workers, verify="hash"
    )
    for batch in loader:
        check_states(batch, mixed, 2)
        assert batch.hidden is not None
        assert batch.hidden.shape[1:] == (LAYERS, 2, 8)


def test_single_samples(answers: Packed) -> None:
    for tokens in ("answer", "last_answer"):
        found = {}
        for sample in TraceDataset(answers.folder, split=None, tokens=tokens, shuffle=0):
            states = sample["hidden"].numpy().copy()
            found[sample["question_id"]] = states if states.ndim == 3 else states[:, None]
        assert found.keys() == answers.raws.keys()
        for question, states in found.items():
            np.testing.assert_array_equal(states, wanted(answers, question, tokens))


def test_other_fields_are_of_the_whole_sequence(answers: Packed) -> None:
    """Sketches and log-probabilities are of the whole sequence."""
    (batch,) = TraceLoader(
        answers.folder, split=None, tokens="answer", layout="pad", batch_size=40,
        fields=("hidden", "sketch", "logprobs"),
    )  # fmt: skip
    assert batch.sketch is not None
    assert batch.logprobs is not None
    for i, question in enumerate(batch.question_ids):
        raw = answers.raws[question]
        assert batch.sketch[i].shape[2] == len(raw["tokens"])
        np.testing.assert_array_equal(batch.logprobs[i], raw["token_logprobs"])


def test_batches_equal_those_of_all_tokens(answers: Packed, tmp_path: Path) -> None:
    """Also for tars without an index, whose states are counted."""
    traces = list(answers.raws.values())
    whole = pack_cut(tmp_path, traces, [len(raw["tokens"]) for raw in traces])
    settings: dict[str, Any] = {"split": None, "tokens": "answer", "layout": "jagged"}
    for cut in (answers.folder, sorted(answers.folder.glob("*.tar"))):
        ours = by_sample(TraceLoader(cut, **settings))
        theirs = by_sample(TraceLoader(whole.folder, **settings))
        if isinstance(cut, list):  # no labels
            for sample in (*ours.values(), *theirs.values()):
                sample["label"] = sample["score"] = None
        assert_same(ours, theirs)


REMEDY = "extract with --tokens all"
USABLE = "use tokens='answer', 'last_answer', 'last' or k up to 1, or "

# (arguments, words of the error)
UNAVAILABLE: list[tuple[dict[str, Any], str]] = [
    (
        {"tokens": "all"},
        "tokens='all' is not available: 40 samples hold the states of their answer",
    ),
    ({"tokens": ("first", 1)}, "tokens=('first', 1) is not available: 40 samples"),
    ({"tokens": 100}, "tokens=100 is not available: 40 samples"),
    ({"tokens": 2}, "tokens=2 is not available: "),
]


@pytest.mark.parametrize(("arguments", "words"), UNAVAILABLE)
def test_other_tokens_are_not_available(
    answers: Packed, arguments: dict[str, Any], words: str
) -> None:
    for opened in (TraceLoader, TraceDataset):
        layout = {"layout": "pad"} if opened is TraceLoader else {}
        with pytest.raises(DecodeError) as caught:
            opened(answers.folder, split=None, **arguments, **layout)
        assert words in str(caught.value)
        assert f"tokens only; {USABLE}{REMEDY}" in str(caught.value)
        assert caught.value.member is not None


@pytest.mark.parametrize("layout", ["graph", "union-graph"])
def test_graphs_need_all_tokens(answers: Packed, layout: str) -> None:
    """For any requested tokens; the error advises no other choice."""
    for tokens in ("last_answer", "answer"):
        with pytest.raises(DecodeError) as caught:
            TraceLoader(answers.folder, split=None, layout=layout, tokens=tokens)
        assert f"layout='{layout}' is not available: 40 samples" in str(caught.value)
        assert f"tokens only; {REMEDY}" in str(caught.value)


def test_only_samples_of_the_split_decide(tmp_path: Path) -> None:
    traces = make_traces(30)
    packed = pack_cut(tmp_path, traces, [len(t["tokens"]) for t in traces])
    index = DatasetIndex.open(packed.folder)
    (train,) = index.shards_of("train")[:1]
    first = index.question_id(int(index.first_rows[train]))
    keep = [answer_of(t) if t["question_id"] == first else len(t["tokens"]) for t in traces]
    packed = pack_cut(tmp_path / "cut", traces, keep)
    with pytest.raises(DecodeError, match="tokens='all' is not available: 1 samples"):
        TraceLoader(packed.folder, split="train", tokens="all", layout="pad")
    for batch in TraceLoader(packed.folder, split="val", tokens="all", layout="pad"):
        check_states(batch, packed, "all")


def test_one_state_of_many_tokens_is_only_the_last(tmp_path: Path) -> None:
    """If the answer has one token, it is the answer's."""
    traces = make_traces(8, least=2, tokens=6)
    packed = pack_cut(tmp_path, traces, [1] * 8)
    for batch in TraceLoader(packed.folder, split=None, tokens="last"):
        check_states(batch, packed, "last")
    for tokens in ("last_answer", "answer", "all", 1, ("first", 1)):
        with pytest.raises(DecodeError, match=r"one token only .*; use tokens='last', or extract"):
            TraceLoader(packed.folder, split=None, tokens=tokens, layout="pad")
    with pytest.raises(DecodeError, match=r"layout='graph' .* saved\); extract with --tokens all"):
        TraceLoader(packed.folder, split=None, layout="graph")


def test_states_of_unknown_tokens_are_refused(answers: Packed) -> None:
    """Tables whose counts do not fit the last t tokens are refused."""
    index = DatasetIndex.open(answers.folder)
    rows = np.arange(len(index))
    columns = dict(index.columns)
    columns["state_tokens"] = columns["tokens"] - np.uint32(1)
    columns["prompt_length"] = np.full(len(index), -1, np.int32)
    odd = DatasetIndex(index.folder, index.file, columns)
    assert not odd.of_answer.any()
    with pytest.raises(
        DecodeError, match=r"states of some tokens only \(\d+ of \d+\), and it is not"
    ):
        select_tokens(odd, rows, "last_answer")
    np.testing.assert_array_equal(
        select_tokens(odd, rows, "last").first, columns["state_tokens"].astype(np.int64) - 1
    )
