"""Scores of the answers in raw traces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.files import require_file_place
from wdsbench.llm.options import ScoreOptions
from wdsbench.options import option, part_of
from wdsbench.progress import Progress, no_progress

if TYPE_CHECKING:
    from wdsbench.llm.score import ScoreReport


@dataclass(frozen=True, kw_only=True)
class ScoreJob(ScoreOptions):
    """Options of :func:`score`."""

    traces: tuple[str, ...] = option(
        help="Raw trace files: a path or a quoted pattern; repeatable."
    )
    questions: str = option(
        help="JSONL (question_id, question, references) or CSV, also .gz; or triviaqa, truthfulqa."
    )
    out: Path = option(Path("ground_truth_scores.csv"), "CSV file to write.")


def score(job: ScoreJob, *, progress: Progress = no_progress) -> ScoreReport:
    """Score answers against the references of their questions; write ``job.out``.

    Raises:
        QuestionError, TraceError: A file cannot be read.
        ModelError: A scoring model cannot be loaded.
        ValueError: No file matches a pattern, or two columns have one name.
    """
    from wdsbench.llm.questions import load_questions
    from wdsbench.llm.score import score_traces

    require_file_place(job.out)
    options, questions = part_of(ScoreOptions, job), load_questions(job.questions)
    return score_traces(job.traces, questions, job.out, options, progress=progress)
