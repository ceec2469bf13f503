"""``wdsbench pack``: raw traces and scores to shards."""

from __future__ import annotations

from pathlib import Path

import typer

from wdsbench.cli.terminal import all_words, bar, print_json, stdout

EXAMPLE = (
    "wdsbench pack --traces 'traces_data/*.pkl*' --scores ground_truth_scores.csv --out shards/"
)


def command(
    traces: list[str] = typer.Option(
        ..., help="Raw trace files: a path or a quoted pattern; may be given again."
    ),
    out: Path = typer.Option(..., help="Folder of the data set."),
    scores: Path | None = typer.Option(
        None,
        help="CSV with question_id, a score and, where answers to a question differ, trace; without"
        " it labels come from the files.",
    ),
    score_column: str | None = typer.Option(
        None, help="Column of the score [bleurt_score, or the only one beside abstained]."
    ),
    threshold: float = typer.Option(0.5, help="A score below it means hallucinated (label 1)."),
    missing_score: str | None = typer.Option(
        None,
        help="Trace without a score: error, drop or keep [error with --scores, else keep].",
    ),
    attention: str = typer.Option(
        "edges,sketch",
        help="What is kept of attention: any of full, edges, heads, sketch, or none.",
    ),
    edge_rule: str = typer.Option("top:0.35", help="Of edges: top:SHARE or threshold:WEIGHT."),
    head_threshold: float = typer.Option(0.05, help="Of heads: the least weight of an edge."),
    reduce: str | None = typer.Option(
        None, help="pca:K keeps K principal components of the states, fitted on training samples."
    ),
    split_by: str = typer.Option("question", help="question or file: 70/15/15 train, val, test."),
    overflow: str = typer.Option("scale", help="Layers beyond float16: scale or error."),
    shard_mb: float = typer.Option(256.0, help="Size at which a shard is closed, in MB."),
    workers: int = typer.Option(1, help="Processes that read files; the bytes are the same."),
    append: bool = typer.Option(False, "--append", help="Add the files to the data set in --out."),
    resume: bool = typer.Option(
        False,
        "--resume",
        help="Go on where the same command was interrupted; keep what is finished when it is.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one line of JSON."),
) -> None:
    """Pack raw traces (.pkl, .pkl.gz, .pt, .npz, .safetensors, .h5) into WebDataset shards with an
    index.
    """
    from wdsbench.pack import PackOptions, pack

    kinds = all_words([attention])
    if not kinds:
        raise ValueError(f"--attention {attention!r} names nothing; none keeps nothing")
    report = pack(
        traces,
        out,
        scores=scores,
        options=PackOptions(
            score_column=score_column,
            threshold=threshold,
            missing_score=missing_score,
            split_by=split_by,
            attention=() if kinds == ["none"] else tuple(kinds),
            edge_rule=edge_rule,
            head_threshold=head_threshold,
            reduce=reduce,
            overflow=overflow,
            shard_mb=shard_mb,
        ),
        workers=workers,
        append=append,
        resume=resume,
        progress=bar,
    )
    if as_json:
        print_json(
            {
                "out": str(out),
                "samples": report.samples,
                "bytes": report.bytes_written,
                "shards": len(report.index.shardlist),
                "splits": {name: entry.model_dump() for name, entry in report.index.splits.items()},
                "dropped": report.dropped,
                "unlabelled": report.unlabelled,
                "without_attention": report.without_attention,
                "remarks": report.remarks,
            }
        )
        return
    stdout.print(
        f"{report.samples} samples, {report.bytes_written / 1e6:.1f} MB in"
        f" {len(report.index.shardlist)} shards -> {out}",
        highlight=False,
        soft_wrap=True,
    )
    for name, entry in report.index.splits.items():
        note = "" if entry.samples else " (empty)"
        stdout.print(
            f"  {name:5} {entry.samples:7} samples: {entry.hallucinated} hallucinated,"
            f" {entry.right} right, {entry.unlabelled} unlabelled{note}",
            highlight=False,
        )
    for remark, count in report.remarks.items():
        stdout.print(f"  note: {count} traces: {remark}", highlight=False, soft_wrap=True)
    if report.unlabelled:
        stdout.print(
            f"  note: {report.unlabelled} samples have no label; wdsbench relabel gives them",
            highlight=False,
        )
    if report.dropped:
        stdout.print(f"  note: {report.dropped} traces without a score were dropped")
    if report.without_attention:
        stdout.print(
            f"  note: {report.without_attention} traces brought no attention;"
            " graph detectors are not available: extract with --attention edges,heads,sketch or"
            " full",
            soft_wrap=True,
        )
