"""Ask a language model, and write what went on inside it as raw traces.

Two passes for each batch. The first generates, prompts padded on the left, with the key-value cache
and without keeping states. The second is one plain forward pass over prompt and answer, padded on
the *right*: in a causal model no token attends to what follows it, so that the padding cannot reach
the states of real tokens, and the padding itself is cut off.

A trace of T tokens costs ``2 L T (D + H T)`` bytes in float16 with its attention maps, a small part
of that with what is reduced from them (``attention``). In memory are the states of one batch, the
maps of one layer of it, and the traces of one file.

With a journal (module ``journal``) a run that died goes on where it stopped, and writes the files
that it would have written, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import ModelError
from wdsbench.llm.asks import TEMPLATE_SLOT, Chat, digest_of, make_asks, plan_batches
from wdsbench.llm.decode import Decoding
from wdsbench.llm.folder import open_folder
from wdsbench.llm.journal import Journal, write_failures
from wdsbench.llm.model import model_fingerprint
from wdsbench.llm.questions import Question
from wdsbench.llm.states import TOKENS, StateReader
from wdsbench.llm.work import FileTaker, Job, Run, failure_of, run_batches, threads_for
from wdsbench.progress import Progress, no_progress
from wdsbench.traces.attention import (
    ATTENTION_KINDS,
    EDGE_RULE,
    HEAD_THRESHOLD,
    AttentionRules,
)

ON_ERROR: Final = ("record", "fail")
#: How trace files may be written; ends of their names.
FILE_FORMATS: Final = ("pkl.gz", "safetensors", "npz")


@dataclass(frozen=True)
class ExtractReport:
    """What an extraction wrote.

    Attributes:
        files: The trace files that are there, in the questions' order.
        traces: Traces written.
        tokens: Tokens of all traces, prompts and answers.
        empty_answers: Answers that were the end-of-sequence token alone; it is kept as their token.
        unfinished_answers: Answers cut at ``max_new_tokens``.
        wide_traces: Traces whose states passed the range of float16 and were kept in float32.
        failed: Answers that gave no trace; ``failures.jsonl`` says which and why.
        resumed: Of ``traces``, those that an earlier run had finished.
        removed: Trace files that a taker had removed, in this run or an earlier one.
    """

    files: tuple[Path, ...]
    traces: int
    tokens: int
    empty_answers: int
    unfinished_answers: int
    wide_traces: int
    failed: int = 0
    resumed: int = 0
    removed: int = 0


def extract(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    out_dir: Path,
    *,
    batch_size: int = 32,
    max_new_tokens: int = 32,
    traces_per_file: int = 500,
    attention: Sequence[str] = ("full",),
    edge_rule: str = EDGE_RULE,
    head_threshold: float = HEAD_THRESHOLD,
    template: str = TEMPLATE_SLOT,
    chat: Chat | None = None,
    decoding: Decoding | None = None,
    answers_per_question: int = 1,
    layers: Sequence[int] | None = None,
    tokens: str = "all",
    file_format: str = "pkl.gz",
    on_error: str = "record",
    journal: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    taker: FileTaker | None = None,
    progress: Progress = no_progress,
) -> ExtractReport:
    """Answer ``questions`` and write raw traces to ``out_dir/batch_0001.pkl.gz``, ...

    Traces stand in the questions' order, whatever the batches. An answer ends before the first
    end-of-sequence token, which is not part of the trace, unless it is the whole answer: then it is
    kept as the answer's one token, since every trace has an answer token, with the text ``""``.

    Keys of a raw trace (module ``traces.check``): ``hidden_states`` L arrays float16 ``[T, D]``,
    layer l being transformers' ``hidden_states[l + 1]``, the last after the final norm; where a
    value passes float16's range, all of that trace in float32. ``attentions`` L arrays float16
    ``[H, T, T]`` (kind ``full``); ``reduced_attention`` what the other kinds make of them (module
    ``traces.reduced``). ``token_logprobs`` float32 ``[T - prompt_length]``, the model's own, of
    whatever decoding. ``tokens``, ``tokens_decoded``, ``generated_answer_clean``, ``question_id``,
    ``prompt_length``; ``layers`` (which they are) where they were chosen; ``trace_number`` where a
    question has several answers.

    Args:
        model: A causal model with ``eager`` attention (``load_model``).
        tokenizer: Its tokenizer, padding on the left.
        questions: What to ask.
        out_dir: Made if missing.
        batch_size: Questions asked at once.
        max_new_tokens: Longest answer.
        traces_per_file: Traces in one file; bounds memory here and in every reader.
        attention: What is kept of the attention maps: any of ``full`` (the maps), ``edges``,
            ``heads``, ``sketch``; the latter three are made layer by layer while the model runs.
        edge_rule: Of ``edges``: ``top:SHARE`` or ``threshold:WEIGHT``.
        head_threshold: Of ``heads``: the least weight of an edge.
        template: The prompt, with ``{question}`` where the question goes.
        chat: Put the prompt into the tokenizer's chat template, as its user's part, for instruct
            models; None: ask it as it is.
        decoding: How answers are chosen; None: greedily.
        answers_per_question: Answers drawn for each question, trace number 0, 1, ...
        layers: Which layers are kept, of states and attention alike; None: all.
        tokens: Of which tokens states are kept: ``all``, those of the ``answer``, or the ``last``.
        file_format: ``pkl.gz``, ``safetensors`` or ``npz``.
        on_error: What becomes of a question that gives no trace (its prompt is too long, its states
            are NaN): ``record`` writes it with the reason to ``failures.jsonl`` and goes on,
            ``fail`` stops.
        journal: Whether to keep one; every trace is written twice then.
        resume: Go on with what an earlier run with the same settings left; begins where nothing is
            left. Keeps a journal.
        overwrite: Whether an earlier extraction in ``out_dir`` may be removed first.
        taker: Is given every trace file as soon as it is whole, and says which may be removed; one
            that was removed is missed by ``resume`` unless there is a journal.
        progress: Wraps the batches.

    Raises:
        TypeError: ``attention`` is one text, or a bool.
        ValueError: An argument is out of range, ``out_dir`` holds batch files already, or what it
            holds was begun with other settings.
        QuestionError: With ``on_error="fail"``: a prompt has no tokens, or is longer than the
            model's positions allow.
        ModelError: The model does not return states, or attention of every layer; with
            ``on_error="fail"`` also where they are NaN; no question at all gave a trace; or there
            is no chat template to put the prompt into.
    """
    decoding = decoding or Decoding()
    _check_numbers(
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        traces_per_file=traces_per_file,
        answers_per_question=answers_per_question,
    )
    _check_questions(questions, attention)
    for name, word, allowed in (
        ("tokens", tokens, TOKENS),
        ("file_format", file_format, FILE_FORMATS),
        ("on_error", on_error, ON_ERROR),
    ):
        if word not in allowed:
            raise ValueError(f"{name} is {word!r}; allowed are {', '.join(allowed)}.")
    if answers_per_question > 1 and decoding.method != "sample":
        raise ValueError(
            f"answers_per_question is {answers_per_question}, but {decoding.method} gives one"
            " answer; use decode sample."
        )
    if resume and overwrite:
        raise ValueError("resume keeps what is there, overwrite removes it; give one of them.")
    chosen = _checked_layers(layers)
    rules = AttentionRules(tuple(attention), edge_rule, head_threshold)
    asks = make_asks(
        model.config, tokenizer, questions, template, max_new_tokens, answers_per_question, chat
    )
    refused = [ask for ask in asks if ask.refusal is not None]
    if refused and on_error == "fail":
        assert refused[0].refusal is not None
        raise refused[0].refusal
    settings = {
        "chat": None if chat is None else vars(chat),
        "questions": digest_of(asks),
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
        "traces_per_file": traces_per_file,
        "attention": sorted(rules.kinds),
        "edge_rule": edge_rule,
        "head_threshold": head_threshold,
        "decode": decoding.settings(),
        "answers_per_question": answers_per_question,
        "file_format": file_format,
        "layers": chosen,
        "tokens": tokens,
        "model": model_fingerprint(model),
    }
    place = None if taker is None else taker.place
    state = open_folder(out_dir, settings, resume=resume, overwrite=overwrite, taker=place)
    if taker is not None:
        taker.begin()
    job = Job(
        model=model,
        tokenizer=tokenizer,
        reader=StateReader(model, tokenizer, rules, chosen, tokens),
        decoding=decoding,
        max_new_tokens=max_new_tokens,
        numbered=answers_per_question > 1,
        record_failures=on_error == "record",
    )
    run = Run(
        out_dir,
        file_format,
        [failure_of(ask, str(ask.refusal)) for ask in refused],
        len(refused),
        taker=taker,
    )
    batches = list(plan_batches(asks, traces_per_file, batch_size))
    with ExitStack() as stack:
        stack.enter_context(threads_for(model))
        kept = Journal(out_dir, settings, state) if journal or resume else None
        if kept is not None:
            stack.enter_context(kept)
        run_batches(job, run, batches, state, kept, progress)
        write_failures(out_dir, run.failures)
        if not run.traces:
            first = min(run.failures, key=lambda failure: failure.place)
            what = "questions" if answers_per_question == 1 else "answers"
            raise ModelError(f"none of {len(asks)} {what} gave a trace; the first: {first.reason}")
        if taker is not None:
            run.remove(taker.finish(), kept)
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
    )


def _check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; allowed are 1 and more.")


def _check_questions(questions: Sequence[Question], attention: Sequence[str]) -> None:
    if not questions:
        raise ValueError("there are no questions to ask.")
    if isinstance(attention, str | bool):
        raise TypeError(
            f"attention is {attention!r}; allowed is a sequence of {', '.join(ATTENTION_KINDS)}, "
            "empty for none."
        )


def _checked_layers(layers: Sequence[int] | None) -> list[int] | None:
    """Return the layers in their order in the model."""
    if layers is None:
        return None
    chosen = sorted(layers)
    if not chosen or chosen[0] < 0 or len(set(chosen)) != len(chosen):
        raise ValueError(
            f"layers are {list(layers)}; allowed are numbers of 0 and more, each once, at least one"
        )
    return chosen
