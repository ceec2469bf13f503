"""Keys, questions and labels of a split, read without any states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wdsbench.detect.registry import LoaderNeeds
from wdsbench.errors import DetectorError
from wdsbench.records import Batch
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.train.ranks import Ranks
from wdsbench.train.source import Source


@dataclass(frozen=True)
class Examples:
    """The samples of a split; scores are matched by key, never by order.

    ``labels``: float64 ``[n]``: 1 hallucinated, 0 right, NaN unknown. ``groups``: each sample's
    group, "" if it has none; None without groups.
    """

    keys: list[str]
    question_ids: list[str]
    labels: NDArray[np.float64]
    groups: list[str] | None = None

    @property
    def known(self) -> NDArray[np.bool_]:
        """Mask of the labelled samples, bool ``[n]``."""
        return ~np.isnan(self.labels)

    @property
    def known_labels(self) -> NDArray[np.float64]:
        """Labels of the labelled samples."""
        return self.labels[self.known]

    def counts(self) -> dict[str, int]:
        """Return the numbers of samples: all, hallucinated, right and unlabelled."""
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
                + "; the loader returned other samples than before: pack again"
            )
        return np.array([scores[key] for key in self.keys], dtype=np.float64)


def read_examples(batches: Iterable[Batch]) -> Examples:
    """Return the samples of ``batches``; raise DetectorError if a key occurs twice or a label is
    neither 0, 1 nor NaN.
    """
    keys: list[str] = []
    question_ids: list[str] = []
    labels: list[NDArray[np.float64]] = []
    for batch in batches:
        keys.extend(batch.keys)
        question_ids.extend(batch.question_ids)
        labels.append(batch.label.detach().cpu().numpy().astype(np.float64))
    joined = np.concatenate(labels) if labels else np.empty(0)
    _require_unique(keys, "occur twice in a split")
    odd = np.flatnonzero(~(np.isnan(joined) | (joined == 0) | (joined == 1)))
    if odd.size:
        raise DetectorError(
            f"sample {keys[odd[0]]} has label {joined[odd[0]]:g}, not 0 or 1; pack again"
        )
    return Examples(keys, question_ids, joined)


def joined_examples(parts: Sequence[Examples]) -> Examples:
    """Return the samples of all ranks; raise DetectorError if two have the same sample."""
    keys = [key for part in parts for key in part.keys]
    _require_unique(keys, "were read by two ranks")
    return Examples(
        keys,
        [question_id for part in parts for question_id in part.question_ids],
        np.concatenate([part.labels for part in parts]),
    )


def read_splits(
    source: Source, ranks: Ranks, splits: Sequence[str]
) -> tuple[dict[str, Examples], DatasetIndex]:
    """Return the samples of all ranks by split, and the index.

    Raises:
        DetectorError: A key occurs twice, a label is invalid, a question is in two splits, or a
            split lacks a class; of images, a split that lacks samples without label 1.
    """
    examples: dict[str, Examples] = {}
    for split in splits:
        with source.batches(split, LoaderNeeds()) as batches:
            examples[split] = joined_examples(ranks.together(partial(read_examples, batches)))
            index = batches.index
    require_separate_questions(examples)
    (_require_normal if index.tensor.name == "image" else _require_both_classes)(examples)
    return examples, index


def with_groups(
    examples: Examples, source: Source, ranks: Ranks, meta: Mapping[str, object]
) -> Examples:
    """Return the samples of the test split with their groups: those of their ids if the settings
    ask for it, else those that are stored, if ``meta``, of the first sample, has one.

    Raises:
        DetectorError: A question id lacks the separator.
    """
    separator = source.config.group_by_id
    if separator is not None:
        for question_id in examples.question_ids:
            if separator not in question_id:
                raise DetectorError(
                    f"question id {question_id!r} does not contain {separator!r}; --group-by-id"
                    " takes the text before it as the group"
                )
        groups = [question_id.partition(separator)[0] for question_id in examples.question_ids]
        return replace(examples, groups=groups)
    if "group" not in meta:
        return examples

    def read() -> dict[str, str]:
        with source.batches("test", LoaderNeeds(("meta",), tokens="last")) as batches:
            return {
                key: str(one.get("group") or "")
                for batch in batches
                for key, one in zip(batch.keys, batch.meta or (), strict=True)
            }

    found = {key: name for share in ranks.together(read) for key, name in share.items()}
    return replace(examples, groups=[found[key] for key in examples.keys])


def require_separate_questions(examples: Mapping[str, Examples]) -> None:
    """Raise DetectorError if a question is in two splits: its answer would leak into the test."""
    split_of: dict[str, str] = {}
    for split, found in examples.items():
        for question_id in set(found.question_ids):
            other = split_of.setdefault(question_id, split)
            if other != split:
                raise DetectorError(
                    f"question {question_id} is in the splits {other} and {split}: pack again with"
                    " --split-by question"
                )


def _require_both_classes(examples: Mapping[str, Examples]) -> None:
    for split, found in examples.items():
        counts = found.counts()
        if counts["n_pos"] == 0 or counts["n_neg"] == 0:
            raise DetectorError(
                f"split {split} has {counts['n_pos']} hallucinated, {counts['n_neg']} right, "
                f"{counts['n_unlabelled']} unlabelled samples, but needs both classes: "
                "pack more traces, or pack again with another --threshold"
            )


def _require_normal(examples: Mapping[str, Examples]) -> None:
    for split, found in examples.items():
        counts = found.counts()
        if counts["n"] == 0:
            questions = {name: len(set(each.question_ids)) for name, each in examples.items()}
            listed = ", ".join(f"{name} {number}" for name, number in questions.items())
            raise DetectorError(
                f"split {split} is empty (images: {listed}). Images are assigned to splits by their"
                " names, 70 % to train and 15 % each to val and test on average: pack more images"
            )
        # Of the test split only the errors of its samples are needed.
        if split != "test" and counts["n"] == counts["n_pos"]:
            raise DetectorError(
                f"split {split} has {counts['n_pos']} samples of label 1 and no other, but needs"
                " samples without a label, or with label 0: pack more images"
            )


def _require_unique(keys: Sequence[str], what: str) -> None:
    if len(set(keys)) != len(keys):
        raise DetectorError(f"{len(keys) - len(set(keys))} samples {what}; pack again")
