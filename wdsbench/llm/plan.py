"""Estimate of the bytes and the time of an extraction.

Sizes follow from the model's configuration (L layers, H heads, D features) and the tokens of the
questions. A trace has T tokens, t of them with states, and E edges per layer. Before compression:

    hidden states   2 L t D              edges    L E (2 w + 2), w bytes an index
    full (raw)      2 L H T^2            heads    L H T e (2 w + 2), e edges a row
    full (shards)   2 L H T (T + 1) / 2  sketch   8 L H T

``Rates`` holds assumed compression by gzip, answer lengths and edges per row, which a probe of a
few questions measures. Without a probe every answer has the greatest length, so that the estimate
is too high rather than too low.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer

from wdsbench.errors import ModelError
from wdsbench.llm.extract import extract
from wdsbench.llm.model import causal_reason, loading, pretrained_source
from wdsbench.llm.options import ExtractOptions, TraceOptions
from wdsbench.llm.questions import Question
from wdsbench.shards.format.tar import BLOCK_BYTES
from wdsbench.traces.attention import ATTENTION_KINDS, EdgeRule
from wdsbench.traces.files import open_raw
from wdsbench.traces.unpickle import load_pickle
from wdsbench.traces.write import write_traces

Array: TypeAlias = NDArray[np.float64]

#: Share added to the estimate before it is compared with the free disk space.
MARGIN: Final = 0.1
_HALF_BYTES: Final = 2
_NPY_HEADER_BYTES: Final = 128
_INDEX_BYTES: Final = 90  # row of a sample, without its members
_INDEX_MEMBER_BYTES: Final = 24
_META_BYTES: Final = 330  # names and provenance of a meta.json
_META_TOKEN_BYTES: Final = 14  # id and text
_META_LOGPROB_BYTES: Final = 13
_RAW_TOKEN_BYTES: Final = 16  # id and text of a token, pickled
_RAW_TRACE_BYTES: Final = 400
#: Kinds of attention in the report: each kind alone, the default of packing, and none.
KIND_SETS: Final[tuple[tuple[str, ...], ...]] = (
    *((kind,) for kind in ("full", "edges", "heads", "sketch")),
    ("edges", "sketch"),
    (),
)


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model's states: L layers, H heads, D features."""

    layers: int
    heads: int
    features: int


@dataclass(frozen=True)
class Rates:
    """Assumed or measured quantities that sizes depend on."""

    # Measured on the embedded model (float32, T 33); states of bfloat16 models shrink further.
    # Compressed over uncompressed bytes of each part of a raw trace.
    gzip: Mapping[str, float] = field(
        default_factory=lambda: {
            "hidden": 0.94,
            "full": 0.53,
            "edges": 0.64,
            "heads": 0.69,
            "sketch": 0.83,
            "rest": 0.4,
        }
    )
    answer_tokens: float = 32.0  # mean length of an answer
    # Edges per token and layer for rule ``threshold``; None: the maximum.
    edges_per_row: float | None = None
    head_edges_per_row: float = 4.0  # edges per token, layer and head


@dataclass(frozen=True)
class TraceBytes:
    """Bytes of a set of traces."""

    raw: int  # ``.pkl.gz`` files with states in float16
    raw_wide: int  # the same if every trace exceeds float16 and is stored in float32
    shards: int  # shards and index
    memory: int  # arrays of the raw traces in memory

    def scaled(self, factor: float) -> TraceBytes:
        """Return ``factor`` times as much."""
        return TraceBytes(*(round(value * factor) for value in vars(self).values()))


@dataclass(frozen=True)
class Probe:
    """Measurements of a few real traces."""

    traces: int
    seconds: float  # per trace, in one batch
    rates: Rates  # assumed values for data that was not kept
    wide: int  # number of traces that exceed float16
    cut: int  # number of answers that were cut at ``max_new_tokens``


def load_size(path: str | Path, revision: str | None = None) -> tuple[Any, ModelSize, Any]:
    """Return configuration, sizes and tokenizer of a model without loading its weights."""
    source = str(path)
    folder, file = pretrained_source(source)
    words: dict[str, Any] = {"trust_remote_code": False, "revision": revision or "main", **file}
    with loading(source, "read", causal_reason):
        config = AutoConfig.from_pretrained(folder, **words)
        tokenizer = AutoTokenizer.from_pretrained(folder, **words)
    text = config.get_text_config()
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    values: list[Any] = [getattr(text, name, None) for name in names]
    if not all(isinstance(value, int) and value > 0 for value in values):
        said = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        raise ModelError(f"model {source}: its configuration gives {said}; plan needs all three.")
    return config, ModelSize(*values), tokenizer


