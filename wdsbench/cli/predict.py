"""``wdsbench predict``: scores of traces by a detector that was trained before."""

from __future__ import annotations

from pathlib import Path

import typer

from wdsbench.cli.terminal import bar, print_json, stderr, stdout

EXAMPLE = "wdsbench predict runs/lstm/checkpoints/lstm other-shards/ --out scores.csv"


def command(
    checkpoint: Path = typer.Argument(..., help="Folder of a detector, or of a run with one."),
    shards: Path = typer.Argument(..., help="Folder of the data set."),
    out: Path = typer.Option(Path("scores.csv"), help="CSV to write, a line per trace."),
    split: str = typer.Option("test", help="test, train, val or all."),
    device: str | None = typer.Option(None, help="cpu, cuda, ... [cuda where there is one]."),
    batch_size: int = typer.Option(64, help="Traces a batch."),
    num_workers: int = typer.Option(0, help="Reading processes [this process]."),
    threads: int | None = typer.Option(None, help="Decode threads [usable cores, at most 8]."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as one line of JSON."),
) -> None:
    """Score traces with a trained detector; write score, probability and decision of each."""
    from wdsbench.train.config import PredictOptions
    from wdsbench.train.predict import predict, write_predictions

    options = PredictOptions(
        out=out,
        split=split,
        device=device,
        batch_size=batch_size,
        num_workers=num_workers,
        threads=threads,
    )
    found = predict(checkpoint, shards, options, progress=bar)
    write_predictions(found, out)
    summary = {**found.summary(), "shards": str(shards), "split": split, "out": str(out)}
    if as_json:
        print_json(summary)
        return
    stdout.print(_sentence(summary), highlight=False, soft_wrap=True)
    if found.detector.threshold is None:
        stderr.print(
            "no threshold in the checkpoint, for its training did not end: nothing is decided",
            highlight=False,
        )
    stderr.print(f"  {out}", highlight=False, soft_wrap=True)


def _sentence(summary: dict[str, object]) -> str:
    """Return what was found in one line."""
    text = f"{summary['detector']}: {summary['samples']} traces"
    if summary["threshold"] is not None:
        text += f", {summary['hallucinated']} called hallucinated"
    auroc = summary["auroc"]
    if isinstance(auroc, float):
        text += f"; AUROC {auroc:.3f} ({summary['n_pos']} hallucinated, {summary['n_neg']} right)"
        if summary["split"] == "all":
            text += " over all splits, also those it may have been trained on"
    return text
