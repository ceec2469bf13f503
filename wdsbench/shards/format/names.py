"""Keys and splits, as pure functions of the question id: the same in every run and machine."""

from __future__ import annotations

import re
from collections.abc import Sequence

import xxhash

from wdsbench.records import SPLITS

#: Upper ends of train and val on the unit interval of hashes; test is the rest (70/15/15).
TRAIN_END = 0.70
VAL_END = 0.85

#: Characters of the question id that a key shows. With "-", 16 hex digits and the longest suffix a
#: member's name stays below the 100 bytes that a USTAR header has for it.
KEY_ID_CHARACTERS = 40
KEY_CHARACTERS = KEY_ID_CHARACTERS + 1 + 16

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_-]")


def question_bytes(question_id: str) -> bytes:
    """Return the bytes that are hashed and stored for a question id: UTF-8 with surrogates."""
    return question_id.encode("utf-8", "surrogatepass")


def make_key(question_id: str, trace: int) -> str:
    """Return the member key of one trace of a question.

    The first 40 characters of the id with everything outside ``[A-Za-z0-9_-]`` replaced by ``_``
    (webdataset cuts names at the first dot), then ``-`` and 16 hex digits of XXH3-64 over id, a
    zero byte and the decimal trace number.
    """
    readable = _NOT_IN_KEYS.sub("_", question_id[:KEY_ID_CHARACTERS])
    digest = xxhash.xxh3_64_intdigest(question_bytes(question_id) + b"\0" + str(trace).encode())
    return f"{readable}-{digest:016x}"


def split_of_question(question_id: str) -> str:
    """Return the split of a question: XXH3-64 of its UTF-8 id over 2^64 against 0.70 and 0.85."""
    return _split_at(xxhash.xxh3_64_intdigest(question_bytes(question_id)) / 2**64)


def splits_of_files(names: Sequence[str]) -> list[str]:
    """Return the split of each input file: files ordered by the hash of their name, then dealt
    70/15/15 by place.
    """
    order = sorted(
        range(len(names)), key=lambda i: (xxhash.xxh3_64_intdigest(names[i].encode()), names[i])
    )
    splits = [""] * len(names)
    for place, i in enumerate(order):
        splits[i] = _split_at((place + 0.5) / len(names))
    return splits


def _split_at(position: float) -> str:
    if position < TRAIN_END:
        return SPLITS[0]
    return SPLITS[1] if position < VAL_END else SPLITS[2]
