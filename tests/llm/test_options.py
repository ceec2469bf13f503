"""Invalid options and prompts of an extraction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llm.tiny import (
    extract,
    make_model,
    make_questions,
    make_tokenizer,
)

from wdsbench.errors import QuestionError
from wdsbench.llm.asks import read_prefix
from wdsbench.llm.options import TraceOptions
from wdsbench.llm.questions import Question


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model()


# (arguments, words of the error)
BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size is 0"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ({"traces_per_file": -1}, "traces_per_file is -1"),
    ({"answers_per_question": 0}, "answers_per_question is 0"),
    ({"answers_per_question": 2}, "greedy gives one answer; use decode sample"),
    ({"layers": []}, "layers are \\[\\]; must be"),
    ({"layers": [1, -1]}, "layers are \\[1, -1\\]; must be"),
    ({"layers": [1, 1]}, "distinct numbers"),
    ({"tokens": "first"}, "tokens is 'first'; expected one of all, answer, last"),
    ({"file_format": "h5"}, "file_format is 'h5'; expected one of pkl.gz, safetensors, npz"),
    ({"on_error": "ignore"}, "on_error is 'ignore'; expected one of record, fail"),
    ({"resume": True, "overwrite": True}, "give one"),
    ({"template": "Q: {q}"}, "does not contain {question}"),
    ({"stop": ("red", "")}, "stop has an empty text"),
    ({"questions": []}, "no questions"),
    ({"attention": ("edges", "eyes")}, "'eyes' is not one of full, edges, heads, sketch, none"),
    ({"edge_rule": "best:1"}, "edge rule 'best:1' is not top:SHARE"),
    ({"head_threshold": 5}, "head_threshold: 5 is not within 0..1"),
]


@pytest.mark.parametrize(("changes", "words"), BAD_ARGUMENTS)
def test_bad_arguments(
    changes: dict[str, Any], words: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    questions = changes.pop("questions", make_questions(1))
    with pytest.raises(ValueError, match=words):
        extract(model, tokenizer, questions, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_stop_is_a_sequence() -> None:
    with pytest.raises(TypeError, match="stop is 'red'; must be a sequence of texts"):
        TraceOptions(stop="red")  # type: ignore[arg-type]


# (content of the file, words of the error)
BAD_FILES: list[tuple[bytes | None, str]] = [
    (None, "cannot be read: No such file"),
    (b"caf\xe9", "not UTF-8"),
    (b"", "the prompt file is empty"),
    (
        b"Q: {question}",
        "the prompt file contains {question}, but is put before the template as it is",
    ),
]


@pytest.mark.parametrize(("content", "words"), BAD_FILES)
def test_bad_prompt_files(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "examples.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(QuestionError, match=rf"examples\.txt: {words}"):
        read_prefix(path)


@pytest.mark.parametrize("attention", [True, "edges"])
def test_attention_is_a_sequence(
    attention: Any, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=f"attention is {attention!r}; must be a sequence"):
        extract(model, tokenizer, make_questions(1), tmp_path / "out", attention=attention)
    assert not (tmp_path / "out").exists()


def test_prompts_that_cannot_be_asked(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    long = Question("long", "red " * 41, ())
    with pytest.raises(QuestionError, match="question long: the prompt has 42 tokens") as caught:
        extract(model, tokenizer, [long], tmp_path, max_new_tokens=7, on_error="fail")
    assert caught.value.question_id == "long"
    assert "the model has 48 positions" in str(caught.value)
    extract(model, tokenizer, [long], tmp_path, max_new_tokens=6)
    tokenizer.backend_tokenizer.post_processor = None
    none = [Question("none", "", ())]
    with pytest.raises(QuestionError, match="question none: the prompt has no tokens"):
        extract(model, tokenizer, none, tmp_path, overwrite=True, on_error="fail")
