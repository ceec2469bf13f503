"""What a loader gave, sample by sample: against the raw traces, and against another loader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import reference
from builders import Packed

from wdsbench import Batch


def states_of(batch: Batch, i: int) -> Any:
    """Return a copy of the states of sample ``i``: float32 ``[L, k, D]``; None without states."""
    if batch.graph is not None:
        layers = batch.graph.num_graphs // len(batch)
        bounds = batch.graph.ptr[i * layers : (i + 1) * layers + 1].tolist()
        return np.stack([batch.graph.x[a:b].cpu().numpy().copy() for a, b in pairs(bounds)])
    if batch.hidden is None:
        return None
    if batch.offsets is not None:
        start, end = batch.offsets[i : i + 2].tolist()
        return batch.hidden[:, start:end].cpu().numpy().copy()
    states = batch.hidden[i].cpu().numpy()
    if states.ndim == 2:
        states = states[:, None]
    if batch.lengths is not None:
        assert not states[:, int(batch.lengths[i]) :].any()
        states = states[:, : int(batch.lengths[i])]
    return states.copy()


def pairs(bounds: list[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbours."""
    return itertools.pairwise(bounds)


def by_sample(batches: Iterable[Batch]) -> dict[str, dict[str, Any]]:
    """Return everything that batches say of every sample, copied; a sample may come once only."""
    samples: dict[str, dict[str, Any]] = {}
    for batch in batches:
        for i, question_id in enumerate(batch.question_ids):
            assert question_id not in samples
            sample = {
                "key": batch.keys[i],
                "label": batch.label[i].item(),
                "score": batch.score[i].item(),
                "token_count": batch.token_count[i].item(),
                "prompt_length": batch.prompt_length[i].item(),
                "hidden": states_of(batch, i),
                "logprobs": None if batch.logprobs is None else batch.logprobs[i],
                "meta": None if batch.meta is None else batch.meta[i],
            }
            if batch.graph is not None:
                layers = batch.graph.num_graphs // len(batch)
                graphs = [batch.graph.get_example(i * layers + layer) for layer in range(layers)]
                sample["edges"] = [graph.edge_index.cpu().numpy().copy() for graph in graphs]
                sample["weights"] = [graph.edge_attr.cpu().numpy().copy() for graph in graphs]
            samples[question_id] = sample
    return samples


def assert_same(ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> None:
    """Compare two results of :func:`by_sample`, in any order."""
    assert ours.keys() == theirs.keys()
    for question_id, sample in ours.items():
        assert sample.keys() == theirs[question_id].keys()
        for name, value in sample.items():
            np.testing.assert_equal(value, theirs[question_id][name], err_msg=name)


#: States of traces that were compared before.
_hidden: dict[tuple[Path, str], Any] = {}


def wanted(packed: Packed, question_id: str, tokens: Any = "last", layers: Any = None) -> Any:
    """Return what a loader should give of a trace: float32 ``[L, k, D]``."""
    raw = packed.raws[question_id]
    places = reference.token_range(tokens, len(raw["tokens"]), raw["prompt_length"])
    trace = (packed.folder, question_id)
    if trace not in _hidden:
        _hidden[trace] = packed.hidden(question_id)
    hidden = _hidden[trace][:, places.start : places.stop]
    return hidden if layers is None else hidden[layers]


def check_states(batch: Batch, packed: Packed, tokens: Any = "last") -> None:
    """Compare the states of a batch with the raw traces."""
    for i, question_id in enumerate(batch.question_ids):
        np.testing.assert_array_equal(states_of(batch, i), wanted(packed, question_id, tokens))


def check_once(batches: Iterable[Batch], packed: Packed) -> list[Batch]:
    """Check labels, scores and that every trace comes once; return the batches."""
    kept = list(batches)
    seen = [question_id for batch in kept for question_id in batch.question_ids]
    assert sorted(seen) == sorted(packed.raws)
    for batch in kept:
        for i, question_id in enumerate(batch.question_ids):
            raw, score = packed.raws[question_id], packed.scores[question_id]
            assert batch.score[i].item() == np.float32(score)
            assert batch.label[i].item() == float(score < 0.5)
            assert batch.token_count[i].item() == len(raw["tokens"])
            assert batch.prompt_length[i].item() == raw["prompt_length"]
    return kept
