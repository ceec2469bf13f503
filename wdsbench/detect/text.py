"""Logistic regression on TF-IDF of words and characters: a control that sees only text.

Terms are words and pairs of neighbouring words (without their case), and sequences of 2 to 4
characters within words, which have a blank at both ends. Term t of a text has the value ``n_t *
idf_t``, with n_t its occurrences in the text and ``idf_t = 1 + ln((1 + N) / (1 + N_t))``, where N_t
of the N training texts have it; the values of words and those of characters are divided by their
Euclidean norm. Terms that the training texts lack are ignored.

Terms are stored as hashes of 31 bits, so a checkpoint holds no text. A text longer than `LONGEST`
characters is represented by its two ends.

Source: Salton, Buckley (1988), Term-weighting approaches in automatic text retrieval; terms and the
formula of idf are scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer
from torch import Tensor, nn

from wdsbench.detect.registry import DetectorShape

LONGEST = 4000
#: Terms that are kept: those in the most training texts, and in at least `LEAST_TEXTS` of them.
MOST_TERMS = 1 << 17
LEAST_TEXTS = 2
#: Texts that are counted together, which bounds memory.
CHUNK = 256

#: Number of hashes of a kind of term, the largest that scikit-learn allows.
_HASHES = 2**31 - 1
_COUNTS = {"n_features": _HASHES, "norm": None, "alternate_sign": False}
_WORDS = HashingVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", **_COUNTS)
_CHARACTERS = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), lowercase=False, **_COUNTS)
_Ints = NDArray[np.int64]


class Terms(nn.Module):
    """Known terms, and how rare they are.

    Buffers: ``hashes`` int64 ``[F]``, ascending; ``idf`` float32 ``[F]``.
    """

    hashes: Tensor
    idf: Tensor

    def __init__(self, count: int) -> None:
        """Create ``count`` terms, which no text has."""
        super().__init__()
        self.register_buffer("hashes", torch.zeros(count, dtype=torch.int64))
        self.register_buffer("idf", torch.ones(count))

    def features(self, texts: Sequence[str]) -> tuple[_Ints, _Ints, NDArray[np.float64]]:
        """Return the values that are not 0 of all texts: the text, the term and the value of each,
        ``[n]``.
        """
        known, idf = self.hashes.cpu().numpy(), self.idf.cpu().double().numpy()
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for first, rows, hashes, counts in _counted(texts):
            places = np.minimum(np.searchsorted(known, hashes), known.size - 1)
            found = known[places] == hashes
            rows, places = rows[found], places[found]
            values = counts[found] * idf[places]
            norms = np.sqrt(np.bincount(rows, values**2, CHUNK))
            parts.append((rows + first, places, values / norms[rows]))
        rows, places, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        return rows, places, values


class TextClassifier(nn.Module):
    """One logit per text; ``shape.num_features`` is the number of terms."""

    def __init__(self, shape: DetectorShape) -> None:
        """Create the classifier with weights of 0."""
        super().__init__()
        self.scale = Terms(shape.num_features)
        self.weight = nn.Parameter(torch.zeros(shape.num_features))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return the logits, float32 ``[B]``."""
        rows, places, values = self.scale.features(texts)
        weight = self.weight.detach().cpu().double().numpy()
        sums = np.bincount(rows, values * weight[places], len(texts))
        return torch.from_numpy(sums).float().to(self.bias.device) + self.bias

    def set_weights(self, weight: Tensor, bias: float) -> None:
        """Set ``weight`` ``[F]`` and ``bias``."""
        with torch.no_grad():
            self.weight.copy_(weight)
            self.bias.fill_(bias)


def with_terms(texts: Sequence[str]) -> TextClassifier:
    """Return a classifier with the terms of the training texts."""
    terms, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for _, _, hashes, _ in _counted(texts):
        terms, place = np.unique(np.concatenate([terms, hashes]), return_inverse=True)
        ones = np.ones(hashes.size, np.int64)
        counts = np.bincount(place, np.concatenate([counts, ones])).astype(np.int64)
    several = counts >= LEAST_TEXTS
    if several.any():  # otherwise every text is unlike all others
        terms, counts = terms[several], counts[several]
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_TERMS])
    terms, counts = terms[kept], counts[kept]
    if not terms.size:  # all texts are empty; no text has the term 0
        terms, counts = np.zeros(1, np.int64), np.zeros(1, np.int64)
    module = TextClassifier(DetectorShape(1, terms.size))
    module.scale.hashes.copy_(torch.from_numpy(terms))
    module.scale.idf.copy_(torch.from_numpy(1 + np.log((1 + len(texts)) / (1 + counts))))
    return module


def _counted(texts: Sequence[str]) -> Iterator[tuple[int, _Ints, _Ints, NDArray[np.float64]]]:
    """Yield the terms of each chunk of texts, those of words and those of characters: the number of
    its first text and, for each term of a text, the text (from 0), the term's hash, its count.
    """
    for first in range(0, len(texts), CHUNK):
        chunk = [_hashable(text) for text in texts[first : first + CHUNK]]
        for kind, vectorizer in enumerate((_WORDS, _CHARACTERS)):
            found = vectorizer.transform(chunk)
            rows = np.repeat(np.arange(len(chunk)), np.diff(found.indptr))
            yield first, rows, found.indices + np.int64(kind * _HASHES), found.data


def _hashable(text: str) -> str:
    """Return a text, or the two ends of a long one, without lone surrogates."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} {text[-LONGEST // 2 :]}"
    return text.encode("utf-8", "replace").decode()
