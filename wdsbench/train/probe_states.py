"""Fits probes of one layer's state of one token.

Every layer is read once, with as many others as fit the memory budget (at least one); of a layer
only the candidate tokens are kept: n * tokens * D float32, which is 66 MB per layer for 1,000
traces of a 7B model and four tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wdsbench.detect.probe import PROBE_TOKENS, LogisticProbe, token_states
from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.scale import LIMIT, RunningMoments, Standardise
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.probe import Labelled, ProbeFit
from wdsbench.train.solvers import LogisticSolver, MLPSolver, Rows, Solver

# Candidates (a layer and a token) that are fitted with every penalty after the screening.
SHORTLIST = 4
# Batches that a loader prepares in addition to the current one.
BATCHES_HELD = 3

_States = NDArray[np.float32]
_Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class _Candidate:
    """A screened layer and token; ``rows`` are its standardised inputs."""

    layer: int
    token: str
    screened: float
    rows: Rows
    moments: tuple[Tensor, Tensor]


def fit_on_states(work: ProbeFit) -> FittedDetector:
    """Return the fitted probe with its layer and token."""
    build, config = work.spec.build, work.config
    assert build is not None
    stored = work.index.num_layers
    asked = range(stored) if config.layers is None else config.layers
    layers = [layer % stored for layer in asked]
    tokens = _tokens(work)
    shape = DetectorShape(1, work.index.num_features, config.hidden, dropout=config.dropout)
    solver: Solver = (
        MLPSolver(shape, config.seed, work.balanced)
        if work.spec.name == "probe_mlp"
        else LogisticSolver(_set_weights, balanced=work.balanced)
    )

    shortlist: list[_Candidate] = []
    for candidate in _candidates(work, layers, tokens, solver):
        shortlist.append(candidate)
        # Stable: among equals the first layer and token is kept.
        shortlist.sort(key=lambda one: -one.screened)
        del shortlist[SHORTLIST:]

    best, chosen, module = -1.0, shortlist[0], build(shape)
    for candidate in shortlist:
        fresh = build(shape)
        reached = solver.fit(candidate.rows, fresh)
        if reached > best:
            best, chosen, module = reached, candidate, fresh
    scale = module.get_submodule("scale")
    assert isinstance(scale, Standardise)
    scale.set_moments(*chosen.moments)
    return FittedDetector(
        work.spec,
        shape,
        module,
        layers=(chosen.layer,),
        token=chosen.token,
        traces=StoredTraces.of(work.index),
    )


def _tokens(work: ProbeFit) -> tuple[str, ...]:
    """Return the candidate tokens of this data set."""
    if work.train.longest_answer is None or work.val.longest_answer is None:
        return PROBE_TOKENS[:1]
    without_prompt = bool(work.index.of_answer.any())  # some prompts have no stored states
    return tuple(token for token in PROBE_TOKENS if not (without_prompt and token == "last_prompt"))


def _set_weights(module: nn.Module, weight: Tensor, bias: float) -> None:
    assert isinstance(module, LogisticProbe)
    module.set_weights(0, weight, bias)


def _layers_at_once(work: ProbeFit, tokens: Sequence[str]) -> int:
    """Return the number of layers that fit the memory budget."""
    samples = len(work.train.labels) + len(work.val.labels)
    reach = _reach(tokens, work.train, work.val)
    state_bytes = 4 * work.index.num_features
    # A rank's share and the union of all ranks exist at the same time.
    held = 2 * samples * len(tokens) + BATCHES_HELD * work.config.batch_size * reach
    left = work.memory_bytes - SHORTLIST * samples * state_bytes
    return max(1, left // (held * state_bytes))


def _reach(tokens: Sequence[str], *splits: Labelled) -> int:
    """Return the number of last tokens of a sequence that include all of ``tokens``."""
    if len(tokens) == 1:
        return 1
    return max(split.longest_answer or 0 for split in splits) + 1  # and the last one of the prompt


def _candidates(
    work: ProbeFit, layers: list[int], tokens: tuple[str, ...], solver: Solver
) -> Iterator[_Candidate]:
    """Yield the candidates of all layers, in the order of layers and tokens."""
    train: _States
    at_once = _layers_at_once(work, tokens)
    for place, layer in enumerate(
        work.progress(layers, len(layers), f"fitting {work.spec.name}, layer by layer")
    ):
        if place % at_once == 0:
            chunk = layers[place : place + at_once]
            train, train_present = _read_states(work, "train", work.train, chunk, tokens)
            val, val_present = _read_states(work, "val", work.val, chunk, tokens)
        for t, token in enumerate(tokens):
            if not train_present[t].any():
                continue
            states = train[place % at_once, t]
            mean, std = _moments(states[train_present[t]], f"layer {layer}")
            rows = Rows(
                _standardised(states, train_present[t], mean, std),
                work.train.labels,
                _standardised(val[place % at_once, t], val_present[t], mean, std),
                work.val.labels,
                f"{work.spec.name}:{layer}:{token}",
            )
            yield _Candidate(layer, token, solver.screen(rows), rows, (mean, std))


def _read_states(
    work: ProbeFit, split: str, labelled: Labelled, layers: list[int], tokens: tuple[str, ...]
) -> tuple[_States, _Mask]:
    """Return states float32 ``[layers, tokens, n, D]`` of the labelled samples of all ranks, and
    the mask of samples that have each token, bool ``[tokens, n]``.
    """
    needs = work.spec.needs
    if len(tokens) > 1:
        wanted = _reach(tokens, labelled) if "last_prompt" in tokens else "answer"
        needs = replace(needs, tokens=wanted, layout="jagged")
    with work.open_split(split, needs, layers) as batches:
        shares = work.gather(_read_share(batches, labelled, tokens))
    features = next(part.shape[3] for _, parts, _ in shares for part in parts)
    union = np.zeros((len(layers), len(tokens), len(labelled.place), features), np.float32)
    there = np.zeros((len(tokens), len(labelled.place)), np.bool_)
    for rank_keys, rank_states, rank_present in shares:
        done = 0
        for part, mask in zip(rank_states, rank_present, strict=True):
            rows = [labelled.place[key] for key in rank_keys[done : done + part.shape[2]]]
            union[:, :, rows] = part
            there[:, rows] = mask
            done += len(rows)
    return union, there


def _read_share(
    batches: Iterable[Batch], labelled: Labelled, tokens: tuple[str, ...]
) -> tuple[list[str], list[_States], list[_Mask]]:
    """Return this rank's labelled keys and, per batch, states float32 ``[layers, tokens, b, D]``
    and the mask of samples that have each token, bool ``[tokens, b]``.
    """
    keys: list[str] = []
    states: list[_States] = []
    present: list[_Mask] = []
    for batch in batches:
        chosen = [i for i, key in enumerate(batch.keys) if key in labelled.place]
        if not chosen:
            continue
        keys += [batch.keys[i] for i in chosen]
        found = [token_states(batch, token) for token in tokens]
        by_token = [one[chosen].transpose(0, 1) for one, _ in found]
        states.append(torch.stack(by_token, dim=1).cpu().numpy())
        present.append(torch.stack([there[chosen] for _, there in found]).cpu().numpy())
    return keys, states, present


def _moments(states: _States, what: str) -> tuple[Tensor, Tensor]:
    """Return mean and std, float32 ``[1, D]``, of states ``[n, D]``."""
    running = RunningMoments()
    if not np.isfinite(states).all():
        raise DetectorError(
            f"{what} of the training states holds values that are not finite; "
            "repack the data set or leave this layer out"
        )
    running.update(torch.from_numpy(states)[:, None])
    return running.finish()


def _standardised(states: _States, present: _Mask, mean: Tensor, std: Tensor) -> _States:
    """Return states ``[n, D]`` as `Standardise` scales them; 0 if the token is missing."""
    scaled = np.clip((states - mean.numpy()) / std.numpy(), -LIMIT, LIMIT)
    scaled[~present] = 0
    result: _States = scaled.astype(np.float32, copy=False)
    return result
