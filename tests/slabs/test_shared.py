"""Shared slabs of two processes, and leases that end once, with the last view."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripts import open_files, until
from trials import FULL_ONLY, trials

from wdsbench.errors import WdsbenchError
from wdsbench.processes import Channel, start_workers, stop_workers
from wdsbench.slabs import Lease, SharedSlab, SlabCursor, SlabFullError
from wdsbench.slabs.shared import ALIGN_BYTES

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create")

SHM = " /dev/shm/"


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def maps() -> int:
    """Return how many slabs this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:wdsbench-slab")


def test_a_new_slab_is_zero_and_allocated() -> None:
    slab = SharedSlab(1_000_001)
    assert slab.memory.shape == (1_000_001,)
    assert slab.memory.flags.writeable
    assert slab.memory.ctypes.data % 4096 == 0
    assert not slab.memory.any()


def test_nothing_is_put_into_dev_shm() -> None:
    def mapped() -> list[str]:  # other processes put what they like there
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if SHM in line]

    before = mapped()
    slab = SharedSlab(1 << 20)
    slab.memory[:] = 1
    assert mapped() == before


@pytest.mark.parametrize("close", [False, True])
def test_descriptor_and_map_are_freed(close: bool) -> None:
    files, before = open_files(), maps()
    slabs = [SharedSlab(10_000) for _ in range(10)]
    assert maps() == before + 10
    for slab in slabs:
        if close:
            slab.close()
            slab.close()
        slab.memory[:] = 1
    del slab, slabs
    assert maps() == before
    assert open_files() == files


def test_memory_outlives_the_slab() -> None:
    before = maps()
    slab = SharedSlab(ALIGN_BYTES * 10)
    tensor = SlabCursor(slab.memory).tensor((16,))
    slab.close()
    del slab
    gc.collect()
    tensor.fill_(3.0)
    assert maps() == before + 1
    assert (tensor == 3).all()
    del tensor
    assert maps() == before


def test_systems_without_memfd_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(WdsbenchError, match="use num_workers=0"):
        SharedSlab(10)


def write_there(channel: Channel, size: int, descriptor: int) -> None:
    slab = SharedSlab(size, descriptor)
    while (value := channel.receive()) is not None:
        channel.send(int(slab.memory.astype(np.int64).sum()))
        slab.memory[:] = value
        channel.send(None)


@pytest.mark.parametrize("fork", [True, pytest.param(False, marks=FULL_ONLY)])
def test_two_processes_see_the_same_bytes(fork: bool) -> None:
    files = open_files()
    slab = SharedSlab(100_000)
    arguments = (100_000, slab.descriptor)
    workers = start_workers(write_there, [arguments], fork=fork, descriptors=[(slab.descriptor,)])
    slab.close()
    (worker,) = workers
    for value in (1, 7):
        slab.memory[:] = value
        worker.send(value + 1)
        assert worker.receive() == value * 100_000
        worker.receive()
        assert (slab.memory == value + 1).all()
    stop_workers(workers)
    del slab, worker
    gc.collect()
    assert open_files() == files


def test_tensors_are_placed_in_order() -> None:
    memory = SharedSlab(1 << 16).memory
    cursor, again = SlabCursor(memory), SlabCursor(memory)
    asked: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((3, 5), torch.float32),
        ((1,), torch.int64),
        ((0, 7), torch.float16),
        ((2, 0), torch.int64),
        ((33,), torch.bfloat16),
        ((17, 3, 2), torch.float16),
        ((), torch.float32),
    ]
    written, read = [], []
    for number, (shape, dtype) in enumerate(asked):
        tensor = cursor.tensor(shape, dtype)
        assert tensor.shape == shape
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        if tensor.numel():
            assert (tensor.data_ptr() - memory.ctypes.data) % ALIGN_BYTES == 0
        tensor.fill_(number + 1)
        written.append(tensor)
    for number, (shape, dtype) in enumerate(asked):
        read.append(again.tensor(shape, dtype))
        assert (read[-1] == number + 1).all()
    for number, tensor in enumerate(written):
        assert (tensor == number + 1).all()


