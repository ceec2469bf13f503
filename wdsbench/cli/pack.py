"""``wdsbench pack``."""

from __future__ import annotations

from wdsbench.cli.terminal import bar, print_json, say, say_notes, say_splits
from wdsbench.jobs.pack import PackJob, pack

EXAMPLE = (
    "wdsbench pack --traces 'traces_data/*.pkl*' --scores ground_truth_scores.csv --out shards/"
)


def command(options: PackJob, as_json: bool) -> None:
    """Pack raw traces (.pkl, .pkl.gz, .pt, .npz, .safetensors, .h5) into WebDataset shards with an
    index.
    """
    report = pack(options, progress=bar)
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
