"""``wdsbench pack``, ``unpack`` and ``relabel``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdsbench.cli.terminal import IMAGE_CLASSES, bar, print_json, say, say_notes, say_splits
from wdsbench.jobs.pack import PackJob, RelabelJob, UnpackJob, pack, relabel, unpack

if TYPE_CHECKING:
    from wdsbench.pack.images import ImagePackReport


def pack_command(options: PackJob, as_json: bool) -> None:
    """Pack raw traces (.pkl, .pkl.gz, .pt, .npz, .safetensors, .h5) or images (.tif, .png, .jpg)
    into WebDataset shards with an index.

    Example: wdsbench pack --traces 'traces_data/*.pkl*' --scores ground_truth_scores.csv --out
        shards/
    """
    from wdsbench.pack import PackReport

    report = pack(options, progress=bar)
    if not isinstance(report, PackReport):
        _show_images(report, options, as_json)
        return
    splits, shards = report.index.splits, report.index.shardlist
    if as_json:
        print_json(
            {
                "out": str(options.out),
                "samples": report.samples,
                "bytes": report.bytes_written,
                "shards": len(shards),
                "splits": {name: entry.model_dump() for name, entry in splits.items()},
                "dropped": report.dropped,
                "unlabelled": report.unlabelled,
                "without_attention": report.without_attention,
                "remarks": report.remarks,
            }
        )
        return
    size_mb = report.bytes_written / 1e6
    say(f"{report.samples} samples, {size_mb:.1f} MB in {len(shards)} shards -> {options.out}")
    say_splits(splits)
    say_notes(
        {
            **{f"traces: {remark}": count for remark, count in report.remarks.items()},
            "samples have no label; wdsbench relabel adds labels": report.unlabelled,
            "traces without a score were dropped": report.dropped,
            "traces have no attention, so graph detectors are not available; extract with"
            " --attention edges,heads,sketch or full": report.without_attention,
        }
    )


def _show_images(report: ImagePackReport, options: PackJob, as_json: bool) -> None:
    from wdsbench.images.files import FAILURES_NAME

    splits, shards = report.index.splits, report.index.shardlist
    if as_json:
        print_json(
            {
                "out": str(options.out),
                "images": report.images,
                "samples": report.samples,
                "bytes": report.bytes_written,
                "shards": len(shards),
                "splits": {name: entry.model_dump() for name, entry in splits.items()},
                "left_out": len(report.failures),
                "unlabelled": report.unlabelled,
            }
        )
        return
    size_mb = report.bytes_written / 1e6
    say(
        f"{report.samples} patches of {report.images} images, {size_mb:.1f} MB in {len(shards)}"
        f" shards -> {options.out}"
    )
    say_splits(splits, classes=IMAGE_CLASSES)
    say_notes(
        {
            "patches have no label": report.unlabelled,
            f"images were left out; see {FAILURES_NAME}": len(report.failures),
        }
    )


def unpack_command(options: UnpackJob, as_json: bool) -> None:
    """Write the traces of a data set as raw files, which pack reads, or its images as TIFF files.

    Example: wdsbench unpack shards/ --out traces_back/ --format npz
    """
    report = unpack(options, progress=bar)
    if as_json:
        print_json(
            {
                "out": str(options.out),
                "samples": report.samples,
                "files": [path.name for path in report.files],
                "scores": None if report.scores is None else report.scores.name,
            }
        )
        return
    scores = "" if report.scores is None else f", scores in {report.scores.name}"
    what = "patches" if report.files[0].suffix.lower() in (".tif", ".tiff") else "traces"
    say(f"{report.samples} {what} in {len(report.files)} files{scores} -> {options.out}")


def relabel_command(options: RelabelJob, as_json: bool) -> None:
    """Give a packed data set labels from other scores; its shards are not changed.

    Example: wdsbench relabel shards/ --scores new.csv --score-column f1 --threshold 0.4
    """
    report = relabel(options)
    labels, splits = report.index.labels, report.index.splits
    assert labels is not None
    if as_json:
        print_json(
            {
                "shards": str(options.shards),
                "labels": labels.model_dump(),
                "samples": report.samples,
                "changed": report.changed,
                "unlabelled": report.unlabelled,
                "unused_scores": report.unused,
                "one_class": list(report.one_class),
                "splits": {name: entry.model_dump() for name, entry in splits.items()},
            }
        )
        return
    say(
        f"{report.changed} of {report.samples} labels changed, {report.unlabelled} unlabelled"
        f" ({labels.column} < {options.threshold:g} of {options.scores}) -> {options.shards}"
    )
    say_splits(splits)
    say_notes({"scores of the file belong to no sample": report.unused})
    for split in report.one_class:
        say(
            f"  warning: split {split} does not hold both classes, so detectors cannot be trained"
            " or scored on it; choose another --threshold"
        )
