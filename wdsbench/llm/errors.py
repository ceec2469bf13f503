"""Errors about questions and models."""

from __future__ import annotations

from wdsbench.errors import WdsbenchError


class QuestionError(WdsbenchError):
    """A questions file is malformed, or a question cannot be asked.

    Args:
        detail: What was seen, what is allowed, what to do.
        file: The questions file.
        line: Line in that file, from 1.
        question_id: The question's id where it is known.
    """

    def __init__(
        self,
        detail: str,
        *,
        file: str | None = None,
        line: int | None = None,
        question_id: str | None = None,
    ) -> None:
        self.detail = detail
        self.file = file
        self.line = line
        self.question_id = question_id
        places = [("file", file), ("line", line), ("question", question_id)]
        known = [f"{name} {value}" for name, value in places if value is not None]
        super().__init__((", ".join(known) + ": " if known else "") + detail)


class ModelError(WdsbenchError):
    """A language model cannot be loaded, or does not give what a trace needs."""
