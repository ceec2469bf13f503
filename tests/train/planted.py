"""Traces with a planted signal, and a loader that serves them from memory.

The loader behaves as hard as a real one may: batches live in memory that the next batch overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch as GraphBatch
from torch_geometric.data import Data

from wdsbench.records import Batch

# Layers of a language model differ in scale by orders of magnitude.
LAYER_SCALES = (1.0, 30.0, 0.1)


@dataclass(frozen=True)
class Sample:
    """One trace in memory: hidden float32 ``[L, T, D]``, one edge list and weights per layer, and
    one edge list with vectors float32 ``[E, L * H]`` over all layers and heads; None: the layers'
    edges as if of one head each.
    """

    key: str
    split: str
    label: float
    hidden: NDArray[np.float32]
    edges: list[tuple[NDArray[np.int64], NDArray[np.float32]]]
    prompt_length: int
    logprobs: NDArray[np.float32] | None
    heads: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None


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
        edges = [
            top_edges(generator.dirichlet(np.ones(tokens), size=tokens).astype(np.float32))
            for _ in range(num_layers)
        ]
        logprobs = -np.abs(generator.normal(size=tokens - prompt)).astype(np.float32)
        place = number / count
        samples.append(
            Sample(
                key=f"q{number}-0",
                split="train" if place < 0.6 else "val" if place < 0.8 else "test",
                label=label,
                hidden=hidden,
                edges=edges,
                prompt_length=prompt,
                logprobs=logprobs - np.float32(logprob_signal * label),
            )
        )
    return samples


def make_placed_samples(count: int, *, seed: int, num_heads: int = 2) -> list[Sample]:
    """Return traces whose label says only where strong and weak attention stands.

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
                key=f"q{number}-0",
                split="train" if place < 0.6 else "val" if place < 0.8 else "test",
                label=float(label),
                hidden=hidden,
                edges=[(index, vectors[:, layer * num_heads]) for layer in range(num_layers)],
                prompt_length=prompt,
                logprobs=None,
                heads=(index, vectors),
            )
        )
    return samples


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


@dataclass
class FakeLoader:
    """Serves samples of one split as the project's loader would."""

    samples: list[Sample]
    split: str
    fields: tuple[str, ...]
    layout: str
    batch_size: int
    shuffle: int
    seed: int
    index: Any = None
    layers: list[int] | None = None
    epoch: int = 0
    _memory: torch.Tensor | None = field(default=None)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        order = np.arange(len(self.samples))
        if self.shuffle:
            np.random.default_rng([self.seed, self.epoch]).shuffle(order)
        for first in range(0, len(order), self.batch_size):
            yield self._batch([self.samples[n] for n in order[first : first + self.batch_size]])

    def _batch(self, chosen: list[Sample]) -> Batch:
        hidden = graph = None
        if "hidden" in self.fields and self.layout == "graph":
            graph = graph_batch(chosen)
        elif "hidden" in self.fields and self.layout == "union-graph":
            graph = union_batch(chosen)
        elif "hidden" in self.fields:
            layers = slice(None) if self.layers is None else list(self.layers)
            last = [sample.hidden[layers, -1] for sample in chosen]
            states = torch.from_numpy(np.stack(last))
            if self._memory is None:
                self._memory = torch.empty(self.batch_size, *states.shape[1:])
            hidden = self._memory[: len(chosen)].copy_(states)
        labels = torch.tensor([sample.label for sample in chosen])
        return Batch(
            label=labels,
            score=1 - labels,
            token_count=torch.tensor([sample.hidden.shape[1] for sample in chosen]),
            prompt_length=torch.tensor([sample.prompt_length for sample in chosen]),
            question_ids=[sample.key.split("-")[0] for sample in chosen],
            keys=[sample.key for sample in chosen],
            hidden=hidden,
            graph=graph,
            logprobs=[s.logprobs for s in chosen] if "logprobs" in self.fields else None,
        )


class FakeStore:
    """Stands for a data set: called like the loader's constructor, it opens a `FakeLoader`."""

    def __init__(self, samples: list[Sample], index: Any = None) -> None:
        self.samples = samples
        self.index = index
        self.opened: list[dict[str, Any]] = []

    def __call__(self, shards: object, **arguments: Any) -> FakeLoader:
        self.opened.append({"shards": shards, **arguments})
        return FakeLoader(
            samples=[sample for sample in self.samples if sample.split == arguments["split"]],
            split=arguments["split"],
            fields=arguments["fields"],
            layout=arguments["layout"],
            batch_size=arguments["batch_size"],
            shuffle=arguments["shuffle"],
            seed=arguments["seed"],
            index=self.index,
            layers=arguments.get("layers"),
        )
