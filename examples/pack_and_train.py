"""Pack pickled traces with a CSV of scores, train two detectors, and print their test AUROC beside
that of the controls.

python examples/pack_and_train.py 'traces_data/*.pkl*' ground_truth_scores.csv out/
"""

from __future__ import annotations

import sys
from pathlib import Path

from wdsbench import jobs


def main(pattern: str, scores: str, out: str) -> None:
    """Pack, train and report; everything is written below ``out``."""
    shards, run = Path(out) / "shards", Path(out) / "run"
    packed = jobs.pack(
        jobs.PackJob(traces=(pattern,), scores=Path(scores), score_column="exact_match", out=shards)
    )
    print(f"{packed.samples} samples, {packed.bytes_written / 1e6:.1f} MB")

    detectors = ("logprob_mean", "lstm")
    results = jobs.train(jobs.TrainJob(shards=shards, detectors=detectors, epochs=3, out=run))
    for name, figures in results.detectors.items():
        low, high = figures.auroc_interval
        print(f"{name:16} AUROC {figures.auroc:.3f} [{low:.3f}, {high:.3f}]")
    print(f"verdict: {results.verdict}")


if __name__ == "__main__":
    main(*sys.argv[1:])
