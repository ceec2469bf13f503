"""Copies to a device, one ahead: tests without a GPU, and tests that need one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import Packed, make_dataset
from loaded import check_states, states_of, wanted

from wdsbench import TraceLoader
from wdsbench.slabs import SharedSlab
from wdsbench.slabs.transfer import DeviceCopies, pin, recorded_events, tensors_of


@dataclass
class Item:
    values: torch.Tensor
    name: str = ""
    graph: Any = None


def to(device: str) -> Any:
    return lambda item: Item(item.values.to(device, non_blocking=True), item.name)


def test_on_a_cpu_items_pass_one_by_one() -> None:
    asked: list[int] = []

    def items() -> Iterator[Item]:
        for i in range(5):
            asked.append(i)
            yield Item(torch.full((3,), float(i)), str(i))

    copies = DeviceCopies(torch.device("cpu"), to("cpu"))
    for i, item in enumerate(copies(items())):
        assert item.name == str(i)
        assert (item.values == i).all()
        assert asked[-1] == i  # nothing is gained by being ahead
    assert copies.copy_seconds == 0
    assert list(copies(iter([]))) == []


def test_on_a_cpu_errors_pass_through() -> None:
    def items() -> Iterator[Item]:
        yield Item(torch.zeros(1))
        raise KeyError("broken")

    moved = DeviceCopies(torch.device("cpu"), to("cpu"))(items())
    next(moved)
    with pytest.raises(KeyError, match="broken"):
        next(moved)


def test_an_early_end_closes_the_source() -> None:
    closed: list[bool] = []

    def items() -> Iterator[Item]:
        try:
            for _ in range(10):
                yield Item(torch.zeros(1))
        finally:
            closed.append(True)

    moved = DeviceCopies(torch.device("cpu"), to("cpu"))(items())
    next(moved)
    moved.close()
    gc.collect()
    assert closed == [True]


def test_a_host_batch_has_no_cuda_tensors() -> None:
    assert list(tensors_of(Item(torch.zeros(3)))) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="without CUDA")
def test_pin_and_events_without_cuda() -> None:
    slab = SharedSlab(100)
    pin(slab.memory)
    assert recorded_events() == []


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder: Path = tmp_path_factory.mktemp("data")
    return make_dataset(folder, traces=60, features=2048, tokens=8, layers=4)


@pytest.mark.gpu
def test_one_ahead_and_in_order() -> None:
    asked: list[int] = []

    def items() -> Iterator[Item]:
        for i in range(20):
            asked.append(i)
            yield Item(torch.full((1 << 20,), float(i)).pin_memory(), str(i))

    copies = DeviceCopies(torch.device("cuda"), to("cuda"))
    for i, item in enumerate(copies(items())):
        assert asked[-1] == min(i + 1, 19)
        assert item.values.is_cuda
        assert bool((item.values == i).all())
    assert copies.copy_seconds > 0
    assert not copies._pending


@pytest.mark.gpu
def test_the_host_side_is_kept_until_its_copy_is_done() -> None:
    # Every item reuses the pinned memory that the last one's finaliser gave back.
    free: list[torch.Tensor] = []

    def items() -> Iterator[Item]:
        for i in range(50):
            memory = free.pop() if free else torch.empty(1 << 22).pin_memory()
            memory.fill_(float(i))
            item = Item(memory, str(i))
            yield item
            del item, memory

    for i, item in enumerate(DeviceCopies(torch.device("cuda"), to("cuda"))(items())):
        torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
        assert float(item.values.mean()) == i


@pytest.mark.gpu
def test_a_slab_is_pinned_and_unpinned() -> None:
    for _ in range(3):
        slab = SharedSlab(1 << 20)
        pin(slab.memory)
        tensor = torch.from_numpy(slab.memory)
        assert tensor.is_pinned()
        tensor.fill_(7)
        assert bool((tensor.to("cuda", non_blocking=True) == 7).all())
        del tensor, slab
        gc.collect()
    assert len(recorded_events()) == torch.cuda.device_count()


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("widen", ["host", "device"])
def test_batches_are_right_under_a_training_loop(packed: Packed, workers: int, widen: str) -> None:
    weight = torch.nn.Linear(2048, 512, device="cuda")
    optimizer = torch.optim.SGD(weight.parameters(), lr=1e-6)
    loader = TraceLoader(
        packed.folder,
        split=None,
        tokens="all",
        batch_size=8,
        num_workers=workers,
        device="cuda",
        widen=widen,
    )
    for _ in range(3):
        seen = 0
        for batch in loader:
            assert batch.hidden is not None
            assert batch.hidden.is_cuda
            loss = weight(batch.hidden).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            check_states(batch, packed, "all")
            seen += len(batch)
        assert seen == 60
    assert loader.stats.copied_batches == 0


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_kept_batches_stay_right(packed: Packed, workers: int) -> None:
    loader = TraceLoader(
        packed.folder, split=None, tokens="all", batch_size=4, num_workers=workers, device="cuda"
    )
    kept = [batch for _ in range(3) for batch in loader]
    for batch in kept:
        check_states(batch, packed, "all")


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_a_users_own_copies_are_safe(packed: Packed, workers: int) -> None:
    loader = TraceLoader(packed.folder, split=None, tokens="all", batch_size=4, num_workers=workers)
    for _ in range(3):
        copies = []
        for batch in loader:
            assert batch.hidden is not None
            torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call]
            copies.append((batch.question_ids, batch.hidden.to("cuda", non_blocking=True)))
            del batch  # the slab may be given back, not written to
        for question_ids, hidden in copies:
            for i, question_id in enumerate(question_ids):
                expected = wanted(packed, question_id, "all")
                np.testing.assert_array_equal(hidden[i].cpu().numpy(), expected)


@pytest.mark.gpu
def test_slabs_of_workers_are_pinned(packed: Packed) -> None:
    loader = TraceLoader(packed.folder, split=None, tokens="all", batch_size=4, num_workers=2)
    for batch in loader:
        assert batch.hidden is not None
        assert batch.hidden.is_pinned()
        assert states_of(batch, 0) is not None