def estimate(
    form: ModelSize, prompts: NDArray[np.int64], options: TraceOptions, rates: Rates
) -> TraceBytes:
    """Return the bytes of one trace for each prompt; ``prompts`` are their lengths ``[n]``."""
    form = replace(form, layers=form.layers if options.layers is None else len(options.layers))
    lengths: Array = prompts.astype(np.float64) + rates.answer_tokens
    traces = _Traces(form, options, rates, lengths, np.full_like(lengths, rates.answer_tokens))
    parts = traces.parts()
    kept = {name: float(parts[name].sum()) for name in ("hidden", *options.attention, "rest")}
    raw = sum(size * rates.gzip[name] for name, size in kept.items())
    # gzip cannot compress the second half of a float32's bits.
    wide = raw + kept["hidden"]
    shards = traces.shard_bytes(parts)
    return TraceBytes(round(raw), round(wide), round(shards), round(sum(kept.values())))


@dataclass(frozen=True)
class _Traces:
    """Traces of known lengths; arrays have one element for each."""

    form: ModelSize  # with the kept layers
    options: TraceOptions
    rates: Rates
    lengths: Array  # tokens
    answers: Array  # tokens of the answer

    def parts(self) -> dict[str, Array]:
        """Return the uncompressed bytes of each part of the raw traces."""
        form, lengths = self.form, self.lengths
        states = {"all": lengths, "answer": self.answers, "last": np.ones_like(lengths)}
        maps = form.layers * form.heads
        edge = 2 * self._index_bytes() + _HALF_BYTES
        per_row = self.rates.head_edges_per_row
        if self.options.head_threshold > 0:
            per_row = min(per_row, 1 / self.options.head_threshold)  # a row sums to one
        return {
            "hidden": _HALF_BYTES * form.layers * states[self.options.tokens] * form.features,
            "full": _HALF_BYTES * maps * lengths**2,
            "edges": form.layers * (self._edges() * edge + 4),
            "heads": maps * (np.minimum(per_row, lengths / 2) * lengths * edge + 4),
            "sketch": 4 * _HALF_BYTES * maps * lengths,
            "rest": _RAW_TRACE_BYTES + _RAW_TOKEN_BYTES * lengths,
        }

    def shard_bytes(self, parts: Mapping[str, Array]) -> float:
        """Return the bytes of the samples in shards and index."""
        form, lengths, kinds = self.form, self.lengths, self.options.attention
        index = self._index_bytes()
        share = 2 * index / (2 * index + _HALF_BYTES)  # share of the index in an edge's bytes
        members: list[Array] = [_NPY_HEADER_BYTES + parts["hidden"]]
        for kind, lists in (("edges", form.layers), ("heads", form.layers * form.heads)):
            if kind in kinds:
                values = parts[kind] - 4 * lists
                members += [
                    _NPY_HEADER_BYTES + values * share,
                    _NPY_HEADER_BYTES + values * (1 - share),
                    np.full_like(lengths, _NPY_HEADER_BYTES + 4 * (lists + 1)),
                ]
        if "sketch" in kinds:
            members.append(_NPY_HEADER_BYTES + parts["sketch"])
        if "full" in kinds:
            members.append(_NPY_HEADER_BYTES + parts["full"] * (lengths + 1) / (2 * lengths))
        logprobs = _META_LOGPROB_BYTES * self.rates.answer_tokens
        members.append(_META_BYTES + _META_TOKEN_BYTES * lengths + logprobs)
        # A header, and half a block of padding on average.
        held = sum(float(member.sum()) for member in members)
        held += len(members) * len(lengths) * (BLOCK_BYTES * 1.5 + _INDEX_MEMBER_BYTES)
        return held + _INDEX_BYTES * len(lengths)

    def _index_bytes(self) -> NDArray[np.int64]:
        """Return the bytes of one token index of each trace."""
        return np.where(self.lengths <= 2**8, 1, np.where(self.lengths <= 2**16, 2, 4))

    def _edges(self) -> Array:
        """Return the number of edges in one layer of each trace."""
        rule = EdgeRule.parse(self.options.edge_rule)
        if self.rates.edges_per_row is not None and rule.kind == "threshold":
            return self.rates.edges_per_row * self.lengths
        rows = np.arange(1, int(np.ceil(self.lengths.max())) + 1, dtype=np.float64)
        if rule.kind == "top":
            of_row = np.maximum(1, np.floor(rule.value * rows))
        else:  # a row sums to one, so at most 1 / weight edges
            of_row = np.minimum(rows, 1 / rule.value) if rule.value else rows
        until = np.concatenate([[0.0], np.cumsum(of_row)])
        edges: Array = np.interp(self.lengths - 1, np.arange(len(until)), until)
        return edges


