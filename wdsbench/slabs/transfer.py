"""Copies to the GPU: pinned slabs, and batches copied on a separate stream, one batch ahead.

While the trainer works on batch n, batch n + 1 is copied; the trainer's stream waits for the copy
on the device, not on the host. Host memory is kept until its copy is done, device memory until the
trainer's stream is done with it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray

from wdsbench.records import Batch

T = TypeVar("T")


def pin(memory: NDArray[Any]) -> None:
    """Register memory with CUDA, so that copies from it are asynchronous; no-op without CUDA."""
    if not torch.cuda.is_available():
        return
    torch.cuda.init()  # type: ignore[no-untyped-call]
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.ctypes.data
    code = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
    if code:
        raise RuntimeError(f"cudaHostRegister of {memory.nbytes / 1e6:.0f} MB: error {code}")
    weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False


def recorded_events() -> list[torch.cuda.Event]:
    """Return an event recorded now on the current stream of every device; none without CUDA.

    When they are done, so are all copies that the consumer has queued from memory it drops now.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return []
    return [
        torch.cuda.current_stream(device).record_event()
        for device in range(torch.cuda.device_count())
    ]


def is_done(event: torch.cuda.Event) -> bool:
    """Return True if the device has passed ``event``."""
    return bool(event.query())  # type: ignore[no-untyped-call]


class DeviceCopies(Generic[T]):
    """Moves items to a device, one ahead of the consumer.

    ``copy_seconds`` is the busy time of the copy stream for the items yielded so far.
    """

    def __init__(self, device: torch.device, move: Callable[[T], T]) -> None:
        """Make copies by ``move``, which calls ``.to(device, non_blocking=True)`` on tensors."""
        self._device = device
        self._move = move
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pending: deque[_Copy[T]] = deque()
        self.copy_seconds = 0.0

    def __call__(self, items: Iterator[T]) -> Generator[T]:
        """Yield every item on the device, usable on the current stream without waiting."""
        if self._stream is None:
            yield from map(self._move, items)
            return
        ahead: _Copy[T] | None = None
        for item in items:
            started = self._start(item, self._stream)
            if ahead is not None:
                yield self._finish(ahead)
            ahead = started
        if ahead is not None:
            yield self._finish(ahead)
        self._drop_done(wait=True)

    def _start(self, item: T, stream: torch.cuda.Stream) -> _Copy[T]:
        before, after = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        with torch.cuda.stream(stream):
            before.record()
            moved = self._move(item)
            after.record()
        self._drop_done(wait=False)
        copy = _Copy(item, moved, before, after)
        self._pending.append(copy)
        return copy

    def _finish(self, copy: _Copy[T]) -> T:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copy.after)
        moved = copy.moved
        assert moved is not None
        for tensor in tensors_of(moved):
            tensor.record_stream(current)
        copy.moved = None
        return moved

    def _drop_done(self, *, wait: bool) -> None:
        """Free the host memory of copies that are done."""
        while self._pending and (wait or is_done(self._pending[0].after)):
            copy = self._pending.popleft()
            copy.after.synchronize()
            self.copy_seconds += copy.before.elapsed_time(copy.after) / 1e3


@dataclass
class _Copy(Generic[T]):
    """A copy in progress, and the host memory that it reads."""

    item: T
    moved: T | None
    before: torch.cuda.Event
    after: torch.cuda.Event


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield every CUDA tensor in a dataclass-like object, one level of mappings down."""
    for item in vars(value).values():
        if isinstance(item, torch.Tensor):
            if item.is_cuda:
                yield item
        elif hasattr(item, "to_dict"):  # torch_geometric's Batch
            for inner in item.to_dict().values():
                if isinstance(inner, torch.Tensor) and inner.is_cuda:
                    yield inner


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with every tensor (and graph) on ``device``, states and images float32."""
    moved: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if hasattr(value, "to"):
            moved[item.name] = value.to(device, non_blocking=True)
    there = replace(batch, **moved)
    if there.hidden is not None:
        there.hidden = _widened(there.hidden, there.hidden_scale)
    if there.graph is not None:
        there.graph.x = _widened(there.graph.x, there.hidden_scale)
    if there.image is not None:
        there.image = _normalised(there.image, there.image_range)
    there.hidden_scale = there.image_range = None
    return there


def _widened(states: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return float32 states, multiplied by a scale that broadcasts against them."""
    states = states.float()
    return states if scale is None else states.mul_(scale)


def _normalised(image: torch.Tensor, ranges: torch.Tensor | None) -> torch.Tensor:
    """Return float32 patches, (x - low) / (high - low) if there are ranges, 0 if one is empty."""
    if ranges is None:
        return image
    low, high = ranges[:, :, :1, None], ranges[:, :, 1:, None]
    width = high - low
    usable = (width > 0) & width.isfinite()
    return torch.where(usable, image.float().sub_(low).div_(width), 0.0)
