"""The plan by which a loader decodes, shared with its workers: tokens, layers, job tables."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import DecodeError
from wdsbench.shards.format.kinds import HIDDEN, KINDS
from wdsbench.shards.read.index import DatasetIndex

#: last | last_answer | answer | all | k (the last k) | ("first", k)
Tokens = str | int | tuple[str, int]

#: Words for one token, whose axis is left out.
SINGLE_TOKENS = ("last", "last_answer")
TOKEN_WORDS = (*SINGLE_TOKENS, "answer", "all")


@dataclass(frozen=True)
class TokenRanges:
    """Stored states ``[first, first + count)`` of each row of the index, in all splits."""

    first: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True)
class DecodePlan:
    """The settings with which all batches of a loader are decoded.

    Attributes:
        threads: Decode threads; 0: the thread that waits for the batch decodes it.
        verify_hash: Check XXH3 of members that are read whole.
        raw: States and images keep their stored dtype until they are on the device.
    """

    index: DatasetIndex
    fields: tuple[str, ...]
    layers: NDArray[np.int64]
    tokens: Tokens
    ranges: TokenRanges
    threads: int
    verify_hash: bool
    raw: bool = False

    @property
    def single(self) -> bool:
        """True if ``tokens`` names one token, whose axis is left out."""
        return self.tokens in SINGLE_TOKENS

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in a batch: all requested layers."""
        if self.raw:
            return self.stored_token_bytes
        return self.layers.size * self.index.num_features * 4

    @property
    def stored_token_bytes(self) -> int:
        """Bytes of a token in the shards: all requested layers."""
        return self.layers.size * self.index.num_features * self.stored_dtype.itemsize

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Dtype of states or images in the shards."""
        return np.dtype(self.index.fields[self.index.tensor.name].dtype)

    def access(self, rows: NDArray[np.int64]) -> str:
        """Return ``"sparse"`` if less than half of the state bytes is requested, else ``"map"``."""
        stored = int(self.index.member(self.index.tensor.main, "size")[rows].sum())
        requested = int(self.ranges.count[rows].sum()) * self.stored_token_bytes
        return "sparse" if 2 * requested < stored else "map"

    def job_table(
        self,
        columns: tuple[str, ...],
        rows: NDArray[np.int64],
        members: dict[str, str],
        **values: NDArray[Any] | int,
    ) -> NDArray[np.int64]:
        """Return a table of decode jobs, one row per sample, with the ``columns`` of ``_core``.

        ``members`` maps a prefix of columns to the member that gives ``_offset`` and ``_size``;
        ``values`` are the other columns except ``shard``.
        """
        values["shard"] = self.index.columns["shard"][rows]
        for prefix, member in members.items():
            for part in ("offset", "size"):
                values[f"{prefix}_{part}"] = self.index.member(member, part)[rows]
        jobs = np.empty((rows.size, len(columns)), np.int64)
        for column, name in enumerate(columns):
            jobs[:, column] = values[name]
        return jobs


def as_integer(value: object) -> int | None:
    """Return an integer of Python or NumPy as ``int``; None for anything else, and for bool."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        return None
    return operator.index(value)


def select_tokens(
    index: DatasetIndex, rows: NDArray[np.int64], tokens: Tokens, argument: str | None = None
) -> TokenRanges:
    """Return the requested token range of every row of the index; ValueError if ``tokens`` is not
    valid.

    States are those of the last t of T tokens: the state of token i is row i - (T - t).
    DecodeError: one of ``rows`` does not have the tokens, because its prompt length is unknown or
    only the states of the answer or of the last token are stored. The error names ``argument`` if
    it requests the tokens instead of ``tokens``.
    """
    stored = index.columns["state_tokens"].astype(np.int64)
    total = index.columns["tokens"].astype(np.int64)
    missing = total - stored
    partial = rows[missing[rows] != 0]
    # With a layout that needs all tokens, other tokens are no remedy.
    what, advice = (
        (f"tokens={tokens!r}", "use tokens={}, or ") if argument is None else (argument, "")
    )
    unplaced = partial[~index.of_answer[partial]]
    if unplaced.size and tokens != "last":
        raise DecodeError(
            f"{what} is not available: {_partial_states(stored[unplaced], total[unplaced])};"
            f" {advice.format(repr('last'))}extract with --tokens all",
            member=index.member_name(int(unplaced[0]), HIDDEN),
        )
    wanted = _token_ranges(index, rows, tokens)
    found = TokenRanges(wanted.first - missing, wanted.count)
    short = rows[found.first[rows] < 0]
    if short.size:
        choices = f"'answer', 'last_answer', 'last' or k up to {stored[partial].min()}"
        raise DecodeError(
            f"{what} is not available: {short.size} samples hold the states of their answer's"
            f" tokens only; {advice.format(choices)}extract with --tokens all",
            member=index.member_name(int(short[0]), HIDDEN),
        )
    return found


def _token_ranges(index: DatasetIndex, rows: NDArray[np.int64], tokens: Tokens) -> TokenRanges:
    """Return the requested range among the T tokens of every row, stored or not."""
    total = index.columns["tokens"].astype(np.int64)
    if tokens in SINGLE_TOKENS:
        return TokenRanges(total - 1, np.ones_like(total))
    if tokens == "all":
        return TokenRanges(np.zeros_like(total), total)
    if tokens == "answer":
        prompt = index.columns["prompt_length"].astype(np.int64)
        unknown = rows[prompt[rows] < 0]
        if unknown.size:
            raise DecodeError(
                f"tokens='answer' is not available: {unknown.size} samples have no prompt length;"
                " use 'all' or 'last'",
                member=index.member_name(int(unknown[0]), HIDDEN),
            )
        return TokenRanges(prompt, total - prompt)
    first_k = isinstance(tokens, tuple) and len(tokens) == 2 and tokens[0] == "first"
    k = as_integer(tokens[1] if isinstance(tokens, tuple) and first_k else tokens)
    if k is None or k < 1:
        raise ValueError(
            f'tokens: {tokens!r} is not one of {", ".join(TOKEN_WORDS)}, k >= 1, ("first", k)'
        )
    count = np.minimum(total, k)
    return TokenRanges(np.zeros_like(total) if first_k else total - count, count)


def _partial_states(stored: NDArray[np.int64], total: NDArray[np.int64]) -> str:
    """Return a description of samples whose states cannot be assigned to tokens."""
    odd = np.flatnonzero(stored != 1)
    if odd.size:
        return (
            f"{odd.size} samples hold states of some tokens only ({stored[odd[0]]} of"
            f" {total[odd[0]]}), and it is not recorded which"
        )
    return (
        f"{stored.size} samples hold the states of one token only (the last generation step was"
        " all that was saved)"
    )


def require_kind(index: DatasetIndex, rows: NDArray[np.int64], name: str, argument: str) -> None:
    """Raise DecodeError, naming ``argument``, if one of ``rows`` lacks the member kind ``name``."""
    kind = KINDS[name]
    for member in kind.required:
        missing = rows[index.member(member, "size")[rows] == 0]
        if missing.size:
            raise DecodeError(
                f"{argument} is not available: {missing.size} samples hold no {name};"
                f" {kind.remedy}",
                member=index.member_name(int(missing[0]), member),
            )
