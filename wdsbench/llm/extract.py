"""Extraction: a language model answers questions; its states and attention become raw traces.

Each batch takes two passes. The first generates answers with the key-value cache and keeps no
states. The second is one forward pass over prompt and answer, padded on the *right*: in a causal
model no token attends to later ones, so padding cannot change the states of real tokens.

A trace of T tokens takes ``2 L T (D + H T)`` bytes in float16 with its attention maps. Memory holds
the states of one batch, the maps of one layer of that batch, and the traces of one file. With a
journal (module ``journal``) an interrupted run can be resumed and writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdsbench.errors import ModelError
from wdsbench.llm.asks import Ask, make_asks, plan_batches
from wdsbench.llm.journal import (
    BATCH_FILES,
    LEFTOVERS,
    Journal,
    JournalState,
    batch_file,
    lock_journal,
    read_journal,
    write_failures,
)
from wdsbench.llm.model import model_fingerprint
from wdsbench.llm.options import ExtractOptions
from wdsbench.llm.questions import Question, digest_of
from wdsbench.llm.states import StateReader
from wdsbench.llm.work import ExtractRun, FileSink, failure_of, run_batches, threads_for
from wdsbench.progress import Progress, no_progress
from wdsbench.traces.files import FAILURES_NAME, JOURNAL_NAME


@dataclass(frozen=True)
class ExtractReport:
    """Result of an extraction."""

    files: tuple[Path, ...]  # existing trace files, in the questions' order
    traces: int
    tokens: int  # of prompts and answers
    empty_answers: int  # answers that are the token that ended them, which is kept
    unfinished_answers: int  # answers cut at ``max_new_tokens``
    wide_traces: int  # traces stored in float32 because a state exceeds float16
    failed: int = 0  # answers that gave no trace; ``failures.jsonl`` has the reasons
    resumed: int = 0  # traces of an earlier run, included in ``traces``
    removed: int = 0  # trace files removed for a sink, in this run or an earlier one
    straddled_answers: int = 0  # answers of which a stop text cut visible text

    @property
    def unfinished_share(self) -> float:
        """Share of the answers that were cut at ``max_new_tokens``, 0 to 1."""
        return self.unfinished_answers / self.traces


def extract(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    out_dir: Path,
    options: ExtractOptions | None = None,
    *,
    sink: FileSink | None = None,
    progress: Progress = no_progress,
) -> ExtractReport:
    """Answer ``questions`` and write raw traces to ``out_dir/batch_0001.pkl.gz``, ...

    Traces are in the order of the questions for any batch size. An answer ends before the first
    end-of-sequence token, or the first token that reaches a stop text (module ``stops``), which is
    not part of the trace. An answer of that token alone keeps it, with the text ``""``, since every
    trace has an answer token.

    Keys of a raw trace (module ``traces.check``):

    - ``hidden_states``: L arrays float16 ``[T, D]``; layer l is transformers'
      ``hidden_states[l + 1]``, the last one after the final norm. If a value exceeds float16, all
      layers of that trace are float32.
    - ``attentions``: L arrays float16 ``[H, T, T]`` (kind ``full``).
    - ``reduced_attention``: the other kinds (module ``traces.reduced``).
    - ``token_logprobs``: float32 ``[T - prompt_length]``, of the model itself for any decoding.
    - ``tokens``, ``tokens_decoded``, ``generated_answer_clean``, ``question_id``,
      ``prompt_length``.
    - ``layers`` if layers were chosen, ``states_of`` if tokens were chosen, ``trace_number`` if a
      question has several answers.

    The model needs ``eager`` attention (``load_model``). A ``sink`` receives complete trace files
    and names those to remove; resuming after a removal needs a journal.

    Raises:
        ValueError: There are no questions, ``out_dir`` holds batch files already, or its
            extraction has other settings.
        QuestionError: With ``on_error="fail"``: a prompt is empty or exceeds the model's positions.
        ModelError: The model or the tokenizer cannot be used, or no question gave a trace.
    """
    options = options or ExtractOptions()
    if not questions:
        raise ValueError("there are no questions to ask.")
    asks = make_asks(model.config, tokenizer, questions, options)
    refused = [ask for ask in asks if ask.refusal is not None]
    if refused and options.on_error == "fail":
        assert refused[0].refusal is not None
        raise refused[0].refusal
    settings = _settings(model, asks, options)
    state = _open_folder(
        out_dir,
        settings,
        resume=options.resume,
        overwrite=options.overwrite,
        destination=None if sink is None else sink.destination,
    )
    if sink is not None:
        sink.begin()
    reader = StateReader(model, tokenizer, options.rules, options.layers, options.tokens)
    failures = [failure_of(ask, str(ask.refusal)) for ask in refused]
    run = ExtractRun(out_dir, reader, options, failures, len(refused), sink)
    batches = list(plan_batches(asks, options.traces_per_file, options.batch_size))
    with ExitStack() as stack:
        stack.enter_context(threads_for(model))
        if options.keeps_journal:
            run.journal = stack.enter_context(Journal(out_dir, settings, state))
        run_batches(run, batches, state, progress)
        write_failures(out_dir, run.failures)
        if not run.traces:
            first = min(run.failures, key=lambda failure: failure.place)
            noun = "questions" if options.answers_per_question == 1 else "answers"
            raise ModelError(f"none of {len(asks)} {noun} gave a trace; the first: {first.reason}")
        if sink is not None:
            run.remove(sink.finish())
    return ExtractReport(
        files=tuple(run.files),
        traces=run.traces,
        tokens=run.counts["tokens"],
        empty_answers=run.counts["empty"],
        unfinished_answers=run.counts["unfinished"],
        wide_traces=run.counts["wide"],
        failed=len(run.failures),
        resumed=run.resumed,
        removed=len(run.removed),
        straddled_answers=run.counts["straddled"],
    )


def _settings(model: Any, asks: Sequence[Ask], options: ExtractOptions) -> dict[str, Any]:
    """Return the settings that determine the content of the files, as JSON values."""
    prompts = (
        (ask.question.question_id, ask.trace_number, ask.prompt, *_stored_texts(ask.question))
        for ask in asks
    )
    return {
        "chat": {"system": options.system} if options.chat else None,
        "questions": digest_of(prompts),
        "batch_size": options.batch_size,
        "max_new_tokens": options.max_new_tokens,
        "stop": list(options.stop_texts) or None,
        "traces_per_file": options.traces_per_file,
        "attention": sorted(options.attention),
        "edge_rule": options.edge_rule,
        "head_threshold": options.head_threshold,
        "decode": options.decode_settings(),
        "answers_per_question": options.answers_per_question,
        "file_format": options.file_format,
        "layers": None if options.layers is None else list(options.layers),
        "tokens": options.tokens,
        "model": model_fingerprint(model),
    }


def _stored_texts(question: Question) -> tuple[str | None, ...]:
    """Return the texts that are stored beside the prompt; empty if there are none."""
    texts = (question.context, question.group)
    return texts if any(texts) else ()


def _open_folder(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    overwrite: bool,
    destination: str | None = None,
) -> JournalState:
    """Prepare ``folder`` and return the state of an earlier run in it."""
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(folder.glob(BATCH_FILES))
    if overwrite:
        _remove_extraction(folder, earlier)
        return JournalState()
    state = read_journal(folder)
    if state.settings is not None:
        if not resume:
            traces = sum(len(record.traces) for record in state.batches.values())
            raise ValueError(
                f"{folder} holds an extraction of {traces} traces ({len(earlier)} batch"
                " files already); continue it with resume, remove it with overwrite, or choose"
                " another folder."
            )
        _require_same(folder, state.settings, settings)
        if state.removed and state.destination != destination:
            raise ValueError(
                f"{len(state.removed)} trace files of {folder} were packed into"
                f" {folder / str(state.destination)} and removed; resume with --shards there, or"
                " extract again with overwrite."
            )
        _require_files(folder, state, settings["file_format"])
    elif earlier:
        raise ValueError(
            f"{folder} holds {len(earlier)} batch files already ({earlier[0].name}, ...)"
            f"{' and no journal to resume by' if resume else ''}; "
            "choose another folder, or allow overwriting."
        )
    return state


def _remove_extraction(folder: Path, files: list[Path]) -> None:
    """Remove an extraction that no process is writing."""
    journal = folder / JOURNAL_NAME
    with ExitStack() as stack:
        if journal.exists():
            stack.enter_context(lock_journal(journal))
        # The journal first: without it a partly removed extraction cannot look finished.
        for path in (journal, *files, *folder.glob(LEFTOVERS), folder / FAILURES_NAME):
            path.unlink(missing_ok=True)


def _require_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{folder} was begun with {name} {before.get(name)!r}, this run has"
                f" {now.get(name)!r}; resume with the settings it was begun with, or extract again"
                " with overwrite."
            )


def _require_files(folder: Path, state: JournalState, file_format: str) -> None:
    for number, traces in state.files.items():
        path = folder / batch_file(number, file_format)
        if traces and number not in state.removed and not path.exists():
            raise ValueError(
                f"{path} was written, according to the journal, but is missing; restore it, or"
                " extract again with overwrite."
            )
