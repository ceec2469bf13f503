"""An interrupted run resumes where it stopped and writes the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import start_code
from llm.killer import QUESTIONS, SHARD_OPTIONS, SHARD_SETTINGS
from llm.test_extract import read_all
from llm.tiny import extract, make_model, make_poisoned, make_questions, make_tokenizer
from trials import FULL, FULL_ONLY, trials

from wdsbench.errors import ModelError, QuestionError
from wdsbench.llm.extract import ExtractReport
from wdsbench.llm.questions import Question
from wdsbench.llm.score import score_traces
from wdsbench.pack import pack
from wdsbench.traces.scores import SCORES_NAME

#: Trace files that it writes before they are packed.
FILES = ("batch_0001.pkl.gz", "batch_0002.pkl.gz", "batch_0003.pkl.gz")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def run(out: Path, **changes: Any) -> ExtractReport:
    settings: dict[str, Any] = {
        "batch_size": 3,
        "traces_per_file": 5,
        "max_new_tokens": 2,
        "journal": True,
        "attention": ("edges",),
        "decode": "sample",
        **changes,
    }
    questions = settings.pop("questions", None) or make_questions(12)
    model = settings.pop("model", None) or make_model()
    return extract(model, make_tokenizer(), questions, out, **settings)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


#: (what is extracted, how it is killed, step or number of kills) of the killed runs.
KILLS = [
    ("files", "calls", trials(17, 1)),
    *([("files", "random", 8), ("shards", "calls", 3)] if FULL else []),
    ("spent", "calls", trials(31, 3)),
]

KILLER = """
import json
import sys
from pathlib import Path

from llm import killer

folder = Path(sys.argv[1])
for what, how, count in json.loads(sys.argv[2]):
    (folder / f"{what}-{how}").mkdir()
    print(what, how, killer.main(folder / f"{what}-{how}", what, how, count))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, int]]:
    """Run the killer in one process for all tests; return a folder and its number of kills."""
    folder = tmp_path_factory.mktemp("killed")
    process = start_code(KILLER, folder, json.dumps(KILLS))
    printed, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    deaths = {(what, how): int(count) for what, how, count in map(str.split, printed.splitlines())}
    return lambda what, how: (folder / f"{what}-{how}", deaths[what, how])


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("how", ["calls", pytest.param("random", marks=FULL_ONLY)])
def test_killed_at_any_moment(how: str, killed: Callable[[str, str], tuple[Path, int]]) -> None:
    """By SIGKILL before each flush and rename (quick: three of them), or at random moments."""
    folder, deaths = killed("files", how)
    assert deaths > trials(1, 20) if how == "calls" else deaths == 8
    whole = content(folder / "whole")
    assert {"journal.jsonl", "failures.jsonl", "batch_0001.pkl.gz"} < set(whole)
    resumed = [path for path in folder.iterdir() if path.name != "whole"]
    assert resumed
    for path in resumed:
        assert content(path) == whole


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("what", [pytest.param("shards", marks=FULL_ONLY), "spent"])
def test_killed_at_any_moment_on_the_way_to_shards(
    what: str, killed: Callable[[str, str], tuple[Path, int]], tmp_path: Path
) -> None:
    """The shards have the bytes of ``extract``, ``score`` and ``pack`` in three steps."""
    extract_files_and_pack(tmp_path)
    left = {"journal.jsonl"} if what == "spent" else {"journal.jsonl", *FILES}
    at_once, deaths = killed(what, "calls")
    assert deaths > trials(1, 20)
    whole = content(tmp_path / "shards")
    assert {"train-000000.tar", "val-000001.tar", "test-000000.tar", "index.json"} < set(whole)
    for folder in at_once.iterdir():
        assert content(folder / "shards") == whole, folder
        traces = content(folder / "traces")
        assert set(traces) == {SCORES_NAME, *left}, folder
        assert traces[SCORES_NAME] == (tmp_path / SCORES_NAME).read_bytes()


