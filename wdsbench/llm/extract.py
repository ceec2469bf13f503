"""Ask a language model, and write what went on inside it as raw traces.

Two passes for each batch. The first generates greedily, prompts padded on the left, with the
key-value cache and without keeping states. The second is one plain forward pass over prompt and
answer, padded on the *right*: in a causal model no token attends to what follows it, so that the
padding cannot reach the states of real tokens, and the padding itself is cut off.

A trace of T tokens costs ``2 L T (D + H T)`` bytes in float16 with its attention maps, a small part
of that with what is reduced from them (``attention``). In memory are the states of one batch, the
maps of one layer of it, and the traces of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from wdsbench.errors import QuestionError
from wdsbench.llm.questions import Question
from wdsbench.llm.states import Answered, StateReader, generate
from wdsbench.progress import Progress, no_progress
from wdsbench.traces.attention import (
    ATTENTION_KINDS,
    EDGE_RULE,
    HEAD_THRESHOLD,
    AttentionRules,
)
from wdsbench.traces.write import write_traces

TEMPLATE_SLOT: Final = "{question}"
_BATCH_FILE: Final = "batch_{number:04d}.pkl.gz"
_ONE_THREAD_PARAMETERS: Final = 20_000_000
_BATCH_FILES: Final = "batch_[0-9]*.pkl*"


@dataclass(frozen=True)
class ExtractReport:
    """What an extraction wrote.

    Attributes:
        files: The trace files, in the questions' order.
        traces: Traces written, one for each question.
        tokens: Tokens of all traces, prompts and answers.
        empty_answers: Answers that were the end-of-sequence token alone; it is kept as their token.
        unfinished_answers: Answers cut at ``max_new_tokens``.
        wide_traces: Traces whose states passed the range of float16 and were kept in float32.
    """

    files: tuple[Path, ...]
    traces: int
    tokens: int
    empty_answers: int
    unfinished_answers: int
    wide_traces: int


@dataclass
class _Counts:
    tokens: int = 0
    empty: int = 0
    unfinished: int = 0
    wide: int = 0
    files: list[Path] = field(default_factory=list)


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
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> ExtractReport:
    """Answer ``questions`` greedily and write raw traces to ``out_dir/batch_0001.pkl.gz``, ...

    Traces stand in the questions' order, whatever the batches. An answer ends before the first
    end-of-sequence token, which is not part of the trace, unless it is the whole answer: then it is
    kept as the answer's one token, since every trace has an answer token, with the text ``""``.

    Keys of a raw trace (module ``traces.check``): ``hidden_states`` L arrays float16 ``[T, D]``,
    layer l being transformers' ``hidden_states[l + 1]``, the last after the final norm; where a
    value passes float16's range, all of that trace in float32. ``attentions`` L arrays float16
    ``[H, T, T]`` (kind ``full``); ``reduced_attention`` what the other kinds make of them (module
    ``traces.reduced``). ``token_logprobs`` float32 ``[T - prompt_length]``. ``tokens``,
    ``tokens_decoded``, ``generated_answer_clean``, ``question_id``, ``prompt_length``.

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
        overwrite: Whether earlier batch files in ``out_dir`` may be removed first.
        progress: Wraps the batches.

    Raises:
        TypeError: ``attention`` is one text, or a bool.
        ValueError: An argument is out of range, or ``out_dir`` holds batch files already.
        QuestionError: A prompt has no tokens, or is longer than the model's positions allow.
        ModelError: The model does not return states, or attention of every layer, or they are NaN.
    """
    for name, value in (
        ("batch_size", batch_size),
        ("max_new_tokens", max_new_tokens),
        ("traces_per_file", traces_per_file),
    ):
        if value < 1:
            raise ValueError(f"{name} is {value}; allowed are 1 and more.")
    if TEMPLATE_SLOT not in template:
        raise ValueError(f"template {template!r} does not contain {TEMPLATE_SLOT}.")
    if not questions:
        raise ValueError("there are no questions to ask.")
    if isinstance(attention, str | bool):
        raise TypeError(
            f"attention is {attention!r}; allowed is a sequence of {', '.join(ATTENTION_KINDS)}, "
            "empty for none."
        )
    rules = AttentionRules(tuple(attention), edge_rule, head_threshold)
    prompts = _prompts(model, tokenizer, questions, template, max_new_tokens)
    _prepare_folder(out_dir, overwrite)

    with _threads_for(model):
        counts = _write_batches(
            model,
            tokenizer,
            questions,
            prompts,
            out_dir,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            traces_per_file=traces_per_file,
            attention=rules,
            progress=progress,
        )
    return ExtractReport(
        files=tuple(counts.files),
        traces=len(questions),
        tokens=counts.tokens,
        empty_answers=counts.empty,
        unfinished_answers=counts.unfinished,
        wide_traces=counts.wide,
    )


def _write_batches(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    prompts: Sequence[list[int]],
    out_dir: Path,
    *,
    batch_size: int,
    max_new_tokens: int,
    traces_per_file: int,
    attention: AttentionRules,
    progress: Progress,
) -> _Counts:
    """Answer, read states and write, file after file."""
    reader = StateReader(model, tokenizer, attention)
    counts = _Counts()
    plan = list(_plan([len(prompt) for prompt in prompts], traces_per_file, batch_size))
    raws: dict[int, dict[str, Any]] = {}  # of the file being filled, by place in `questions`
    for members, closes_file in progress(plan, len(plan), "extracting"):
        answers = generate(model, tokenizer, [prompts[i] for i in members], max_new_tokens)
        answered = [
            Answered(questions[i], prompts[i], *answer)
            for i, answer in zip(members, answers, strict=True)
        ]
        for i, item, raw in zip(members, answered, reader.read(answered), strict=True):
            raws[i] = raw
            counts.tokens += len(raw["tokens"])
            counts.empty += item.empty
            counts.unfinished += not item.finished
            counts.wide += raw["hidden_states"][0].dtype != np.float16
        if closes_file:
            path = out_dir / _BATCH_FILE.format(number=len(counts.files) + 1)
            write_traces(path, [raws[i] for i in sorted(raws)])
            counts.files.append(path)
            raws.clear()
    return counts


@contextmanager
def _threads_for(model: Any) -> Iterator[None]:
    """Let a small model on the CPU run in one thread, and put torch's setting back after it.

    Its operations are shorter than waking a second thread takes, and OpenMP's threads spin while
    they wait: measured on two cores with other work on them, 500 questions to 1.2 M parameters
    took 15 s with two threads and 2.3 s with one.
    """
    threads = torch.get_num_threads()
    if model.device.type == "cpu" and model.num_parameters() < _ONE_THREAD_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _prompts(
    model: Any, tokenizer: Any, questions: Sequence[Question], template: str, max_new_tokens: int
) -> list[list[int]]:
    """Return the token ids of every prompt, all of which leave room for an answer."""
    texts = [template.replace(TEMPLATE_SLOT, question.question) for question in questions]
    prompts: list[list[int]] = tokenizer(texts)["input_ids"]
    positions = getattr(model.config, "max_position_embeddings", None)
    for question, prompt in zip(questions, prompts, strict=True):
        if not prompt:
            raise QuestionError(
                "the prompt has no tokens; leave the question out.",
                question_id=question.question_id,
            )
        if positions is not None and len(prompt) + max_new_tokens > positions:
            raise QuestionError(
                f"the prompt has {len(prompt)} tokens, the answer may have {max_new_tokens}, but "
                f"the model has {positions} positions; shorten the question or max_new_tokens.",
                question_id=question.question_id,
            )
    return prompts


def _prepare_folder(out_dir: Path, overwrite: bool) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    earlier = sorted(out_dir.glob(_BATCH_FILES))
    if earlier and not overwrite:
        raise ValueError(
            f"{out_dir} holds {len(earlier)} batch files already ({earlier[0].name}, ...); "
            "choose another folder, or allow overwriting."
        )
    for path in earlier:  # all of them: a later batch of an earlier run must not stay
        path.unlink()


def _plan(
    lengths: Sequence[int], traces_per_file: int, batch_size: int
) -> Iterator[tuple[list[int], bool]]:
    """Yield (places of one batch, whether it is the last of its file).

    Within a file, prompts of similar length go together, since padding is work for nothing.
    """
    for first in range(0, len(lengths), traces_per_file):
        places = range(first, min(first + traces_per_file, len(lengths)))
        by_length = sorted(places, key=lambda place: lengths[place])
        for start in range(0, len(by_length), batch_size):
            yield by_length[start : start + batch_size], start + batch_size >= len(by_length)
