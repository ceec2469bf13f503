"""Records that several packages share: plain dataclasses without behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Trace:
    """One answered question of a raw trace file, checked and normalised.

    Attributes:
        question_id: The question's id, always ``str``.
        hidden: float16, float32 or float64 ``[L, t, D]``: states of the last t tokens. t is T, or
            T - prompt_length if only the answer's states were saved, or 1 (last token only).
        attentions: L arrays ``[H, T, T]`` of a float dtype (row i: what token i attends to), or
            None.
        tokens: int64 ``[T]`` token ids of the prompt, then of the answer; empty if the source has
            none.
        token_texts: T decoded tokens, or empty.
        answer: The generated answer as text.
        prompt_length: Tokens of the prompt, or None if unknown; never guessed.
        token_logprobs: float32 ``[T - prompt_length]``, natural log, one for each answer token; or
            None.
        trace_number: Number of the trace among those of its question, or None if unknown.
        label: 1.0 hallucinated, 0.0 right, None if the file has no label.
        question: The question as text, or None if unknown, as the next two.
        context: The text that the answer should agree with.
        group: Name of a group of questions.
        graphs: Edges, one list per layer, if the source holds graphs instead of attention maps;
            or None.
        reduced: Reduced attention maps, or None.
        layers: The L layers' numbers in the model, ascending, from 0; None: all.
        file: Path of the raw file.
        position: Place in that file, from 0.
        remarks: Changes made by the reader; counted by the packer.
        origin: Raw file and place in it from which an unpacked trace was packed; or None.
    """

    question_id: str
    hidden: NDArray[Any]
    attentions: list[NDArray[Any]] | None
    tokens: NDArray[np.int64]
    token_texts: list[str]
    answer: str
    prompt_length: int | None = None
    token_logprobs: NDArray[np.float32] | None = None
    trace_number: int | None = None
    label: float | None = None
    question: str | None = None
    context: str | None = None
    group: str | None = None
    graphs: EdgeLists | None = None
    reduced: ReducedAttention | None = None
    layers: tuple[int, ...] | None = None
    file: str = ""
    position: int = 0
    remarks: tuple[str, ...] = ()
    origin: tuple[str, int] | None = None

    @property
    def num_tokens(self) -> int:
        """T; without token ids the number of states, since then every token has one."""
        return self.tokens.size or self.hidden.shape[1]


@dataclass(frozen=True)
class EdgeLists:
    """Lists of attention edges j -> i, one after the other.

    Attributes:
        index: ``[2, E]`` unsigned: row 0 the sources j, row 1 the targets i (j < i), each list
            ordered by i, then by j.
        weight: float16 ``[E]``.
        pointer: uint32 ``[lists + 1]``: list n is edges ``[pointer[n], pointer[n + 1])``.
    """

    index: NDArray[Any]
    weight: NDArray[np.float16]
    pointer: NDArray[np.uint32]

    def part(self, number: int) -> EdgeLists:
        """Return list ``number`` alone, as views."""
        pointer = self.pointer[number : number + 2]
        first, last = pointer.tolist()
        return EdgeLists(self.index[:, first:last], self.weight[first:last], pointer - pointer[0])


@dataclass(frozen=True)
class ReducedAttention:
    """Reduced attention maps of L layers of H heads; each kind may be None."""

    num_layers: int
    num_heads: int
    #: Edges of the mean over heads, one list per layer, by ``top:SHARE`` or ``threshold:WEIGHT``.
    edges: EdgeLists | None = None
    edge_rule: str | None = None
    #: Edges of every head, list ``layer * H + head``, and the least weight of an edge.
    heads: EdgeLists | None = None
    head_threshold: float | None = None
    #: float16 ``[L, H, T, 4]``.
    sketch: NDArray[np.float16] | None = None


@dataclass(frozen=True)
class Member:
    """Location of the data of a file inside a shard; small enough to send between processes."""

    shard: str
    name: str
    offset_bytes: int
    size_bytes: int


@dataclass
class Batch:
    """B samples, collated. Fields that were not requested are None.

    Attributes:
        hidden: float32 ``[B, L, D]`` (one token), ``[B, L, k, D]``, ``[B, L, Tmax, D]`` (pad) or
            ``[L, sum T, D]`` (jagged).
        hidden_scale: float32 factors by which ``hidden`` (or ``graph.x``) is multiplied on the
            device that widens it; None in batches that a loader yields.
        image: float32 ``[B, C, P, P]`` (layout "image"): patches, 0 and 1 at the ends of the range
            of their image or channel.
        image_range: float32 ``[B, C, 2]``: ranges with which the device normalises ``image``; None
            in batches that a loader yields.
        lengths: int64 ``[B]``: tokens of each sample in ``hidden`` if they vary.
        offsets: int64 ``[B + 1]``: start of each sample on the token axis (jagged).
        label: float32 ``[B]``: 1 hallucinated, 0 right, NaN unknown.
        score: float32 ``[B]``; NaN if labels came without scores.
        token_count: int64 ``[B]``: tokens of the whole sequence, prompt and answer.
        prompt_length: int64 ``[B]``: tokens of the prompt, -1 where unknown.
        graph: ``torch_geometric.data.Batch``. Layout "graph": ``B * L`` graphs, graph = sample * L
            + layer, ``x`` float32 ``[N, D]``, ``edge_attr`` float32 ``[E, 1]``. Layout
            "union-graph": B graphs, ``x`` ``[N, L, D]``, ``edge_attr`` ``[E, L * H]``.
        logprobs: B float32 arrays ``[answer tokens]`` (field "logprobs"); an entry is None if the
            trace has none.
        sketch: B tensors float32 ``[L, H, T, 4]``: self-attention, Laplacian diagonal, lookback
            ratio and entropy of every token (field "sketch").
        meta: B decoded ``meta.json`` dicts (field "meta").
        extra: B tensors of each requested field without an attribute of its own, by name.
    """

    label: Tensor
    score: Tensor
    token_count: Tensor
    prompt_length: Tensor
    question_ids: list[str]
    keys: list[str]
    hidden: Tensor | None = None
    hidden_scale: Tensor | None = None
    image: Tensor | None = None
    image_range: Tensor | None = None
    lengths: Tensor | None = None
    offsets: Tensor | None = None
    graph: Any = None
    logprobs: list[NDArray[np.float32] | None] | None = None
    sketch: list[Tensor] | None = None
    meta: list[dict[str, Any]] | None = None
    extra: dict[str, list[Tensor]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return B."""
        return len(self.keys)


@dataclass(frozen=True)
class FieldSpec:
    """A named array of every sample: its stored dtype and the sizes of its axes.

    Attributes:
        dtype: The stored dtype as NumPy writes it (``"<f2"``).
        shape: One entry per axis; None where samples differ.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    note: str = ""


@dataclass(frozen=True)
class TokenScores:
    """Scores of a detector along the tokens of one trace.

    Attributes:
        positions: int64 ``[n]``: the tokens.
        scores: float64 ``[n]``: probabilities of being hallucinated, as ``wdsbench predict`` writes
            them under ``score``.
        threshold: Scores at or above it are classified as hallucinated; None: none was chosen.
        layers: int64 ``[m]``: layers the detector reads.
        by_layer: float64 ``[m, n]``, or None. ``probe_logistic``: the probability at each layer;
            ``lstm``: the contribution of each layer, which is the score minus the score with that
            layer's state at the mean of the training samples.
        signed: True if ``by_layer`` is a difference.
    """

    detector: str
    positions: NDArray[np.int64]
    scores: NDArray[np.float64]
    threshold: float | None
    layers: NDArray[np.int64]
    by_layer: NDArray[np.float64] | None
    by_layer_title: str
    signed: bool
    remark: str
