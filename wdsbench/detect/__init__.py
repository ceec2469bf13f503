"""Detectors: tensors in, one score per sample out; this package does not read files.

A higher score always means *hallucinated*: trained detectors return logits, the closed-form ones of
`baselines` return quantities whose sign is chosen on validation. Importing it costs nothing; torch
is imported when a detector is built.
"""

from wdsbench.detect.registry import (
    DETECTOR_NAMES,
    DetectorShape,
    DetectorSpec,
    LoaderNeeds,
    detector_spec,
)

__all__ = ["DETECTOR_NAMES", "DetectorShape", "DetectorSpec", "LoaderNeeds", "detector_spec"]
