"""Trace files packed as they are written: when they are removed, and which shards are accepted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from llm.tiny import extract, make_model, make_questions, make_tokenizer
from trials import FULL_ONLY

from wdsbench.errors import PackError
from wdsbench.jobs.shard_sink import ShardSink
from wdsbench.llm.extract import ExtractReport
from wdsbench.llm.questions import Question
from wdsbench.llm.score import score_traces
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.scores import SCORES_NAME

QUESTIONS = make_questions(12)
FILES = 6
#: Every sample its own shard.
OPTIONS = PackOptions(
    attention=("edges",), missing_score="keep", score_column="token_f1", shard_mb=1e-6
)


class CountingSink(ShardSink):
    """Notes how many trace files exist whenever one is complete."""

    def __init__(self, *arguments: Any, stop_after: int = 99, **words: Any) -> None:
        super().__init__(*arguments, **words)
        self.existing: list[int] = []
        self.stop_after = stop_after

    def on_file_written(self, path: Path) -> list[Path]:
        if len(self.existing) == self.stop_after:
            raise KeyboardInterrupt
        self.existing.append(len(list(path.parent.glob("batch_*"))))
        return super().on_file_written(path)


def run(
    folder: Path,
    *,
    questions: Sequence[Question] = QUESTIONS,
    options: PackOptions = OPTIONS,
    out: str = "traces",
    keep_raw: bool = False,
    stop_after: int = 99,
    resume: bool = False,
    overwrite: bool = False,
) -> tuple[ExtractReport, list[int]]:
    with CountingSink(
        folder / "shards",
        folder / out,
        questions,
        options,
        keep_raw=keep_raw,
        resume=resume,
        overwrite=overwrite,
        stop_after=stop_after,
    ) as sink:
        report = extract(
            make_model(),
            make_tokenizer(),
            questions,
            folder / out,
            traces_per_file=2,
            max_new_tokens=3,
            attention=("edges",),
            journal=True,
            resume=resume,
            overwrite=overwrite,
            sink=sink,
        )
        sink.tidy()
    return report, sink.existing


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@dataclass(frozen=True)
class Finished:
    folder: Path
    report: ExtractReport
    existing: list[int]

    def copy(self, to: Path) -> None:
        shutil.copytree(self.folder, to, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("whole")
    return Finished(folder, *run(folder))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run that keeps its trace files."""
    folder = tmp_path_factory.mktemp("kept")
    return Finished(folder, *run(folder, keep_raw=True))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted after four files."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(KeyboardInterrupt):
        run(folder, stop_after=4)
    return folder


def test_few_trace_files_exist_at_any_time(whole: Finished, kept: Finished, tmp_path: Path) -> None:
    """The new one, and those with samples in the three shards that may be unflushed."""
    assert len(whole.existing) == FILES
    assert max(whole.existing) <= 1 + 3
    assert (whole.report.files, whole.report.removed) == ((), FILES)
    assert kept.existing == list(range(1, FILES + 1))
    assert (len(kept.report.files), kept.report.removed) == (FILES, 0)
    assert contents(kept.folder / "shards") == contents(whole.folder / "shards")
    traces = str(kept.folder / "traces")
    score_traces([traces], QUESTIONS, tmp_path / SCORES_NAME)
    pack([traces], tmp_path / "packed", scores=tmp_path / SCORES_NAME, options=OPTIONS)
    assert contents(tmp_path / "packed") == contents(whole.folder / "shards")


def test_resumed_run_removes_files_that_were_kept(whole: Finished, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, keep_raw=True, stop_after=3)
    assert len(list((tmp_path / "traces").glob("batch_*"))) == 4
    report, _ = run(tmp_path, resume=True)
    assert report.removed == FILES
    assert contents(tmp_path / "shards") == contents(whole.folder / "shards")
    assert set(contents(tmp_path / "traces")) == {SCORES_NAME, "journal.jsonl"}


def test_resuming_a_finished_run_changes_nothing(whole: Finished, tmp_path: Path) -> None:
    """As when a job is queued again."""
    whole.copy(tmp_path)
    traces = whole.report.traces
    before = {name: contents(tmp_path / name) for name in ("shards", "traces")}
    for _ in range(2):
        again, _ = run(tmp_path, resume=True)
        assert (again.traces, again.resumed, again.removed) == (traces, traces, FILES)
        assert {name: contents(tmp_path / name) for name in before} == before
    with pytest.raises(ValueError, match="holds a data set already"):
        run(tmp_path)


