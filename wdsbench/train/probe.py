"""Fits probes: layer, token and penalty are chosen on validation.

Every layer is read once, together with as many others as fit the memory budget; of a layer, only
the tokens that probes may look at are kept (n * tokens * D float32: 1,000 traces of a 7B model and
four tokens are 66 MB a layer). At least one layer is held, whatever the budget.

With several ranks each reads its share of the samples, all collect the union and fit on it. Rows
stand in the order of their keys, so the result does not depend on who read what; at the end all
take rank 0's weights, for solvers need not agree in the last digit on different machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wdsbench.detect.attention import HEAD_FEATURES, AttentionLogistic, attention_features
from wdsbench.detect.probe import PROBE_TOKENS, LogisticProbe, token_states
from wdsbench.detect.registry import DetectorShape, DetectorSpec, LoaderNeeds
from wdsbench.detect.scale import LIMIT, RunningMoments, Standardise
from wdsbench.errors import DetectorError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.ranks import ALONE, Gather
from wdsbench.train.solvers import ATTENTION_PENALTIES, LogisticSolver, MLPSolver, Rows, Solver

#: Bytes of states held at a time.
MEMORY_BYTES = 1 << 30
# Candidates (a layer and a token) that are fitted with every penalty after the screening.
SHORTLIST = 4
# Batches that a loader has under way beside the one in hand.
BATCHES_HELD = 3


class OpenSplit(Protocol):
    """Opens the batches of ``"train"`` or ``"val"``, on several ranks this rank's share.

    ``layers``: indices of stored layers; None: those of the run.
    """

    def __call__(
        self, split: str, needs: LoaderNeeds, layers: Sequence[int] | None = None
    ) -> AbstractContextManager[Iterable[Batch]]: ...


def fit_probe(
    spec: DetectorSpec,
    open_split: OpenSplit,
    *,
    config: TrainConfig | None = None,
    gather: Gather = ALONE.gather,
    progress: Progress = no_progress,
    memory_bytes: int = MEMORY_BYTES,
) -> FittedDetector:
    """Return the detector ``spec`` of kind ``probe``, fitted on train and val, on the CPU.

    Sign and threshold are not chosen yet. Samples without a label take no part.

    Args:
        spec: ``probe_logistic``, ``probe_mlp`` or ``attention_logistic``.
        open_split: Opens batches.
        config: seed, hidden, dropout, class_weight, batch_size and layers are used; None: the
            defaults.
        gather: Collects a picklable object of every rank, in the order of ranks. What fails on one
            rank alone is the caller's to tell the others (`Ranks.guarded`).
        progress: Draws a bar over layers.
        memory_bytes: Budget for the states held at a time.

    Raises:
        DetectorError: What the detector reads is missing, a state is not finite, or a split has no
            labelled sample.
    """
    run = _Run(spec, open_split, config or TrainConfig(), gather, progress, memory_bytes)
    splits = {split: _labelled(run, split) for split in ("train", "val")}
    with torch.random.fork_rng(devices=[]):  # modules draw weights, and then others are set
        fitted = (
            _fit_on_states(run, splits) if spec.chooses_token else _fit_on_attention(run, splits)
        )
    assert fitted.module is not None
    layers, token, weights = gather((fitted.layers, fitted.token, fitted.module.state_dict()))[0]
    fitted.module.load_state_dict(weights)
    fitted.module.eval()
    return replace(fitted, layers=layers, token=token)


@dataclass(frozen=True)
class _Run:
    spec: DetectorSpec
    open_split: OpenSplit
    config: TrainConfig
    gather: Gather
    progress: Progress
    memory_bytes: int

    @property
    def balanced(self) -> bool:
        return self.config.class_weight == "balanced"


@dataclass(frozen=True)
class _Labelled:
    """The labelled samples of a split on all ranks.

    Attributes:
        place: Row of each key; rows are in the order of keys.
        labels: float32 ``[n]``.
        longest_answer: In tokens; None where some prompt length is unknown.
        index: The loader's, or None.
    """

    place: dict[str, int]
    labels: NDArray[np.float32]
    longest_answer: int | None
    index: Any


def _labelled(run: _Run, split: str) -> _Labelled:
    """Read who is in a split; no states."""
    with run.open_split(split, LoaderNeeds()) as batches:
        index = getattr(batches, "index", None)
        shares = run.gather(_read_labels(batches))
    everyone = {key: label for labels, _ in shares for key, label in labels.items()}
    keys = sorted(key for key, label in everyone.items() if not math.isnan(label))
    if not keys:
        raise DetectorError(
            f"no sample of split {split} has a label; score the traces and pack again with --scores"
        )
    longest = [answer for _, answer in shares]
    return _Labelled(
        place={key: row for row, key in enumerate(keys)},
        labels=np.array([everyone[key] for key in keys], dtype=np.float32),
        longest_answer=None if None in longest else max(answer or 0 for answer in longest),
        index=index,
    )


def _read_labels(batches: Iterable[Batch]) -> tuple[dict[str, float], int | None]:
    """Return the label of each key, and the longest answer; None: some prompt is unknown."""
    labels: dict[str, float] = {}
    longest: int | None = 0
    for batch in batches:
        labels.update(zip(batch.keys, batch.label.tolist(), strict=True))
        for tokens, prompt in zip(
            batch.token_count.tolist(), batch.prompt_length.tolist(), strict=True
        ):
            longest = None if longest is None or prompt < 0 else max(longest, tokens - prompt)
    return labels, longest


# -- Probes on states ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    """A layer and a token, screened; ``rows`` are its standardised inputs."""

    layer: int
    token: str
    screened: float
    rows: Rows
    moments: tuple[Tensor, Tensor]


def _fit_on_states(run: _Run, splits: dict[str, _Labelled]) -> FittedDetector:
    assert run.spec.build is not None
    layers, num_features = _stored_layers(run, splits["train"].index)
    known = all(split.longest_answer is not None for split in splits.values())
    tokens: tuple[str, ...] = PROBE_TOKENS if known else PROBE_TOKENS[:1]
    if _answers_alone(splits["train"].index):
        tokens = tuple(token for token in tokens if token != "last_prompt")
    shape = DetectorShape(1, num_features, run.config.hidden, dropout=run.config.dropout)
    solver: Solver = (
        MLPSolver(run.config.hidden, run.config.dropout, run.config.seed, run.balanced)
        if run.spec.name == "probe_mlp"
        else LogisticSolver(_set_probe_weights, balanced=run.balanced)
    )

    shortlist: list[_Candidate] = []
    at_once = _layers_at_once(run, splits, tokens, num_features)
    for candidate in _candidates(run, splits, layers, tokens, at_once, solver):
        shortlist.append(candidate)
        # Stable: of equals the first layer and token stays.
        shortlist.sort(key=lambda one: -one.screened)
        del shortlist[SHORTLIST:]

    best, chosen, module = -1.0, shortlist[0], run.spec.build(shape)
    for candidate in shortlist:
        fresh = run.spec.build(shape)
        reached = solver.fit(candidate.rows, fresh)
        if reached > best:
            best, chosen, module = reached, candidate, fresh
    scale = module.get_submodule("scale")
    assert isinstance(scale, Standardise)
    scale.set_moments(*chosen.moments)
    return FittedDetector(
        run.spec,
        shape,
        module,
        layers=(chosen.layer,),
        token=chosen.token,
        traces=StoredTraces.of(splits["train"].index),
    )


def _answers_alone(index: Any) -> bool:
    """Return whether some sample of the data set has no states of its prompt."""
    of_answer = getattr(index, "of_answer", None)
    return of_answer is not None and bool(of_answer.any())


def _set_probe_weights(module: nn.Module, weight: Tensor, bias: float) -> None:
    assert isinstance(module, LogisticProbe)
    module.set_weights(0, weight, bias)


def _stored_layers(run: _Run, index: Any) -> tuple[list[int], int]:
    """Return the layers to try, as indices of stored ones, and the width of a state."""
    if index is not None:
        stored, features = index.num_layers, index.num_features
    else:
        with run.open_split("train", run.spec.needs) as batches:
            hidden = next(iter(batches)).hidden
        assert hidden is not None
        stored, features = hidden.shape[1], hidden.shape[2]
        if run.config.layers is not None:
            return list(run.config.layers), features
    asked = range(stored) if run.config.layers is None else run.config.layers
    return [layer % stored for layer in asked], features


def _layers_at_once(
    run: _Run, splits: dict[str, _Labelled], tokens: Sequence[str], num_features: int
) -> int:
    samples = sum(len(split.labels) for split in splits.values())
    reach = _reach(tokens, *splits.values())
    state_bytes = 4 * num_features
    # What a rank has read and the union of all stand side by side for a moment.
    held = 2 * samples * len(tokens) + BATCHES_HELD * run.config.batch_size * reach
    left = run.memory_bytes - SHORTLIST * samples * state_bytes
    return max(1, left // (held * state_bytes))


def _reach(tokens: Sequence[str], *splits: _Labelled) -> int:
    """Return how many tokens from the end of a sequence hold all of ``tokens``."""
    if len(tokens) == 1:
        return 1
    longest = max(split.longest_answer or 0 for split in splits)
    return longest + 1  # the prompt's last one


def _candidates(
    run: _Run,
    splits: dict[str, _Labelled],
    layers: list[int],
    tokens: tuple[str, ...],
    at_once: int,
    solver: Solver,
) -> Iterator[_Candidate]:
    """Yield all layers' candidates, in the order of layers and tokens."""
    train: NDArray[np.float32]
    for place, layer in enumerate(
        run.progress(layers, len(layers), f"fitting {run.spec.name}, layer by layer")
    ):
        if place % at_once == 0:
            chunk = layers[place : place + at_once]
            train, train_present = _read_states(run, "train", splits["train"], chunk, tokens)
            val, val_present = _read_states(run, "val", splits["val"], chunk, tokens)
        for t, token in enumerate(tokens):
            if not train_present[t].any():
                continue
            states = train[place % at_once, t]
            mean, std = _moments(states[train_present[t]], f"layer {layer}")
            rows = Rows(
                _standardised(states, train_present[t], mean, std),
                splits["train"].labels,
                _standardised(val[place % at_once, t], val_present[t], mean, std),
                splits["val"].labels,
                f"{run.spec.name}:{layer}:{token}",
            )
            yield _Candidate(layer, token, solver.screen(rows), rows, (mean, std))


