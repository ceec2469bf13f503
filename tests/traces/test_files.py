"""Which files a pattern names, and how they are opened."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from wdsbench.errors import TraceError
from wdsbench.traces.files import expand_patterns, open_raw


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def names(folder: Path, *patterns: str) -> list[str]:
    found = expand_patterns([str(folder / pattern) for pattern in patterns])
    return [str(path.relative_to(folder)) for path in found]


def test_one_pattern_finds_plain_and_compressed_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "batch_0002.pkl", "batch_0001.pkl.gz", "x.pt", ".batch_0003.pkl.gz.tmp")
    assert names(tmp_path, "*.pkl*") == ["batch_0001.pkl.gz", "batch_0002.pkl"]


def test_overlapping_patterns_and_links_name_a_file_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.pkl", "b.pkl")
    (tmp_path / "c.pkl").symlink_to("a.pkl")
    assert names(tmp_path, "b.pkl", "*.pkl", "a.pkl") == ["a.pkl", "b.pkl"]


def test_a_folder_means_its_trace_files(tmp_path: Path) -> None:
    touch(tmp_path, "t/a.pkl", "t/b.pt", "t/notes.txt", "t/deeper/c.pkl", "t/.hidden.pkl")
    assert names(tmp_path, "t") == ["t/a.pkl", "t/b.pt"]
    assert names(tmp_path, "t/**/*.pkl") == ["t/a.pkl", "t/deeper/c.pkl"]


def test_a_star_passes_over_what_extract_and_score_leave(tmp_path: Path) -> None:
    touch(tmp_path, "batch_0001.pkl.gz", "failures.jsonl", "journal.jsonl")
    touch(tmp_path, "ground_truth_scores.csv", "b.safetensors")
    assert names(tmp_path, "*") == ["b.safetensors", "batch_0001.pkl.gz"]


def test_a_file_of_traces_in_no_known_form_is_named_with_all_that_are(tmp_path: Path) -> None:
    touch(tmp_path, "a.pkl", "b.jsonl")
    with pytest.raises(TraceError, match=r"\.safetensors, \.npz, \.h5, \.hdf5;") as caught:
        names(tmp_path, "*")
    assert caught.value.file == str(tmp_path / "b.jsonl")


def test_a_name_with_brackets_is_literal(tmp_path: Path) -> None:
    touch(tmp_path, "run[1].pkl")
    assert names(tmp_path, "run[1].pkl") == ["run[1].pkl"]


# (files there, pattern, words of the error)
BAD_PATTERNS = [
    ([], "*.pkl", "no file matches"),
    ([], "a.pkl", "no file matches"),
    (["a.pkl", "a.pkl.md5"], "*.pkl*", "ends in none of"),
    (["a.pkl", "a.pkl.gz", "b.pkl"], "*.pkl*", "both a.pkl and a.pkl.gz match"),
]


@pytest.mark.parametrize(("there", "pattern", "words"), BAD_PATTERNS)
def test_bad_patterns(there: list[str], pattern: str, words: str, tmp_path: Path) -> None:
    touch(tmp_path, *there)
    with pytest.raises(TraceError, match=words):
        names(tmp_path, pattern)


@pytest.mark.parametrize("pattern", ["", "  "])
def test_an_empty_pattern_is_not_the_working_folder(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a.pkl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"pattern '{pattern}' is empty; expected"):
        expand_patterns(["a.pkl", pattern])


@pytest.mark.parametrize("name", ["a.pkl", "a.pkl.gz"])
def test_compression_is_known_by_content_not_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"plain")
    with open_raw(path) as stream:
        assert stream.read() == b"plain"
    path.write_bytes(gzip.compress(b"squeezed "[:-1]) + gzip.compress(b" twice"))
    with open_raw(path) as stream:
        assert stream.read() == b"squeezed twice"


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "empty.pkl").touch()
    with pytest.raises(TraceError, match=r"empty\.pkl: the file is empty"):
        open_raw(tmp_path / "empty.pkl")
    with pytest.raises(TraceError, match=r"missing\.pkl: cannot be read: No such file"):
        open_raw(tmp_path / "missing.pkl")
    with pytest.raises(TraceError, match="Is a directory"):
        open_raw(tmp_path)
