"""Traces from a language model: questions in, answers with states, attention and scores out.

Traces do not depend on the batch size beyond rounding, and an interrupted extraction resumes with
the same bytes. A trace costs one generation and one forward pass; memory holds the states of one
batch and the traces of one file. Modules that load models import torch and transformers;
``options``, ``questions`` and ``journal`` do not.
"""
