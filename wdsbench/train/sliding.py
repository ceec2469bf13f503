"""Scores of a detector at every token of an answer, as if the answer ended there.

Only detectors of one token's states (``lstm``, the probes) can be applied to every token. They were
trained on one token, so their scores at others are an illustration, not a measurement.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wdsbench.detect.lstm import LSTMDetector
from wdsbench.detect.probe import LogisticProbe
from wdsbench.errors import DetectorError
from wdsbench.records import TokenScores
from wdsbench.train.fitted import FittedDetector, StoredTraces
from wdsbench.train.metrics import sigmoid


def slide(
    fitted: FittedDetector,
    hidden: NDArray[np.float32],
    *,
    tokens: int,
    prompt_length: int | None,
    stored: StoredTraces | None = None,
) -> TokenScores:
    """Return the scores of a detector at every answer token (at every token if the prompt length is
    unknown; at the last token if only its states are stored).

    Args:
        fitted: The detector; its module is moved to the CPU.
        hidden: float32 ``[L, t, D]``: states of the last t of ``tokens``, where t is all of them,
            those of the answer, or 1.
        tokens: T.
        prompt_length: None: unknown.
        stored: Properties of the data set; None: a raw trace, whose states are not reduced.

    Raises:
        DetectorError: The detector does not read one token's states, or does not fit the trace.
    """
    name, module = fitted.spec.name, fitted.module
    if module is None or not fitted.spec.needs.one_token:
        raise DetectorError(
            f"{name} scores whole traces, not single tokens or layers; pass lstm, probe_logistic or"
            " probe_mlp (`wdsbench predict` scores traces)"
        )
    fitted.require_traces(stored or StoredTraces(len(hidden), hidden.shape[2]))
    layers = np.arange(len(hidden)) if fitted.layers is None else np.array(fitted.layers)
    if layers.max() >= len(hidden):
        raise DetectorError(
            f"{name} reads layers {layers.tolist()}, the trace has {len(hidden)}; score traces of"
            " the same model"
        )
    positions, states = _states(fitted.token, hidden[layers], tokens, prompt_length)
    inputs = torch.from_numpy(np.ascontiguousarray(states.transpose(1, 0, 2)))
    with torch.inference_mode():
        module.to("cpu")
        logits = module(inputs).double().numpy()
        if not np.isfinite(logits).all():
            raise DetectorError(f"{name}: a score is not finite; the trace holds infinite states")
        scores = sigmoid(logits)
        by_layer = _by_layer(module, inputs, scores) if len(layers) > 1 else None
    signed = isinstance(module, LSTMDetector)
    return TokenScores(
        detector=name,
        positions=positions,
        scores=scores,
        threshold=fitted.threshold,
        layers=layers,
        by_layer=by_layer,
        by_layer_title="contribution of the layer" if signed else "probability",
        signed=signed,
        remark=_remark(fitted, hidden.shape[1] == 1 < tokens, prompt_length),
    )


def _by_layer(
    module: nn.Module, inputs: Tensor, scores: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Return ``by_layer`` of `TokenScores`, from states ``[n, L, D]``."""
    if isinstance(module, LogisticProbe):
        logits = module.linear(module.scale(inputs)).squeeze(-1)
        return sigmoid(logits.double().numpy().T)
    if not isinstance(module, LSTMDetector):
        return None
    rows = []
    for layer in range(inputs.shape[1]):
        without = inputs.clone()
        without[:, layer] = module.scale.mean[layer]
        rows.append(scores - sigmoid(module(without).double().numpy()))
    return np.stack(rows)


def _states(
    token: str, hidden: NDArray[np.float32], tokens: int, prompt_length: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return tokens ``[n]`` and their states ``[L, n, D]``."""
    missing = tokens - hidden.shape[1]
    if hidden.shape[1] == 1:
        return np.array([tokens - 1]), hidden
    first = max(prompt_length or 0, missing)
    if token == "mean_answer":
        ends = np.arange(1, tokens - first + 1, dtype=np.float64)
        sums = np.cumsum(hidden[:, first - missing :], axis=1, dtype=np.float64)
        return np.arange(first, tokens), (sums / ends[None, :, None]).astype(np.float32)
    if token == "last_prompt" and first > missing:
        first -= 1
    return np.arange(first, tokens), hidden[:, first - missing :]


def _remark(fitted: FittedDetector, only_last: bool, prompt_length: int | None) -> str:
    name = fitted.spec.name
    words = [f"trained on {fitted.token}"]
    if fitted.token == "mean_answer":
        words.append("each score uses the mean of the states up to its token")
    layer = fitted.chosen.get("layer")
    if layer is None:
        words.append("per layer: the score minus that with the layer at its training mean")
    elif isinstance(fitted.module, LogisticProbe) and fitted.module.scale.mean.shape[0] > 1:
        words.append(f"fitted on layer {layer}; others use the same direction with their own scale")
    else:
        words.append(f"{name} reads only layer {layer}: no score per layer")
    if only_last:
        words.append("only the last token's states are stored")
    elif prompt_length is None:
        words.append("prompt length unknown: every token is scored")
    return "; ".join(words)
