"""Runs an extraction once to its end, then in children that are killed and resumed.

``main(FOLDER, WHAT, "calls", STEP)``: each child is killed before a flush, rename or removal, which
are ``STEP`` calls apart, and its run is resumed without another kill. ``main(FOLDER, WHAT,
"random", DEATHS)``: runs are killed from outside at random moments and resumed until they finish.
Returns the number of kills. WHAT is ``files``, or ``shards`` or ``spent``: into shards, with the
trace files kept or removed. Flushes are counted but not executed: the kernel keeps what a killed
process wrote.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from llm.tiny import extract, make_model, make_poisoned, make_questions, make_tokenizer

from wdsbench.jobs.shard_sink import ShardSink
from wdsbench.llm.questions import Question
from wdsbench.pack import PackOptions

CALLS = ("fsync", "replace", "unlink")
#: Two answers to each question, which files separate, with labels from their scores.
QUESTIONS = [replace(question, references=("red",)) for question in make_questions(5)[1:]]
SHARD_SETTINGS: dict[str, Any] = {
    "batch_size": 3,
    "traces_per_file": 3,
    "max_new_tokens": 3,
    "attention": ("edges",),
    "decode": "sample",
    "answers_per_question": 2,
}
#: Small shards: some hold several samples, and the samples of some files are in several shards.
SHARD_OPTIONS = PackOptions(
    attention=("edges",), missing_score="keep", score_column="token_f1", shard_mb=0.01
)


def extract_files(out: Path) -> None:
    questions = make_questions(14)
    questions[2] = Question("long", "red " * 60, ())
    questions[9] = Question("nan", "blue unheard blue", ())
    extract(
        make_poisoned(),
        make_tokenizer(),
        questions,
        out,
        batch_size=3,
        traces_per_file=5,
        max_new_tokens=4,
        attention=("full", "edges"),
        decode="sample",
        resume=True,
    )


def extract_shards(out: Path, *, keep_raw: bool) -> None:
    with ShardSink(
        out / "shards", out / "traces", QUESTIONS, SHARD_OPTIONS, keep_raw=keep_raw, resume=True
    ) as sink:
        extract(
            make_model(),
            make_tokenizer(),
            QUESTIONS,
            out / "traces",
            resume=True,
            sink=sink,
            **SHARD_SETTINGS,
        )
        sink.tidy()


RUNS: dict[str, Callable[[Path], None]] = {
    "files": extract_files,
    "shards": partial(extract_shards, keep_raw=True),
    "spent": partial(extract_shards, keep_raw=False),
}


def die_at(number: int) -> None:
    """Kill this process before its ``number``-th call that changes the disk."""
    seen = 0

    def counted(call: Any) -> Any:
        def counting(*args: Any, **words: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **words)

        return counting

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def child(run: Callable[[Path], None], out: Path, dies_at: int = 0) -> int:
    """Start a run in a child and return its process id."""
    process = os.fork()
    if process == 0:
        try:
            if dies_at:
                die_at(dies_at)
            run(out)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return process


def ended_well(process: int) -> bool:
    """Wait for a child; return True if it finished, False if it was killed; exit if it failed."""
    status = os.waitpid(process, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("a child failed")
    return os.WIFEXITED(status)


def main(folder: Path, what: str, how: str, count: int) -> int:
    torch.set_num_threads(1)
    os.fsync = os.fdatasync = lambda _: None
    run = RUNS[what]
    started = time.perf_counter()
    if not ended_well(child(run, folder / "whole")):
        sys.exit("the whole run was killed")
    whole_seconds = time.perf_counter() - started
    deaths = 0
    if how == "calls":
        while not ended_well(child(run, folder / str(deaths), dies_at=deaths * count + 1)):
            if not ended_well(child(run, folder / str(deaths))):
                sys.exit("a resumed run was killed")
            deaths += 1
        return deaths
    chance = random.Random(0)
    folder_number = 0
    while deaths < count:
        # The first run in a folder is killed early; later ones have less to do and finish.
        process = child(run, folder / f"random-{folder_number}")
        time.sleep(chance.uniform(0.0, 0.5) * whole_seconds)
        os.kill(process, signal.SIGKILL)
        if ended_well(process):
            folder_number += 1
        else:
            deaths += 1
    if not ended_well(child(run, folder / f"random-{folder_number}")):
        sys.exit("a resumed run was killed")
    return deaths
