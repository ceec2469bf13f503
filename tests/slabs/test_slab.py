"""Leases: memory is reused once its last view is dropped, never before."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from trials import trials

from wdsbench.slabs import SlabPool
from wdsbench.slabs.slab import SLAB_LEAST_BYTES, SLABS

SHAPE = (64, 1024)

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with CUDA the memory is torch's own pinned allocator"
)


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_dropped_memory_is_used_again() -> None:
    pool = SlabPool()
    first = pool.tensor(SHAPE)
    where = place(first)
    del first
    second = pool.tensor(SHAPE)
    assert place(second) == where
    assert second.shape == SHAPE
    assert second.dtype == torch.float32


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t[3:5],
        lambda t: t.detach(),
        lambda t: t.numpy(),
        lambda t: t.view(-1).unsqueeze(0),
        lambda t: memoryview(t.numpy()),
        lambda t: (t * torch.ones(1, requires_grad=True)).grad_fn,
    ],
    ids=["slice", "detach", "numpy", "view", "memoryview", "saved for backward"],
)
def test_every_view_keeps_the_memory(hold: Callable[[torch.Tensor], Any]) -> None:
    pool = SlabPool()
    tensor = pool.tensor(SHAPE)
    tensor.fill_(1.0)
    where = place(tensor)
    held = hold(tensor)
    del tensor
    other = pool.tensor(SHAPE)
    assert place(other) != where
    del held, other
    gc.collect()
    assert where in {place(t) for t in [pool.tensor(SHAPE) for _ in range(SLABS)]}


def test_a_consumer_can_hold_any_number() -> None:
    pool = SlabPool()
    held = []
    for i in range(5 * SLABS):
        tensor = pool.tensor(SHAPE)
        tensor.fill_(i)
        held.append(tensor)
    assert len({place(tensor) for tensor in held}) == len(held)
    assert all((tensor == i).all() for i, tensor in enumerate(held))
    assert pool.ordinary == 4 * SLABS


def test_slabs_grow_with_their_tensors() -> None:
    pool = SlabPool(slabs=1)
    for rows in (64, 128, 32, 256):
        tensor = pool.tensor((rows, 1024), torch.int64)
        tensor.fill_(rows)
        assert int(tensor.sum()) == rows * rows * 1024
        del tensor
    assert pool.ordinary == 0


def test_small_tensors_take_no_slab() -> None:
    pool = SlabPool(slabs=1)
    small = [pool.tensor((SLAB_LEAST_BYTES // 4 - 1,)) for _ in range(10)]
    assert len({place(tensor) for tensor in small}) == 10
    assert pool.ordinary == 0


def test_a_pool_outlived_by_its_tensors() -> None:
    tensor = SlabPool().tensor(SHAPE)
    gc.collect()
    tensor.fill_(2.0)
    assert (tensor == 2).all()


def test_pools_are_pickled_empty() -> None:
    pool = SlabPool(3)
    held = pool.tensor(SHAPE)
    again = pickle.loads(pickle.dumps(pool))
    assert place(again.tensor(SHAPE)) != place(held)


@pytest.mark.trials
def test_threads_share_a_pool() -> None:
    pool = SlabPool()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(trials(60, 300)):
            tensor = pool.tensor(SHAPE)
            tensor.fill_(number)
            if not (tensor == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
