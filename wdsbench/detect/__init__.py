"""Detectors: tensors in, one score per sample out. They know nothing of shards, loaders or files.

A higher score always means *hallucinated*. Trained detectors return logits; the closed-form ones of
`baselines` return raw quantities whose sign is chosen on validation data by whoever evaluates them.
"""

from wdsbench.detect.registry import (
    DETECTOR_NAMES,
    DetectorShape,
    DetectorSpec,
    LoaderNeeds,
    detector_spec,
)

__all__ = ["DETECTOR_NAMES", "DetectorShape", "DetectorSpec", "LoaderNeeds", "detector_spec"]
