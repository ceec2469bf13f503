"""Batches of a data set's splits, as training asks for them.

Everything of the loader that training relies on is in this file, so that tests (and other loaders)
can stand in for it: an ``open_loader(shards, split=..., fields=..., tokens=..., layout=..., ...)``
that returns an iterable of batches, if it likes with ``set_epoch``, ``close``, ``len`` and
``index``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.detect.registry import LoaderNeeds
from wdsbench.errors import DecodeError, DetectorError
from wdsbench.records import Batch
from wdsbench.train.config import TrainConfig

OpenLoader = Callable[..., Iterable[Batch]]


@dataclass(frozen=True)
class Source:
    """A data set and how its batches are to be read.

    Attributes:
        shards: What the loader opens.
        config: Of the run; batch size, workers, seed and so on are taken from it.
        device: Where batches are wanted (``"cpu"`` or a CUDA device).
        open_loader: The loader's constructor.
    """

    shards: str | Path
    config: TrainConfig
    device: str
    open_loader: OpenLoader

    @contextlib.contextmanager
    def batches(
        self,
        split: str,
        needs: LoaderNeeds,
        layers: Sequence[int] | None = None,
        *,
        shuffled: bool = False,
    ) -> Iterator[Iterable[Batch]]:
        """Open a loader of ``split``, to be iterated as often as wanted, and close it again.

        ``layers``: of those stored; None: those of the settings.
        """
        config = self.config
        layers = config.layers if layers is None else layers
        reads_states = "hidden" in needs.fields
        try:
            loader = self.open_loader(
                self.shards,
                split=split,
                **needs.arguments(),
                layers=None if layers is None else list(layers),
                batch_size=config.batch_size,
                shuffle=config.shuffle if shuffled else 0,
                seed=config.seed,
                num_workers=config.num_workers if reads_states else 0,
                threads=config.threads,
                device=self.device if reads_states and self.device != "cpu" else None,
            )
        except DecodeError as error:
            # Said on opening: the data set is sound, but has not what was asked for.
            raise DetectorError(f"not available: {error}") from error
        try:
            yield loader
        finally:
            close = getattr(loader, "close", None)
            if close is not None:
                close()


@dataclass(frozen=True)
class Examples:
    """What is known of a split's samples without reading a state.

    Attributes:
        keys: n member keys, each once; scores are matched by them, never by order.
        question_ids: n question ids.
        labels: float64 ``[n]``: 1 hallucinated, 0 right, NaN unknown.
    """

    keys: list[str]
    question_ids: list[str]
    labels: NDArray[np.float64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which samples have a label, bool ``[n]``."""
        return ~np.isnan(self.labels)

    @property
    def known_labels(self) -> NDArray[np.float64]:
        """The labels that are known, ``[known]``."""
        return self.labels[self.known]

    def counts(self) -> dict[str, int]:
        """Return the numbers of samples, of hallucinated, right and unlabelled ones."""
        positives = int(np.count_nonzero(self.labels == 1))
        labelled = int(np.count_nonzero(self.known))
        return {
            "n": len(self.keys),
            "n_pos": positives,
            "n_neg": labelled - positives,
            "n_unlabelled": len(self.keys) - labelled,
        }

    def align(self, scores: Mapping[str, float]) -> NDArray[np.float64]:
        """Return ``scores`` in the order of the samples, float64 ``[n]``.

        Raises:
            DetectorError: A sample has no score, or there are scores of other samples.
        """
        missing = [key for key in self.keys if key not in scores]
        if missing or len(scores) != len(self.keys):
            raise DetectorError(
                f"{len(scores)} scores for {len(self.keys)} samples"
                + (f", none for {missing[0]}" if missing else "")
                + "; the loader returned another set of samples than before: pack again"
            )
        return np.array([scores[key] for key in self.keys], dtype=np.float64)


def read_examples(batches: Iterable[Batch]) -> Examples:
    """Return the samples of ``batches`` without their fields.

    Raises:
        DetectorError: A key occurs twice, or a label is neither 0, 1 nor NaN.
    """
    keys: list[str] = []
    question_ids: list[str] = []
    labels: list[NDArray[np.float64]] = []
    for batch in batches:
        keys.extend(batch.keys)
        question_ids.extend(batch.question_ids)
        labels.append(batch.label.detach().cpu().numpy().astype(np.float64))
    joined = np.concatenate(labels) if labels else np.empty(0)
    if len(set(keys)) != len(keys):
        raise DetectorError(
            f"{len(keys) - len(set(keys))} samples of a split came twice; pack again"
        )
    odd = np.flatnonzero(~(np.isnan(joined) | (joined == 0) | (joined == 1)))
    if odd.size:
        raise DetectorError(
            f"sample {keys[odd[0]]} has label {joined[odd[0]]:g}, not 0 or 1; pack again"
        )
    return Examples(keys, question_ids, joined)


def joined_examples(parts: Sequence[Examples]) -> Examples:
    """Return the samples of all ranks as those of one.

    Raises:
        DetectorError: A sample came on two ranks.
    """
    if len(parts) == 1:
        return parts[0]
    keys = [key for part in parts for key in part.keys]
    if len(set(keys)) != len(keys):
        raise DetectorError(f"{len(keys) - len(set(keys))} samples came on two ranks; pack again")
    return Examples(
        keys,
        [question_id for part in parts for question_id in part.question_ids],
        np.concatenate([part.labels for part in parts]),
    )


def number_of_batches(batches: Iterable[Batch]) -> int | None:
    """Return ``len(batches)`` where it has one."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return None


def start_epoch(batches: Iterable[Batch], epoch: int) -> None:
    """Tell a loader that knows epochs which one comes next."""
    set_epoch = getattr(batches, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(epoch)


def default_open_loader() -> OpenLoader:
    """Return the project's loader; imported here, for the tests train without the extension."""
    from wdsbench import TraceLoader

    loader: Any = TraceLoader
    opened: OpenLoader = loader
    return opened


def require_members(index: Any, needs: LoaderNeeds) -> None:
    """Check that the data set has what a detector reads; without an index nothing is checked.

    Raises:
        DetectorError: "not available", what is missing and the remedy.
    """
    if index is None:
        return
    lacking = [(name, remedy) for name, remedy in needs.members if not index.has_member(name)]
    if lacking:
        words = "; ".join(f"not every trace has {name}, {remedy}" for name, remedy in lacking)
        raise DetectorError(f"not available: {words}")
