"""``wdsbench predict``."""

from __future__ import annotations

from wdsbench.cli.terminal import bar, print_json, say, stderr
from wdsbench.jobs.train import PredictJob, predict

EXAMPLE = "wdsbench predict runs/lstm/checkpoints/lstm other-shards/ --out scores.csv"


def command(options: PredictJob, as_json: bool) -> None:
    """Score traces with a trained detector; write score, probability and decision of each."""
    predictions = predict(options, progress=bar)
    summary = {
        **predictions.summary(),
        "shards": str(options.shards),
        "split": options.split,
        "out": str(options.out),
    }
    if as_json:
        print_json(summary)
        return
    say(_sentence(summary))
    if predictions.detector.threshold is None:
        say("the checkpoint of an unfinished training has no threshold; no decisions", stderr)
    say(f"  {options.out}", stderr)


def _sentence(summary: dict[str, object]) -> str:
    text = f"{summary['detector']}: {summary['samples']} traces"
    if summary["threshold"] is not None:
        text += f", {summary['hallucinated']} classified as hallucinated"
    auroc = summary["auroc"]
    if isinstance(auroc, float):
        text += f"; AUROC {auroc:.3f} ({summary['n_pos']} hallucinated, {summary['n_neg']} right)"
        if summary["split"] == "all":
            text += " over all splits, including those it may have been trained on"
    return text
