"""Traces with a planted signal, packed as a data set."""

from __future__ import annotations

import atexit
import functools
import hashlib
import itertools
import math
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders import write_pickle, write_scores
from numpy.typing import NDArray
from torch_geometric.data import Batch as GraphBatch
from torch_geometric.data import Data

from wdsbench import TraceLoader
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.format.names import split_of_question

# Layers of a language model differ in scale by orders of magnitude.
LAYER_SCALES = (1.0, 30.0, 0.1)


@dataclass(frozen=True)
class Sample:
    """One trace in memory: hidden float32 ``[L, T, D]``, attention maps float32 ``[L, H, T, T]``,
    the edge list and weights of each layer, and one edge list with vectors float32 ``[E, L * H]``
    over all layers and heads; None: the layers' edges as if of one head each.
    """

    number: int
    split: str
    label: float
    hidden: NDArray[np.float32]
    edges: list[tuple[NDArray[np.int64], NDArray[np.float32]]]
    prompt_length: int
    logprobs: NDArray[np.float32] | None
    maps: NDArray[np.float32]
    heads: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
    raw: dict[str, Any] = field(default_factory=dict)  # keys of the raw trace that are others

    @property
    def question_id(self) -> str:
        """A question id that packing puts into the sample's split."""
        return _question_of(self.number, self.split)


