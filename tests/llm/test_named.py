"""Questions by name, from a fake package ``datasets``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wdsbench.errors import QuestionError
from wdsbench.llm.questions import Question, load_questions

TRIVIA = [
    {
        "question_id": "tc_2",
        "question": " Who? ",
        "answer": {"value": "Ann", "aliases": ["Ann", "Anna ", ""]},
    },
    {"question_id": "tc_2", "question": "Who?", "answer": {"value": "Ann", "aliases": []}},
    {"question_id": "tc_9", "question": "Where?", "answer": {"value": "Rome", "aliases": []}},
]
TRUTHFUL = [
    {
        "question": "What happens if you eat seeds?",
        "best_answer": "Nothing.",
        "correct_answers": ["They pass.", "Nothing."],
        "incorrect_answers": ["You grow a tree."],
    }
]


def stand_in(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = SimpleNamespace(
        load_dataset=load,
        is_progress_bar_enabled=lambda: False,
        disable_progress_bars=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "datasets", module)


def serve(path: str, config: str, *, split: str) -> list[dict[str, Any]]:
    return {
        ("mandarjoshi/trivia_qa", "rc.nocontext", "validation"): TRIVIA,
        ("truthfulqa/truthful_qa", "generation", "validation"): TRUTHFUL,
    }[path, config, split]


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, serve)
    trivia = [Question("tc_2", "Who?", ("Ann", "Anna")), Question("tc_9", "Where?", ("Rome",))]
    assert load_questions("triviaqa") == trivia
    assert load_questions("triviaqa", limit=1) == trivia[:1]
    assert load_questions("truthfulqa") == [
        Question("truthfulqa-0", "What happens if you eat seeds?", ("Nothing.", "They pass."))
    ]
    with pytest.raises(ValueError, match="limit is 0"):
        load_questions("triviaqa", limit=0)


def test_a_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("question_id,question,reference\na,b,c\n")
    assert load_questions(str(tmp_path / "q.csv")) == [Question("a", "b", ("c",))]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(QuestionError, match="questions triviaqa need the package datasets"):
        load_questions("triviaqa")


def test_without_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach the Hub\nat all")

    stand_in(monkeypatch, load)
    words = r"truthfulqa .* cannot be fetched: Couldn't reach the Hub at all; .*HF_HOME"
    with pytest.raises(QuestionError, match=words) as caught:
        load_questions("truthfulqa")
    assert "\n" not in str(caught.value)


def test_rows_of_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda *_, **__: [{"id": 1}])
    with pytest.raises(QuestionError, match="a row of mandarjoshi/trivia_qa has another form"):
        load_questions("triviaqa")
