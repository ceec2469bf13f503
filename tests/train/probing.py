"""Traces with a signal in one layer and token, and how probes read them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from builders import make_raw, write_pickle, write_scores

from wdsbench import TraceLoader
from wdsbench.detect.registry import LoaderNeeds
from wdsbench.pack import PackOptions, pack
from wdsbench.train.config import TrainConfig
from wdsbench.train.fitted import FittedDetector
from wdsbench.train.metrics import auroc

CONFIG = TrainConfig(batch_size=16, hidden=16)
LAYER = 1
#: Where each token of a probe is, of T tokens with a prompt of P.
PLACES: dict[str, Callable[[int, int], slice]] = {
    "last_answer": lambda tokens, _: slice(tokens - 1, tokens),
    "first_answer": lambda _, prompt: slice(prompt, prompt + 1),
    "mean_answer": lambda tokens, prompt: slice(prompt, tokens),
    "last_prompt": lambda _, prompt: slice(prompt - 1, prompt),
}


def pack_planted(
    folder: Path,
    token: str,
    *,
    signal: float = 3.0,
    count: int = 240,
    prompts: bool = True,
    exclusive_or: bool = False,
    cut: bool = False,
) -> Path:
    """Pack traces whose label shows in one layer's state of one token; return the folder.

    With ``cut`` the states of the prompt are left out.
    """
    rng = np.random.default_rng(7)
    raws, scores = [], {}
    for number in range(count):
        raw = make_raw(f"q{number}", seed=number, tokens=int(rng.integers(6, 12)))
        label = int(rng.integers(2))
        tokens, prompt = len(raw["tokens"]), raw["prompt_length"]
        state = raw["hidden_states"][LAYER][PLACES[token](tokens, prompt)]
        if exclusive_or:
            first = rng.choice([-1, 1])
            state[:, :2] = signal * np.array([first, first * (1 if label else -1)])
        else:
            state[:, 0] += signal * (label - 0.5)
            others = tokens - prompt - 1
            if token in ("first_answer", "last_answer") and others:
                # The mean over the answer says nothing.
                answer = raw["hidden_states"][LAYER][prompt:, 0]
                answer -= np.float16(signal * (label - 0.5) / others)
                state[:, 0] += signal * (label - 0.5) / others
        if not prompts:
            del raw["prompt_length"], raw["token_logprobs"]
        if cut:
            raw["hidden_states"] = [layer[prompt:] for layer in raw["hidden_states"]]
            raw["states_of"] = "answer"
        raws.append(raw)
        scores[raw["question_id"]] = 1.0 - label
    return pack_scored(folder, raws, scores)


def pack_scored(folder: Path, raws: list[dict[str, Any]], scores: dict[str, float]) -> Path:
    """Pack traces with sketches and their scores; return the data set's folder."""
    write_pickle(folder / "t.pkl", raws)
    pack(
        [str(folder / "t.pkl")],
        folder / "shards",
        scores=write_scores(folder / "s.csv", scores),
        options=PackOptions(attention=("sketch",), shard_mb=0.05, threads=1),
    )
    return folder / "shards"


@dataclass
class Opener:
    """Opens splits of a data set, and keeps what it was asked for."""

    shards: Path
    asked: list[tuple[str, LoaderNeeds, tuple[int, ...] | None]] = field(default_factory=list)

    @contextlib.contextmanager
    def __call__(
        self, split: str, needs: LoaderNeeds, layers: Sequence[int] | None = None
    ) -> Iterator[TraceLoader]:
        chosen = None if layers is None else tuple(layers)
        self.asked.append((split, needs, chosen))
        loader = TraceLoader(
            self.shards,
            split=split,
            **needs.arguments(),
            layers=chosen,
            batch_size=CONFIG.batch_size,
            shuffle=0,
            threads=1,
        )
        with contextlib.closing(loader):
            yield loader


#: Takes a detector's name; returns what `CONFIG` makes of it, and what was read for it.
Alone = Callable[[str], tuple[FittedDetector, Opener]]


def auroc_on_test(fitted: FittedDetector, shards: Path) -> float:
    """Return the AUROC on the test split, read as the detector asks for."""
    with Opener(shards)("test", LoaderNeeds()) as loader:
        labels = {
            key: float(label)
            for batch in loader
            for key, label in zip(batch.keys, batch.label, strict=True)
        }
    with Opener(shards)("test", fitted.needs, fitted.layers) as loader:
        scores = fitted.scores(loader)
    assert scores.keys() == labels.keys()
    return auroc(list(labels.values()), [scores[key] for key in labels])
