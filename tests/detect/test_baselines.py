"""Closed forms against literals, and their errors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from wdsbench.detect import baselines
from wdsbench.errors import DetectorError
from wdsbench.records import Batch


def make_batch() -> Batch:
    return Batch(
        label=torch.tensor([1.0, 0.0]),
        score=torch.tensor([0.0, 1.0]),
        token_count=torch.tensor([9, 5]),
        prompt_length=torch.tensor([4, 3]),
        question_ids=["a", "b"],
        keys=["a-0", "b-0"],
        logprobs=[np.float32([-1, -2, -0.5, -0.25, -0.25]), np.float32([-3, -1])],
    )


def test_literals() -> None:
    batch = make_batch()
    assert baselines.length(batch).tolist() == [5, 2]
    assert baselines.logprob_mean(batch).tolist() == [-0.8, -2]
    assert baselines.logprob_min(batch).tolist() == [-2, -3]


def test_impossible_token_is_lowest_but_finite() -> None:
    logprobs = [np.float32([-1, -math.inf]), np.float32([-3000])]
    for score in (baselines.logprob_mean, baselines.logprob_min):
        first, second = score(replace(make_batch(), logprobs=logprobs))
        assert math.isfinite(first)
        assert first < second


def test_unknown_prompt_length_is_named() -> None:
    batch = replace(make_batch(), prompt_length=torch.tensor([4, -1]))
    with pytest.raises(DetectorError, match="not available: trace b-0 has no known prompt length"):
        baselines.length(batch)


@pytest.mark.parametrize(
    ("logprobs", "words"),
    [
        (None, "not available: the data set has no token log-probabilities"),
        ([np.float32([-1]), None], "not available: trace b-0 has no token log-probabilities"),
        ([np.float32([]), np.float32([-1])], "not available: trace a-0 has no token"),
        ([np.float32([math.nan]), np.float32([-1])], "trace a-0 has a log-probability that is not"),
    ],
)
def test_missing_logprobs_are_named(logprobs: object, words: str) -> None:
    batch = replace(make_batch(), logprobs=logprobs)
    for score in (baselines.logprob_mean, baselines.logprob_min):
        with pytest.raises(DetectorError, match=words):
            score(batch)
