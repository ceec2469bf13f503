"""Logistic regression on TF-IDF of words and characters: a control that sees only text.

Terms are words and pairs of neighbouring words (without their case), and sequences of 2 to 4
characters within words, which have a blank at both ends. Term t of a text has the value ``n_t *
idf_t``, with n_t its occurrences in the text and ``idf_t = 1 + ln((1 + N) / (1 + N_t))``, where N_t
of the N training texts have it; the values of words and those of characters are divided by their
Euclidean norm. Terms that the training texts lack are ignored.

Terms are stored as 64-bit hashes, so a checkpoint holds no text. A text longer than `LONGEST`
characters is represented by its two ends.

Source: Salton, Buckley (1988), Term-weighting approaches in automatic text retrieval; the formula
of idf and the sequences within words are scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from wdsbench.detect.registry import DetectorShape
from wdsbench.detect.strings import words

#: Lengths of the sequences of characters.
SEQUENCES = (2, 3, 4)
LONGEST = 4000
#: Terms that are kept: those in the most training texts, and in at least `LEAST_TEXTS` of them.
MOST_TERMS = 1 << 17
LEAST_TEXTS = 2
#: Texts that are counted together, which bounds memory to about 200 bytes per character of them.
CHUNK = 256

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


def _counted(texts: Sequence[str]) -> Iterator[tuple[int, _Ints, _Ints, _Ints]]:
    """Yield the terms of each chunk of texts, those of words and those of characters: the number of
    its first text and, for each term of a text, the text (from 0), the term's hash, its count.
    """
    for first in range(0, len(texts), CHUNK):
        chunk = [
            text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} {text[-LONGEST // 2 :]}"
            for text in texts[first : first + CHUNK]
        ]
        for rows, hashes in (_hashed_words(chunk), _hashed_sequences(chunk)):
            order = np.lexsort((hashes, rows))
            rows, hashes = rows[order], hashes[order]
            new = np.ones(rows.size, bool)
            new[1:] = (np.diff(rows) != 0) | (np.diff(hashes) != 0)
            starts = np.flatnonzero(new)
            yield first, rows[starts], hashes[starts], np.diff(starts, append=rows.size)


def _hashed_words(texts: Sequence[str]) -> tuple[_Ints, _Ints]:
    """Return text and hash of every word and pair of words."""
    rows: list[int] = []
    terms: list[str] = []
    for row, text in enumerate(texts):
        found = words(text)
        terms += found
        terms += [f"{one} {other}" for one, other in pairwise(found)]
        rows += [row] * (len(terms) - len(rows))
    hashes = [xxhash.xxh3_64_intdigest(term.encode("utf-8", "surrogatepass")) for term in terms]
    return np.array(rows, np.int64), np.array(hashes, np.uint64).view(np.int64)


def _hashed_sequences(texts: Sequence[str]) -> tuple[_Ints, _Ints]:
    """Return text and hash of every sequence of characters.

    The hash is a sum of code points times random odd numbers modulo 2^64, others for each length.
    """
    padded = [f" {' '.join(text.split())} " for text in texts]
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in padded])
    encoded = "".join(padded).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(encoded, "<u4").astype(np.uint64)
    blank = codes == ord(" ")
    found = []
    for size in SEQUENCES:
        count = max(codes.size - size + 1, 0)
        hashes = np.full(count, _FACTORS[size, 0])
        # A blank is the first or the last character; two blanks are between two texts.
        within = ~(blank[:count] & blank[1 : count + 1])
        for place in range(size):
            hashes += codes[place : place + count] * _FACTORS[size, place + 1]
            if 0 < place < size - 1:
                within &= ~blank[place : place + count]
        found.append((rows[:count][within], hashes[within].view(np.int64)))
    return np.concatenate([row for row, _ in found]), np.concatenate([h for _, h in found])


_FACTORS = np.array(
    [
        [xxhash.xxh3_64_intdigest(bytes([size, place])) | 1 for place in range(max(SEQUENCES) + 1)]
        for size in range(max(SEQUENCES) + 1)
    ],
    np.uint64,
)
