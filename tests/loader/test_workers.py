"""Worker processes yield the same batches as the training process, in every epoch."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import Packed, make_dataset
from loaded import assert_same, by_sample, check_states, wanted
from loader.teams import load, load_large, order, pids
from scripts import until
from trials import FULL_ONLY, full_only, trials

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create"),
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("no_workers_left"),
]


#: Choices that two workers make in `make test`; the full form has all, by one to three.
CHOICES: list[dict[str, Any]] = [
    {"tokens": "last", "layers": [2, 0, 0]},
    {"tokens": "answer", "layout": "jagged"},
    {"layout": "graph", "layers": [2, 0], "fields": ("logprobs", "meta")},
    {"fields": ()},
    {"tokens": "all", "layout": "pad", "verify": "hash"},
    {"drop_last": True, "batch_size": 1},
]
MORE_CHOICES: list[dict[str, Any]] = [
    {"tokens": "last"},
    {"tokens": "all", "layout": "pad"},
    {"tokens": 2, "layout": "pad", "layers": -1},
    {"layout": "graph"},
    {"fields": ("hidden", "logprobs", "meta")},
    {"fields": ("meta",)},
    {"layout": "graph", "verify": "hash"},
    {"tokens": "all", "layout": "jagged", "shuffle": 0},
    {"split": "val", "batch_size": 1000},
]


@pytest.mark.parametrize(
    "choice",
    [*CHOICES, *(pytest.param(choice, marks=FULL_ONLY) for choice in MORE_CHOICES)],
    ids=str,
)
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=FULL_ONLY), 2, pytest.param(3, marks=FULL_ONLY)]
)
def test_the_same_as_without(packed: Packed, choice: dict[str, Any], workers: int) -> None:
    alone = by_sample(load(packed, 0, **choice))
    loader = load(packed, workers, **choice)
    for _ in range(2):
        assert_same(by_sample(loader), alone)
    if choice.get("split") is None:
        assert alone.keys() == packed.raws.keys()


@pytest.mark.parametrize(
    "choice",
    [
        {"tokens": "all", "layout": "pad"},
        pytest.param({"tokens": "last"}, marks=FULL_ONLY),
        pytest.param({"layout": "graph"}, marks=FULL_ONLY),
    ],
    ids=str,
)
def test_one_worker_makes_the_same_batches(packed: Packed, choice: dict[str, Any]) -> None:
    alone = load(packed, 0, **choice)
    for ours, theirs in zip(load(packed, 1, **choice), alone, strict=True):
        assert ours.keys == theirs.keys
        states: list[Any] = [
            one.graph.x if one.graph is not None else one.hidden for one in (ours, theirs)
        ]
        assert torch.equal(states[0], states[1])
        assert torch.equal(ours.label, theirs.label)


def test_more_workers_than_samples(tmp_path: Path) -> None:
    few = make_dataset(tmp_path, traces=3)
    loader = load(few, 5, batch_size=3)
    alone = by_sample(load(few, 0))
    assert len(alone) == 3
    assert_same(by_sample(loader), alone)
    assert loader.stats.batches == len(loader)


@full_only
def test_more_workers_than_cores_keep_their_turn(packed: Packed) -> None:
    orders = [order(load(packed, 5, seed=3)) for _ in range(4)]
    assert all(one == orders[0] for one in orders)


def test_workers_are_reused(packed: Packed) -> None:
    loader = load(packed)
    first = order(loader)
    workers = pids()
    assert len(workers) == 2
    orders = [order(loader) for _ in range(5)]
    assert pids() == workers
    assert len({tuple(one) for one in [first, *orders]}) == 6
    loader.set_epoch(0)
    assert order(loader) == first


@pytest.mark.parametrize(
    "after", [5, *(pytest.param(after, marks=FULL_ONLY) for after in (1, 2, 13))]
)
def test_an_early_break(large: Packed, after: int) -> None:
    loader, other = load_large(large), load_large(large)
    orders = [order(other) for _ in range(4)]
    del other
    workers: list[int] = []
    for epoch in range(4):
        for number, batch in enumerate(loader, start=1):
            check_states(batch, large, "all")
            if number == after:
                break
        workers = workers or pids()
        assert pids() == workers
        loader.set_epoch(epoch)
        assert order(loader) == orders[epoch]
    samples = by_sample(loader)
    assert samples.keys() == large.raws.keys()
    for question_id, sample in samples.items():
        np.testing.assert_array_equal(sample["hidden"], wanted(large, question_id, "all"))


def test_an_exception_of_the_trainer(large: Packed) -> None:
    loader = load_large(large)

    def train() -> None:
        for number, _ in enumerate(loader):
            if number == 3:
                raise ZeroDivisionError("loss")

    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="loss"):
            train()
    workers = pids()
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))
    assert pids() == workers


def test_a_trainer_that_throws_into_the_iterator(large: Packed) -> None:
    loader = load_large(large)
    batches: Any = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        batches.throw(KeyError("thrown"))
    assert_same(by_sample(loader), by_sample(load_large(large, 0)))


def test_two_iterators_at_once(large: Packed) -> None:
    loader = load_large(large)
    first, second = iter(loader), iter(loader)
    lefts, rights = [], []
    for left, right in zip(first, second, strict=True):
        check_states(left, large, "all")
        check_states(right, large, "all")
        lefts += left.keys
        rights += right.keys
    assert sorted(lefts) == sorted(rights)
    assert lefts != rights  # two epochs
    fresh = load_large(large)
    assert [lefts, rights] == [order(fresh), order(fresh)]
    del first, second
    gc.collect()
    assert until(lambda: len(pids()) == 4)  # one team of this loader, one of `fresh`


def test_a_loop_inside_the_loop(packed: Packed) -> None:
    loader = load(packed, batch_size=20)
    alone = load(packed, 0).index
    for _ in loader:
        inner = [key for batch in loader for key in batch.keys]
        assert sorted(inner) == sorted(alone.keys(np.arange(len(alone))))
    assert order(loader)


def test_an_abandoned_iterator(large: Packed) -> None:
    loader = load_large(large)
    left = iter(loader)
    next(left)
    for _ in range(3):
        assert len(order(loader)) == 80
    assert sum(len(batch) for batch in left) == 76
    del left
    assert len(order(loader)) == 80


def test_workers_started_in_a_thread(packed: Packed) -> None:
    import threading

    loader = load(packed)
    seen: list[list[str]] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: seen.append(order(loader)))
        thread.start()
        thread.join()
    seen.append(order(loader))
    assert [len(one) for one in seen] == [60] * 3


@pytest.mark.trials
def test_loaders_in_several_threads(large: Packed) -> None:
    import threading

    wrong: list[Any] = []

    def work(workers: int, seed: int) -> None:
        try:
            loader = load_large(large, workers, seed=seed)
            for _ in range(trials(1, 3)):
                samples = 0
                for batch in loader:
                    check_states(batch, large, "all")
                    samples += len(batch)
                assert samples == 80
        except BaseException as error:
            wrong.append(error)

    order(load_large(large, 0))
    threads = [threading.Thread(target=work, args=(n, n)) for n in (2, 1, 0, 2)[: trials(2, 4)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