def extract_files_and_pack(folder: Path) -> None:
    """Extract, score and pack separately what the killer extracts into shards."""
    extract(make_model(), make_tokenizer(), QUESTIONS, folder / "traces", **SHARD_SETTINGS)
    score_traces([folder / "traces"], QUESTIONS, folder / SCORES_NAME)
    pack(
        [str(folder / "traces")],
        folder / "shards",
        scores=folder / SCORES_NAME,
        options=SHARD_OPTIONS,
    )


def test_journal_names_every_trace(tmp_path: Path) -> None:
    report = run(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    named = sorted(entry for line in lines if "batch" in line for entry in line["traces"])
    assert named == [[place, f"q{place}", 0] for place in range(12)]
    assert [line["file"] for line in lines if "batch" not in line and "file" in line] == [1, 2, 3]
    assert set(content(tmp_path)) == {"journal.jsonl", *(path.name for path in report.files)}


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    first = run(tmp_path)
    before = content(tmp_path)
    again = run(tmp_path, resume=True)
    assert again == ExtractReport(**{**vars(first), "resumed": 12})
    assert content(tmp_path) == before


def test_resume_without_earlier_run(tmp_path: Path) -> None:
    assert run(tmp_path, resume=True).resumed == 0
    assert (tmp_path / "journal.jsonl").exists()


def stop_after(calls: int) -> Callable[..., Any]:
    """Return a progress that raises after some batches."""

    def progress(items: Any, total: int | None, what: str) -> Any:  # noqa: ARG001
        for number, item in enumerate(items):
            if number == calls:
                raise KeyboardInterrupt
            yield item

    return progress


# (changes on resuming, words of the error)
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 4}, "begun with batch_size 3, this run has 4; resume with the settings"),
    ({"seed": 1}, "begun with decode .*'seed': 0.*'seed': 1"),
    ({"questions": make_questions(11)}, "begun with questions '"),
    ({"layers": [0]}, r"begun with layers None, this run has \[0\]"),
    ({"model": make_model(seed=1)}, "begun with model '"),
]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=stop_after(3))
    before = content(tmp_path)
    for changes, words in OTHERS:
        with pytest.raises(ValueError, match=words):
            run(tmp_path, resume=True, **changes)
        assert content(tmp_path) == before
    report = run(tmp_path, resume=True)
    assert (report.traces, report.resumed) == (12, 8)


def test_an_unfinished_run_is_protected(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=stop_after(1))
    with pytest.raises(ValueError, match=r"extraction of 3 traces .* resume, remove it with over"):
        run(tmp_path)
    assert run(tmp_path, overwrite=True, journal=False, batch_size=7).traces == 12
    assert all(name.startswith("batch_") for name in content(tmp_path))
    with pytest.raises(ValueError, match=r"holds 3 batch files already .* and no journal"):
        run(tmp_path, resume=True)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    def progress(items: Any, total: int | None, what: str) -> Any:  # noqa: ARG001
        for number, item in enumerate(items):
            if number == 2:
                for words in ({"resume": True}, {"overwrite": True}):
                    with pytest.raises(ValueError, match="being written by another process"):
                        run(tmp_path, **words)
            yield item

    assert run(tmp_path, progress=progress).traces == 12


def test_lines_of_another_writer_are_kept(tmp_path: Path) -> None:
    def progress(items: Any, total: int | None, what: str) -> Any:  # noqa: ARG001
        run(tmp_path)
        yield from items

    with pytest.raises(ValueError, match="was written by another process since it was read"):
        run(tmp_path, progress=progress)
    assert run(tmp_path, resume=True).resumed == 12


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], "rubbish\n", *lines[2:]]))
    with pytest.raises(ValueError, match=r"journal\.jsonl, line 3: not a line of a journal"):
        run(tmp_path, resume=True)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "batch_0002.pkl.gz").unlink()
    with pytest.raises(ValueError, match=r"batch_0002\.pkl\.gz was written, .* but is missing"):
        run(tmp_path, resume=True)


