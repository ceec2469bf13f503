"""Bytes and time of an extraction, before it runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsbench.errors import ModelError
from wdsbench.files import nearest_folder
from wdsbench.llm.options import ModelOptions, TraceOptions
from wdsbench.options import option, part_of
from wdsbench.pack.options import PackOptions

if TYPE_CHECKING:
    from wdsbench.llm.asks import Ask
    from wdsbench.llm.plan import ModelSize, Probe

_AUTO_PROBE = 16
_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, kw_only=True)
class PlanJob(TraceOptions, ModelOptions):
    """Options of :func:`plan`; those of the model are used by the probe."""

    probe: int | None = option(
        None,
        "Questions that are asked to measure time, answers and compression; 0: none [16 if the"
        " model's weights are in a folder].",
    )
    model: str = option(help="Folder in the transformers format, .gguf file, or hub name.")
    questions: str = option(help="Questions as for extract.")
    out: Path = option(Path("traces_data"), "Folder for the traces.")
    limit: int | None = option(None, "Ask only this number of questions, from the first.")
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        TraceOptions.__post_init__(self)
        ModelOptions.__post_init__(self)
        if self.probe is not None and self.probe < 0:
            raise ValueError(f"probe is {self.probe}; must be at least 0.")


@dataclass(frozen=True)
class Row:
    """Bytes for one choice of attention kinds."""

    raw: int  # raw files of 1,000 traces, states in float16
    raw_float32: int  # the same if every trace exceeds float16
    shards: int  # shards of 1,000 traces
    needed: int  # raw files and shards of all traces
    fits: bool  # True if there is space for ``needed``


@dataclass(frozen=True)
class Plan:
    """Estimate of an extraction, in bytes and tokens."""

    form: ModelSize
    traces: int
    refused: list[Ask]  # questions that cannot be asked, which are not counted
    prompt_tokens: int  # of all prompts
    answer_tokens: float  # mean length of an answer; the maximum without a probe
    attention: str  # the chosen attention kinds, a key of ``rows``
    rows: dict[str, Row]  # by choice of attention kinds
    raw: int  # raw files of all traces
    file_memory: int  # arrays of the traces of one file
    free: int  # space at the output folder
    probe: Probe | None

    @property
    def chosen(self) -> Row:
        """The row of the chosen attention kinds."""
        return self.rows[self.attention]

    @property
    def fits(self) -> bool:
        """True if the extraction and its shards fit on the disk."""
        return self.chosen.fits

    @property
    def traces_that_fit(self) -> int:
        """Number of traces that fit on the disk."""
        return min(self.traces, int(self.traces * self.free / self.chosen.needed))

    @property
    def seconds(self) -> float | None:
        """Seconds for all traces; None without a probe."""
        return None if self.probe is None else self.probe.seconds * self.traces

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        probe = self.probe and {
            "traces": self.probe.traces,
            "seconds_per_trace": self.probe.seconds,
            "seconds": self.seconds,
            "wide": self.probe.wide,
            "cut": self.probe.cut,
        }
        return {
            **{name: value for name, value in vars(self).items() if name not in ("form", "rows")},
            "model": vars(self.form),
            "refused": len(self.refused),
            "per_1000_traces": {name: vars(row) for name, row in self.rows.items()},
            "needed": self.chosen.needed,
            "fits": self.fits,
            "traces_that_fit": self.traces_that_fit,
            "probe": probe,
        }


def plan(job: PlanJob) -> Plan:
    """Estimate the bytes and the time of an extraction.

    Sizes follow from the model's configuration and the questions' tokens; a probe of a few
    questions measures answer lengths, compression and time.

    Raises:
        ModelError: The model cannot be read, or no question can be asked.
        QuestionError: The questions cannot be read.
        ValueError: The model lacks a layer of ``layers``, or ``out`` cannot be a folder.
    """
    import numpy as np

    from wdsbench.llm import plan as estimates
    from wdsbench.llm.asks import make_asks
    from wdsbench.llm.questions import load_questions

    options, answers = part_of(TraceOptions, job), job.answers_per_question
    free = shutil.disk_usage(nearest_folder(job.out)).free
    questions = load_questions(job.questions, job.limit)
    config, form, tokenizer = estimates.load_size(job.model, job.revision)
    if job.layers is not None and set(job.layers) - set(range(form.layers)):
        given = ",".join(map(str, job.layers))
        raise ValueError(f"--layers is {given}; the model has layers 0 to {form.layers - 1}.")
    # Answers to one question have equal prompts: sizes are multiplied instead.
    asks = make_asks(config, tokenizer, questions, replace(options, answers_per_question=1))
    refused = [ask for ask in asks if ask.refusal is not None]
    asks = [ask for ask in asks if ask.refusal is None]
    if not asks:
        raise ModelError(
            f"none of {len(questions)} questions can be asked; the first: {refused[0].refusal}"
        )
    prompts = np.array([len(ask.prompt) for ask in asks], np.int64)
    traces = len(prompts) * answers
    probe = _probe(job, options, form, asks)
    rates = estimates.Rates(answer_tokens=job.max_new_tokens) if probe is None else probe.rates

    def sizes(kinds: Sequence[str]) -> estimates.TraceBytes:
        each = estimates.estimate(form, prompts, replace(options, attention=tuple(kinds)), rates)
        return each.scaled(answers)

    def row(kinds: Sequence[str]) -> Row:
        each, packed = sizes(kinds), PackOptions.attention if "full" in kinds else kinds
        needed = estimates.needed_bytes(each, sizes(packed), traces, job.traces_per_file)
        part = each.scaled(1000 / traces)
        return Row(part.raw, part.raw_wide, part.shards, needed, needed <= free)

    own = sizes(job.attention)
    return Plan(
        form=form,
        traces=traces,
        refused=refused,
        prompt_tokens=int(prompts.sum()) * answers,
        answer_tokens=rates.answer_tokens,
        attention=estimates.kinds_name(job.attention),
        rows={
            estimates.kinds_name(kinds): row(kinds)
            for kinds in dict.fromkeys((*estimates.KIND_SETS, job.attention))
        },
        raw=own.raw,
        file_memory=round(own.memory * min(1, job.traces_per_file / traces)),
        free=free,
        probe=probe,
    )


def _probe(
    job: PlanJob, options: TraceOptions, form: ModelSize, asks: Sequence[Ask]
) -> Probe | None:
    from wdsbench.llm.model import load_model
    from wdsbench.llm.plan import probe

    count = job.probe
    if count is None:
        path = Path(job.model)
        stored = path.suffix == ".gguf" or any(any(path.glob(name)) for name in _WEIGHTS)
        count = _AUTO_PROBE if stored else 0
    if count == 0:
        return None
    model, tokenizer = load_model(job.model, part_of(ModelOptions, job))
    return probe(model, tokenizer, [ask.question for ask in asks], form, options, count)
