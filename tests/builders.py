"""Makers of traces, raw files and data sets for tests; every one takes its seed."""

from __future__ import annotations

import csv
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.pack import PackOptions, pack

LAYERS, FEATURES, HEADS = 3, 8, 2


def make_raw(
    question_id: str,
    *,
    seed: int,
    tokens: int | None = None,
    dtype: Any = np.float16,
    layers: int = LAYERS,
    features: int = FEATURES,
) -> dict[str, Any]:
    """Return one raw trace of random states and causal attention that sums to one."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 12)) if tokens is None else tokens
    prompt = max(1, count // 2)
    attentions = []
    for _ in range(layers):
        weights = np.tril(rng.random((HEADS, count, count)) + 1e-3)
        attentions.append((weights / weights.sum(axis=-1, keepdims=True)).astype(dtype))
    return {
        "hidden_states": [rng.normal(size=(count, features)).astype(dtype) for _ in range(layers)],
        "attentions": attentions,
        "tokens": rng.integers(0, 1000, count).tolist(),
        "tokens_decoded": [f"t{i}" for i in range(count)],
        "generated_answer_clean": "an answer",
        "question_id": question_id,
        "prompt_length": prompt,
        "token_logprobs": -rng.random(count - prompt).astype(np.float32),
    }


@dataclass(frozen=True)
class Packed:
    """A packed data set and the raw traces it came from, by question id."""

    folder: Path
    raws: dict[str, dict[str, Any]]
    scores: dict[str, float]

    def hidden(self, question_id: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return a trace's states as float32 ``[L, T, D]``."""
        return np.stack(self.raws[question_id]["hidden_states"]).astype(np.float32)


def write_pickle(path: Path, content: Any) -> Path:
    """Pickle ``content`` to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        pickle.dump(content, file)
    return path


def write_scores(path: Path, scores: dict[str, float], column: str = "bleurt_score") -> Path:
    """Write a score CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question_id", column])
        writer.writerows(scores.items())
    return path


def make_dataset(
    folder: Path,
    *,
    traces: int = 60,
    seed: int = 0,
    shard_mb: float = 0.01,
    options: PackOptions | None = None,
    **raw: Any,
) -> Packed:
    """Pack ``traces`` random traces, two raw files of them, into ``folder / "shards"``."""
    rng = np.random.default_rng(seed)
    raws = {f"q/{i}.é": make_raw(f"q/{i}.é", seed=seed * 10_000 + i, **raw) for i in range(traces)}
    scores = {question_id: float(rng.random()) for question_id in raws}
    everything = list(raws.values())
    write_pickle(folder / "traces_data" / "batch_0001.pkl", everything[: traces // 2])
    write_pickle(folder / "traces_data" / "batch_0002.pkl", everything[traces // 2 :])
    write_scores(folder / "scores.csv", scores)
    pack(
        [str(folder / "traces_data" / "*.pkl*")],
        folder / "shards",
        scores=folder / "scores.csv",
        options=replace(options or PackOptions(), shard_mb=shard_mb),
    )
    return Packed(folder / "shards", raws, scores)
