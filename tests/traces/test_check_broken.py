"""Raw traces that are refused, each with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from traces.test_check import LOGPROBS, MAPS, STATES, STEPS, STEPS_OF_MAPS, checked

from wdsbench.errors import TraceError
from wdsbench.traces.check import check_trace


def with_nan(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    values = values.astype(dtype)
    values.reshape(-1)[-1] = np.nan
    return values


# (how it is broken, changes, words of the error)
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("no states", {"hidden_states": None}, "missing: hidden_states (found: attentions,"),
    ("no tokens", {"tokens": None}, "missing: tokens"),
    ("no question id", {"question_id": None}, "missing: question_id"),
    ("id is a float", {"question_id": 1.5}, "question_id is a float"),
    ("id is a bool", {"question_id": True}, "question_id is a bool"),
    ("id is bytes", {"question_id": b"q"}, "question_id is a bytes"),
    ("id is empty", {"question_id": ""}, "question_id is empty"),
    ("id is a surrogate", {"question_id": "\ud800"}, "not valid Unicode"),
    (
        "integer states",
        {"hidden_states": STATES.astype(np.int32)},
        "dtype int32; expected float",
    ),
    ("complex states", {"hidden_states": STATES.astype(np.complex64)}, "dtype complex64"),
    ("object states", {"hidden_states": STATES.astype(object)}, "dtype object"),
    ("text states", {"hidden_states": "abc"}, "dtype <U3"),
    (
        "integer layer",
        {"hidden_states": [*STATES[:-1], np.ones((5, 4), int)]},
        "layer 2, has dtype",
    ),
    ("float8 states", {"hidden_states": torch.zeros(3, 5, 4).to(torch.float8_e5m2)}, "float8"),
    ("sparse states", {"hidden_states": torch.zeros(3, 5, 4).to_sparse()}, "no NumPy form"),
    ("no layers", {"hidden_states": []}, "hidden_states is empty"),
    ("layer missing", {"hidden_states": [STATES[0], None, STATES[2]]}, "layer 1, is None"),
    ("ragged layers", {"hidden_states": [STATES[0], STATES[1, :-1]]}, "(4, 4), (5, 4)"),
    ("steps", {"hidden_states": STEPS}, "hidden_states holds one tuple per generation step, as"),
    ("one step", {"hidden_states": STEPS[:1]}, "over prompt and answer and save its hidden_states"),
    (
        "steps of tensors",
        {"hidden_states": tuple(tuple(torch.tensor(layer) for layer in step) for step in STEPS)},
        "one tuple per generation step",
    ),
    (
        "steps without a batch axis",
        {"hidden_states": [[layer[0] for layer in step] for step in STEPS]},
        "one tuple per generation step",
    ),
    ("steps of maps", {"attentions": STEPS_OF_MAPS}, "attentions holds one tuple per generation"),
    (
        "ragged lists of vectors",
        {"hidden_states": [list(STATES[0]), list(STATES[1, :-1])]},
        "differ in shape from layer to layer",
    ),
    ("ragged lists", {"hidden_states": [[[1.0], [2.0, 3.0]]] * 3}, "cannot be read as one array"),
    ("too many axes", {"hidden_states": np.zeros((3, 2, 5, 4), "f4")}, "shape (3, 2, 5, 4)"),
    ("too few axes", {"hidden_states": np.zeros(4, "f4")}, "shape (4,)"),
    ("no features", {"hidden_states": np.zeros((3, 5, 0), "f4")}, "each at least 1"),
    ("states short of a token", {"hidden_states": STATES[:, :-1]}, "has 4 of 5 tokens"),
    ("states too long", {"hidden_states": STATES.repeat(2, 1)}, "has 10 of 5 tokens"),
    (
        "NaN, float16",
        {"hidden_states": with_nan(STATES, "f2")},
        "hidden_states, layer 2, holds NaN",
    ),
    (
        "NaN, float32",
        {"hidden_states": with_nan(STATES, "f4")},
        "hidden_states, layer 2, holds NaN",
    ),
    (
        "NaN, float64",
        {"hidden_states": with_nan(STATES, "f8")},
        "hidden_states, layer 2, holds NaN",
    ),
    ("NaN in attention", {"attentions": with_nan(MAPS, "f2")}, "attentions, layer 2, holds NaN"),
    ("layer counts", {"attentions": MAPS[:1]}, "hidden_states has 3 layers, attentions 1;"),
    ("more attention", {"hidden_states": STATES[:2]}, "hidden_states has 2 layers, attentions 3;"),
    (
        "attention of T - 1",
        {"attentions": MAPS[..., :-1, :-1]},
        "(2, 4, 4), the trace has 5 tokens",
    ),
    (
        "attention of 3 axes",
        {"attentions": MAPS[:, 0]},
        "shape (3, 5, 5); expected [layers, heads",
    ),
    ("attention of a layer None", {"attentions": [None] * 3}, "attentions, layer 0, is None"),
    ("integer attention", {"attentions": MAPS.astype(int)}, "attentions has dtype int64"),
    ("float tokens", {"tokens": [1.0] * 5}, "tokens has dtype float64"),
    ("no tokens at all", {"tokens": []}, "shape (0,)"),
    ("token matrix", {"tokens": [[1, 2], [3, 4]]}, "shape (2, 2)"),
    ("token objects", {"tokens": ["a"] * 5}, "tokens has dtype <U1"),
    ("prompt length 0", {"prompt_length": 0}, "prompt_length is 0; expected an integer in 1 .. 4"),
    ("prompt length T", {"prompt_length": 5}, "prompt_length is 5; expected an integer in 1 .. 4"),
    ("prompt length float", {"prompt_length": 3.0}, "prompt_length is 3.0; expected an integer"),
    ("prompt length bool", {"prompt_length": True}, "prompt_length is True"),
    ("texts joined", {"tokens_decoded": "t0t1"}, "tokens_decoded is a str"),
    ("texts short", {"tokens_decoded": ["a"] * 4}, "4 entries, the trace 5 tokens"),
    ("texts are bytes", {"tokens_decoded": [b"a"] * 5}, "one text per token"),
    ("answer is a list", {"generated_answer_clean": ["a"]}, "generated_answer_clean is a list"),
    (
        "log-probs count",
        {"token_logprobs": LOGPROBS[:1]},
        "shape (1,) for 3 prompt and 2 answer",
    ),
    ("log-probs NaN", {"token_logprobs": [float("nan"), -1.0]}, "NaN or a value above 0"),
    ("probabilities", {"token_logprobs": [0.5, 0.1]}, "NaN or a value above 0"),
    ("log-probs integer", {"token_logprobs": [-1, -2]}, "token_logprobs has dtype int64"),
    ("label 2", {"label": 2}, "label is 2; expected 1"),
    ("label NaN", {"label": float("nan")}, "label is nan"),
    ("label text", {"label": "1"}, "label is '1'"),
    ("label array", {"label": np.array([1, 0])}, "label is an array of shape (2,); expected"),
    ("label tensor", {"label": torch.ones(2)}, "label is an array of shape (2,); expected"),
    ("trace number 2**32", {"trace_number": 2**32}, "trace_number is 4294967296; expected an"),
    ("trace number huge", {"trace_number": 10**5000}, "is an integer of 16610 bits; expected"),
    ("trace number -1", {"trace_number": -1}, "trace_number is -1"),
    ("trace number text", {"trace_number": "a"}, "trace_number is 'a'"),
    (
        "layers short",
        {"layers": [0, 1]},
        "layers are int64 of shape (2,); expected 3 asc",
    ),
    ("layers of none", {"layers": []}, "shape (0,); expected 3 ascending integers"),
    ("layers is a count", {"layers": 3}, "layers are int64 of shape ()"),
    ("layers descend", {"layers": [0, 2, 1]}, "layers are 0, 2, 1; expected 3 ascending"),
    ("layers twice", {"layers": [0, 2, 2]}, "layers are 0, 2, 2; expected"),
    ("layers below 0", {"layers": [-1, 0, 1]}, "layers are -1, 0, 1; expected"),
    ("layers of floats", {"layers": [0.0, 1.0, 2.0]}, "layers are float64"),
    ("layers of bools", {"layers": [False, True, True]}, "layers are bool"),
    ("layers of texts", {"layers": ["0", "1", "2"]}, "layers are <U1"),
    ("layers huge", {"layers": [0, 1, 2**70]}, "layers are object"),
    ("layers ragged", {"layers": [[0], [1, 2], 3]}, "layers cannot be read as one array"),
]


@pytest.mark.parametrize(
    ("changes", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken_traces(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceError) as caught:
        checked(**changes)
    error = caught.value
    assert words in str(error)
    assert (error.file, error.position) == ("a.pkl", 7)
    assert error.question_id == (None if "question_id" in changes else "q0")
    assert str(error).startswith("file a.pkl, trace 7")
    assert "\n" not in str(error)


def test_not_a_dict() -> None:
    with pytest.raises(TraceError, match="the trace is a list; expected a dict"):
        check_trace([1, 2], "a.pkl", 0)  # type: ignore[arg-type]
