"""One trace in the form that pictures use, from any source.

Attention of a layer is given as the causal half of a map: float32 ``[T (T + 1) / 2]``, row after
row the weights of token i on tokens j <= i, NaN where nothing is kept. Without whole maps it is
made from edges, and its diagonal from the sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import WdsbenchError
from wdsbench.records import EdgeLists, ReducedAttention, TokenScores
from wdsbench.shards.format.kinds import KINDS, SKETCH_VALUES

PANELS = ("graph", "heatmap", "norms")

#: Least weight of a head's attention that is drawn as an edge if whole maps are stored.
HEAD_EDGE = 0.05

_SELF_ATTENTION = SKETCH_VALUES.index("self_attention")


@dataclass(frozen=True)
class ViewedTrace:
    """A trace with the stored parts of its attention.

    Attributes:
        name: The question and trace, for display.
        source: File or data set, for display.
        slug: Stem for the names of files made from it.
        error: Makes an error that names file or shard and the trace.
        stored: True if it comes from a packed data set.
        texts: T token texts; ``#id`` or ``token i`` if the source has none.
        prompt_length: Tokens of the prompt; None: unknown.
        hidden: float32 ``[L, t, D]``: states of the last t tokens; t is T, or fewer if only the
            answer's or the last token's were saved.
        label: 1 hallucinated, 0 right, None unknown.
        score: The score from which the label was made, or None.
        kept: Edges, heads and sketch, each or None.
        full: float16 ``[L, H, T (T + 1) / 2]``: whole maps, or None.
        model_layers: Numbers of the L layers in the model, which name them; None: all.
    """

    name: str
    source: str
    slug: str
    error: Callable[[str], WdsbenchError]
    stored: bool
    texts: list[str]
    prompt_length: int | None
    answer: str
    hidden: NDArray[np.float32]
    kept: ReducedAttention
    label: float | None = None
    score: float | None = None
    full: NDArray[np.float16] | None = None
    model_layers: tuple[int, ...] | None = None

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.texts)

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.hidden)

    @property
    def layer_names(self) -> tuple[int, ...]:
        """The number in the model of each of L layers."""
        return tuple(range(self.num_layers)) if self.model_layers is None else self.model_layers

    @property
    def state_tokens(self) -> NDArray[np.int64]:
        """int64 ``[t]``: the tokens with stored states."""
        return np.arange(self.num_tokens - self.hidden.shape[1], self.num_tokens)

    @property
    def num_heads(self) -> int:
        """H if single heads can be drawn, else 0."""
        if self.full is not None:
            return int(self.full.shape[1])
        return 0 if self.kept.heads is None else self.kept.num_heads

    @property
    def sketch(self) -> NDArray[np.float16] | None:
        """float16 ``[L, H, T, 4]``; or None."""
        return self.kept.sketch

    @property
    def has_attention(self) -> bool:
        """True if any weight between two tokens is kept."""
        stored = self.full, self.kept.edges, self.kept.heads
        return any(kind is not None for kind in stored)

    @property
    def described(self) -> str:
        """One line that describes the trace."""
        if self.prompt_length is None:
            plural = "s" * (self.num_tokens != 1)
            tokens = f"{self.num_tokens} token{plural}, length of the prompt unknown"
        else:
            answer = self.num_tokens - self.prompt_length
            tokens = f"{self.num_tokens} tokens ({self.prompt_length} prompt, {answer} answer)"
        layers = f"{self.num_layers} layers"
        if self.model_layers is not None:
            layers += f" ({', '.join(map(str, self.model_layers))} of the model)"
        words = [self.source, tokens, layers]
        if self.label is not None:
            judged = "hallucinated" if self.label == 1 else "right"
            words.append(judged + ("" if self.score is None else f" (score {self.score:.3g})"))
        return " · ".join(words)

    @cached_property
    def norms(self) -> NDArray[np.float32]:
        """float32 ``[L, t]``: Euclidean norm of every state."""
        norms: NDArray[np.float64] = np.linalg.norm(self.hidden.astype(np.float64), axis=-1)
        return norms.astype(np.float32)

    def half(self, layer: int, head: int | None = None) -> NDArray[np.float32]:
        """Return the causal half of a head's map, or of the mean over heads (None).

        A mean over the edges of single heads counts weights that are not kept as 0. If it is not
        kept, the error names the pack option that keeps it.
        """
        if self.full is not None:
            half = self.full[layer] if head is None else self.full[layer, head]
            wide: NDArray[np.float32] = half.astype(np.float32)
            return wide.mean(axis=0) if head is None else wide
        kept = self.kept
        if not self.has_attention:
            raise self.error(f"no attention is kept; {self.remedy('full')}")
        if head is not None:
            if kept.heads is None:
                raise self.error(
                    f"single heads are not kept; {self.remedy('heads')}, or full for whole maps"
                )
            return self._filled(kept.heads, layer * kept.num_heads + head, layer, head)
        if kept.edges is not None:
            return self._filled(kept.edges, layer, layer, None)
        assert kept.heads is not None
        first = layer * kept.num_heads
        each = [
            self._filled(kept.heads, first + number, layer, number)
            for number in range(kept.num_heads)
        ]
        mean = np.nan_to_num(np.stack(each)).mean(axis=0)
        return np.where(mean > 0, mean, np.nan).astype(np.float32)

    def square(self, layer: int, head: int | None = None) -> NDArray[np.float32]:
        """Return :meth:`half` as float32 ``[T, T]``; NaN above the diagonal."""
        square = np.full((self.num_tokens, self.num_tokens), np.nan, np.float32)
        square[np.tril_indices(self.num_tokens)] = self.half(layer, head)
        return square

    def edges(self, layer: int, head: int | None = None) -> EdgeLists:
        """Return the edges to draw, those that packing keeps; errors as in :meth:`half`."""
        if head is None and self.kept.edges is not None:
            return self.kept.edges.part(layer)
        weight = self.half(layer, head)
        target, source = np.tril_indices(self.num_tokens)
        wanted = (source < target) & (weight >= (HEAD_EDGE if self.full is not None else 0))
        index = np.stack([source[wanted], target[wanted]])
        pointer = np.array([0, index.shape[1]], np.uint32)
        return EdgeLists(index, weight[wanted].astype(np.float16), pointer)

    def edge_rule(self, head: int | None = None) -> str:
        """Return a description of the edges of :meth:`edges`."""
        kept = self.kept
        if head is None and kept.edges is not None:
            return f"edges {kept.edge_rule}" if kept.edge_rule else "stored edges"
        least = HEAD_EDGE if self.full is not None else kept.head_threshold
        return f"weights from {least:g}" if least is not None else "stored edges"

    def remedy(self, kind: str) -> str:
        """Return the remedy for a missing kind of attention: ``full``, ``edges``, ``heads``, ..."""
        return f"{'repack' if self.stored else 'extract again'} with {KINDS[kind].pack_option}"

    def remarks(self, head: int | None = None) -> list[str]:
        """Return the parts of the attention that pictures do not show, with the remedy."""
        if not self.has_attention:
            return [f"no attention between tokens is kept: {self.remedy('full')}"]
        if self.full is None:
            return [
                f"whole maps are not kept, only {self.edge_rule(head)}; what is not kept is blank:"
                f" {self.remedy('full')} for all of it"
            ]
        return []

    def _filled(
        self, lists: EdgeLists, number: int, layer: int, head: int | None
    ) -> NDArray[np.float32]:
        """Return one list as a causal half, with the diagonal from the sketch if there is one."""
        half = np.full(self.num_tokens * (self.num_tokens + 1) // 2, np.nan, np.float32)
        first, last = lists.pointer[number : number + 2].tolist()
        source, target = lists.index[:, first:last].astype(np.int64)
        half[target * (target + 1) // 2 + source] = lists.weight[first:last]
        if self.sketch is not None:
            own = self.sketch[layer, :, :, _SELF_ATTENTION].astype(np.float32)
            tokens = np.arange(self.num_tokens)
            half[tokens * (tokens + 3) // 2] = own.mean(axis=0) if head is None else own[head]
        return half


@dataclass(frozen=True)
class Selection:
    """The part of a trace that a picture or a page shows.

    Attributes:
        panels: One or more of `PANELS`; a page shows graph and heatmap together.
        layers: Positions of the layers that are shown side by side.
        head: Head whose attention is shown; None: the mean over heads.
        scores: Scores of a detector.
    """

    panels: Sequence[str]
    layers: Sequence[int]
    head: int | None = None
    scores: TokenScores | None = None


def shown_name(question_id: str, trace: int | None) -> str:
    """Return the name of a trace: its question, and its number if it is not the first."""
    return f"question {question_id}" + (f", trace {trace}" if trace else "")


def shown_texts(texts: list[str] | None, ids: Sequence[int] | None, count: int) -> list[str]:
    """Return ``count`` token texts: those given, else ``#id``, else ``token i``."""
    shown = texts or [f"#{number}" for number in ids or ()]
    return shown if len(shown) == count else [f"token {i}" for i in range(count)]


def visible(text: str, *, most: int | None = None) -> str:
    """Return a token's text with invisible characters shown, cut to ``most`` characters.

    Spaces stay inside and become ``␣`` where the text begins or ends with one, or is blank.
    """
    signs = {"\n": "⏎", "\r": "␍", "\t": "⇥"}
    shown = "".join(signs.get(sign, sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}")
                    for sign in text)  # fmt: skip
    inner = shown.strip(" ")
    if not inner:
        shown = "␣" * len(shown) or "(empty)"
    else:
        start = len(shown) - len(shown.lstrip(" "))
        end = len(shown) - len(shown.rstrip(" "))
        shown = "␣" * start + inner + "␣" * end
    if most is not None and len(shown) > most:
        return shown[: most - 1] + "…"
    return shown
