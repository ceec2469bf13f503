"""Options of extraction and scoring; importing them does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wdsbench.llm.measures import Abstentions
from wdsbench.options import option
from wdsbench.traces.attention import ATTENTION_KINDS, EDGE_RULE, HEAD_THRESHOLD, AttentionRules

TEMPLATE_SLOT: Final = "{question}"
#: Formats of trace files, which are their suffixes.
FILE_FORMATS: Final = ("pkl.gz", "safetensors", "npz")
#: Escapes of stop texts, which shells make hard to write otherwise.
_ESCAPED: Final = {"n": "\n", "t": "\t", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\([nt\\])")
#: Scores of an abstention besides numbers.
ABSTENTION_SCORES: Final = ("keep", "none")


def _require_one_of(name: str, value: Any, expected: Sequence[str]) -> None:
    if value not in expected:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(expected)}.")


def _require_positive(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value < 1:
            raise ValueError(f"{name} is {value}; must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of loading a model; a wrong value or combination raises ValueError."""

    dtype: str = option("float32", "Precision of the model: float32, float16 or bfloat16.")
    device: str | None = option(None, "cpu, cuda, cuda:1, ... [cpu]")
    device_map: str | None = option(
        None, "Spread the layers over devices: auto, balanced, sequential (needs accelerate)."
    )
    load_in: str | None = option(
        None, "Quantise the weights: 8bit or 4bit (needs bitsandbytes and accelerate)."
    )
    revision: str | None = option(None, "Branch, tag or commit on the hub.")
    trust_remote_code: bool = option(False, "Run code that comes with the model; read it first.")

    def __post_init__(self) -> None:
        _require_one_of("dtype", self.dtype, ("float32", "float16", "bfloat16"))
        if self.load_in is not None:
            _require_one_of("load_in", self.load_in, ("8bit", "4bit"))
        if self.device is not None and self.device_map is not None:
            raise ValueError(
                f"device is {self.device!r} and device_map {self.device_map!r}; give one of them."
            )


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Options of generation; a value out of range raises ValueError."""

    decode: str = option("greedy", "Decoding: greedy, beam or sample.")
    beams: int = option(5, "For --decode beam: sequences kept at every step.")
    temperature: float = option(1.0, "For --decode sample: divisor of the logits.")
    top_p: float = option(
        1.0,
        "For --decode sample: draw from the most likely tokens that together reach this"
        " probability.",
    )
    seed: int = option(0, "For --decode sample: seed of the draws.")

    def __post_init__(self) -> None:
        _require_one_of("decode", self.decode, ("greedy", "beam", "sample"))
        if self.beams < 2:
            raise ValueError(f"beams is {self.beams}; must be at least 2 (1 is greedy).")
        if not 0.0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature is {self.temperature}; must be finite and above 0 (greedy is 0)."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; must be above 0 and at most 1.")

    def decode_settings(self) -> dict[str, Any]:
        """Return the settings that decide the answers, for the journal."""
        used = {"beam": ("beams",), "sample": ("temperature", "top_p", "seed")}
        settings = {name: getattr(self, name) for name in used.get(self.decode, ())}
        return {"method": self.decode, **settings}


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Questions to ask, and states and attention to keep.

    Raises:
        TypeError: ``attention`` is a str or a bool.
        ValueError: A value is out of range.
    """

    max_new_tokens: int = option(32, "Longest answer in tokens.")
    answers_per_question: int = option(
        1, "Traces 0, 1, ... of every question; more than one needs --decode sample."
    )
    template: str = option(
        TEMPLATE_SLOT,
        "Prompt with {question} in it, used verbatim; in bash, $'...' writes a newline as \\n:"
        r" $'Q: {question}\nA:'.",
    )
    chat: bool = option(
        False, "Put the prompt into the tokenizer's chat template, as instruct models expect it."
    )
    system: str | None = option(None, "For --chat: the system message.")
    prompt_file: Path | None = option(
        None,
        "UTF-8 text put before the template, used verbatim: examples of questions and answers for a"
        " base model.",
    )
    stop: tuple[str, ...] = option(
        (),
        r"Text that ends an answer, which is cut before it; \n is a newline, \t a tab, \\ a"
        " backslash; repeatable.",
    )
    layers: tuple[int, ...] | None = option(None, "Layers to keep, counted from 0: 0,15 [all].")
    tokens: str = option(
        "all",
        "Tokens whose states are kept: all, answer or last. Data that needs the other tokens"
        " (graphs, the prompt's last token) is then not available.",
    )
    attention: tuple[str, ...] = option(
        ("full",),
        "Attention to keep: any of full (the maps), edges, heads and sketch, or none. edges, heads"
        " and sketch are computed while the model runs and are small.",
        comma=True,
    )
    edge_rule: str = option(EDGE_RULE, "Rule for edges: top:SHARE or threshold:WEIGHT.")
    head_threshold: float = option(HEAD_THRESHOLD, "Least weight of an edge in heads.")
    traces_per_file: int = option(
        500, "Traces in one file; bounds memory while writing and reading."
    )

    def __post_init__(self) -> None:
        _require_positive(self, "max_new_tokens", "answers_per_question", "traces_per_file")
        if TEMPLATE_SLOT not in self.template:
            raise ValueError(f"template {self.template!r} does not contain {TEMPLATE_SLOT}.")
        if self.system is not None and not self.chat:
            raise ValueError("system needs chat; enable chat, or write the text into the template.")
        stop: object = self.stop
        if isinstance(stop, str):
            raise TypeError(f"stop is {stop!r}; must be a sequence of texts.")
        if "" in self.stop:
            raise ValueError("stop has an empty text; every answer would be empty. Leave it out.")
        if self.layers is not None:
            chosen = sorted(self.layers)
            if not chosen or chosen[0] < 0 or len(set(chosen)) != len(chosen):
                raise ValueError(
                    f"layers are {list(self.layers)}; must be one or more distinct numbers from 0."
                )
            object.__setattr__(self, "layers", tuple(chosen))
        _require_one_of("tokens", self.tokens, ("all", "answer", "last"))
        attention: object = self.attention
        if isinstance(attention, str | bool):
            raise TypeError(
                f"attention is {attention!r}; must be a sequence of"
                f" {', '.join(ATTENTION_KINDS)}, empty for none."
            )
        _ = self.rules

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end an answer, with their escapes replaced."""
        return tuple(_ESCAPE.sub(lambda found: _ESCAPED[found[1]], text) for text in self.stop)

    @property
    def rules(self) -> AttentionRules:
        """Rules by which attention maps are reduced."""
        return AttentionRules(tuple(self.attention), self.edge_rule, self.head_threshold)


@dataclass(frozen=True, kw_only=True)
class ExtractOptions(TraceOptions, Decoding):
    """Options of an extraction; options that contradict each other raise ValueError."""

    batch_size: int = option(32, "Questions that are asked together.")
    file_format: str = option(
        "pkl.gz", "Format of the trace files: pkl.gz, safetensors or npz.", flag="--format"
    )
    on_error: str = option(
        "record",
        "A question that gives no trace: record (list it in failures.jsonl and continue) or fail.",
    )
    journal: bool = option(
        True, "Keep journal.jsonl, which --resume needs; every trace is written twice."
    )
    resume: bool = option(False, "Continue an interrupted run that had the same settings.")
    overwrite: bool = option(False, "Remove an earlier extraction in the folder first.")

    def __post_init__(self) -> None:
        Decoding.__post_init__(self)
        TraceOptions.__post_init__(self)
        _require_positive(self, "batch_size")
        _require_one_of("file_format", self.file_format, FILE_FORMATS)
        _require_one_of("on_error", self.on_error, ("record", "fail"))
        if self.answers_per_question > 1 and self.decode != "sample":
            raise ValueError(
                f"answers_per_question is {self.answers_per_question}, but {self.decode} gives one"
                " answer; use decode sample."
            )
        if self.resume and self.overwrite:
            raise ValueError("resume keeps earlier traces, overwrite removes them; give one.")

    @property
    def keeps_journal(self) -> bool:
        """True if the run writes a journal; resuming always does."""
        return self.journal or self.resume


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Options of scoring; a wrong value or regular expression raises ValueError."""

    model: tuple[str, ...] = option(
        (),
        "A sequence-classification or regression checkpoint (such as BLEURT) that adds a column of"
        " scores: PATH or COLUMN=PATH; repeatable.",
    )
    model_label: str | None = option(
        None, "For a classifier: the class that means a right answer [entailment, correct, ...]."
    )
    judge: tuple[str, ...] = option(
        (),
        "A causal language model that is asked whether an answer is right, which adds a column"
        " judge_NAME with the probability of yes: PATH or NAME=PATH; repeatable.",
    )
    judge_template: Path | None = option(
        None,
        "For --judge: UTF-8 file with the prompt, which has {answer} in it and may have {question}"
        " and {references}.",
    )
    device: str = option("cpu", "Device of --model and --judge: cpu, cuda, ...")
    abstention: tuple[str, ...] = option(
        (),
        "Regular expression of answers that abstain, in addition to the built-in ones (I don't"
        " know, no comment, an empty answer, ...); repeatable.",
    )
    abstention_score: str | float = option(
        "keep",
        "Score of an abstention: keep (as measured), none (no score; pack --missing-score drop"
        " leaves it out) or a number.",
    )
    threshold: float = option(0.5, "A score below it means hallucinated; used for agreement only.")

    def __post_init__(self) -> None:
        _ = Abstentions(self.abstention)
        if self.judge_template is not None and not self.judge:
            raise ValueError("judge_template needs judge; name a model, or leave it out.")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold is {self.threshold}; must be finite.")
        score = self.abstention_score
        if score in ABSTENTION_SCORES:
            return
        try:
            number = float(score)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(
                f"abstention_score is {score!r}; expected {', '.join(ABSTENTION_SCORES)} or a"
                " finite number."
            )
