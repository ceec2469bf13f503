"""Shared slabs of workers: batches that are kept, dropped, or larger than a slab."""

from __future__ import annotations

import gc
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import Packed
from loaded import assert_same, by_sample, check_states, states_of, wanted
from loader.teams import load, load_large, order, pids
from scripts import open_files, until
from trials import FULL_ONLY, trials

from wdsbench import Batch
from wdsbench.loader import team as team_module
from wdsbench.loader.team import SLABS_EACH
from wdsbench.slabs import SharedSlab

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create"),
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("no_workers_left"),
]


@pytest.mark.trials
def test_breaks_while_batches_are_held(large: Packed) -> None:
    loader = load_large(large)
    held: list[Batch] = []
    for _ in range(trials(4, 10)):
        for batch in loader:
            held.append(batch)
            if len(held) % 3 == 0:
                break
    for batch in held:
        check_states(batch, large, "all")
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))


def test_all_batches_can_be_kept(large: Packed) -> None:
    loader = load_large(large)
    kept = [list(loader) for _ in range(3)]
    # Batches are not copied, except for the slabs that a worker needs.
    most = 2 * (SLABS_EACH - 1)
    assert loader.stats.batches - most <= loader.stats.copied_batches <= loader.stats.batches
    for batches in kept:
        assert sorted(i for batch in batches for i in batch.question_ids) == sorted(large.raws)
        for batch in batches:
            check_states(batch, large, "all")
    del kept, batches, batch
    gc.collect()
    for batch in loader:
        del batch
    assert loader.stats.copied_batches == 0


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda batch: batch.hidden[:, :1].numpy(), id="numpy"),
        pytest.param(lambda batch: batch.hidden.detach()[:, :1], id="detach", marks=FULL_ONLY),
        pytest.param(lambda batch: memoryview(batch.hidden.numpy())[:], id="memoryview"),
        pytest.param(
            lambda batch: batch.hidden.transpose(0, 1)[:1].transpose(0, 1),
            id="transpose",
            marks=FULL_ONLY,
        ),
    ],
)
def test_views_of_a_few_batches_are_kept_for_epochs(large: Packed, view: Any) -> None:
    loader = load_large(large, shuffle=0)
    kept = []
    for epoch in range(4):
        for number, batch in enumerate(loader):
            if number % 7 == epoch:
                kept.append((batch.question_ids, view(batch)))
            del batch
    assert len(kept) >= 8
    for question_ids, seen in kept:
        for i, question_id in enumerate(question_ids):
            expected = wanted(large, question_id, "all")[:1]
            np.testing.assert_array_equal(np.asarray(seen)[i, :1], expected)


def test_gradients_are_right(large: Packed) -> None:
    loader = load_large(large)
    for _ in range(2):
        losses = []
        weight = torch.ones(1024, requires_grad=True)
        for batch in loader:
            assert batch.hidden is not None
            losses.append((batch.hidden * weight).sum())  # the states are saved for backward
        total = torch.stack(losses).sum()
        del batch, losses
        total.backward()  # type: ignore[no-untyped-call]
        expected = sum(wanted(large, q, "all").astype(np.float64).sum((0, 1)) for q in large.raws)
        assert weight.grad is not None
        np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    "when", ["done", "open", *(pytest.param(when, marks=FULL_ONLY) for when in ("unused", "early"))]
)
def test_a_dropped_loader_frees_everything(large: Packed, when: str) -> None:
    order(load_large(large, 0))  # what is opened once is open
    files = open_files()
    loader = load_large(large)
    batches = iter(loader)
    if when != "unused":
        next(batches)
        assert len(pids()) == 2
    if when == "done":
        deque(batches, maxlen=0)
    if when == "early":
        batches.close()  # type: ignore[attr-defined]
    del loader, batches
    gc.collect()
    assert until(lambda: not pids())
    assert open_files() == files
    assert "wdsbench-slab" not in Path("/proc/self/maps").read_text()


