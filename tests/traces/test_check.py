"""Raw dicts in every accepted form give the same trace; every other form is one clear error."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from traces.raw import FEATURES, HEADS, LAYERS, TOKENS, make_raw

from wdsbench.errors import TraceError
from wdsbench.traces import check
from wdsbench.traces.check import check_trace

RAW = make_raw()
STATES = np.stack(RAW["hidden_states"])
MAPS = np.stack(RAW["attentions"])
LOGPROBS = RAW["token_logprobs"]
#: As generate() returns them: at each step of the new tokens, each layer with a batch axis.
STEPS = [tuple(layer[None, first:last] for layer in STATES) for first, last in ((0, 3), (3, 4))]
STEPS_OF_MAPS = [
    tuple(layer[None, :, first:last, :last] for layer in MAPS) for first, last in ((0, 3), (3, 4))
]


def checked(**changes: Any) -> Any:
    return check_trace(make_raw(**changes), "a.pkl", 7)


def test_documented_form() -> None:
    trace = checked()
    assert trace.question_id == "q0"
    assert trace.hidden.dtype == np.float16
    assert np.array_equal(trace.hidden, STATES)
    assert np.array_equal(np.stack(trace.attentions), MAPS)
    assert trace.tokens.tolist() == [10, 11, 12, 13, 14]
    assert trace.tokens.dtype == np.int64
    assert trace.token_texts == ["t0", "t1", "t2", "t3", "t4"]
    assert (trace.answer, trace.prompt_length) == ("an answer", 3)
    assert trace.token_logprobs.tolist() == [-0.5, -1.5]
    assert (trace.trace_number, trace.label, trace.graphs) == (None, None, None)
    assert (trace.file, trace.position, trace.remarks) == ("a.pkl", 7, ())


# (what varies, changes, remarks)
SAME: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("stacked", {"hidden_states": STATES, "attentions": MAPS}, ()),
    ("tuples", {"hidden_states": tuple(STATES), "attentions": tuple(MAPS)}, ()),
    ("float32", {"hidden_states": STATES.astype(np.float32)}, ()),
    ("float64 lists", {"hidden_states": STATES.astype(np.float64).tolist()}, ()),
    ("big-endian", {"hidden_states": STATES.astype(">f2")}, ()),
    ("fortran order", {"hidden_states": np.asfortranarray(STATES)}, ()),
    ("torch list", {"hidden_states": [torch.from_numpy(s.copy()) for s in STATES]}, ()),
    (
        "torch stacked, with gradient",
        {"hidden_states": torch.from_numpy(STATES.astype(np.float32)).requires_grad_()},
        (),
    ),
    ("token array", {"tokens": np.arange(10, 15, dtype=np.int32)}, ()),
    ("token tensor", {"tokens": torch.arange(10, 15)}, ()),
    ("token of one batch", {"tokens": [[10, 11, 12, 13, 14]]}, (check.REMARK_BATCH_AXIS,)),
    ("text array", {"tokens_decoded": np.array(RAW["tokens_decoded"])}, ()),
    ("nested texts", {"tokens_decoded": [RAW["tokens_decoded"]]}, (check.REMARK_BATCH_AXIS,)),
    (
        "layers of one batch",
        {"hidden_states": list(STATES[:, None]), "attentions": list(MAPS[:, None])},
        (check.REMARK_BATCH_AXIS,),
    ),
    (
        "batch of one",
        {"hidden_states": STATES[None], "attentions": MAPS[None]},
        (check.REMARK_BATCH_AXIS,),
    ),
    (
        "embedding output first",
        {"hidden_states": [np.full_like(STATES[0], 9), *STATES]},
        (check.REMARK_EMBEDDING_STATE,),
    ),
    (
        "a log-probability for every token",
        {"token_logprobs": np.array([0, -1, -2, -0.5, -1.5])},
        (check.REMARK_LOGPROBS_CUT,),
    ),
    ("log-probability tensor", {"token_logprobs": torch.tensor([[-0.5, -1.5]])}, None),
    ("prompt length array", {"prompt_length": np.array([3])}, ()),
    ("prompt length tensor", {"prompt_length": torch.tensor(3)}, ()),
    ("further keys", {"question": "why?", "score": object()}, ()),
]


@pytest.mark.parametrize(
    ("changes", "remarks"), [row[1:] for row in SAME], ids=[row[0] for row in SAME]
)
def test_accepted_forms(changes: dict[str, Any], remarks: tuple[str, ...] | None) -> None:
    trace = checked(**changes)
    assert trace.hidden.shape == (LAYERS, TOKENS, FEATURES)
    assert trace.hidden.flags.c_contiguous
    assert trace.hidden.dtype.isnative
    assert type(trace.hidden) is np.ndarray
    assert np.array_equal(trace.hidden, STATES)
    assert len(trace.attentions) == LAYERS
    assert all(layer.shape == (HEADS, TOKENS, TOKENS) for layer in trace.attentions)
    assert all(layer.flags.c_contiguous for layer in trace.attentions)
    assert trace.tokens.tolist() == [10, 11, 12, 13, 14]
    assert trace.token_texts == RAW["tokens_decoded"]
    assert trace.prompt_length == 3
    assert trace.token_logprobs.tolist() == [-0.5, -1.5]
    if remarks is not None:
        assert trace.remarks == remarks


def test_bfloat16_becomes_float32() -> None:
    trace = checked(hidden_states=torch.from_numpy(STATES.copy()).bfloat16())
    assert trace.hidden.dtype == np.float32
    assert np.array_equal(trace.hidden, torch.from_numpy(STATES.copy()).bfloat16().float().numpy())


def test_missing_optional_keys() -> None:
    raw = {key: RAW[key] for key in ("hidden_states", "tokens", "question_id")}
    trace = check_trace(raw, "a.pkl", 0)
    assert (trace.attentions, trace.prompt_length, trace.token_logprobs) == (None, None, None)
    assert (trace.token_texts, trace.answer) == ([], "")
    assert trace.remarks == (check.REMARK_NO_TEXTS, check.REMARK_NO_ANSWER)


def test_logprobs_without_prompt_length_are_dropped_and_said() -> None:
    raw = make_raw()
    del raw["prompt_length"]
    trace = check_trace(raw, "a.pkl", 0)
    assert trace.token_logprobs is None
    assert trace.remarks == (check.REMARK_LOGPROBS_DROPPED,)


@pytest.mark.parametrize(
    "states",
    [
        list(STATES[:, -1:]),
        STATES[:, -1:],
        list(STATES[:, -1]),
        STATES[:, -1],
        STATES[:, None, -1:],
    ],
    ids=["layers [1,D]", "[L,1,D]", "layers [D]", "[L,D]", "[L,1,1,D]"],
)
def test_states_of_the_last_token_only(states: Any) -> None:
    trace = checked(hidden_states=states)
    assert trace.hidden.shape == (LAYERS, 1, FEATURES)
    assert np.array_equal(trace.hidden[:, 0], STATES[:, -1])
    assert len(trace.tokens) == TOKENS
    assert trace.attentions is not None
    assert check.REMARK_LAST_TOKEN_STATES in trace.remarks


@pytest.mark.parametrize("prompt", range(1, TOKENS))
@pytest.mark.parametrize("stacked", [True, False])
def test_states_of_the_answer_only(prompt: int, stacked: bool) -> None:
    """Also of an answer of one token; attention stays that of all tokens."""
    states = STATES[:, prompt:]
    answer = TOKENS - prompt
    trace = checked(
        hidden_states=states if stacked else list(states),
        prompt_length=prompt,
        token_logprobs=LOGPROBS.repeat(2)[:answer],
        states_of="answer",
    )
    assert np.array_equal(trace.hidden, states)
    assert trace.remarks == (check.REMARK_ANSWER_STATES,)
    assert (len(trace.tokens), trace.prompt_length) == (TOKENS, prompt)
    assert np.array_equal(np.stack(trace.attentions), MAPS)


@pytest.mark.parametrize(
    ("said", "states", "prompt", "words"),
    [
        ("answer", 3, 1, "hidden_states has 3 of 5 tokens with states_of 'answer'; expected 4"),
        ("answer", 3, None, "expected those of the answer, with its prompt_length"),
        ("last", 2, 3, "with states_of 'last'; expected 1"),
        ("all", 1, 3, "with states_of 'all'; expected 5"),
        ("prompt", 5, 3, "states_of is 'prompt'; expected all, answer, last"),
        (2, 5, 3, "states_of is 2; expected all, answer, last"),
    ],
)
def test_what_is_said_of_the_states_is_held_to(
    said: Any, states: int, prompt: int | None, words: str
) -> None:
    with pytest.raises(TraceError, match=re.escape(words)):
        checked(
            hidden_states=STATES[:, -states:],
            prompt_length=prompt,
            token_logprobs=None,
            states_of=said,
        )


@pytest.mark.parametrize("states", range(2, TOKENS + 2))
@pytest.mark.parametrize("prompt", [None, 1, 2, 3, 4])
def test_states_of_any_other_number_of_tokens(states: int, prompt: int | None) -> None:
    """None is guessed: what is there must be all, the last, or said to be the answer's."""
    if states == TOKENS:
        return
    allowed = f"hidden_states has {states} of 5 tokens; expected 5, or 1 (the last token)"
    if prompt is not None and states == TOKENS - prompt:
        allowed += f"; or {states} with states_of 'answer', if"
    with pytest.raises(TraceError, match=re.escape(allowed)):
        checked(
            hidden_states=np.ones((LAYERS, states, FEATURES), np.float16),
            prompt_length=prompt,
            token_logprobs=None,
        )


