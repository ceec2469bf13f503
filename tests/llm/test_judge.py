"""Judges: batches equal single pairs, and the class that means right is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from llm.tiny import WORDS, make_model, make_tokenizer

from wdsbench.errors import ModelError
from wdsbench.llm.judge import Judge

PAIRS = [
    ("red", ("red", "blue one two three who")),
    ("green blue red two", ("one",)),
    ("who", ("what is the ?", "red red red", "blue")),
]


def save(folder: Path, labels: list[str], kind: str = "Bert") -> Path:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=4 + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        pad_token_id=0,
        initializer_range=1.0,
        id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
    )
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(folder)
    make_tokenizer(padding_side="right").save_pretrained(folder)
    return folder


def alone(judge: Judge, reference: str, answer: str) -> Any:
    """Return the logits of one pair without padding."""
    inputs = judge._tokenizer(reference, answer, return_tensors="pt")
    with torch.inference_mode():
        return judge._model(**inputs).logits[0]


def test_regression_takes_the_best_reference(tmp_path: Path) -> None:
    judge = Judge(save(tmp_path, ["LABEL_0"]))
    scores = judge.score([answer for answer, _ in PAIRS], [own for _, own in PAIRS])
    for score, (answer, references) in zip(scores, PAIRS, strict=True):
        wanted = max(float(alone(judge, reference, answer)[0]) for reference in references)
        assert score == pytest.approx(wanted, abs=1e-5)
    assert judge.cut == 0


@pytest.mark.parametrize(
    ("labels", "wanted", "place"),
    [
        (["contradiction", "neutral", "Entailment"], None, 2),
        (["good", "bad"], "Good", 0),
    ],
)
def test_classifiers_give_a_probability(
    labels: list[str], wanted: str | None, place: int, tmp_path: Path
) -> None:
    judge = Judge(save(tmp_path, labels), wanted)
    (score,) = judge.score(["red"], [("blue one",)])
    assert score == pytest.approx(float(alone(judge, "blue one", "red").softmax(0)[place]))


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_long_pairs_are_cut_and_counted(kind: str, tmp_path: Path) -> None:
    judge = Judge(save(tmp_path, ["LABEL_0"], kind))
    scores = judge.score(["red " * 40, "red"], [("blue",), ("blue",)])
    assert all(abs(score) < float("inf") for score in scores)
    assert judge.cut == 1


def test_classes_without_a_right_one(tmp_path: Path) -> None:
    save(tmp_path, ["LABEL_0", "LABEL_1"])
    with pytest.raises(ModelError, match=r"classes LABEL_0, LABEL_1; none or several .*-label"):
        Judge(tmp_path)
    with pytest.raises(ModelError, match="'x' is not one of them"):
        Judge(tmp_path, "x")


def test_a_model_without_the_head_that_scores(tmp_path: Path) -> None:
    """Transformers would fill it with random numbers."""
    make_model().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"lacks weights for sequence .*: score\.weight; they wo"):
        Judge(tmp_path, "LABEL_1")


def test_models_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such folder"):
        Judge(tmp_path / "missing")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Judge(tmp_path)