def test_traces_extracted_without_shards_can_be_packed_later(
    whole: Finished, tmp_path: Path
) -> None:
    files = tmp_path / "traces"
    extract(
        make_model(),
        make_tokenizer(),
        QUESTIONS,
        files,
        traces_per_file=2,
        max_new_tokens=3,
        attention=("edges",),
        journal=True,
    )
    report, existing = run(tmp_path, resume=True)
    assert existing[0] == FILES
    assert (report.resumed, report.removed) == (12, FILES)
    assert contents(tmp_path / "shards") == contents(whole.folder / "shards")


def test_unfinished_shards_belong_to_one_extraction(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    before = contents(tmp_path / "shards")
    with pytest.raises(ValueError, match="an unfinished data set; continue it with --resume"):
        run(tmp_path)
    for words in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(ValueError, match="unfinished data set of another extraction than"):
            run(tmp_path, out="other", **words)
    harder = [replace(question, references=("green",)) for question in QUESTIONS]
    with pytest.raises(PackError, match=r"unfinished run with source \{.references.: "):
        run(tmp_path, questions=harder, resume=True)
    assert contents(tmp_path / "shards") == before
    report, _ = run(tmp_path, questions=harder, overwrite=True)
    assert (report.traces, report.resumed) == (12, 0)
    assert len(DatasetIndex.open(tmp_path / "shards")) == 12


def test_data_set_of_another_extraction_is_refused(whole: Finished, tmp_path: Path) -> None:
    """It has the same names and counts; no file of this extraction is removed."""
    whole.copy(tmp_path)
    (tmp_path / "traces").rename(tmp_path / "first")
    extract(
        make_model(seed=1),
        make_tokenizer(),
        QUESTIONS,
        tmp_path / "traces",
        traces_per_file=2,
        max_new_tokens=3,
        attention=("edges",),
        journal=True,
    )
    with pytest.raises(ValueError, match="holds a data set already; choose another folder"):
        run(tmp_path, resume=True)
    assert len(list((tmp_path / "traces").glob("batch_*"))) == FILES


@pytest.mark.parametrize("damage", [pytest.param("cut", marks=FULL_ONLY), "flipped", "gone"])
def test_trace_files_are_kept_if_the_data_set_is_damaged(
    damage: str, kept: Finished, tmp_path: Path
) -> None:
    kept.copy(tmp_path)
    shard = tmp_path / "shards" / "train-000001.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= damage == "flipped"
    shard.write_bytes(data[:-512] if damage == "cut" else data)
    if damage == "gone":
        shard.unlink()
    with pytest.raises(ValueError, match=r"train-000001\.tar is damaged or missing, so no"):
        run(tmp_path, resume=True)
    assert len(list((tmp_path / "traces").glob("batch_*"))) == FILES
    report, _ = run(tmp_path, keep_raw=True, resume=True)
    assert (report.resumed, report.removed) == (12, 0)


def test_scores_use_the_given_references(tmp_path: Path) -> None:
    """Score files of a data set that was removed are not used."""
    harder = [replace(question, references=("green",)) for question in QUESTIONS]
    run(tmp_path / "whole", questions=harder)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, keep_raw=True, stop_after=4)
    shutil.rmtree(tmp_path / "shards")
    run(tmp_path, questions=harder, resume=True)
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole" / "shards")
    found, whole = (contents(folder / "traces") for folder in (tmp_path, tmp_path / "whole"))
    assert found.keys() == whole.keys()
    assert found[SCORES_NAME] == whole[SCORES_NAME]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("gone", marks=FULL_ONLY),
        pytest.param("empty", marks=FULL_ONLY),
        "cut",
        "all gone",
    ],
)
def test_the_only_copy_is_kept_if_its_journal_is_damaged(
    damage: str, stopped: Path, tmp_path: Path
) -> None:
    """The extraction's journal also lists the removed files."""
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    shards, elsewhere = tmp_path / "shards", tmp_path / "elsewhere"
    journal = shards / ".wdsbench-journal"
    data = journal.read_bytes()
    if damage == "all gone":
        shards.rename(elsewhere)
    elif damage == "gone":
        journal.unlink()
    else:
        journal.write_bytes(data[: len(data) // 3] if damage == "cut" else b"")
    before = contents(shards) if shards.exists() else {}
    with pytest.raises(PackError, match=r"journal of them, is damaged or missing, .*\(batch_000"):
        run(tmp_path, resume=True)
    assert shards.exists() == (damage != "all gone")
    if damage == "all gone":
        elsewhere.rename(shards)
    else:
        assert contents(shards) == before
        journal.write_bytes(data)
    report, _ = run(tmp_path, resume=True)
    assert (report.traces, report.removed) == (12, FILES)


def test_both_folders_can_be_moved(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "new")
    report, _ = run(tmp_path / "new", resume=True)
    assert (report.traces, report.removed) == (12, FILES)
