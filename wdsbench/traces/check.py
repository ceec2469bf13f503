"""Turn a raw trace dict from any writer into a ``Trace``.

``docs/raw-traces.md`` describes the format. Known variants are converted to it; each conversion
adds a remark, whose text is the same for every trace so that remarks can be counted. Anything else
is a ``TraceError``. Unknown keys are ignored.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import TraceError
from wdsbench.records import ReducedAttention, Trace
from wdsbench.traces.arrays import has_nan, origin_of, question_id_text, scalar, shown, storable
from wdsbench.traces.layers import check_float, stacked_layers, tokens_of_states, whole_array
from wdsbench.traces.reduced import reduced_from_raw

REMARK_BATCH_AXIS: Final = "dropped a leading batch axis of 1"
REMARK_EMBEDDING_STATE: Final = (
    "dropped the first of L+1 hidden states (the embedding output, before layer 0)"
)
REMARK_LAST_TOKEN_STATES: Final = (
    "only the last generation step was saved: states of one token beside T tokens, "
    "usable with tokens='last' only"
)
REMARK_ANSWER_STATES: Final = (
    "states of the answer's tokens only, usable with tokens='answer', 'last_answer', 'last' and k"
)
REMARK_LAST_TOKEN_ATTENTION: Final = "dropped attention that was saved for the last token only"
REMARK_LOGPROBS_CUT: Final = "kept the token_logprobs of the answer only"
REMARK_LOGPROBS_DROPPED: Final = "dropped token_logprobs, since prompt_length is unknown"
REMARK_NO_TEXTS: Final = "no tokens_decoded"
REMARK_NO_ANSWER: Final = "no generated_answer_clean"
REMARK_NO_TEXT: Final = "left out {}, which is not text"

_REQUIRED: Final = ("hidden_states", "tokens", "question_id")
# Log-softmax in low precision ends a little above 0.
_LOGPROB_MAX: Final = 1e-2
# A data set's index keeps it as uint32.
_TRACE_NUMBER_MAX: Final = 2**32 - 1


def check_trace(raw: Mapping[str, Any], file: str, position: int) -> Trace:
    """Return the raw dict at ``position`` (from 0) of ``file``, checked, as a ``Trace``.

    Its float arrays are C-contiguous, in native byte order and of the dtype given; they may share
    memory with ``raw`` and may be read-only.

    Raises:
        TraceError: A required key is missing, or a value has the wrong type, dtype, shape or range.
    """
    checker = _Checker(raw, file, position)
    try:
        return checker.trace()
    except ValueError as error:
        question_id = checker.question_id
        raise TraceError(
            str(error), file=file, position=position, question_id=question_id
        ) from error


class _Checker:
    """Checks one trace and collects its remarks; every problem is a ValueError."""

    def __init__(self, raw: Any, file: str, position: int) -> None:
        self.raw = raw
        self.file = file
        self.position = position
        self.question_id: str | None = None
        self.remarks: dict[str, None] = {}  # a set that keeps its order

    def remark(self, text: str) -> None:
        self.remarks[text] = None

    def trace(self) -> Trace:
        if not isinstance(self.raw, Mapping):
            raise ValueError(f"the trace is a {type(self.raw).__name__}; expected a dict.")
        if "question_id" in self.raw:
            self.question_id = question_id_text(scalar(self.raw["question_id"]))
        missing = [key for key in _REQUIRED if self.raw.get(key) is None]
        if missing or self.question_id is None:
            keys = ", ".join(sorted(map(str, self.raw))) or "none"
            raise ValueError(f"required keys are missing: {', '.join(missing)} (found: {keys}).")
        origin, remarks = origin_of(self.raw.get("packed_from"))
        tokens = self.tokens(may_be_empty=origin is not None)
        hidden = self.hidden_states()
        # Packed traces may come from a source that had no tokens.
        token_count = len(tokens) or hidden.shape[1]
        attentions = self.attentions(token_count)
        maps = None if attentions is None else len(attentions)
        reduced = self.reduced(token_count, maps)
        prompt_length = self.integer("prompt_length", 1, token_count - 1)
        hidden = self.matched_layers(hidden, maps if reduced is None else reduced.num_layers)
        self.check_states(hidden.shape[1], token_count, prompt_length)
        if attentions is not None and attentions[0].shape[1] != token_count:
            self.remark(REMARK_LAST_TOKEN_ATTENTION)
            attentions = None
        for name, layers in (("hidden_states", hidden), ("attentions", attentions or ())):
            for layer, values in enumerate(layers):
                if has_nan(values):
                    raise ValueError(
                        f"{name}, layer {layer}, holds NaN; NaN is refused since every detector "
                        "would return NaN: extract this trace again, or leave it out."
                    )
        return Trace(
            question_id=self.question_id,
            hidden=hidden,
            attentions=attentions,
            tokens=tokens,
            token_texts=self.token_texts(token_count),
            answer=self.answer(),
            prompt_length=prompt_length,
            token_logprobs=self.token_logprobs(token_count, prompt_length),
            trace_number=self.integer("trace_number", 0, _TRACE_NUMBER_MAX),
            label=self.label(),
            question=self.text("question"),
            context=self.text("context"),
            group=self.text("group"),
            reduced=reduced,
            layers=self.model_layers(len(hidden)),
            file=self.file,
            position=self.position,
            remarks=tuple(self.remarks) if origin is None else remarks,
            origin=origin,
        )

    def vector(self, name: str) -> NDArray[Any]:
        """Return the value of a key as an array without a batch axis of 1."""
        values = whole_array(name, self.raw[name])
        if values.ndim == 2 and values.shape[0] == 1:
            self.remark(REMARK_BATCH_AXIS)
            values = values[0]
        return values

    def tokens(self, *, may_be_empty: bool) -> NDArray[np.int64]:
        values = self.vector("tokens")
        if may_be_empty and values.size == 0:
            return np.empty(0, np.int64)
        if values.dtype.kind not in "iu" or values.ndim != 1 or values.size == 0:
            raise ValueError(
                f"tokens has dtype {values.dtype} and shape {values.shape}; expected T >= 1 "
                "integers: save the token ids of prompt and answer as one sequence."
            )
        return values.astype(np.int64)

    def hidden_states(self) -> NDArray[Any]:
        """Return ``[L, t, D]``; t is checked later."""
        layers = self.layers("hidden_states", axes=2)
        return layers[:, None, :] if layers.ndim == 2 else layers  # [L, D]: one vector per layer

    def attentions(self, token_count: int) -> list[NDArray[Any]] | None:
        """Return L arrays ``[H, T, T]``, or ``[H, 1, t]`` of the last token only."""
        value = self.raw.get("attentions")
        if value is None or (isinstance(value, list | tuple) and not value):
            return None
        layers = self.layers("attentions", axes=3)
        rows, columns = layers.shape[2:]
        # The last generation step alone has one row, and no column for the token it produced.
        if rows != 1 and (rows, columns) != (token_count, token_count):
            raise ValueError(
                f"attentions of a layer have shape {layers.shape[1:]}, the trace has {token_count}"
                f" tokens; expected [heads, {token_count}, {token_count}]."
            )
        return list(layers)

    def reduced(self, token_count: int, maps: int | None) -> ReducedAttention | None:
        value = self.raw.get("reduced_attention")
        if value is None:
            return None
        try:
            reduced = reduced_from_raw(value, token_count)
        except ValueError as error:
            raise ValueError(f"reduced_attention: {error}.") from error
        if maps is not None and maps != reduced.num_layers:
            raise ValueError(
                f"reduced_attention has {reduced.num_layers} layers, attentions {maps}; expected"
                " the same number."
            )
        return reduced

    def layers(self, name: str, axes: int) -> NDArray[Any]:
        stacked, batch_axis = stacked_layers(name, self.raw[name], axes)
        if batch_axis:
            self.remark(REMARK_BATCH_AXIS)
        return stacked

    def matched_layers(self, hidden: NDArray[Any], attention_layers: int | None) -> NDArray[Any]:
        if attention_layers is None or len(hidden) == attention_layers:
            return hidden
        if len(hidden) != attention_layers + 1:
            raise ValueError(
                f"hidden_states has {len(hidden)} layers, attentions {attention_layers}; expected"
                " the same number, or one more (the embedding output first)."
            )
        self.remark(REMARK_EMBEDDING_STATE)
        return hidden[1:]

    def check_states(self, states: int, token_count: int, prompt_length: int | None) -> None:
        states_of = scalar(self.raw.get("states_of"))
        kept = tokens_of_states(states_of, states, token_count, prompt_length)
        if kept == "answer":
            self.remark(REMARK_ANSWER_STATES)
        elif kept == "last":
            self.remark(REMARK_LAST_TOKEN_STATES)

    def model_layers(self, count: int) -> tuple[int, ...] | None:
        """Return the numbers of the ``count`` layers in the model; None for all layers."""
        value = self.raw.get("layers")
        if value is None:
            return None
        values = whole_array("layers", value)
        expected = f"expected {count} ascending integers, one for each stored layer, from 0"
        if values.dtype.kind not in "iu" or values.shape != (count,):
            raise ValueError(f"layers are {values.dtype} of shape {values.shape}; {expected}.")
        numbers = tuple(values.tolist())
        if numbers[0] < 0 or any(one >= after for one, after in pairwise(numbers)):
            raise ValueError(f"layers are {', '.join(map(str, numbers))}; {expected}.")
        return numbers

    def token_texts(self, token_count: int) -> list[str]:
        value = self.raw.get("tokens_decoded")
        if value is None:
            self.remark(REMARK_NO_TEXTS)
            return []
        if isinstance(value, np.ndarray):
            value = value.reshape(-1).tolist()
        if not isinstance(value, list | tuple):
            raise ValueError(
                f"tokens_decoded is a {type(value).__name__}; expected a list of {token_count} "
                "texts."
            )
        if len(value) == 1 and isinstance(value[0], list | tuple) and token_count != 1:
            self.remark(REMARK_BATCH_AXIS)
            value = value[0]
        if len(value) != token_count or not all(isinstance(text, str) for text in value):
            raise ValueError(
                f"tokens_decoded has {len(value)} entries, the trace {token_count} tokens; expected"
                " one text per token."
            )
        return [storable(text) for text in value]

    def answer(self) -> str:
        value = self.raw.get("generated_answer_clean")
        if value is None:
            self.remark(REMARK_NO_ANSWER)
            return ""
        if not isinstance(value, str):
            raise ValueError(f"generated_answer_clean is a {type(value).__name__}; expected text.")
        return storable(value)

    def text(self, name: str) -> str | None:
        """Return an optional text; other writers' keys of the same name may be anything."""
        value = scalar(self.raw.get(name))
        if value is None or isinstance(value, str):
            return None if value is None else storable(value)
        self.remark(REMARK_NO_TEXT.format(name))
        return None

    def token_logprobs(
        self, token_count: int, prompt_length: int | None
    ) -> NDArray[np.float32] | None:
        if self.raw.get("token_logprobs") is None:
            return None
        if prompt_length is None:
            self.remark(REMARK_LOGPROBS_DROPPED)
            return None
        values = self.vector("token_logprobs")
        answer_tokens = token_count - prompt_length
        if values.shape == (token_count,):
            self.remark(REMARK_LOGPROBS_CUT)
            values = values[prompt_length:]
        if values.shape != (answer_tokens,):
            raise ValueError(
                f"token_logprobs has shape {values.shape} for {prompt_length} prompt and "
                f"{answer_tokens} answer tokens; expected {answer_tokens} (one per answer token) or"
                f" {token_count} (one per token)."
            )
        check_float("token_logprobs", values)
        if not bool((values <= _LOGPROB_MAX).all()):  # NaN compares false
            raise ValueError(
                "token_logprobs holds NaN or a value above 0; expected natural logarithms of "
                "probabilities, which are at most 0."
            )
        return values.astype(np.float32)

    def label(self) -> float | None:
        value = scalar(self.raw.get("label"))
        if value is None:
            return None
        if not isinstance(value, bool | int | float | np.number | np.bool_) or value not in (0, 1):
            raise ValueError(f"label is {shown(value)}; expected 1 (hallucinated) or 0 (right).")
        return float(value)

    def integer(self, name: str, least: int, most: int) -> int | None:
        value: Any = scalar(self.raw.get(name))
        if value is None:
            return None
        try:
            number = least - 1 if isinstance(value, bool | np.bool_) else operator.index(value)
        except TypeError:
            number = least - 1
        if not least <= number <= most:
            raise ValueError(
                f"{name} is {shown(value)}; expected an integer in {least} .. {most}: correct it,"
                " or leave it out if it is unknown."
            )
        return number
