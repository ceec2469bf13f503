"""Detectors: tensors in, one score per sample out; this package does not read files.

A higher score always means *hallucinated*: trained detectors return logits, the closed-form ones of
`baselines` return quantities whose sign is chosen on validation. Importing `registry`, which lists
them, does not import torch; building a detector does.
"""
