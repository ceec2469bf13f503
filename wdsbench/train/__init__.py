"""Training and honest evaluation: a data set in, detectors and metrics with intervals out."""

from wdsbench.train.config import TrainConfig
from wdsbench.train.results import DetectorResult, Results, load_results

__all__ = ["DetectorResult", "Results", "TrainConfig", "load_results"]
