"""Raw traces, and optionally shards, from a language model; scores of its answers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wdsbench.files import nearest_folder, require_file_place
from wdsbench.llm.measures import MEASURES
from wdsbench.llm.options import ExtractOptions, ModelOptions, ScoreOptions
from wdsbench.options import option, part_of
from wdsbench.pack.options import PackOptions
from wdsbench.progress import Progress, no_progress

if TYPE_CHECKING:
    from wdsbench.llm.extract import ExtractReport
    from wdsbench.llm.score import ScoreReport
    from wdsbench.shards.format.index import IndexFile


@dataclass(frozen=True, kw_only=True)
class ExtractJob(ExtractOptions, ModelOptions):
    """Options of :func:`extract`."""

    model: str = option(help="Folder in the transformers format, .gguf file, or hub name.")
    questions: str = option(
        help="JSONL (question_id, question, references) or CSV, also .gz; or triviaqa, truthfulqa"
        " (needs the package datasets)."
    )
    out: Path = option(Path("traces_data"), "Folder for batch_0001.pkl.gz, ...")
    limit: int | None = option(None, "Ask only this number of questions, from the first.")
    group: str | None = option(
        None, "Key or column of the questions that names each one's group, which is stored."
    )
    shards: Path | None = option(
        None,
        "Pack every finished trace file into this folder, with scores if the questions have"
        " references.",
    )
    score_column: str | None = option(
        None,
        f"For --shards: the measure that labels are made from ({', '.join(MEASURES)}) [no labels;"
        " wdsbench relabel adds them later].",
    )
    shard_mb: float = option(
        PackOptions.shard_mb, "For --shards: size at which a shard is closed, in MB."
    )
    keep_raw: bool = option(
        True,
        "For --shards: keep the trace files; otherwise each is removed when finished shards hold"
        " all of it.",
    )

    def __post_init__(self) -> None:
        ExtractOptions.__post_init__(self)
        ModelOptions.__post_init__(self)
        if self.shards is None and (self.score_column is not None or not self.keep_raw):
            raise ValueError("--score-column and --no-keep-raw need --shards.")
        if not self.keep_raw and not self.keeps_journal:
            raise ValueError(
                "--no-keep-raw needs the journal: without it a run cannot resume after trace files"
                " are removed; leave out --no-journal."
            )
        if self.score_column is not None and self.score_column not in MEASURES:
            raise ValueError(
                f"--score-column is {self.score_column!r}; must be one of {', '.join(MEASURES)}."
                " For other scores use wdsbench score, then relabel."
            )

    @property
    def packing(self) -> PackOptions:
        """Options of packing; whole attention maps are stored as the default kinds."""
        return PackOptions(
            score_column=self.score_column,
            missing_score="keep",
            attention=PackOptions.attention if "full" in self.attention else self.attention,
            edge_rule=self.edge_rule,
            head_threshold=self.head_threshold,
            shard_mb=self.shard_mb,
        )


@dataclass(frozen=True)
class Extracted:
    """Result of :func:`extract`."""

    report: ExtractReport
    index: IndexFile | None  # of the data set; None without ``shards``


def extract(job: ExtractJob, *, progress: Progress = no_progress) -> Extracted:
    """Ask a causal language model; store its states, attention and log-probabilities.

    Raises:
        ModelError: The model cannot be loaded, or no question gave a trace.
        QuestionError: The questions cannot be read.
        PackError: A file cannot be packed.
        ValueError: A folder is in use, or the questions lack references.
    """
    from wdsbench.jobs.shard_sink import ShardSink
    from wdsbench.llm.asks import read_prefix
    from wdsbench.llm.extract import extract as extract_traces
    from wdsbench.llm.model import load_model
    from wdsbench.llm.questions import load_questions

    for folder in (job.out, job.shards):
        if folder is not None:
            nearest_folder(folder)
    questions = load_questions(job.questions, job.limit, job.group)
    if job.prompt_file is not None:
        read_prefix(job.prompt_file)  # before the model is loaded
    scored = all(question.references for question in questions)
    if job.score_column is not None and not scored:
        raise ValueError(f"--score-column {job.score_column}: some questions have no reference.")
    with ExitStack() as stack:
        sink = None
        if job.shards is not None:
            modes = {name: getattr(job, name) for name in ("keep_raw", "resume", "overwrite")}
            sink = ShardSink(job.shards, job.out, questions, job.packing, **modes)
            stack.enter_context(sink)
        model, tokenizer = load_model(job.model, part_of(ModelOptions, job))
        options = part_of(ExtractOptions, job)
        report = extract_traces(
            model, tokenizer, questions, job.out, options, sink=sink, progress=progress
        )
        if sink is not None:
            sink.tidy()
    return Extracted(report, None if sink is None else sink.index)


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
