"""Detectors: tensors (of controls: strings) in, one score per sample out; no files are read.

A higher score always means *hallucinated*: trained detectors return logits, the closed-form ones of
`baselines` return quantities whose sign is chosen on validation. Importing `registry`, which lists
them, does not import torch; building a detector does.
"""