def _read_states(
    run: _Run, split: str, labelled: _Labelled, layers: list[int], tokens: tuple[str, ...]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return states float32 ``[layers, tokens, n, D]`` of the labelled samples of all ranks, and
    who has such a token, bool ``[tokens, n]``.
    """
    needs = run.spec.needs
    if len(tokens) > 1:
        prompts = "last_prompt" in tokens
        wanted = _reach(tokens, labelled) if prompts else "answer"
        needs = replace(needs, tokens=wanted, layout="jagged")
    with run.open_split(split, needs, layers) as batches:
        shares = run.gather(_read_share(batches, labelled, tokens))
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
    batches: Iterable[Batch], labelled: _Labelled, tokens: tuple[str, ...]
) -> tuple[list[str], list[NDArray[np.float32]], list[NDArray[np.bool_]]]:
    """Return this rank's labelled keys, and for every batch states float32 ``[layers, tokens, b,
    D]`` and who has such a token, bool ``[tokens, b]``.
    """
    keys: list[str] = []
    states: list[NDArray[np.float32]] = []
    present: list[NDArray[np.bool_]] = []
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


def _moments(states: NDArray[np.float32], what: str) -> tuple[Tensor, Tensor]:
    """Return mean and std, float32 ``[1, D]``, of states ``[n, D]``."""
    running = RunningMoments()
    if not np.isfinite(states).all():
        raise DetectorError(
            f"{what} of the training states holds values that are not finite; "
            "repack the data set or leave this layer out"
        )
    running.update(torch.from_numpy(states)[:, None])
    return running.finish()


def _standardised(
    states: NDArray[np.float32], present: NDArray[np.bool_], mean: Tensor, std: Tensor
) -> NDArray[np.float32]:
    """Return what `Standardise` makes of states ``[n, D]``; the mean where there is none."""
    scaled = np.clip((states - mean.numpy()) / std.numpy(), -LIMIT, LIMIT)
    scaled[~present] = 0
    result: NDArray[np.float32] = scaled.astype(np.float32, copy=False)
    return result


# -- Attention -------------------------------------------------------------------------------------


def _fit_on_attention(run: _Run, splits: dict[str, _Labelled]) -> FittedDetector:
    assert run.spec.build is not None
    train, heads = _read_features(run, "train", splits["train"])
    val, _ = _read_features(run, "val", splits["val"])
    num_layers = train.shape[1] // heads
    shape = DetectorShape(num_layers, HEAD_FEATURES, num_heads=heads)
    module = run.spec.build(shape)
    assert isinstance(module, AttentionLogistic)
    running = RunningMoments()
    running.update(torch.from_numpy(train))
    module.scale.set_moments(*running.finish())
    with torch.inference_mode():
        rows = Rows(
            module.scale(torch.from_numpy(train)).flatten(1).numpy(),
            splits["train"].labels,
            module.scale(torch.from_numpy(val)).flatten(1).numpy(),
            splits["val"].labels,
            run.spec.name,
        )
    solver = LogisticSolver(_set_attention_weights, ATTENTION_PENALTIES, run.balanced)
    solver.fit(rows, module)
    index = splits["train"].index
    return FittedDetector(
        run.spec, shape, module, layers=run.config.layers, traces=StoredTraces.of(index)
    )


def _set_attention_weights(module: nn.Module, weight: Tensor, bias: float) -> None:
    assert isinstance(module, AttentionLogistic)
    module.set_weights(weight, bias)


def _read_features(run: _Run, split: str, labelled: _Labelled) -> tuple[NDArray[np.float32], int]:
    """Return float32 ``[n, L * H, HEAD_FEATURES]`` of the labelled samples of all ranks, and H."""
    with run.open_split(split, run.spec.needs) as batches:
        watched = run.progress(batches, None, f"fitting {run.spec.name}, {split}")
        shares = run.gather(_read_feature_share(watched))
    everyone = {key: features for share, _ in shares for key, features in share.items()}
    heads = max(heads for _, heads in shares)
    return np.stack([everyone[key] for key in labelled.place]), heads


def _read_feature_share(
    batches: Iterable[Batch],
) -> tuple[dict[str, NDArray[np.float32]], int]:
    """Return the features of this rank's samples by key, and H."""
    found: dict[str, NDArray[np.float32]] = {}
    heads = 0
    for batch in batches:
        if len(batch):
            assert batch.sketch is not None, "the loader was asked for sketches"
            heads = batch.sketch[0].shape[1]
            features = attention_features(batch).numpy()
            found.update(zip(batch.keys, features, strict=True))
    return found, heads