@pytest.mark.parametrize(
    "value",
    [[0, 4, 31], (0, 4, 31), np.array([0, 4, 31], np.uint8), torch.tensor([0, 4, 31])],
    ids=["list", "tuple", "array", "tensor"],
)
def test_layers_of_the_model(value: Any) -> None:
    trace = checked(layers=value)
    assert trace.layers == (0, 4, 31)
    assert all(type(number) is int for number in trace.layers)
    assert trace.remarks == ()
    assert checked().layers is None


@pytest.mark.parametrize("columns", [TOKENS, TOKENS - 1])
def test_last_generation_step_as_generate_returns_it(columns: int) -> None:
    trace = checked(
        hidden_states=[np.zeros((1, 1, FEATURES), np.float16)]
        + [layer[None, -1:] for layer in STATES],
        attentions=[layer[None, :, -1:, :columns] for layer in MAPS],
    )
    assert np.array_equal(trace.hidden[:, 0], STATES[:, -1])
    assert trace.attentions is None
    assert trace.remarks == (
        check.REMARK_BATCH_AXIS,
        check.REMARK_EMBEDDING_STATE,
        check.REMARK_LAST_TOKEN_STATES,
        check.REMARK_LAST_TOKEN_ATTENTION,
    )


@pytest.mark.parametrize(
    ("value", "text"), [(12, "12"), (np.int64(12), "12"), ("ü/1", "ü/1"), (np.str_("a"), "a")]
)
def test_question_ids_are_text(value: Any, text: str) -> None:
    trace = checked(question_id=value)
    assert trace.question_id == text
    assert type(trace.question_id) is str


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1), np.bool_(True), torch.tensor(1)])
def test_labels_and_trace_numbers(value: Any) -> None:
    assert checked(label=value).label == 1.0
    assert checked(trace_number=np.int8(2)).trace_number == 2


def test_lone_surrogates_in_texts_become_question_marks() -> None:
    trace = checked(
        generated_answer_clean="a\ud800b", tokens_decoded=["ü", "\udcff", "c", "d", "e"]
    )
    assert (trace.answer, trace.token_texts[:2]) == ("a?b", ["ü", "?"])


def test_infinity_is_left_to_the_packer() -> None:
    states = STATES.copy()
    states[1, 2, 3] = np.inf
    assert np.isinf(checked(hidden_states=states).hidden).sum() == 1
