"""Unpacks a data set into raw trace files, one for each shard, or into images.

One trace is in memory at a time (``.npz``), or the traces of one shard (``.pkl``).

Every member is checked against its XXH3. States are float16, or float32 if layers were scaled. A
raw trace names the file from which it was packed (``packed_from``), so packing again with the same
options gives the same shards, byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import PackError
from wdsbench.files import remove_if_empty, write_whole
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.kinds import META, attention_kinds
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.traces.check import REMARK_ANSWER_STATES
from wdsbench.traces.npz import write_npz
from wdsbench.traces.scores import DEFAULT_SCORE_COLUMN, label_of, scores_csv
from wdsbench.traces.write import write_traces

FORMATS = ("npz", "pkl")
SCORES_NAME = "scores.csv"


@dataclass(frozen=True)
class UnpackReport:
    """The trace files, the traces in them, and the CSV of scores if the data set has any."""

    files: list[Path]
    samples: int
    scores: Path | None


def unpack(
    folder: Path,
    out: Path,
    *,
    file_format: str | None = None,
    split: str | None = None,
    progress: Progress = no_progress,
) -> UnpackReport:
    """Write the traces of a data set, or of one split, as raw files ``out/<shard>.<file_format>``
    (npz by default); its images as TIFF files (`unpack_images`).

    After an exception the files of this run are removed.

    Raises:
        ShardError: There is no data set, or it is damaged.
        PackError: A file exists already, or the disk is full.
        ValueError: The format (npz, pkl; of images tif) or the split is unknown.
    """
    index = DatasetIndex.open(folder)
    images = index.tensor.name == "image"
    formats = ("tif",) if images else FORMATS
    file_format = file_format or formats[0]
    if file_format not in formats:
        raise ValueError(f"format: {file_format!r} is not one of {', '.join(formats)}")
    shards = index.shards_of(split)
    if not any(index.file.shardlist[shard].nsamples for shard in shards):
        raise PackError(f"{folder}: no sample in split {split or 'all'}")
    paths = {
        shard: out / f"{index.shard_path(shard).stem}.{file_format}"
        for shard in ([] if images else shards)
    }
    scores = _scores(index, shards)
    for path in (*paths.values(), *([] if scores is None else [out / SCORES_NAME])):
        if path.exists():
            raise PackError(f"{path} exists; remove it, or choose another --out")
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        if images:
            from wdsbench.pack.unpack_images import unpack_images

            unpack_images(index, shards, out, written, progress)
        for shard, path in () if images else progress(paths.items(), len(paths), "unpacking"):
            written.append(path)
            if file_format == "npz":
                write_npz(path, _raws(index, shard, layered=False))
            else:
                write_traces(path, list(_raws(index, shard, layered=True)))
        if scores is not None:
            written.append(out / SCORES_NAME)
            write_whole(out / SCORES_NAME, scores)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
            for folder in path.relative_to(out).parents[:-1]:
                remove_if_empty(out / folder)
        if isinstance(error, OSError):
            raise PackError(f"cannot write to {out}: {error.strerror}; nothing was kept") from error
        raise
    return UnpackReport(
        files=[path for path in written if path.name != SCORES_NAME],
        samples=sum(index.file.shardlist[shard].nsamples for shard in shards),
        scores=None if scores is None else out / SCORES_NAME,
    )


def _raws(index: DatasetIndex, shard: int, *, layered: bool) -> Iterator[dict[str, Any]]:
    """Yield the raw traces of one shard, in order."""
    for row in range(int(index.first_rows[shard]), int(index.first_rows[shard + 1])):
        yield _raw(StoredSample(index, row, check_hash=True), layered=layered)


def _raw(sample: StoredSample, *, layered: bool) -> dict[str, Any]:
    meta = sample.meta()
    try:
        raw: dict[str, Any] = {
            "hidden_states": sample.states(),
            "tokens": meta["tokens"],
            "question_id": meta["question_id"],
            "generated_answer_clean": meta["answer"],
            "trace_number": meta["trace"],
            "packed_from": meta["provenance"],
        }
        raw |= {name: meta[name] for name in ("question", "context", "group") if name in meta}
        if meta["token_texts"]:
            raw["tokens_decoded"] = meta["token_texts"]
        if meta.get("layers") is not None:
            raw["layers"] = meta["layers"]
        if REMARK_ANSWER_STATES in meta["provenance"]["remarks"]:
            raw["states_of"] = "answer"
        if meta["prompt_length"] is not None:
            raw["prompt_length"] = meta["prompt_length"]
        if meta["token_logprobs"] is not None:
            raw["token_logprobs"] = sample.logprobs(meta)
    except (KeyError, TypeError, ValueError) as error:
        raise sample.error(
            META, f"not the meta.json of a sample ({error}); pack the raw traces again"
        ) from error
    label = float(sample.index.columns["label"][sample.row])
    if not math.isnan(label):
        raw["label"] = int(label)
    maps = sample.maps()
    if maps is not None:
        raw["attentions"] = maps
    else:
        reduced = _reduced(sample)
        if reduced:
            raw["reduced_attention"] = reduced
    if layered:
        for key in ("hidden_states", "attentions"):
            if key in raw:
                raw[key] = list(raw[key])
    return raw


def _reduced(sample: StoredSample) -> dict[str, Any]:
    """Return the stored reduced attention; empty if there is none."""
    reduced: dict[str, Any] = {
        spec.name.removesuffix(".npy"): sample.member_array(spec.name)
        for kind in attention_kinds()
        if sample.has(kind.name)
        for spec in kind.members
    }
    if not reduced:
        return {}
    provenance = sample.index.file.provenance
    if sample.has("edges"):
        reduced["edge_rule"] = provenance.edge_rule
    if sample.has("heads"):
        reduced["head_threshold"] = provenance.head_threshold
    return {"num_heads": sample.index.num_heads or 1, **reduced}


def _scores(index: DatasetIndex, shards: list[int]) -> bytes | None:
    """Return a CSV of the scores, by trace if those of a question differ; None without scores."""
    rows = np.flatnonzero(np.isin(index.columns["shard"], shards))
    scores: NDArray[np.float32] = index.columns["score"][rows]
    known = ~np.isnan(scores)
    if not known.any():
        return None
    entry = index.labels
    threshold = None if entry is None else entry.threshold
    texts = _texts(scores, index.columns["label"][rows], threshold)
    questions = index.question_ids(rows)
    several = len(set(zip(questions, texts, strict=True))) > len(set(questions))
    column = (entry and entry.column) or DEFAULT_SCORE_COLUMN
    numbers = index.columns["trace"][rows].tolist()
    lines = [line for line in zip(questions, numbers, texts, strict=True) if line[2]]
    if not several:
        lines = list({line[0]: line for line in lines}.values())
    return scores_csv([column], [(*line[:2], line[2:]) for line in lines], numbered=several)


def _texts(
    scores: NDArray[np.float32], labels: NDArray[np.float32], threshold: float | None
) -> list[str]:
    """Return scores as text that gives the same float32 and the same label; empty for NaN.

    Rounding to float32 may have moved a score onto the threshold or across it.
    """
    texts = ["" if score != score else str(score) for score in scores]
    if threshold is None:
        return texts
    for row, (text, label) in enumerate(zip(texts, labels.tolist(), strict=True)):
        if text and 1 - label == label_of(float(text), threshold):
            texts[row] = repr(math.nextafter(threshold, -math.inf) if label else threshold)
    return texts
