"""Does the GPU wait for data? Bound by the link to it: repeated copies of one pinned batch.

Case A on a CUDA device. ``pinned-copy`` is the ceiling; ``train-host``, ``train-device`` (float16
is copied and widened on the device) and ``train-w2`` are epochs of an LSTM over streamed batches,
with the rate of their copies while they run; ``train-resident`` repeats the steps over one batch on
the GPU. Waiting is the time from the end of a step until its stream may use the next batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

import torch
from torch import nn

from wdsbench.bench.data import SHAPES, Shape, make_shards
from wdsbench.bench.part import SHUFFLE, WORKERS, Part, Settings
from wdsbench.bench.timing import CaseResult, spread, take_turns
from wdsbench.errors import WdsbenchError
from wdsbench.loader import TraceLoader

_Pair = tuple[torch.Tensor, torch.Tensor]

HIDDEN = 256
COPIES = 50


@dataclass(frozen=True)
class _Epoch:
    """One epoch of training."""

    seconds: float
    waited: float = 0.0  # share of the GPU's time in which its stream waited for a batch
    copy_gbps: float = 0.0  # while copies ran; 0 without copies


def gpu_part(settings: Settings, shape: Shape = SHAPES["A"]) -> Part:
    """Return copy rates and epochs on the current CUDA device."""
    if not torch.cuda.is_available():
        raise WdsbenchError("part gpu needs a CUDA device; remove it from --cases")
    shape = shape.scaled(settings.scale)
    shards = make_shards(shape, settings.data / shape.folder_name, settings.progress)
    trainer = _Trainer(shape)

    def streamed(widen: str, workers: int = 0) -> Callable[[], _Epoch]:
        loader = TraceLoader(
            shards,
            batch_size=shape.batch_size,
            shuffle=SHUFFLE,
            device="cuda",
            widen=widen,
            num_workers=workers,
        )
        width = 4 if widen == "host" else 2
        size = shape.samples * shape.layers * shape.features * width

        def epoch() -> _Epoch:
            done = trainer.epoch(
                (batch.hidden, batch.label) for batch in loader if batch.hidden is not None
            )
            return replace(done, copy_gbps=size / loader.stats.copy_seconds / 1e9)

        return epoch

    resident = [trainer.resident_batch()] * -(-shape.samples // shape.batch_size)
    cases = {
        "pinned-copy": lambda: _Epoch(0.0, copy_gbps=_pinned_gbps(shape)),
        "train-resident": lambda: trainer.epoch(resident),
        "train-host": streamed("host"),
        "train-device": streamed("device"),
        "train-w2": streamed("host", WORKERS),
    }
    for case in settings.progress(cases.values(), len(cases), "warming up"):
        case()
    found = take_turns(cases, settings.repeats, progress=settings.progress)
    results = [_result(name, epochs, shape) for name, epochs in found.items()]
    middle = {name: _middle(epochs) for name, epochs in found.items()}
    ratios: dict[str, float] = {}
    for name in ("train-host", "train-device", "train-w2"):
        key = name.replace("-", "_")
        ratios[f"{key}_copy_over_pinned"] = middle[name].copy_gbps / middle["pinned-copy"].copy_gbps
        ratios[f"{key}_gpu_waited"] = middle[name].waited
        ratios[f"{key}_over_resident"] = middle[name].seconds / middle["train-resident"].seconds
    return Part(
        name="gpu",
        title=f"gpu: {torch.cuda.get_device_name()}, LSTM of hidden {HIDDEN} over A",
        results=results,
        ratios=ratios,
        measure="gbps",
        unit="GB/s to the GPU while copying",
        baseline="pinned-copy",
        facts={**asdict(shape), "hidden": HIDDEN, "shuffle": SHUFFLE, "workers": WORKERS},
        notes=[f"{name}: {value:.3f}" for name, value in ratios.items()],
    )


class _Trainer:
    """An LSTM over layers, its optimizer, and the events that measure waiting."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._lstm = nn.LSTM(shape.features, HIDDEN, batch_first=True).cuda()
        self._head = nn.Linear(HIDDEN, 1).cuda()
        weights = [*self._lstm.parameters(), *self._head.parameters()]
        self._optimizer = torch.optim.AdamW(weights, fused=True)

    def resident_batch(self) -> _Pair:
        shape = self._shape
        states = torch.randn(shape.batch_size, shape.layers, shape.features, device="cuda")
        return states, torch.zeros(shape.batch_size, device="cuda")

    def epoch(self, batches: Iterable[_Pair]) -> _Epoch:
        torch.cuda.synchronize()
        marks = [_mark()]
        start = time.perf_counter()
        for states, label in batches:
            marks.append(_mark())
            self._step(states, label)
            marks.append(_mark())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        waits = zip(marks[0::2], marks[1::2], strict=False)
        waited = sum(_milliseconds(before, after) for before, after in waits)
        return _Epoch(seconds, waited / _milliseconds(marks[0], marks[-1]))

    def _step(self, states: torch.Tensor, label: torch.Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        out, _ = self._lstm(states)
        logits = self._head(out[:, -1]).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, label.nan_to_num())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _pinned_gbps(shape: Shape) -> float:
    host = torch.zeros(shape.batch_size, shape.layers, shape.features, pin_memory=True)
    there = torch.empty_like(host, device="cuda")
    there.copy_(host, non_blocking=True)
    before = _mark()
    for _ in range(COPIES):
        there.copy_(host, non_blocking=True)
    after = _mark()
    torch.cuda.synchronize()
    return COPIES * host.numel() * 4 / _milliseconds(before, after) / 1e6


def _milliseconds(before: torch.cuda.Event, after: torch.cuda.Event) -> float:
    return float(before.elapsed_time(after))


def _middle(epochs: list[_Epoch]) -> _Epoch:
    return _Epoch(
        statistics.median(epoch.seconds for epoch in epochs),
        statistics.median(epoch.waited for epoch in epochs),
        statistics.median(epoch.copy_gbps for epoch in epochs),
    )


def _result(name: str, epochs: list[_Epoch], shape: Shape) -> CaseResult:
    middle = _middle(epochs)
    trained = middle.seconds > 0
    return CaseResult(
        name,
        spread([epoch.seconds if trained else epoch.copy_gbps for epoch in epochs]),
        len(epochs),
        gbps=middle.copy_gbps,
        samples_per_s=shape.samples / middle.seconds if trained else None,
        seconds=middle.seconds if trained else None,
        epochs=len(epochs) if trained else None,
    )
