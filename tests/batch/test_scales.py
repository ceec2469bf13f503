"""Factors of layers, read alone for a device that widens."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wdsbench import _core


def member_file(path: Path, array: Any) -> int:
    stream = io.BytesIO()
    np.save(stream, array)
    path.write_bytes(stream.getvalue())
    return len(stream.getvalue())


# read_scales does not check that the shard is unchanged: a cut shows zeros within a page, and an
# overwritten factor is believed. With widen="device" it is read after the states: wrong data.
@pytest.mark.parametrize("cut", [False, True])
def test_scales_of_a_changed_shard(tmp_path: Path, cut: bool) -> None:
    path = tmp_path / "member"
    size = member_file(path, np.full(4, 8, np.float32))
    os.utime(path, ns=(1, 1))
    files = _core.ShardFiles([os.fsencode(path)], [size], limit=1)
    jobs = np.array([[0, 0, 0, 0, size, 1, 0, 1, 0, 1]], np.int64)
    read = _core.read_scales(files, jobs, np.arange(4), layers_stored=4)
    assert (read == 8).all()
    if cut:
        os.truncate(path, 130)
    else:
        with path.open("r+b") as file:
            file.seek(128)
            file.write(bytes(8))
    with pytest.raises(_core.FormatError):
        _core.read_scales(files, jobs, np.arange(4), layers_stored=4)


# A layer that is not stored is an IndexError of std::vector::at, not the ValueError of the rest.
# Only where a sample has a scale: otherwise it is 1 without a word.
def test_scales_of_a_layer_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "member"
    size = member_file(path, np.full(4, 8, np.float32))
    files = _core.ShardFiles([os.fsencode(path)], [size], limit=1)
    for scaled in (size, 0):
        jobs = np.array([[0, 0, 0, 0, scaled, 1, 0, 1, 0, 1]], np.int64)
        with pytest.raises(ValueError, match="layer 9 is not one of the 4 stored"):
            _core.read_scales(files, jobs, np.array([9]), layers_stored=4)
