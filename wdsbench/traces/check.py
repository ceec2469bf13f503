"""Turn a raw trace dict from any writer into a ``Trace``.

The raw format (L layers, T tokens of prompt and answer, H heads):

    hidden_states           L arrays [t, D], or one [L, t, D]; floats. States of the last t tokens:
                            t is T, or 1 (only the last generation step was saved), or given by
                            states_of
    tokens                  T token ids
    question_id             text or integer
    attentions              L arrays [H, T, T], or one [L, H, T, T]
    reduced_attention       dict of reduced maps (module reduced)
    tokens_decoded          T texts
    generated_answer_clean  text
    prompt_length           1 .. T - 1; never guessed
    token_logprobs          T - prompt_length natural logarithms
    trace_number, label     integer in 0 .. 2**32 - 1; 0 or 1
    layers                  L ascending integers: the layers' numbers in the model, from 0; without
                            it, all of them
    states_of               all, answer or last: the tokens that the states belong to; answer is
                            never guessed, since generate() returns as many states, each of the
                            preceding token
    packed_from             dict added by ``wdsbench unpack``: file, position and remarks of the
                            trace in the data set

Only the first three keys are required; unknown keys are ignored. Arrays are NumPy or torch. Known
variants are converted to this form; each conversion adds a remark, whose text is the same for every
trace so that remarks can be counted. Anything else is a ``TraceError``.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import TraceError
from wdsbench.records import ReducedAttention, Trace
from wdsbench.traces.arrays import has_nan, shown, storable
from wdsbench.traces.identity import origin_of, question_id_text, scalar
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

_REQUIRED: Final = ("hidden_states", "tokens", "question_id")
# Log-softmax in low precision ends a little above 0.
_LOGPROB_MAX: Final = 1e-2
# A data set's index keeps it as uint32.
_TRACE_NUMBER_MAX: Final = 2**32 - 1


def check_trace(raw: Mapping[str, Any], file: str, position: int) -> Trace:
    """Return the raw dict at ``position`` (from 0) of ``file``, checked, as a ``Trace``.

    Its float arrays are C-contiguous and in native byte order; dtypes float16, float32 and float64
    are kept. They may share memory with ``raw`` and may be read-only.

    Raises:
        TraceError: A required key is missing, or a value has the wrong type, dtype, shape or range,
            or is NaN.
    """
    return _Checker(raw, file, position).trace()


class _Checker:
    """Checks one trace, collects its remarks, and adds its place to errors."""

    def __init__(self, raw: object, file: str, position: int) -> None:
        self.file = file
        self.position = position
        self.question_id: str | None = None
        self.remarks: dict[str, None] = {}  # a set that keeps its order
        if not isinstance(raw, Mapping):
            raise self.error(
                f"the trace is a {type(raw).__name__}; expected a dict: save a list of dicts."
            )
        self.raw = raw
        self.origin, self.origin_remarks = origin_of(raw.get("packed_from"))
        if "question_id" in raw:
            with self.located():
                self.question_id = question_id_text(scalar(raw["question_id"]))
        missing = [key for key in _REQUIRED if raw.get(key) is None]
        if missing:
            keys = ", ".join(sorted(map(str, raw))) or "none"
            raise self.error(
                f"required keys are missing: {', '.join(missing)} (keys found: {keys})."
            )

    def error(self, detail: str) -> TraceError:
        return TraceError(
            detail, file=self.file, position=self.position, question_id=self.question_id
        )

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Convert a ValueError to an error that names the trace."""
        try:
            yield
        except ValueError as error:
            raise self.error(str(error)) from error

    def remark(self, text: str) -> None:
        self.remarks[text] = None

    def trace(self) -> Trace:
        assert self.question_id is not None  # a required key
        tokens = self.tokens()
        hidden = self.hidden_states()
        # Packed traces may come from a source that had no tokens.
        token_count = len(tokens) or hidden.shape[1]
        attentions = self.attentions(token_count)
        maps = None if attentions is None else len(attentions)
        reduced = self.reduced(token_count, maps)
        prompt_length = self.prompt_length(token_count)
        hidden = self.matched_layers(hidden, maps if reduced is None else reduced.num_layers)
        self.check_states(hidden.shape[1], token_count, prompt_length)
        if attentions is not None and attentions[0].shape[1] != token_count:
            self.remark(REMARK_LAST_TOKEN_ATTENTION)
            attentions = None
        for name, layers in (("hidden_states", hidden), ("attentions", attentions or ())):
            for layer, values in enumerate(layers):
                if has_nan(values):
                    raise self.error(
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
            trace_number=self.trace_number(),
            label=self.label(),
            reduced=reduced,
            layers=self.model_layers(len(hidden)),
            file=self.file,
            position=self.position,
            remarks=tuple(self.remarks) if self.origin is None else self.origin_remarks,
            origin=self.origin,
        )

    def vector(self, name: str) -> NDArray[Any]:
        """Return the value of a key as an array without a batch axis of 1."""
        with self.located():
            values = whole_array(name, self.raw[name])
        if values.ndim == 2 and values.shape[0] == 1:
            self.remark(REMARK_BATCH_AXIS)
            values = values[0]
        return values

    def tokens(self) -> NDArray[np.int64]:
        values = self.vector("tokens")
        if self.origin is not None and values.size == 0:
            return np.empty(0, np.int64)
        if values.dtype.kind not in "iu" or values.ndim != 1 or values.size == 0:
            raise self.error(
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
            raise self.error(
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
            raise self.error(f"reduced_attention: {error}.") from error
        if maps is not None and maps != reduced.num_layers:
            raise self.error(
                f"reduced_attention has {reduced.num_layers} layers, attentions {maps}; expected"
                " the same number."
            )
        return reduced

    def layers(self, name: str, axes: int) -> NDArray[Any]:
        """Return the layers of a key stacked as ``[L, ...]`` with ``axes`` axes each."""
        with self.located():
            stacked, batch_axis = stacked_layers(name, self.raw[name], axes)
        if batch_axis:
            self.remark(REMARK_BATCH_AXIS)
        return stacked

    def matched_layers(self, hidden: NDArray[Any], attention_layers: int | None) -> NDArray[Any]:
        """Return the states of the layers that have attention."""
        if attention_layers is None or len(hidden) == attention_layers:
            return hidden
        if len(hidden) != attention_layers + 1:
            raise self.error(
                f"hidden_states has {len(hidden)} layers, attentions {attention_layers}; expected"
                " the same number, or one more (the embedding output first)."
            )
        self.remark(REMARK_EMBEDDING_STATE)
        return hidden[1:]

    def check_states(self, states: int, token_count: int, prompt_length: int | None) -> None:
        """Check that the states belong to all tokens, the answer, or the last token."""
        states_of = scalar(self.raw.get("states_of"))
        with self.located():
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
        with self.located():
            values = whole_array("layers", value)
        expected = f"expected {count} ascending integers, one for each stored layer, from 0"
        if values.dtype.kind not in "iu" or values.shape != (count,):
            raise self.error(
                f"layers has dtype {values.dtype} and shape {values.shape}; {expected}."
            )
        numbers = tuple(values.tolist())
        if numbers[0] < 0 or any(one >= after for one, after in pairwise(numbers)):
            raise self.error(f"layers are {', '.join(map(str, numbers))}; {expected}.")
        return numbers

    def prompt_length(self, token_count: int) -> int | None:
        value = scalar(self.raw.get("prompt_length"))
        if value is None:
            return None
        number = self.integer("prompt_length", value, f"an integer in 1 .. {token_count - 1}")
        if not 1 <= number < token_count:
            raise self.error(
                f"prompt_length is {shown(number)} of {token_count} tokens; expected 1 .. "
                f"{token_count - 1}: correct it, or leave it out if it is unknown."
            )
        return number

    def token_texts(self, token_count: int) -> list[str]:
        value = self.raw.get("tokens_decoded")
        if value is None:
            self.remark(REMARK_NO_TEXTS)
            return []
        if isinstance(value, np.ndarray):
            value = value.reshape(-1).tolist()
        if not isinstance(value, list | tuple):
            raise self.error(
                f"tokens_decoded is a {type(value).__name__}; expected a list of {token_count} "
                "texts."
            )
        if len(value) == 1 and isinstance(value[0], list | tuple) and token_count != 1:
            self.remark(REMARK_BATCH_AXIS)
            value = value[0]
        if len(value) != token_count or not all(isinstance(text, str) for text in value):
            raise self.error(
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
            raise self.error(f"generated_answer_clean is a {type(value).__name__}; expected text.")
        return storable(value)

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
            raise self.error(
                f"token_logprobs has shape {values.shape} for {prompt_length} prompt and "
                f"{answer_tokens} answer tokens; expected {answer_tokens} (one per answer token) or"
                f" {token_count} (one per token)."
            )
        with self.located():
            check_float("token_logprobs", values)
        if not bool((values <= _LOGPROB_MAX).all()):  # NaN compares false
            raise self.error(
                "token_logprobs holds NaN or a value above 0; expected natural logarithms of "
                "probabilities, which are at most 0."
            )
        return values.astype(np.float32)

    def trace_number(self) -> int | None:
        value = scalar(self.raw.get("trace_number"))
        if value is None:
            return None
        expected = f"an integer in 0 .. {_TRACE_NUMBER_MAX}"
        number = self.integer("trace_number", value, expected)
        if not 0 <= number <= _TRACE_NUMBER_MAX:
            raise self.error(f"trace_number is {shown(number)}; expected {expected}.")
        return number

    def label(self) -> float | None:
        value = scalar(self.raw.get("label"))
        if value is None:
            return None
        if not isinstance(value, bool | int | float | np.number | np.bool_) or value not in (0, 1):
            raise self.error(f"label is {shown(value)}; expected 1 (hallucinated) or 0 (right).")
        return float(value)

    def integer(self, name: str, value: object, expected: str) -> int:
        try:
            if isinstance(value, bool | np.bool_):
                raise TypeError
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise self.error(f"{name} is {shown(value)}; expected {expected}.") from None
