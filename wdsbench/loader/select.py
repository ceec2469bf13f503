"""Which layers and tokens of a sample are wanted: the words of the loader's arguments as numbers
per row.

Everything that can be refused is refused when the loader is made, over all rows of the split, and
not in the middle of an epoch.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import DecodeError
from wdsbench.shards.format.kinds import (
    EDGES_INDEX,
    EDGES_POINTER,
    EDGES_WEIGHT,
    HEADS_INDEX,
    HEADS_POINTER,
    HEADS_WEIGHT,
    HIDDEN,
)
from wdsbench.shards.read.index import DatasetIndex

#: last | last_answer | answer | all | k (the last k) | ("first", k)
Tokens = str | int | tuple[str, int]

TOKEN_WORDS = ("last", "last_answer", "answer", "all")
LAYOUTS = ("stack", "pad", "jagged", "graph", "union-graph")


@dataclass(frozen=True)
class TokenRanges:
    """Stored states ``[first, first + count)`` of each row of the index (rows of other splits
    included).
    """

    first: NDArray[np.int64]
    count: NDArray[np.int64]


def as_integer(value: object) -> int | None:
    """Return an integer of Python or NumPy as ``int``; None for anything else, bool too."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        return None
    return operator.index(value)


def select_layers(layers: Sequence[int] | slice | int | None, num_layers: int) -> NDArray[np.int64]:
    """Return the wanted layers as int64 indices; negative ones count from the last.

    Raises:
        ValueError: A layer outside the stored ones, or none at all.
    """
    every = np.arange(num_layers, dtype=np.int64)
    if layers is None:
        return every
    if isinstance(layers, slice):
        chosen = every[layers]
    else:
        one = as_integer(layers)
        wanted = list(layers) if one is None and isinstance(layers, Sequence) else [layers]
        indices = [as_integer(layer) for layer in wanted]
        for layer, place in zip(wanted, indices, strict=True):
            if place is None or not -num_layers <= place < num_layers:
                raise ValueError(f"layers: {layer!r} is not one of the {num_layers} stored")
        chosen = every[np.array(indices, np.int64)]
    if not chosen.size:
        raise ValueError(f"layers: {layers!r} chooses none of the {num_layers} stored")
    return chosen


def is_single(tokens: Tokens) -> bool:
    """Return whether the choice is one token, whose axis is left out."""
    return tokens in ("last", "last_answer")


def select_tokens(
    index: DatasetIndex, rows: NDArray[np.int64], tokens: Tokens, asked: str | None = None
) -> TokenRanges:
    """Return the wanted token range of every row; ``rows`` are those that must be able to give it.

    States are those of the last t of T tokens: the state of token i is row i - (T - t).

    Args:
        index: Of the data set.
        rows: That must have the tokens.
        tokens: The choice.
        asked: What asks for them where it is not the argument ``tokens``; for errors.

    Raises:
        ValueError: ``tokens`` is not one of the choices.
        DecodeError: Some sample has no such tokens: an unknown prompt length, or states of the
            answer's tokens or of the last token only.
    """
    stored = index.columns["state_tokens"].astype(np.int64)
    total = index.columns["tokens"].astype(np.int64)
    missing = total - stored
    partial = rows[missing[rows] != 0]
    # A layout leaves no choice of tokens to advise.
    what, advice = (f"tokens={tokens!r}", "use tokens={}, or ") if asked is None else (asked, "")
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
        allowed = f"'answer', 'last_answer', 'last' or k up to {stored[partial].min()}"
        raise DecodeError(
            f"{what} is not available: {short.size} samples hold the states of their answer's"
            f" tokens only; {advice.format(allowed)}extract with --tokens all",
            member=index.member_name(int(short[0]), HIDDEN),
        )
    return found


def _token_ranges(index: DatasetIndex, rows: NDArray[np.int64], tokens: Tokens) -> TokenRanges:
    """Return the wanted places among the T tokens of every row, whatever is stored of them."""
    total = index.columns["tokens"].astype(np.int64)
    if is_single(tokens):
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
    """Return what samples hold of whose states it is not sure which tokens they belong to."""
    odd = np.flatnonzero(stored != 1)
    if odd.size:
        return (
            f"{odd.size} samples hold states of some tokens only ({stored[odd[0]]} of"
            f" {total[odd[0]]}), and nothing says of which"
        )
    return (
        f"{stored.size} samples hold the states of one token only (the last generation step was"
        " all that was saved)"
    )


def check_layout(
    index: DatasetIndex, rows: NDArray[np.int64], layout: str, ranges: TokenRanges, tokens: Tokens
) -> None:
    """Check that all of ``rows`` fit the layout.

    Raises:
        DecodeError: Unequal lengths under ``stack``; no edges under ``graph``.
    """
    if layout == "stack":
        counts = ranges.count[rows]
        if counts.size and counts.min() != counts.max():
            raise DecodeError(
                f"layout='stack' with tokens={tokens!r}: samples have {counts.min()} to"
                f" {counts.max()} tokens; use layout='pad' or 'jagged'",
                member=index.member_name(int(rows[counts.argmin()]), HIDDEN),
            )
    if layout == "graph":
        members = (EDGES_INDEX, EDGES_WEIGHT, EDGES_POINTER)
        check_members(index, rows, f"layout={layout!r}", "edges", members)
    if layout == "union-graph":
        check_members(
            index, rows, f"layout={layout!r}", "heads", (HEADS_INDEX, HEADS_WEIGHT, HEADS_POINTER)
        )
        if not index.num_heads:
            raise DecodeError(
                "layout='union-graph' is not available: tar files without an index do not say how"
                " many heads there are; pack again"
            )
        unknown = rows[index.columns["prompt_length"][rows] < 0]
        if unknown.size:
            raise DecodeError(
                f"layout='union-graph' is not available: {unknown.size} samples have no prompt"
                " length, and edges within the prompt are left out",
                member=index.member_name(int(unknown[0]), HEADS_INDEX),
            )


def check_members(
    index: DatasetIndex,
    rows: NDArray[np.int64],
    what: str,
    kind: str,
    members: tuple[str, ...],
) -> None:
    """Raise DecodeError unless every row has the members of an attention kind, which ``what``
    needs.
    """
    for member in members:
        missing = rows[index.member(member, "size")[rows] == 0]
        if missing.size:
            raise DecodeError(
                f"{what} is not available: {missing.size} samples hold no {kind}; repack"
                f" with --attention {kind} from traces that have attention maps",
                member=index.member_name(int(missing[0]), member),
            )