def test_failures_are_recorded_and_the_rest_continues(tmp_path: Path) -> None:
    """A prompt that is too long, and states that are NaN for one token."""
    questions = make_questions(12)
    questions[4] = Question("long", "red " * 60, ())
    questions[7] = Question("nan", "blue unheard blue", ())
    model = make_poisoned()
    report = run(tmp_path, questions=questions, model=model)
    assert (report.traces, report.failed) == (10, 2)
    kept = [question.question_id for question in questions if question.question_id[0] == "q"]
    assert [trace.question_id for trace in read_all(tmp_path)] == kept
    failures = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert [failure["question_id"] for failure in failures] == ["long", "nan"]
    assert "the prompt has 61 tokens" in failures[0]["reason"]
    assert "question nan, layer 0: the model's states are NaN" in failures[1]["reason"]
    with pytest.raises(QuestionError, match="question long"):
        run(tmp_path, questions=questions, model=model, overwrite=True, on_error="fail")
    del questions[4]
    with pytest.raises(ModelError, match="question nan, layer 0"):
        run(tmp_path, questions=questions, model=model, overwrite=True, on_error="fail")


def test_batch_beyond_memory_is_split(tmp_path: Path) -> None:
    model = make_model()

    def refuse(_module: Any, _args: Any, words: dict[str, Any]) -> None:
        rows, tokens = words["input_ids"].shape
        if rows > 1 or tokens > 12:
            raise torch.OutOfMemoryError("no room")

    model.model.register_forward_pre_hook(refuse, with_kwargs=True)
    report = run(tmp_path, model=model, max_new_tokens=2)
    assert report.traces > 6
    assert report.traces + report.failed == 12
    lengths = {len(trace.tokens) for trace in read_all(tmp_path)}
    assert max(lengths) == 12
    assert "out of GPU memory (no room)" in (tmp_path / "failures.jsonl").read_text()


class Shelf:
    """A sink that names all but the last ``keep`` files for removal."""

    def __init__(self, place: str = "shelf", keep: int = 99) -> None:
        self.destination = place
        self.keep = keep
        self.calls: list[str] = []
        self.held: list[Path] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def on_file_written(self, path: Path) -> list[Path]:
        self.calls.append(path.name)
        self.held.append(path)
        spent, self.held = self.held[: -self.keep], self.held[-self.keep :]
        return spent

    def finish(self) -> list[Path]:
        self.calls.append("finish")
        return []


def test_sink_receives_the_files_of_earlier_runs(tmp_path: Path) -> None:
    run(tmp_path / "plain")
    names = sorted(path.name for path in (tmp_path / "plain").glob("*.gz"))
    shelf = Shelf()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", sink=shelf, progress=stop_after(3))
    assert shelf.calls == ["begin", names[0]]
    shelf = Shelf()
    report = run(tmp_path / "out", sink=shelf, resume=True)
    assert shelf.calls == ["begin", *names, "finish"]
    assert (len(report.files), report.removed, report.resumed) == (3, 0, 8)
    kept = content(tmp_path / "out")
    assert kept.pop("journal.jsonl").count(b"taker") == 1
    plain = content(tmp_path / "plain")
    del plain["journal.jsonl"]
    assert kept == plain


def test_removed_files_are_not_missed(tmp_path: Path) -> None:
    report = run(tmp_path, sink=Shelf(keep=1))
    assert [path.name for path in report.files] == ["batch_0003.pkl.gz"]
    assert report.removed == 2
    assert set(content(tmp_path)) == {"journal.jsonl", "batch_0003.pkl.gz"}
    assert run(tmp_path, sink=Shelf(), resume=True).removed == 2
    for sink in (None, Shelf("attic")):
        with pytest.raises(
            ValueError, match=r"2 trace files of .* were packed into .*shelf and remove"
        ):
            run(tmp_path, sink=sink, resume=True)
    (tmp_path / "batch_0003.pkl.gz").unlink()
    with pytest.raises(ValueError, match=r"batch_0003\.pkl\.gz was written, .* but is missing"):
        run(tmp_path, sink=Shelf(), resume=True)