def probe(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    form: ModelSize,
    options: TraceOptions,
    count: int,
) -> Probe:
    """Extract ``count`` evenly spaced questions in one batch, each once, and measure them."""
    places = np.unique(np.linspace(0, len(questions) - 1, min(count, len(questions))).round())
    asked = [questions[int(place)] for place in places]
    shared = {one.name: getattr(options, one.name) for one in fields(TraceOptions)}
    settings = ExtractOptions(
        **{**shared, "answers_per_question": 1, "traces_per_file": len(asked)},
        batch_size=len(asked),
        journal=False,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        extract(model, tokenizer, asked[:1], folder / "warm", settings)
        started = time.perf_counter()
        report = extract(model, tokenizer, asked, folder / "probe", settings)
        seconds = (time.perf_counter() - started) / report.traces
        with open_raw(report.files[0]) as stream:
            raws = load_pickle(stream)
        assert isinstance(raws, list)
        rates = _measured(raws, form, options, folder / "part.pkl.gz")
    cut = report.unfinished_answers
    return Probe(report.traces, seconds, rates, report.wide_traces, cut)


def _measured(
    raws: Sequence[Mapping[str, Any]], form: ModelSize, options: TraceOptions, scratch: Path
) -> Rates:
    lengths = np.array([len(raw["tokens"]) for raw in raws], np.float64)
    answers = np.array([len(raw["token_logprobs"]) for raw in raws], np.float64)
    rates = Rates(answer_tokens=float(answers.mean()))
    form = replace(form, layers=len(raws[0]["hidden_states"]))
    rows = float(lengths.sum()) * form.layers
    kinds = options.attention
    reduced = [raw.get("reduced_attention", {}) for raw in raws]
    if "edges" in kinds:
        found = sum(one["edges_weight"].size for one in reduced)
        rates = replace(rates, edges_per_row=found / rows)
    if "heads" in kinds:
        found = sum(one["heads_weight"].size for one in reduced)
        rates = replace(rates, head_edges_per_row=found / rows / form.heads)
    parts = _Traces(form, options, rates, lengths, answers).parts()
    large = ("hidden_states", "attentions", "reduced_attention")
    pieces: dict[str, list[dict[str, Any]]] = {
        "hidden": [{"hidden_states": raw["hidden_states"]} for raw in raws],
        "rest": [{key: raw[key] for key in raw if key not in large} for raw in raws],
    }
    for kind in kinds:
        pieces[kind] = (
            [{"attentions": raw["attentions"]} for raw in raws]
            if kind == "full"
            else [{key: one[key] for key in one if key.startswith(kind)} for one in reduced]
        )
    found_bytes = {name: _file_bytes(piece, scratch) for name, piece in pieces.items()}
    # Parts compress less together than alone: gzip has one code for a whole block.
    mixed = _file_bytes(raws, scratch) / sum(found_bytes.values())
    found_gzip = {
        name: mixed * count / float(parts[name].sum()) for name, count in found_bytes.items()
    }
    return replace(rates, gzip={**rates.gzip, **found_gzip})


def _file_bytes(traces: Sequence[Mapping[str, Any]], scratch: Path) -> int:
    write_traces(scratch, traces)
    return scratch.stat().st_size


def needed_bytes(raw: TraceBytes, packed: TraceBytes, traces: int, traces_per_file: int) -> int:
    """Return the bytes of raw files, shards and the journal's copy of a file, plus ``MARGIN``."""
    copy = raw.memory * min(1.0, traces_per_file / traces)
    return round((raw.raw + packed.shards + copy) * (1 + MARGIN))


def kinds_name(kinds: Sequence[str]) -> str:
    """Return the kinds as a comma list, such as ``"edges,sketch"``, or ``"none"``."""
    return ",".join(kind for kind in ATTENTION_KINDS if kind in kinds) or "none"