def top_edges(attention: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return edges from the strongest 35 % of each token's predecessors: ``[2, E]``, ``[E]``."""
    pairs: list[tuple[int, int]] = []
    for i in range(1, attention.shape[0]):
        count = max(1, int(0.35 * i))
        pairs += [(int(j), i) for j in np.sort(np.argsort(-attention[i, :i])[:count])]
    index = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return index, attention[index[1], index[0]]


def make_samples(
    count: int,
    *,
    signal: float,
    seed: int,
    num_features: int = 8,
    logprob_signal: float = 1.0,
    share: float = 0.5,
) -> list[Sample]:
    """Return ``count`` traces whose classes' last states lie ``signal`` deviations apart."""
    generator = np.random.default_rng(seed)
    num_layers = len(LAYER_SCALES)
    direction = generator.normal(size=(num_layers, num_features)).astype(np.float32)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    samples: list[Sample] = []
    for number in range(count):
        label = float(generator.random() < share)
        tokens = int(generator.integers(4, 9))
        prompt = int(generator.integers(1, 4))
        hidden = generator.normal(size=(num_layers, tokens, num_features)).astype(np.float32)
        hidden[:, -1] += signal * (label - 0.5) * direction
        hidden *= np.array(LAYER_SCALES, dtype=np.float32)[:, None, None]
        maps = [
            generator.dirichlet(np.ones(tokens), size=tokens).astype(np.float32)
            for _ in range(num_layers)
        ]
        edges = [top_edges(one) for one in maps]
        logprobs = -np.abs(generator.normal(size=tokens - prompt)).astype(np.float32)
        place = number / count
        samples.append(
            Sample(
                number=number,
                split="train" if place < 0.6 else "val" if place < 0.8 else "test",
                label=label,
                hidden=hidden,
                edges=edges,
                prompt_length=prompt,
                logprobs=logprobs - np.float32(logprob_signal * label),
                maps=np.tril(np.stack(maps))[:, None],
            )
        )
    return samples


def make_placed_samples(count: int, *, seed: int, num_heads: int = 2) -> list[Sample]:
    """Return traces whose label determines only the places of strong and weak attention.

    Every prompt token is marked plus or minus by its first feature, each as often. Answer tokens
    attend to all of them, strongly to plus and weakly to minus where the label is 1, the other way
    round where it is 0. States by themselves and the edges' values by themselves (their set, their
    number, their sum over a trace) are the same for both labels.
    """
    generator = np.random.default_rng(seed)
    num_layers, prompt, num_features = len(LAYER_SCALES), 6, 8
    samples = []
    for number in range(count):
        label = int(generator.integers(2))
        tokens = prompt + int(generator.integers(2, 4))
        marks = generator.permutation(np.repeat([1, -1], prompt // 2))
        hidden = generator.normal(size=(num_layers, tokens, num_features)).astype(np.float32)
        hidden[:, :prompt, 0] = marks
        hidden[:, prompt:, 0] = generator.choice([1, -1], size=tokens - prompt)
        hidden *= np.array(LAYER_SCALES, dtype=np.float32)[:, None, None]
        pairs = [(source, target) for target in range(prompt, tokens) for source in range(prompt)]
        index = np.array(pairs, dtype=np.int64).T
        strong = (marks[index[0]] == 1) == bool(label)
        noise = generator.uniform(0, 0.1, size=(len(strong), num_layers * num_heads))
        vectors = (np.where(strong, 0.8, 0.1)[:, None] + noise).astype(np.float32)
        place = number / count
        samples.append(
            Sample(
                number=number,
                split="train" if place < 0.6 else "val" if place < 0.8 else "test",
                label=float(label),
                hidden=hidden,
                edges=[(index, vectors[:, layer * num_heads]) for layer in range(num_layers)],
                prompt_length=prompt,
                logprobs=None,
                maps=_maps(tokens, index, vectors, num_layers),
                heads=(index, vectors),
            )
        )
    return samples


def _maps(
    tokens: int, index: NDArray[np.int64], vectors: NDArray[np.float32], num_layers: int
) -> NDArray[np.float32]:
    """Return maps ``[L, H, T, T]`` with these edges; all other weights are 0."""
    maps = np.zeros((num_layers, vectors.shape[1] // num_layers, tokens, tokens), np.float32)
    maps[..., index[1], index[0]] = vectors.T.reshape(*maps.shape[:2], -1)
    return maps


def union_edges(sample: Sample) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return ``sample``'s edges over all layers and heads, those between prompt tokens dropped."""
    if sample.heads is not None:
        return sample.heads
    vectors: dict[tuple[int, int], NDArray[np.float32]] = {}
    for layer, (index, weight) in enumerate(sample.edges):
        for source, target, value in zip(*index.tolist(), weight, strict=True):
            if target >= sample.prompt_length:
                empty = np.zeros(len(sample.edges), dtype=np.float32)
                vectors.setdefault((target, source), empty)[layer] = value
    pairs = [(source, target) for target, source in sorted(vectors)]
    rows = [vectors[key] for key in sorted(vectors)]
    return (
        np.array(pairs, dtype=np.int64).reshape(-1, 2).T,
        np.array(rows, dtype=np.float32).reshape(-1, len(sample.edges)),
    )


def union_batch(samples: list[Sample]) -> GraphBatch:
    """Return one graph per trace over all its layers and heads: ``x`` is ``[N, L, D]``."""
    graphs = []
    for sample in samples:
        index, vectors = union_edges(sample)
        graphs.append(
            Data(
                x=torch.from_numpy(sample.hidden.swapaxes(0, 1).copy()),
                edge_index=torch.from_numpy(index.copy()),
                edge_attr=torch.from_numpy(vectors),
            )
        )
    return GraphBatch.from_data_list(graphs)


def graph_batch(samples: list[Sample]) -> GraphBatch:
    """Return one union over samples and layers, graph = sample * L + layer."""
    return GraphBatch.from_data_list(
        [
            Data(
                x=torch.from_numpy(sample.hidden[layer]),
                edge_index=torch.from_numpy(index),
                edge_attr=torch.from_numpy(weight)[:, None],
            )
            for sample in samples
            for layer, (index, weight) in enumerate(sample.edges)
        ]
    )


@dataclass(frozen=True)
class Stored:
    """A packed data set of samples."""

    folder: Path
    samples: list[Sample]

    def open(self, split: str, **arguments: Any) -> TraceLoader:
        """Return a loader of ``split`` that reads with one thread, in the order of the samples."""
        return TraceLoader(self.folder, split, **{"threads": 1, "shuffle": 0, **arguments})


_FOLDER = Path(tempfile.mkdtemp(prefix="planted-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_STORED: dict[tuple[bytes, PackOptions], Stored] = {}


def store(samples: Sequence[Sample], **options: Any) -> Stored:
    """Return ``samples`` as a data set, packed once per session; ``options`` of `PackOptions`."""
    chosen = PackOptions(
        **{"attention": ("edges", "heads", "sketch"), "missing_score": "keep", "threads": 1}
        | options
    )
    key = hashlib.sha256(pickle.dumps(list(samples))).digest(), chosen
    if key not in _STORED:
        folder = _FOLDER / str(len(_STORED))
        scores = {s.question_id: 1 - s.label for s in samples if not math.isnan(s.label)}
        write_pickle(folder / "traces.pkl", [_raw(sample) for sample in samples])
        pack(
            [str(folder / "traces.pkl")],
            folder / "shards",
            scores=write_scores(folder / "scores.csv", scores),
            options=chosen,
        )
        _STORED[key] = Stored(folder / "shards", list(samples))
    return _STORED[key]


class Opened:
    """Opens `TraceLoader`, and records the arguments; ``refused`` splits must not be opened."""

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.refused = refused
        self.calls: list[dict[str, Any]] = []

    def __call__(self, shards: Path, **arguments: Any) -> TraceLoader:
        assert arguments["split"] not in self.refused, arguments["split"]
        self.calls.append(arguments)
        return TraceLoader(shards, **arguments)


def _raw(sample: Sample) -> dict[str, Any]:
    """Return a sample as a raw trace."""
    tokens = sample.maps.shape[2]
    raw = {
        "hidden_states": list(sample.hidden),
        "attentions": list(sample.maps),
        "tokens": list(range(tokens)),
        "tokens_decoded": [f"t{token}" for token in range(tokens)],
        "generated_answer_clean": "an answer",
        "question_id": sample.question_id,
        "prompt_length": sample.prompt_length,
        "token_logprobs": sample.logprobs,
        "states_of": "all" if sample.hidden.shape[1] == tokens else "last",
    }
    if sample.prompt_length < 0:
        del raw["prompt_length"]
    if sample.logprobs is None:
        del raw["token_logprobs"]
    return raw | sample.raw


@functools.cache
def _question_of(number: int, split: str) -> str:
    """Return a question id that packing puts into ``split``."""
    names = (f"q{number}.{attempt}" for attempt in itertools.count())
    return next(name for name in names if split_of_question(name) == split)
