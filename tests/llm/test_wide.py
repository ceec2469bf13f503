"""A model whose states exceed float16, from extraction to the loader's batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm.tiny import LAYERS, extract, make_model, make_questions, make_tokenizer

from wdsbench import TraceLoader
from wdsbench.errors import WdsbenchError
from wdsbench.pack import PackOptions, pack
from wdsbench.shards.format.index import IndexFile
from wdsbench.shards.format.wide import HALF_MAX
from wdsbench.traces.read import read_traces

#: float16 keeps 11 bits; below 2**-14 it steps by 2**-24.
ROUNDING, SMALLEST_STEP = 2.0**-11, 2.0**-24


def make_wide() -> Any:
    """Return a model that exceeds 65,504 in layer 1, and in layer 2 by the final norm."""
    model = make_model()
    model.model.layers[1].mlp.down_proj.weight.data *= 3e6
    model.model.norm.weight.data.fill_(50_000.0)
    return model


def direct(model: Any, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        out = model(input_ids=torch.from_numpy(tokens)[None], output_hidden_states=True)
    states: np.ndarray[Any, Any] = torch.stack(out.hidden_states[1:])[:, 0].numpy()
    return states


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the shards, and the states of a direct pass by question."""
    folder = tmp_path_factory.mktemp("wide")
    model = make_wide()
    report = extract(
        model,
        make_tokenizer(),
        make_questions(16),
        folder / "traces",
        batch_size=8,
        max_new_tokens=6,
        attention=("edges",),
    )
    assert report.wide_traces > 10
    expected = {
        trace.question_id: direct(model, trace.tokens)
        for path in report.files
        for trace in read_traces(path)
    }
    options = PackOptions(missing_score="keep", attention=("edges",))
    pack([str(folder / "traces" / "*.pkl.gz")], folder / "shards", options=options)
    return folder / "shards", expected


def test_the_loader_returns_the_models_states(packed: tuple[Path, dict[str, Any]]) -> None:
    shards, expected = packed
    loader = TraceLoader(shards, split=None, tokens="all", layout="pad", batch_size=4, shuffle=0)
    seen = 0
    for batch in loader:
        assert batch.hidden is not None
        assert batch.lengths is not None
        for row, name in enumerate(batch.question_ids):
            states = expected[name]
            ours = batch.hidden[row, :, : int(batch.lengths[row])].numpy()
            assert np.isfinite(ours).all()
            assert ours.shape == states.shape
            # A power of two moves the exponent alone: errors are those of float16, times it.
            largest = np.abs(states).max(axis=(1, 2))
            scale = np.exp2(np.maximum(np.ceil(np.log2(largest / HALF_MAX)), 0))[:, None, None]
            allowed = ROUNDING * np.abs(states) + SMALLEST_STEP * scale
            # Batches round otherwise than lone passes do, in float32, relative to the layer.
            allowed += 1e-5 * largest[:, None, None]
            assert (np.abs(ours - states) <= allowed).all()
            seen += 1
    assert seen == len(expected) == 16


def test_the_index_counts_them(packed: tuple[Path, dict[str, Any]]) -> None:
    shards, expected = packed
    layers = IndexFile.model_validate_json((shards / "index.json").read_text()).layers
    assert len(layers) == LAYERS
    for number, entry in enumerate(layers):
        largest = [float(np.abs(states[number]).max()) for states in expected.values()]
        assert entry.max_abs == pytest.approx(max(largest), rel=1e-4)
        assert entry.scaled_samples == sum(value > HALF_MAX for value in largest)
        assert entry.infinities == 0
        assert 0 <= entry.scale_error_max <= ROUNDING * entry.max_abs
    assert layers[0].scaled_samples == 0
    assert layers[1].scaled_samples == len(expected)


def test_overflow_error_names_the_layer(
    packed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    traces = packed[0].parent / "traces" / "*.pkl.gz"
    options = PackOptions(missing_score="keep", overflow="error")
    with pytest.raises(WdsbenchError, match=r"question q0.*layer 1 reaches .*--overflow scale"):
        pack([str(traces)], tmp_path / "out", options=options)
    assert not (tmp_path / "out" / "index.json").exists()
