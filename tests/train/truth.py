"""Traces whose best possible AUROC is known in closed form, packed by the project's own packer.

A signal is a number of a trace that is normal with unit variance and whose mean lies ``distance``
higher where the trace is hallucinated. No score ranks better than that number itself, for the
likelihood ratio of the two classes grows with it (Neyman and Pearson), and it reaches

    AUROC = Phi(distance / sqrt(2))

since a hallucinated one less a right one is normal with mean ``distance`` and variance 2. Source:
Green, Swets, "Signal detection theory and psychophysics" (1966), for the binormal case; Hanley,
McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC) curve"
(1982), for AUROC as the probability that the one ranks above the other.

Where k independent numbers are shifted by ``distance / sqrt(k)`` each, the logarithm of their
likelihood ratio is linear in their sum, whose means lie ``distance`` of its deviations apart: the
same AUROC. All else in a trace is noise that knows nothing of the label.

Families, a data set each:

    states    the last token's state of one layer is shifted along a direction that is no axis
    weights   what answer tokens attend to themselves is shifted in every layer (k layers); the rest
              goes to the token before. All edges into answer tokens weigh the same within a layer,
              so shuffling them changes nothing. States are zeros
    places    whom answer tokens attend to: half of the prompt's tokens, drawn by lot, bear a mark
              in their states, the others its opposite. What the marked ones get and the others
              lose is shifted, the same in all layers and heads. Weights without marks are the same
              for a number and its negative, whose densities in the two classes are each other's:
              they say nothing, and neither do marks without weights
    words     mean log-probability, lowest log-probability and length of the answer, independent of
              each other
    nothing   every detector finds what it reads, and none of it is a signal
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from builders import write_pickle, write_scores
from numpy.typing import NDArray

from wdsbench.pack import PackOptions, pack

LAYERS, FEATURES, HEADS = 2, 8, 2
SIGNAL_LAYER = 1
PROMPT, ANSWER = 2, 3

#: AUROC 0.830.
DISTANCE = 1.35
#: AUROC 0.898: mean and lowest log-probability are not to be taken for each other.
LOWEST_DISTANCE = 1.8

#: Answer tokens, and how often there are so many in right and in hallucinated traces.
LENGTHS = (3, 4, 5)
RIGHT_LENGTHS = (0.6, 0.3, 0.1)
HALLUCINATED_LENGTHS = (0.1, 0.3, 0.6)

#: One unit of a ``weights`` number: 0.5 -+ 4.5 units is within 0.05 (the threshold of heads) .. 1.
WEIGHT_UNIT = 0.1


def binormal_auroc(distance: float) -> float:
    """Return Phi(distance / sqrt(2))."""
    return 0.5 * (1 + math.erf(distance / 2))


def discrete_auroc(
    values: tuple[int, ...], right: tuple[float, ...], hallucinated: tuple[float, ...]
) -> float:
    """Return the AUROC of a score of which each class has these probabilities; ties count half."""
    return sum(
        p * q * (float(high > low) + 0.5 * float(high == low))
        for low, p in zip(values, right, strict=True)
        for high, q in zip(values, hallucinated, strict=True)
    )


def auroc_error(auroc: float, positives: int, negatives: int) -> float:
    """Return the standard error of an AUROC.

    Source: Hanley, McNeil (1982), with their Q1 and Q2.
    """
    q1, q2 = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    variance = auroc * (1 - auroc)
    variance += (positives - 1) * (q1 - auroc**2) + (negatives - 1) * (q2 - auroc**2)
    return math.sqrt(variance / (positives * negatives))


#: The best possible AUROC of every signal.
KNOWN = {
    "states": binormal_auroc(DISTANCE),
    "weights": binormal_auroc(DISTANCE),
    "places": binormal_auroc(DISTANCE),
    "logprob_mean": binormal_auroc(DISTANCE),
    "logprob_min": binormal_auroc(LOWEST_DISTANCE),
    "length": discrete_auroc(LENGTHS, RIGHT_LENGTHS, HALLUCINATED_LENGTHS),
}


@dataclass(frozen=True)
class Truth:
    """A packed data set and its known figures.

    Attributes:
        folder: The data set's.
        labels: By question id: 1 hallucinated, 0 right.
        oracle: By signal and question id: the number that no score beats, read off the raw trace.
    """

    folder: Path
    labels: dict[str, int]
    oracle: dict[str, dict[str, float]]


def make_truth(folder: Path, family: str, *, traces: int, seed: int) -> Truth:
    """Pack ``traces`` traces of ``family``, one of each question, into ``folder / "shards"``; half
    of them, by lot, are hallucinated.
    """
    rng = np.random.default_rng([seed, *family.encode()])
    raws, labels = {}, {}
    for number, label in enumerate(rng.permutation(np.arange(traces) % 2).tolist()):
        question = f"{family}-{number}"
        raws[question] = _MAKERS[family](rng, label) | {"question_id": question}
        labels[question] = label
    write_pickle(folder / "traces_data" / "batch_0001.pkl", list(raws.values()))
    pack(
        [str(folder / "traces_data" / "*.pkl")],
        folder / "shards",
        scores=write_labels(folder / "scores.csv", labels),
        options=PackOptions(
            attention=("edges", "heads", "sketch"), edge_rule="threshold:0.01", threads=1
        ),
    )
    oracle = {
        signal: {question: read(raw) for question, raw in raws.items()}
        for signal, read in ORACLES[family].items()
    }
    return Truth(folder / "shards", labels, oracle)


def write_labels(path: Path, labels: Mapping[str, int]) -> Path:
    """Write the score file that gives these labels: scores below 0.5 are hallucinated."""
    return write_scores(path, {question: 1.0 - label for question, label in labels.items()})


# -- Traces ----------------------------------------------------------------------------------------


def _states(rng: np.random.Generator, label: int) -> dict[str, Any]:
    hidden = rng.normal(size=(LAYERS, PROMPT + ANSWER, FEATURES))
    hidden[SIGNAL_LAYER, -1] += label * DISTANCE * _direction()
    return _raw(hidden, _random_maps(rng, PROMPT + ANSWER))


def _weights(rng: np.random.Generator, label: int) -> dict[str, Any]:
    count = PROMPT + ANSWER
    number = rng.normal(size=(LAYERS, 1)) + (label - 0.5) * DISTANCE / math.sqrt(LAYERS)
    maps = np.zeros((LAYERS, HEADS, count, count))
    maps[..., 0, 0] = 1.0
    for token in range(1, count):
        own = 0.5 + WEIGHT_UNIT * number if token >= PROMPT else 0.5
        maps[..., token, token] = own
        maps[..., token, token - 1] = 1 - own
    return _raw(np.zeros((LAYERS, count, FEATURES)), maps)


def _places(rng: np.random.Generator, label: int) -> dict[str, Any]:
    count = PROMPT + ANSWER
    mark = rng.permutation(np.arange(PROMPT) % 2 * 2 - 1)
    hidden = rng.normal(size=(LAYERS, count, FEATURES))
    hidden[:, :, 0] = 0.0
    hidden[:, :PROMPT, 0] = mark
    number = rng.normal() + (label - 0.5) * DISTANCE
    # A share within 0.15 .. 0.85 that grows with the number: AUROC knows nothing but order.
    share = 0.15 + 0.7 * binormal_auroc(math.sqrt(2) * number)
    maps = _random_maps(rng, count)
    maps[:, :, PROMPT:, :] = 0.0
    maps[:, :, PROMPT:, :PROMPT] = 0.8 / (PROMPT / 2) * np.where(mark > 0, share, 1 - share)
    for token in range(PROMPT, count):
        maps[..., token, token] = 0.2
    return _raw(hidden, maps)


def _words(rng: np.random.Generator, label: int) -> dict[str, Any]:
    answer = int(rng.choice(LENGTHS, p=HALLUCINATED_LENGTHS if label else RIGHT_LENGTHS))
    count = PROMPT + answer
    # Hallucinated answers are told with less confidence. Six deviations away the other tokens are
    # still below 0 and above the lowest one, however many they are.
    mean = -4.0 - 0.15 * (rng.normal() + (label - 0.5) * DISTANCE)
    lowest = -7.0 - 0.15 * (rng.normal() + (label - 0.5) * LOWEST_DISTANCE)
    logprobs = np.full(answer, (answer * mean - lowest) / (answer - 1))
    logprobs[rng.integers(answer)] = lowest
    return _raw(np.zeros((1, count, 1)), np.eye(count)[None, None], logprobs)


def _nothing(rng: np.random.Generator, label: int) -> dict[str, Any]:  # noqa: ARG001
    answer = int(rng.choice(LENGTHS))
    count = PROMPT + answer
    hidden = rng.normal(size=(LAYERS, count, FEATURES))
    return _raw(hidden, _random_maps(rng, count), -rng.exponential(size=answer))


def _raw(
    hidden: NDArray[np.float64],
    maps: NDArray[np.float64],
    logprobs: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    count = hidden.shape[1]
    raw = {
        "hidden_states": hidden.astype(np.float32),
        "attentions": maps.astype(np.float32),
        "tokens": list(range(count)),
        "tokens_decoded": [f"t{token}" for token in range(count)],
        "generated_answer_clean": "an answer",
        "prompt_length": PROMPT,
    }
    return raw if logprobs is None else raw | {"token_logprobs": logprobs.astype(np.float32)}


def _direction() -> NDArray[np.float64]:
    """Return a unit vector ``[D]`` that no single feature tells."""
    direction = (-1.0) ** np.arange(FEATURES) * np.arange(1, FEATURES + 1)
    return direction / np.linalg.norm(direction)


def _random_maps(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    weights = np.tril(rng.random((LAYERS, HEADS, count, count)) + 0.1)
    return weights / weights.sum(axis=-1, keepdims=True)


_MAKERS: dict[str, Callable[[np.random.Generator, int], dict[str, Any]]] = {
    "states": _states,
    "weights": _weights,
    "places": _places,
    "words": _words,
    "nothing": _nothing,
}

# -- Oracles ---------------------------------------------------------------------------------------


def _marked_share(raw: dict[str, Any]) -> float:
    mark = raw["hidden_states"][0, :PROMPT, 0]
    return float(raw["attentions"][0, 0, -1, :PROMPT] @ mark)


#: By family and signal: what a raw trace tells of the signal.
ORACLES: dict[str, dict[str, Callable[[dict[str, Any]], float]]] = {
    "states": {"states": lambda raw: float(raw["hidden_states"][SIGNAL_LAYER, -1] @ _direction())},
    "weights": {"weights": lambda raw: float(raw["attentions"][:, 0, -1, -1].sum())},
    "places": {"places": _marked_share},
    "words": {
        "logprob_mean": lambda raw: -float(raw["token_logprobs"].mean(dtype=np.float64)),
        "logprob_min": lambda raw: -float(raw["token_logprobs"].min()),
        "length": lambda raw: float(len(raw["token_logprobs"])),
    },
    "nothing": {},
}