def test_a_slab_is_filled_to_its_last_byte() -> None:
    memory = SharedSlab(3 * ALIGN_BYTES + 4).memory
    cursor = SlabCursor(memory)
    cursor.tensor((33,))  # 132 bytes: up to 192
    with pytest.raises(SlabFullError, match="72 bytes after 192 of 196"):
        cursor.tensor((18,))
    cursor.tensor((1,)).fill_(1.0)
    assert (memory[192:].view(np.float32) == 1).all()
    with pytest.raises(SlabFullError):
        cursor.tensor((1,))
    with pytest.raises(SlabFullError):
        SlabCursor(memory).tensor((50,))
    with pytest.raises(SlabFullError):
        SlabCursor(memory).tensor((2**40, 2**30))


def test_tensors_without_a_lease() -> None:
    tensor = SlabCursor(SharedSlab(100).memory).tensor((5,))
    del tensor
    gc.collect()


@pytest.fixture
def given() -> list[int]:
    return []


def leased(given: list[int], count: int) -> tuple[Lease, list[torch.Tensor]]:
    lease = Lease(lambda: given.append(1))
    cursor = SlabCursor(SharedSlab(1 << 16).memory, lease)
    return lease, [cursor.tensor((100,)) for _ in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_sealed_then_dropped(given: list[int], count: int) -> None:
    lease, tensors = leased(given, count)
    lease.seal()
    while tensors:
        assert given == []
        tensors.pop()
    assert given == [1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_dropped_then_sealed(given: list[int], count: int) -> None:
    lease, tensors = leased(given, count)
    tensors.clear()
    assert given == []
    lease.seal()
    assert given == [1]


def test_dropped_before_the_next_is_added(given: list[int]) -> None:
    lease = Lease(lambda: given.append(1))
    cursor = SlabCursor(SharedSlab(1 << 16).memory, lease)
    for _ in range(5):
        cursor.tensor((10,))
        assert given == []
    last = cursor.tensor((10,))
    lease.seal()
    assert given == []
    del last
    assert given == [1]


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t[3:5],
        lambda t: t.detach(),
        lambda t: t.numpy(),
        lambda t: t.numpy()[::2].T,
        lambda t: t.view(-1).unsqueeze(0),
        lambda t: memoryview(t.numpy()),
        lambda t: t.view(torch.int32),
        lambda t: t.untyped_storage(),
        lambda t: (t * torch.ones(1, requires_grad=True)).grad_fn,
        lambda t: torch.nn.Parameter(t),
        lambda t: torch.from_dlpack(t),  # type: ignore[attr-defined]
    ],
)
def test_every_view_keeps_the_memory(given: list[int], hold: Callable[[torch.Tensor], Any]) -> None:
    lease, (tensor,) = leased(given, 1)
    lease.seal()
    held = hold(tensor)
    del tensor
    assert given == []
    del held
    if not given:
        gc.collect()
    assert given == [1]


def test_a_copy_does_not_keep_the_memory(given: list[int]) -> None:
    lease, (tensor,) = leased(given, 1)
    lease.seal()
    copies = [tensor.clone(), tensor + 1, tensor.double(), tensor.numpy().copy()]
    del tensor
    assert given == [1]
    del copies


@pytest.mark.trials
def test_views_dropped_in_several_threads() -> None:
    rng = random.Random(0)
    for _ in range(trials(50, 200)):
        given: list[int] = []
        lease, tensors = leased(given, 8)
        rng.shuffle(tensors)
        shares = [[tensors.pop(), tensors.pop()] for _ in range(4)]
        barrier = threading.Barrier(5)

        def drop(share: list[torch.Tensor], barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            share.clear()

        threads = [threading.Thread(target=drop, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        barrier.wait()
        lease.seal()
        for thread in threads:
            thread.join()
        assert given == [1]


def test_views_in_a_cycle_are_freed_by_the_collector(given: list[int]) -> None:
    lease, tensors = leased(given, 2)
    lease.seal()
    cycle: list[Any] = [tensors]
    cycle.append(cycle)
    del tensors, cycle
    gc.collect()
    assert until(lambda: given == [1])
