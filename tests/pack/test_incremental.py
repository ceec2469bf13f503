"""Files packed as they come give the bytes of ``pack``, and are spent when shards hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import make_raw, write_pickle
from trials import FULL_ONLY

from wdsbench.errors import PackError, ScoreError, TraceError
from wdsbench.pack import IncrementalPacker, PackOptions, PackReport, pack
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.shard import JOURNAL_NAME

FILES, TRACES = 5, 8
#: So small that a file's samples stand in several shards.
OPTIONS = PackOptions(shard_mb=0.02, missing_score="keep", score_column="f1")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def make_files(folder: Path, *, numbered: bool = True) -> list[Path]:
    """Write raw files, two traces to a question, which may stand in two files; and their scores:
    by trace, some missing, of each file and of all (``all.csv``).
    """
    files, everything = [], ["question_id,trace,f1\n"]
    for number in range(FILES):
        raws, lines = [], []
        for i in range(TRACES):
            place = number * TRACES + i + 1  # + 1: every fourth question spans two files
            raw = make_raw(f"q{place // 2}", seed=place)
            raws.append({**raw, "trace_number": place % 2} if numbered else raw)
            lines.append(f"q{place // 2},{place % 2},{'' if i == 3 else place % 7 / 7}\n")
        files.append(write_pickle(folder / "t" / f"b{number}.pkl", raws))
        everything += lines
        files[-1].with_suffix(".csv").write_text("".join(["question_id,trace,f1\n", *lines]))
    (folder / "all.csv").write_text("".join(everything))
    return files


def pack_at_once(
    folder: Path, files: list[Path], out: str = "whole", *, scored: bool
) -> PackReport:
    return pack(
        [str(file) for file in files],
        folder / out,
        scores=folder / "all.csv" if scored else None,
        options=OPTIONS,
    )


def scores_of(file: Path, *, scored: bool = True) -> Path | None:
    return file.with_suffix(".csv") if scored else None


@pytest.mark.parametrize("scored", [True, False])
def test_the_bytes_of_pack(scored: bool, tmp_path: Path) -> None:
    files = make_files(tmp_path)
    whole = pack_at_once(tmp_path, files, scored=scored)
    with IncrementalPacker(tmp_path / "out", OPTIONS) as packer:
        for file in files:
            packer.add_file(file, scores_of(file, scored=scored))
        report = packer.finish(tmp_path / "all.csv" if scored else None)
        assert packer.finished_files() == files
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert report == whole
    assert whole.unlabelled == (FILES if scored else FILES * TRACES)


def test_traces_without_a_number_are_numbered_as_by_pack(tmp_path: Path) -> None:
    files = make_files(tmp_path, numbered=False)
    pack_at_once(tmp_path, files, scored=False)
    with IncrementalPacker(tmp_path / "out", OPTIONS) as packer:
        for file in files:
            packer.add_file(file)
        packer.finish()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    with (
        IncrementalPacker(tmp_path / "scored", OPTIONS) as packer,
        pytest.raises(ScoreError, match=r"b0\.pkl, trace 0, .*give the traces a trace_number, or"),
    ):
        packer.add_file(files[0], scores_of(files[0]))


def test_a_file_is_spent_when_finished_shards_hold_all_of_it(tmp_path: Path) -> None:
    """What is not spent suffices, with the finished shards, to make the data set."""
    files = make_files(tmp_path)
    pack_at_once(tmp_path, files, scored=True)
    out = tmp_path / "out"
    with IncrementalPacker(out, OPTIONS) as packer:
        for file in files[:4]:
            packer.add_file(file, scores_of(file))
        packer._writer._shards._flusher.wait()
        spent = packer.finished_files()
        assert packer.finished_files() == []
    assert 1 <= len(spent) < 4
    assert spent == files[: len(spent)]
    for file in spent:
        file.unlink()
    with IncrementalPacker(out, OPTIONS, resume=True) as packer:
        for file in files:
            packer.add_file(file, scores_of(file))
        packer.finish(tmp_path / "all.csv")
        assert packer.finished_files() == files[len(spent) :]
    assert contents(out) == contents(tmp_path / "whole")


def part_of_a_run(folder: Path) -> tuple[list[Path], list[Path]]:
    """Leave an unfinished data set in ``out`` and return all files, and those that are removed."""
    files = make_files(folder)
    with IncrementalPacker(folder / "out", OPTIONS) as packer:
        for file in files[:4]:
            packer.add_file(file, scores_of(file))
        packer._writer._shards._flusher.wait()
        spent = packer.finished_files()
    for file in spent:
        file.unlink()
    return files, spent


@pytest.mark.parametrize("damage", ["cut", pytest.param("gone", marks=FULL_ONLY)])
def test_the_only_copy_is_not_thrown_away(damage: str, tmp_path: Path) -> None:
    files, spent = part_of_a_run(tmp_path)
    out = tmp_path / "out"
    before = contents(out)
    for refused in (
        lambda: pack([str(files[-1])], out, options=PackOptions(missing_score="keep")),
        lambda: IncrementalPacker(out, OPTIONS),
    ):
        with pytest.raises(PackError, match="holds an unfinished run"):
            refused()
    shard = out / "train-000000.tar"
    data = shard.read_bytes()
    shard.unlink()
    if damage == "cut":
        shard.write_bytes(data[:-512])
    with pytest.raises(PackError, match=rf"damaged or missing, .*\({spent[0].name}; "):
        IncrementalPacker(out, OPTIONS, resume=True)
    shard.write_bytes(data)
    assert contents(out) == before
    with IncrementalPacker(out, OPTIONS, resume=True) as packer:
        for file in files:
            packer.add_file(file, scores_of(file))
        packer.finish(tmp_path / "all.csv")
    assert len(DatasetIndex.open(out)) == FILES * TRACES


@pytest.mark.parametrize("how", ["journal", "stopped"])
def test_whatever_stops_a_run_that_resumes_nothing_is_lost(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_of_a_run(tmp_path)
    out = tmp_path / "out"
    journal = out / JOURNAL_NAME
    if how == "journal":
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([*lines[:2], b"rubbish\n", *lines[3:]]))
    before = contents(out)

    def stopped(*_: object) -> bool:
        raise KeyboardInterrupt

    if how == "stopped":  # while finished shards are read again, which takes its time
        monkeypatch.setattr("wdsbench.shards.write.shard.is_whole", stopped)
    with pytest.raises((PackError, KeyboardInterrupt)):
        IncrementalPacker(out, OPTIONS, resume=True)
    assert contents(out) == before


def test_the_files_that_were_packed_must_come_again(tmp_path: Path) -> None:
    files, _ = part_of_a_run(tmp_path)
    with IncrementalPacker(tmp_path / "out", OPTIONS, resume=True) as packer:
        packer.add_file(files[0], scores_of(files[0]))
        with pytest.raises(PackError, match=r"holds samples of \d files, 1 were added; add all"):
            packer.finish(tmp_path / "all.csv")
        for file in files[1:]:
            packer.add_file(file, scores_of(file))
        assert packer.finish(tmp_path / "all.csv").samples == FILES * TRACES


def test_other_files_and_other_settings_are_refused(tmp_path: Path) -> None:
    files, spent = part_of_a_run(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(PackError, match=r"with threshold 0\.5, this run has 0\.2"):
        IncrementalPacker(out, PackOptions(**{**vars(OPTIONS), "threshold": 0.2}), resume=True)
    with pytest.raises(PackError, match=r"with source \{\}, this run has \{\"model\": 2\}"):
        IncrementalPacker(out, OPTIONS, source={"model": 2}, resume=True)
    with (
        IncrementalPacker(out, OPTIONS, resume=True) as packer,
        pytest.raises(PackError, match=r"file 1 of the run .* was b0\.pkl, now it is .*b4\.pkl"),
    ):
        packer.add_file(files[4], scores_of(files[4]))
    with IncrementalPacker(out, OPTIONS, overwrite=True) as packer:
        with pytest.raises(PackError, match=rf"{spent[0].name} does not exist, and .* restore it"):
            packer.add_file(spent[0], scores_of(spent[0]))
        packer.add_file(files[4], scores_of(files[4]))
        with pytest.raises(ValueError, match="not from both"):
            packer.finish()
        assert packer.finish(scores_of(files[4])).samples == TRACES


def test_where_nothing_is_finished_nothing_is_left(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    with IncrementalPacker(tmp_path / "out", OPTIONS), pytest.raises(TraceError):
        raise TraceError("nothing came")
    assert not (tmp_path / "out").exists()
    with (
        IncrementalPacker(tmp_path / "out", OPTIONS) as packer,
        pytest.raises(PackError, match="no trace to pack in 0 files"),
    ):
        packer.finish()
    assert not (tmp_path / "out").exists()
    bad = write_pickle(tmp_path / "bad.pkl", [make_raw("a", seed=1), {"question_id": "b"}])
    with IncrementalPacker(tmp_path / "out", OPTIONS) as packer:
        packer.add_file(files[0])
        with pytest.raises(TraceError, match=r"bad\.pkl"):
            packer.add_file(bad)
        for refused in (packer.finish, lambda: packer.add_file(files[1])):
            with pytest.raises(PackError, match="packed in part"):
                refused()
    with pytest.raises(PackError, match="holds an unfinished run; continue it with resume"):
        IncrementalPacker(tmp_path / "out", OPTIONS)


@pytest.mark.parametrize("options", [{"reduce": "pca:2"}, {"split_by": "file"}])
def test_what_must_know_all_files_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs all files at once"):
        IncrementalPacker(tmp_path / "out", PackOptions(**options))
    assert not (tmp_path / "out").exists()
