"""Traces for the tests of pictures and pages: small, of every source, with hostile tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from builders import HEADS, LAYERS, make_dataset, make_raw, write_pickle

from wdsbench.pack import PackOptions
from wdsbench.view.source import open_trace
from wdsbench.view.trace import ViewedTrace

#: What a page or picture must show as text and never as markup, formula or template.
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<b>bold</b>",
    "<img src=x onerror='window.hacked = 3'>",
    "&lt;",
    "$\\frac{",
    "%{x}",
    "\n",
    " the",
    "",
    "日本",
    '"',
)


def raw_file(folder: Path, **changes: Any) -> Path:
    """Write one raw trace of 12 tokens; keys of ``changes`` replace its own, None takes out."""
    raw = make_raw("q<1>", seed=1, tokens=len(HOSTILE))
    raw["tokens_decoded"] = list(HOSTILE)
    raw.update(changes)
    left = {key: value for key, value in raw.items() if value is not None}
    return write_pickle(folder / "batch_0001.pkl", [left])


def raw_trace(folder: Path, **changes: Any) -> ViewedTrace:
    """Return what `raw_file` writes, opened."""
    return open_trace(raw_file(folder, **changes))[0]


def stored_trace(folder: Path, attention: str, **raw: Any) -> tuple[ViewedTrace, dict[str, Any]]:
    """Return the first trace of a data set packed with ``attention``, and the raw one."""
    options = PackOptions(attention=tuple(word for word in attention.split(",") if word))
    packed = make_dataset(folder, traces=12, options=options, **raw)
    viewed, index = open_trace(packed.folder)
    assert index is not None
    return viewed, packed.raws[index.question_id(0)]


def mean_map(raw: dict[str, Any], layer: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the mean over heads of a raw trace's map, NaN above the diagonal."""
    mean = np.asarray(raw["attentions"][layer], np.float32).mean(axis=0)
    mean[np.triu_indices(len(mean), 1)] = np.nan
    return mean


__all__ = ["HEADS", "HOSTILE", "LAYERS", "mean_map", "raw_file", "raw_trace", "stored_trace"]
