"""``wdsbench train`` and ``predict``."""

from __future__ import annotations

import os
from functools import partial

from wdsbench.cli.terminal import bar, print_json, say, say_notes, stderr, stdout
from wdsbench.images.files import FAILURES_NAME
from wdsbench.jobs.train import SCORES, PredictJob, TrainJob, predict, predict_images, train


def train_command(options: TrainJob, as_json: bool) -> None:
    """Train detectors on a data set; write results.json, metrics.jsonl, checkpoints and plots.

    On several GPUs or in several processes: torchrun --nproc-per-node N -m wdsbench train ...

    Example: wdsbench train shards/ --detector lstm --out runs/lstm
    """
    from wdsbench.train.output import written_files
    from wdsbench.train.report import print_results
    from wdsbench.train.trials import print_search

    show = partial(print_search, console=stderr if as_json else stdout)
    results = train(options, progress=bar, on_search=show)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and int(os.environ.get("RANK", "0")):
        return  # only the first rank prints
    if as_json:
        print_json(results.as_json())
        return
    print_results(results, stdout)
    for path in written_files(options):
        say(f"  {path}", stderr)


def predict_command(options: PredictJob, as_json: bool) -> None:
    """Score a data set with a trained detector; write score, probability and decision of each.

    Of image files (a detector of images): write an error map, a mask and an overlay of each, and
    scores.csv, to a folder.

    Example: wdsbench predict runs/lstm/checkpoints/lstm other-shards/ --out scores.csv
    """
    if options.of_images:
        _predict_images(options, as_json)
        return
    out = options.out or SCORES
    predictions = predict(options, progress=bar)
    summary = {
        **predictions.summary(),
        "shards": options.sources[0],
        "split": options.split,
        "out": str(out),
    }
    if as_json:
        print_json(summary)
        return
    say(_sentence(summary, images=predictions.detector.spec.reconstructs))
    if predictions.detector.threshold is None:
        say("the checkpoint of an unfinished training has no threshold; no decisions", stderr)
    say(f"  {out}", stderr)


def _predict_images(options: PredictJob, as_json: bool) -> None:
    summary = predict_images(options, progress=bar).summary()
    if as_json:
        print_json({**summary, "out": str(options.out)})
        return
    say(
        f"{summary['detector']}: {summary['images']} images, {summary['anomalous']} above the"
        f" threshold -> {options.out}"
    )
    say_notes({f"images were left out; see {FAILURES_NAME}": summary["left_out"]})


def _sentence(summary: dict[str, object], *, images: bool) -> str:
    text = f"{summary['detector']}: {summary['samples']} {'patches' if images else 'traces'}"
    if summary["threshold"] is not None:
        found = "above the threshold" if images else "classified as hallucinated"
        text += f", {summary['hallucinated']} {found}"
    auroc = summary["auroc"]
    if isinstance(auroc, float):
        classes = ("anomalous", "normal") if images else ("hallucinated", "right")
        text += f"; AUROC {auroc:.3f} ({summary['n_pos']} {classes[0]}, {summary['n_neg']}"
        text += f" {classes[1]})"
        if summary["split"] == "all":
            text += " over all splits, including those it may have been trained on"
    return text
