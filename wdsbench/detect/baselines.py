"""Closed-form scores that need no states: baselines for detectors on hidden states.

Each takes a batch and returns float64 ``[B]``; the sign is chosen on validation. If one trace lacks
an input, the detector is "not available" for the whole data set, because detectors can only be
compared on the same samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsbench.errors import DetectorError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wdsbench.records import Batch


def length(batch: Batch) -> NDArray[np.float64]:
    """Return the number of answer tokens; raise DetectorError if a prompt length is unknown."""
    prompt = batch.prompt_length.cpu().numpy()
    unknown = np.flatnonzero(prompt < 0)
    if unknown.size:
        raise DetectorError(
            f"not available: trace {batch.keys[unknown[0]]} has no known prompt length, so "
            "the answer's length is unknown; extract traces with prompt_length"
        )
    answer: NDArray[np.float64] = (batch.token_count.cpu().numpy() - prompt).astype(np.float64)
    return answer


def logprob_mean(batch: Batch) -> NDArray[np.float64]:
    """Return the mean log-probability (natural log) of each sample's answer tokens."""
    return _over_logprobs(batch, np.mean)


def logprob_min(batch: Batch) -> NDArray[np.float64]:
    """Return the lowest log-probability (natural log) among each sample's answer tokens."""
    return _over_logprobs(batch, np.min)


def _over_logprobs(batch: Batch, reduce: Callable[..., Any]) -> NDArray[np.float64]:
    """Return ``reduce`` of each sample's token log-probabilities; raise DetectorError if a sample
    has none, or one that is not a number.
    """
    remedy = "extract traces with token_logprobs"
    if batch.logprobs is None:
        raise DetectorError(f"not available: the data set has no token log-probabilities; {remedy}")
    scores = np.empty(len(batch), dtype=np.float64)
    for place, (key, values) in enumerate(zip(batch.keys, batch.logprobs, strict=True)):
        if values is None or len(values) == 0:
            raise DetectorError(
                f"not available: trace {key} has no token log-probabilities; {remedy}"
            )
        scores[place] = reduce(np.asarray(values, dtype=np.float64))
        if np.isnan(scores[place]):
            raise DetectorError(
                f"not available: trace {key} has a log-probability that is not a number; {remedy}"
            )
    # A token of probability 0 has -inf; metrics need finite numbers in the same order.
    return np.nan_to_num(scores, neginf=float(np.finfo(np.float32).min))