def test_a_kept_batch_keeps_no_worker(large: Packed) -> None:
    loader = load_large(large)
    batches = iter(loader)
    kept = next(batches)
    del loader, batches
    gc.collect()
    assert until(lambda: not pids())
    check_states(kept, large, "all")
    kept.hidden.fill_(1.0)  # type: ignore[union-attr]


@pytest.mark.trials
def test_many_loaders_come_and_go(packed: Packed) -> None:
    order(load(packed, 0))
    files = open_files()
    for _ in range(trials(2, 8)):
        assert len(order(load(packed))) == 60
    gc.collect()
    assert until(lambda: not pids())
    assert open_files() == files


@pytest.mark.parametrize(
    ("layout", "limit"),
    [
        ("graph", 0),
        ("stack", 2 * 3 * 300_000),
        *(
            pytest.param(*pair, marks=FULL_ONLY)
            for pair in (("stack", 0), ("graph", 2 * 3 * 300_000))
        ),
        *(pytest.param(layout, 2 * 3 * 4096, marks=FULL_ONLY) for layout in ("stack", "graph")),
    ],
)
def test_batches_larger_than_a_slab(
    large: Packed, monkeypatch: pytest.MonkeyPatch, limit: int, layout: str
) -> None:
    monkeypatch.setattr(team_module, "SHARED_LIMIT_BYTES", limit)
    loader = load_large(large, layout=layout)
    alone = by_sample(load_large(large, 0, layout=layout))
    for _ in range(2):
        assert_same(by_sample(loader), alone)
        assert loader.stats.copied_batches == loader.stats.batches


def test_some_batches_larger_than_a_slab(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = load(packed, 0, tokens="all", layout="jagged", batch_size=3)
    sizes = [batch.hidden.nbytes for batch in alone if batch.hidden is not None]
    monkeypatch.setattr(team_module, "SHARED_LIMIT_BYTES", 2 * 3 * sorted(sizes)[len(sizes) // 2])
    loader = load(packed, tokens="all", layout="jagged", batch_size=3)
    assert_same(by_sample(loader), by_sample(alone))
    assert 0 < loader.stats.copied_batches < loader.stats.batches


def test_shared_memory_is_limited(large: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_module, "SHARED_LIMIT_BYTES", 3_000_000)
    sizes: list[int] = []
    make = SharedSlab

    def count(size: int) -> Any:
        sizes.append(size)
        return make(size)

    monkeypatch.setattr(team_module, "SharedSlab", count)
    order(load_large(large))
    assert len(sizes) == 2 * SLABS_EACH
    assert sum(sizes) <= 3_000_000


def test_released_memory_is_reused(large: Packed) -> None:
    loader = load_large(large)
    places = set()
    for _ in range(4):
        for batch in loader:
            assert batch.hidden is not None
            places.add(batch.hidden.data_ptr())
            states_of(batch, 0)
            del batch
    assert len(places) <= 2 * SLABS_EACH
    assert loader.stats.copied_batches == 0


def test_metas_larger_than_a_pipe_holds(tmp_path: Path) -> None:
    from builders import make_raw, write_pickle, write_scores

    from wdsbench.pack import pack

    raws = {f"q{i}": make_raw(f"q{i}", seed=i) for i in range(12)}
    for raw in raws.values():
        raw["generated_answer_clean"] = raw["question_id"] * 100_000
    write_pickle(tmp_path / "t.pkl", list(raws.values()))
    scores = write_scores(tmp_path / "s.csv", dict.fromkeys(raws, 1.0))
    pack([str(tmp_path / "t.pkl")], tmp_path / "shards", scores=scores)
    packed = Packed(tmp_path / "shards", raws, {})
    loader = load(packed, fields=("hidden", "meta"), batch_size=2)
    for epoch in range(3):
        for batch in loader:
            assert batch.meta is not None
            for question_id, meta in zip(batch.question_ids, batch.meta, strict=True):
                assert meta["answer"] == question_id * 100_000
            if epoch == 1:
                break
    assert loader.stats.samples == 12
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    del first, second, loader
