"""Texts of traces, what takes their place, and TF-IDF of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from wdsbench.detect import strings, text
from wdsbench.detect.text import LONGEST, TextClassifier, with_terms
from wdsbench.errors import DetectorError
from wdsbench.records import Batch

TOKENS = {"tokens": [5, 6, 7], "token_texts": ["Who", "?", "Ann"], "prompt_length": 2}


def batch_of(*metas: dict[str, object]) -> Batch:
    none = torch.zeros(len(metas))
    keys = [f"k{place}" for place in range(len(metas))]
    return Batch(none, none, none, none, keys, keys, meta=list(metas))


@pytest.mark.parametrize(
    ("meta", "answer", "question"),
    [
        ({"answer": "Ann", "question": "Who is it?"}, "Ann", "Who is it?"),
        (TOKENS | {"answer": "ann"}, "ann", "Who?"),
        (TOKENS | {"answer": ""}, "Ann", "Who?"),
        ({"tokens": [5, 6, 7], "prompt_length": 1, "question": ""}, "6 7", ""),
    ],
)
def test_text_or_else_tokens(meta: dict[str, object], answer: str, question: str) -> None:
    assert strings.answers(batch_of(meta)) == [answer]
    assert strings.questions(batch_of(meta)) == [question]


def test_one_trace_without_text_makes_the_control_unavailable() -> None:
    known = TOKENS | {"answer": "Ann", "context": "Ann"}
    unknown = TOKENS | {"answer": "", "prompt_length": None, "context": "Ann"}
    with pytest.raises(DetectorError, match="not available: trace k1 has no text of the answer"):
        strings.answers(batch_of(known, unknown))
    with pytest.raises(DetectorError, match="not available: trace k1 has no question"):
        strings.questions(batch_of(known, unknown))
    # Numbers of tokens are not the question.
    numbers = {"answer": "Ann", "tokens": [5, 6, 7], "prompt_length": 2}
    with pytest.raises(DetectorError, match="not available: trace k1 has no question"):
        strings.questions(batch_of(known, numbers))
    with pytest.raises(DetectorError, match="not available: trace k1 has no context"):
        strings.similarity(batch_of(known, TOKENS | {"answer": "Ann"}))


def test_similarity_is_the_share_of_words_in_the_context() -> None:
    context = "Ann Lee was born in Rome."
    answers = ("ann was in Paris", "Rome!", "Oslo", "...")
    found = strings.similarity(batch_of(*({"answer": a, "context": context} for a in answers)))
    np.testing.assert_allclose(found, [0.75, 1, 0, 0])


TEXTS = ["the cat sat", "the dog sat", "a cat and a dog", "cats", "the the cat", "The CAT sat"]


def test_values_are_those_of_scikit_learn() -> None:
    terms = with_terms(TEXTS).scale
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", min_df=2)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), lowercase=False, min_df=2)
    expected = [part.fit(TEXTS) for part in (words, characters)]
    assert terms.hashes.numel() == sum(len(part.vocabulary_) for part in expected)
    texts = [*TEXTS, "a new cat", "zzz", "", "  the\ncat"]
    rows, places, values = terms.features(texts)
    for row, one in enumerate(texts):
        own = rows == row
        assert np.unique(places[own]).size == own.sum()
        theirs = np.concatenate([part.transform([one]).data for part in expected])
        np.testing.assert_allclose(np.sort(values[own]), np.sort(theirs), rtol=1e-6)


@pytest.mark.parametrize("texts", [["", "", ""], ["ab", "cd", "ef"]])
def test_texts_without_a_common_term(texts: list[str]) -> None:
    module = with_terms(texts)
    module.set_weights(torch.ones(module.weight.numel()), 0.5)
    assert module([*texts, "", "\ud800"]).isfinite().all()
    assert module([""]).tolist() == [0.5]


def test_ends_of_a_long_text_count() -> None:
    module = with_terms(["first word", "first word"])
    dots = "." * LONGEST
    texts = ["first word", f"first {dots} word", f"{dots} first word {dots}"]
    rows, places, _ = module.scale.features(texts)
    assert set(places[rows == 1]) == set(places[rows == 0])
    assert not (rows == 2).any()


def test_texts_are_counted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = with_terms(TEXTS).scale
    monkeypatch.setattr(text, "CHUNK", 4)
    parts = with_terms(TEXTS).scale
    assert torch.equal(parts.hashes, whole.hashes)
    assert torch.equal(parts.idf, whole.idf)
    rows, places, values = parts.features(TEXTS)
    monkeypatch.undo()
    expected = np.zeros((len(TEXTS), whole.hashes.numel()))
    expected[tuple(whole.features(TEXTS)[:2])] = whole.features(TEXTS)[2]
    found = np.zeros_like(expected)
    found[rows, places] = values
    np.testing.assert_array_equal(found, expected)


def test_logit_is_linear_in_the_values() -> None:
    module = with_terms(TEXTS)
    assert isinstance(module, TextClassifier)
    weight = torch.linspace(-1, 1, module.weight.numel())
    module.set_weights(weight, 0.25)
    _, places, values = module.scale.features(TEXTS[:1])
    expected = float(values @ weight.double().numpy()[places]) + 0.25
    assert module(TEXTS[:1]).tolist() == pytest.approx([expected], rel=1e-6)
