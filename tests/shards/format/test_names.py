"""Keys and splits are functions of the id alone, fixed for ever by these literals."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from wdsbench.shards.format.names import make_key, split_of_question, splits_of_files

#: Any characters; `st.text` would first make a table of all of them, for seconds.
_TEXTS = st.lists(
    st.one_of(st.integers(0, 0x7F), st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF)).map(chr),
    min_size=1,
).map("".join)


@given(_TEXTS, st.integers(0, 10**6))
def test_a_key_is_safe_for_tar_and_webdataset(question_id: str, trace: int) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}-[0-9a-f]{16}", make_key(question_id, trace))


def test_a_key_shows_the_id_and_hashes_id_and_trace() -> None:
    digest = xxhash.xxh3_64_hexdigest("tqa/Où.1".encode() + b"\0" + b"3")
    assert make_key("tqa/Où.1", 3) == f"tqa_O__1-{digest}"


def test_ids_that_look_alike_have_other_keys() -> None:
    keys = {make_key(*pair) for pair in [("a.b", 0), ("a_b", 0), ("a.b", 1), ("a" * 41, 0)]}
    assert len(keys) == 4


@pytest.mark.parametrize("question_id", ["q0", "q1", "42", "größe"])
def test_a_split_is_the_hash_against_the_shares(question_id: str) -> None:
    position = xxhash.xxh3_64_intdigest(question_id.encode()) / 2**64
    expected = "train" if position < 0.70 else "val" if position < 0.85 else "test"
    assert split_of_question(question_id) == expected


def test_shares_of_many_questions() -> None:
    counts = Counter(split_of_question(f"q{i}") for i in range(20_000))
    assert counts["train"] == pytest.approx(14_000, abs=300)
    assert counts["val"] == pytest.approx(3_000, abs=200)
    assert counts["test"] == pytest.approx(3_000, abs=200)


def test_files_are_dealt_by_place_whatever_their_order() -> None:
    names = [f"batch_{i:04d}.pkl" for i in range(20)]
    splits = dict(zip(names, splits_of_files(names), strict=True))
    assert Counter(splits.values()) == {"train": 14, "val": 3, "test": 3}
    backwards = dict(zip(names[::-1], splits_of_files(names[::-1]), strict=True))
    assert backwards == splits


def test_one_file_is_all_training() -> None:
    assert splits_of_files(["only.pkl"]) == ["train"]
