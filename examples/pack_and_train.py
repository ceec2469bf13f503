"""Pack pickled traces with a CSV of scores, train two detectors, and print their test AUROC.

python examples/pack_and_train.py 'traces_data/*.pkl*' ground_truth_scores.csv out/
"""

from __future__ import annotations

import sys
from pathlib import Path

from wdsbench.pack import PackOptions, pack
from wdsbench.train.config import TrainConfig
from wdsbench.train.run import train


def main(pattern: str, scores: str, out: str) -> None:
    """Pack, train and report; everything is written below ``out``."""
    shards = Path(out) / "shards"
    options = PackOptions(score_column="exact_match", threshold=0.5, attention=("edges", "sketch"))
    report = pack([pattern], shards, scores=Path(scores), options=options)
    print(f"{report.samples} samples, {report.bytes_written / 1e6:.1f} MB")

    results = train(shards, ["logprob_mean", "lstm"], Path(out) / "run", TrainConfig(epochs=3))
    for name, figures in results.detectors.items():
        low, high = figures.auroc_interval
        print(f"{name:15} AUROC {figures.auroc:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main(*sys.argv[1:])
