"""Question files in every format, and the line of errors."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from wdsbench.errors import QuestionError
from wdsbench.llm.questions import Question, read_questions

JSONL = """\
{"question_id": "a", "question": "Who?", "references": ["Ann", " the Ünn "]}

{"question_id": 7, "question": "What, and \\"why\\"?", "reference": "x", "kind": "rare"}
{"question_id": "c", "question": "Where?"}
"""
CSV = """\
question_id,question,reference,kind
a,Who?,Ann| the Ünn ,known
7,"What, and ""why""?",x,rare
c,Where?,,
"""
QUESTIONS = [
    Question("a", "Who?", ("Ann", "the Ünn")),
    Question("7", 'What, and "why"?', ("x",)),
    Question("c", "Where?", ()),
]


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize(("name", "text"), [("q.jsonl", JSONL), ("q.csv", CSV)])
def test_forms(name: str, text: str, mark: str, tmp_path: Path) -> None:
    data = (mark + text).encode()
    (tmp_path / name).write_bytes(data)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    assert read_questions(tmp_path / name) == QUESTIONS
    assert read_questions(tmp_path / f"{name}.gz") == QUESTIONS


def test_a_csv_column_may_be_named_references(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(CSV.replace("reference,", "references,"), encoding="utf-8")
    assert read_questions(tmp_path / "q.csv") == QUESTIONS


def test_limit_leaves_the_rest_unread(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(JSONL + "rubbish", encoding="utf-8")
    assert read_questions(tmp_path / "q.jsonl", limit=2) == QUESTIONS[:2]
    with pytest.raises(ValueError, match="limit is 0"):
        read_questions(tmp_path / "q.jsonl", limit=0)


@pytest.mark.parametrize(("name", "text"), [("q.jsonl", JSONL), ("q.csv", CSV)])
def test_context_and_group(name: str, text: str, tmp_path: Path) -> None:
    text = text.replace("kind", "context").replace("rare", "a long text").replace("known", "")
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert [one.context for one in read_questions(tmp_path / name)] == [None, "a long text", None]
    grouped = text.replace("context", "topic").replace("a long text", "rare")
    (tmp_path / name).write_text(grouped, encoding="utf-8")
    assert [one.group for one in read_questions(tmp_path / name)] == [None] * 3
    with pytest.raises(QuestionError, match=r"line [12].*'topic' is .*; expected the name of"):
        read_questions(tmp_path / name, group="topic")
    whole = '{"question_id": "a", "question": "b", "topic": 3}'
    (tmp_path / "whole.jsonl").write_text(whole)
    (question,) = read_questions(tmp_path / "whole.jsonl", group="topic")
    assert question == Question("a", "b", (), None, "3")


GOOD = '{"question_id": "a", "question": "b"}\n'
HEAD = "question_id,question,reference\n"
# (how it is broken, file name, content, line, words of the error)
BROKEN: list[tuple[str, str, str | bytes, int | None, str]] = [
    ("not JSON", "q.jsonl", GOOD + "rubbish\n", 2, "invalid json"),
    ("not an object", "q.jsonl", "[1]\n", 1, "the line: input should be an object"),
    ("no id", "q.jsonl", '{"question": "b"}\n', 1, "question_id: field required"),
    ("no question", "q.jsonl", "\n" + '{"question_id": "a"}\n', 2, "question: field required"),
    (
        "question is a number",
        "q.jsonl",
        '{"question_id": "a", "question": 1}',
        1,
        "question: input",
    ),
    ("id is a float", "q.jsonl", '{"question_id": 1.5, "question": "b"}', 1, "question_id: input"),
    ("id is empty", "q.jsonl", '{"question_id": "", "question": "b"}', 1, "question_id is empty"),
    (
        "references are text",
        "q.jsonl",
        '{"question_id": "a", "question": "b", "references": "c"}',
        1,
        "references: input should be a valid array",
    ),
    ("same id", "q.jsonl", GOOD + "\n" + GOOD, 3, "is also in line 1"),
    ("same id as a number", "q.csv", HEAD + "1,a,b\n1,c,d\n", 3, "is also in line 2"),
    (
        "columns",
        "q.csv",
        "id,question,answer\na,b,c\n",
        1,
        "columns are missing: question_id, reference (found: id, question, answer); the first line"
        " is question_id,question,reference.",
    ),
    ("too few", "q.csv", HEAD + "a,b\n", 2, "3 columns are named"),
    ("too many", "q.csv", HEAD + "a,b,c\na2,b,c,d\n", 3, "put texts with commas in quotes"),
    ("open quote", "q.csv", HEAD + 'a,"b,c\n', 2, "not a CSV line"),
    ("empty", "q.jsonl", "", None, "holds no questions"),
    ("empty CSV", "q.csv", HEAD, None, "holds no questions"),
    ("suffix", "q.txt", GOOD, None, "ends in none of"),
    ("encoding", "q.jsonl", b'{"question_id": "\xff"}', None, "not UTF-8"),
    ("cut gzip", "q.jsonl.gz", gzip.compress(GOOD.encode())[:-9], None, "cannot be inflated"),
    ("no gzip", "q.jsonl.gz", GOOD, None, "cannot be read"),
]


@pytest.mark.parametrize(
    ("name", "content", "line", "words"), [row[1:] for row in BROKEN], ids=[r[0] for r in BROKEN]
)
def test_broken_files(
    name: str, content: str | bytes, line: int | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(QuestionError) as caught:
        read_questions(path)
    assert words in str(caught.value)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="cannot be read: No such file"):
        read_questions(tmp_path / "q.jsonl")
