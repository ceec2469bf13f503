"""Principal components of states: fitted on training traces alone, stored, applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import LAYERS, Packed, make_dataset
from safetensors.numpy import load

from wdsbench import TraceLoader
from wdsbench.errors import PackError
from wdsbench.pack import PackOptions
from wdsbench.pack.reduce import BLOCK_TOKENS, fit_reduction, parse_reduce
from wdsbench.shards.read.index import DatasetIndex

PCA = PackOptions(reduce="pca:3")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return make_dataset(tmp_path_factory.mktemp("data"), options=PCA)


def stored(packed: Packed) -> dict[str, np.ndarray[Any, Any]]:
    (path,) = packed.folder.glob("reduction-*.safetensors")
    index = DatasetIndex.open(packed.folder)
    assert index.file.provenance.reduction == path.name
    found: dict[str, np.ndarray[Any, Any]] = load(path.read_bytes())
    return found


def test_components_are_those_of_the_training_tokens(packed: Packed) -> None:
    index = DatasetIndex.open(packed.folder)
    train = [
        index.question_id(row) for row in range(len(index)) if index.columns["split"][row] == 0
    ]
    assert 0 < len(train) < len(index)
    found = stored(packed)
    for layer in range(LAYERS):
        states = np.concatenate([packed.hidden(question)[layer] for question in train])
        np.testing.assert_allclose(found["mean"][layer], states.mean(axis=0), atol=1e-5)
        _, sizes, axes = np.linalg.svd(states - states.mean(axis=0), full_matrices=False)
        cosines = np.abs((found["components"][layer] * axes[:3]).sum(axis=1))
        np.testing.assert_allclose(cosines, 1.0, atol=1e-3)
        share = (sizes[:3] ** 2).sum() / (sizes**2).sum()
        assert found["explained"][layer] == pytest.approx(share, abs=1e-4)


def test_batches_hold_components(packed: Packed) -> None:
    found = stored(packed)
    loader = TraceLoader(packed.folder, split=None, tokens="all", layout="pad", batch_size=7)
    assert loader.fields["hidden"].shape == (LAYERS, None, 3)
    assert loader.fields["hidden"].note == "pca:3 of [L, T, 8]"
    for batch in loader:
        assert batch.hidden is not None
        assert batch.lengths is not None
        for i, question_id in enumerate(batch.question_ids):
            centred = packed.hidden(question_id) - found["mean"][:, None]
            expected = np.einsum("ltd,lkd->ltk", centred, found["components"])
            values = batch.hidden[i, :, : int(batch.lengths[i])]
            np.testing.assert_allclose(values, expected, rtol=2e-3, atol=2e-3)


def test_the_same_input_gives_the_same_bytes(packed: Packed, tmp_path: Path) -> None:
    again = make_dataset(tmp_path, options=PCA)
    for path in packed.folder.iterdir():
        assert (again.folder / path.name).read_bytes() == path.read_bytes()


def test_many_blocks_are_one_fit() -> None:
    from wdsbench import Trace

    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, 6)) * [5, 4, 3, 0.1, 0.1, 0.1]
    sizes = [400, 1, 900, 37, 2000, 3]
    states = [rng.normal(size=(2, size, 6)) @ mixing.T for size in sizes]
    traces = [Trace(str(i), s, None, np.empty(0, np.int64), [], "") for i, s in enumerate(states)]
    assert sum(sizes) > 2 * BLOCK_TOKENS
    found = fit_reduction(traces, 2)
    joined = np.concatenate(states, axis=1)
    for layer in range(2):
        centred = joined[layer] - joined[layer].mean(axis=0)
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        cosines = np.abs((found.components[layer] * axes[:2]).sum(axis=1))
        np.testing.assert_allclose(cosines, 1.0, atol=0.02)


@pytest.mark.parametrize("text", ["pca", "pca:0", "pca:-1", "svd:3", "pca:3.5", ""])
def test_other_words(text: str) -> None:
    with pytest.raises(ValueError, match="is not pca:K"):
        parse_reduce(text)


def test_more_components_than_features(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="9 components of 8 features"):
        make_dataset(tmp_path, traces=10, options=PackOptions(reduce="pca:9"))
    assert not (tmp_path / "shards").exists()
