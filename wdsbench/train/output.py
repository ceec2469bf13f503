"""Files of a run: names, writing, and removal of those of an earlier run.

results.json    figures of all detectors        scores.csv      test scores per sample
metrics.jsonl   one line per epoch              report.md       tables
roc.png         ROC curves                      curves.png      loss and AUROC per epoch
reliability.png reliability of probabilities    errors.png      errors of detectors on images
checkpoints/NAME/   each detector, ready to score other samples
state/NAME/         unfinished fits, see --resume
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.detect.registry import DETECTOR_NAMES
from wdsbench.errors import DetectorError
from wdsbench.files import remove_if_empty, write_json, write_whole
from wdsbench.train.checkpoint import remove_detector
from wdsbench.train.config import FREE_ON_RESUME, TrainOptions
from wdsbench.train.controls import combined_name
from wdsbench.train.examples import Examples
from wdsbench.train.fitting import CHECKPOINTS_NAME, STATES_NAME
from wdsbench.train.log import METRICS_NAME, TENSORBOARD_NAME
from wdsbench.train.measure import Outcome, reliability_curves
from wdsbench.train.plots import (
    ErrorCurve,
    RocCurve,
    plot_errors,
    plot_reliability,
    plot_roc,
    plot_training,
)
from wdsbench.train.report import markdown
from wdsbench.train.results import RESULTS_NAME, Results, load_results
from wdsbench.train.state import remove_state
from wdsbench.train.trials import SEARCH_NAME, SEARCHES_NAME

SCORES_NAME = "scores.csv"
REPORT_NAME = "report.md"
ROC_NAME = "roc.png"
CURVES_NAME = "curves.png"
RELIABILITY_NAME = "reliability.png"
ERRORS_NAME = "errors.png"
_FILE_NAMES = (
    RESULTS_NAME,
    REPORT_NAME,
    SCORES_NAME,
    METRICS_NAME,
    ROC_NAME,
    CURVES_NAME,
    RELIABILITY_NAME,
    ERRORS_NAME,
)


def written_files(options: TrainOptions) -> list[Path]:
    """Return the files and folders that the command has written, the results first."""
    searches = [
        options.out / SEARCHES_NAME / name / SEARCH_NAME for name in options.names(images=False)
    ]
    return [*result_files(options.out), *(searches if options.search is not None else ())]


def result_files(out: str | Path) -> list[Path]:
    """Return the files and folders that a run has left in ``out``, the results first."""
    places = [Path(out) / name for name in (*_FILE_NAMES, CHECKPOINTS_NAME)]
    return [place for place in places if place.exists()]


def remove_earlier(folder: Path, *, states: bool) -> None:
    """Remove the files of an earlier run, the results first; other files are kept."""
    for name in _FILE_NAMES:
        (folder / name).unlink(missing_ok=True)
    for name in DETECTOR_NAMES:
        remove_detector(folder / CHECKPOINTS_NAME / name)
    remove_if_empty(folder / CHECKPOINTS_NAME)
    # TensorBoard would draw the logs of both runs as one.
    shutil.rmtree(folder / TENSORBOARD_NAME, ignore_errors=True)
    if states:
        remove_states(folder)


def remove_states(folder: Path) -> None:
    """Remove the saved states of all fits."""
    for name in DETECTOR_NAMES:
        remove_state(folder / STATES_NAME / name)
    remove_if_empty(folder / STATES_NAME)


def finished_results(out: Path, settings: dict[str, Any], table: str) -> Results | None:
    """Return the results of a finished run in ``out``; None if there is none.

    ``settings`` and ``table`` (see `labels_digest`) are those that the run must have had.

    Raises:
        DetectorError: The run had other settings or other data.
    """
    if not (out / RESULTS_NAME).exists() or (out / STATES_NAME).exists():
        return None
    results = load_results(out)
    for name in sorted({*settings, *results.config} - FREE_ON_RESUME):
        if settings.get(name) != results.config.get(name):
            raise DetectorError(
                f"{out}: the run in this folder has finished with {name}"
                f" {results.config.get(name)!r}, not {settings.get(name)!r}; choose another --out,"
                " or omit --resume"
            )
    then = results.dataset.get("table")
    if then != table:
        raise DetectorError(
            f"{out}: the run in this folder has finished on other data (table {then}, now {table}):"
            " other shards or other labels; choose another --out, or omit --resume"
        )
    return results


def write_run(
    results: Results, outcomes: dict[str, Outcome], examples: dict[str, Examples], folder: Path
) -> None:
    """Write scores, report, plots and, last, the results."""
    test = examples["test"]
    write_whole(folder / SCORES_NAME, _scores_csv(outcomes, test).encode())
    write_whole(folder / REPORT_NAME, markdown(results).encode())
    curves = [
        RocCurve(name, outcomes[name].test_scores[test.known], result.auroc, result.auroc_interval)
        for name, result in results.detectors.items()
        if result.auroc is not None and result.auroc_interval is not None
    ]
    if curves:
        plot_roc(folder / ROC_NAME, test.known_labels, curves, images=results.images)
    reliability = reliability_curves(outcomes, results.detectors, examples)
    if reliability:
        plot_reliability(folder / RELIABILITY_NAME, reliability)
    errors = {
        name: ErrorCurve(outcomes[name].test_scores, test.labels, result.threshold)
        for name, result in results.detectors.items()
        if result.errors is not None
    }
    if errors:
        plot_errors(folder / ERRORS_NAME, errors)
    lines = (folder / METRICS_NAME).read_text(encoding="utf-8").splitlines()
    if lines:
        plot_training(folder / CURVES_NAME, [json.loads(line) for line in lines])
    # Last: a results.json means that the other files are complete.
    write_json(folder / RESULTS_NAME, results.as_json())


def _scores_csv(outcomes: dict[str, Outcome], test: Examples) -> str:
    """Return test scores per sample as CSV, last those of the text control and each detector
    combined; unknown labels are empty.
    """
    columns = {name: outcome.test_scores for name, outcome in outcomes.items()}
    for name, outcome in outcomes.items():
        if outcome.combined is not None:
            columns[combined_name(name)] = outcome.combined
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["question_id", "key", "label", *columns])
    for place, (question_id, key) in enumerate(zip(test.question_ids, test.keys, strict=True)):
        label = test.labels[place]
        scores = [f"{values[place]:.17g}" for values in columns.values()]
        writer.writerow([question_id, key, "" if np.isnan(label) else int(label), *scores])
    return text.getvalue()
