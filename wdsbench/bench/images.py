"""Images: ours next to a lazy data set of files and to all files in memory; memory; packing.

The files are uncompressed TIFF, which is best for the lazy data set: it reads each image, resizes
it to the patch, maps its smallest and largest value to 0 and 1, and batches. There are `FILES`
different files; all others are hard links. ``python -m wdsbench.bench.images SHARDS`` is the
process whose memory is measured: it trains an autoencoder on a few batches of ``SHARDS``, or of
zeros for ``-``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tifffile
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from wdsbench.bench.data import SEED
from wdsbench.bench.part import (
    LOADER_FACTS,
    THREADS,
    WORKERS,
    Part,
    Settings,
    measured_rates,
    rate_ratios,
)
from wdsbench.bench.timing import (
    CaseResult,
    Work,
    consumed,
    footprint_mb,
    in_seconds,
    new_process,
    spread,
    take_turns,
)
from wdsbench.detect.images import ConvAutoencoder
from wdsbench.detect.registry import DetectorShape
from wdsbench.loader import TraceLoader
from wdsbench.pack.image_samples import ImageOptions
from wdsbench.pack.images import pack_images
from wdsbench.progress import Progress, no_progress

#: Different files.
FILES = 50
HEIGHT, WIDTH, CHANNELS = 2000, 3000, 3
PATCH = 128
BATCH_SIZE = 8
#: The lazy readers stop after this many seconds: all their batches cost the same.
LAZY_SECONDS = 4.0
#: Largest number of images that are held in memory at once, 18 MB each.
MOST_IN_MEMORY = 200
#: Makes glibc return the memory of tensors that are freed. What it keeps for later otherwise varies
#: by 80 MB from run to run.
_RETURNING = {"MALLOC_MMAP_THRESHOLD_": "65536"}
#: Training steps of the process whose memory is measured.
STEPS = 20
MOST_REPEATS = 3


def rates_part(count: int, settings: Settings) -> Part:
    """Return the rates of ``count`` images."""
    count = max(BATCH_SIZE, int(count * settings.scale))
    folder, shards = make_images(settings.data, count, settings.progress)
    paths = sorted(folder.iterdir())
    loader = partial(
        TraceLoader,
        shards,
        None,
        fields=("image",),
        layout="image",
        batch_size=BATCH_SIZE,
    )

    def ours(threads: int, workers: int) -> Callable[[], Work]:
        opened = loader(threads=threads, num_workers=workers)
        return lambda: consumed((b.image for b in opened if b.image is not None), count)

    def lazy(workers: int) -> Callable[[], Work]:
        batches: DataLoader[torch.Tensor] = DataLoader(
            LazyImages(paths),
            BATCH_SIZE,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        return lambda: consumed(batches, count, most_seconds=LAZY_SECONDS)

    cases = {"lazy-w0": lazy(0), f"lazy-w{WORKERS}": lazy(WORKERS)}
    cases |= {"ours-t1": ours(1, 0), "ours-t2": ours(THREADS, 0), "ours-w2": ours(1, WORKERS)}
    notes = []
    if count <= MOST_IN_MEMORY:
        cases["in-memory"] = _in_memory(paths)
    else:
        size = count * HEIGHT * WIDTH * CHANNELS / 1e9
        notes.append(f"in-memory is left out: {count} images are {size:.0f} GB")
    results = measured_rates(cases, settings)
    return Part(
        name=f"images-{count}",
        title=f"images-{count}: {HEIGHT} x {WIDTH} x {CHANNELS} uint8, patches of {PATCH}",
        results=results,
        ratios=rate_ratios(results, "samples_per_s"),
        measure="samples_per_s",
        unit="images/s",
        baseline="lazy-w0",
        facts={**_FACTS, "images": count, **LOADER_FACTS},
        notes=notes,
    )


def memory_part(settings: Settings) -> Part:
    """Return the memory of training on 50 and on 800 images, and of the model alone."""
    counts = [max(BATCH_SIZE, int(count * settings.scale)) for count in (50, 800)]
    sources = {"model": "-"}
    for count in counts:
        sources[f"ours-{count}"] = str(make_images(settings.data, count, settings.progress)[1])
    repeats = min(settings.repeats, MOST_REPEATS)
    cases = {
        name: new_process(__spec__.name, [source], **_RETURNING) for name, source in sources.items()
    }
    found = take_turns(cases, repeats, progress=settings.progress)
    results = [
        CaseResult(name, spread(values), repeats, memory_mb=statistics.median(values))
        for name, values in found.items()
    ]
    model, few, many = (result.memory_mb or 0.0 for result in results)
    return Part(
        name="memory",
        title=f"memory: training an autoencoder, {counts[0]} and {counts[1]} images",
        results=results,
        ratios={"growth_mb": many - few, "above_model_mb": many - model},
        measure="memory_mb",
        unit="MB, anonymous and shared",
        facts={**_FACTS, "steps": STEPS, "threads": THREADS},
    )


def pack_part(settings: Settings) -> Part:
    """Return the seconds of packing, and of reading and decoding the files with tifffile."""
    count = max(2, int(FILES * settings.scale))
    folder, _ = make_images(settings.data, count, settings.progress)
    paths = sorted(folder.iterdir())
    runs = iter(range(sys.maxsize))

    def decode() -> float:
        start = time.perf_counter()
        for path in paths:
            tifffile.imread(path)
        return time.perf_counter() - start

    def pack() -> float:
        out = settings.data / f"packed-{next(runs)}"
        start = time.perf_counter()
        pack_images(str(folder), out, _OPTIONS)
        seconds = time.perf_counter() - start
        for path in out.iterdir():
            path.unlink()
        out.rmdir()
        return seconds

    results = in_seconds(
        {"tifffile": decode, "ours": pack}, repeats=settings.repeats, progress=settings.progress
    )
    seconds = {result.name: result.seconds or 0.0 for result in results}
    return Part(
        name="pack",
        title=f"pack: {count} images of {HEIGHT} x {WIDTH} x {CHANNELS} uint8, uncompressed",
        results=results,
        ratios={"tifffile_over_ours": seconds["tifffile"] / seconds["ours"]},
        measure="seconds",
        unit="seconds",
        baseline="tifffile",
        facts={**_FACTS, "images": count, "threads": 1},
    )


class LazyImages(Dataset[torch.Tensor]):
    """Reads, resizes and normalises one image per access."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> torch.Tensor:
        """Return float32 ``[C, P, P]``."""
        return _patch(torch.from_numpy(tifffile.imread(self._paths[place])))


def make_images(data: Path, count: int, progress: Progress = no_progress) -> tuple[Path, Path]:
    """Create a folder of ``count`` TIFF files, and a data set of them; return both."""
    folder, shards = data / f"images-{count}", data / f"images-{count}-shards"
    if (shards / "index.json").exists():
        return folder, shards
    files = data / "images"
    for each in (files, folder):
        each.mkdir(parents=True, exist_ok=True)
    for number in progress(range(count), count, f"writing {count} images"):
        source = files / f"{number % FILES:04d}.tif"
        if not source.exists():
            rng = np.random.default_rng([SEED, number])
            image = rng.integers(0, 256, (HEIGHT, WIDTH, CHANNELS), np.uint8)
            tifffile.imwrite(source, image, photometric="rgb")
        path = folder / f"{number:04d}.tif"
        if not path.exists():
            os.link(source, path)
    pack_images(str(folder), shards, _OPTIONS, progress=progress)
    return folder, shards


def training_mb(shards: str) -> float:
    """Return the largest memory of this process after any of `STEPS` training steps."""
    torch.set_num_threads(THREADS)
    model = ConvAutoencoder(DetectorShape(CHANNELS, PATCH, hidden=128, depth=3))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    most = 0.0
    for image in _batches(shards):
        optimiser.zero_grad()
        functional.mse_loss(model.reconstruct(image), image).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        most = max(most, footprint_mb())
    return most


def _batches(shards: str) -> Iterator[torch.Tensor]:
    if shards == "-":
        for _ in range(STEPS):
            yield torch.zeros(BATCH_SIZE, CHANNELS, PATCH, PATCH)
        return
    loader = TraceLoader(
        shards,
        None,
        fields=("image",),
        layout="image",
        batch_size=BATCH_SIZE,
        threads=THREADS,
    )
    left = STEPS
    while left:
        for batch in loader:
            assert batch.image is not None
            yield batch.image
            left -= 1
            if not left:
                return


def _in_memory(paths: Sequence[Path]) -> Callable[[], Work]:
    """Return an epoch over images that are all read before."""
    images = torch.stack([torch.from_numpy(tifffile.imread(path)) for path in paths])

    def epoch() -> Work:
        order = torch.randperm(len(images)).tolist()
        batches = (
            torch.stack([_patch(images[i]) for i in order[first : first + BATCH_SIZE]])
            for first in range(0, len(order), BATCH_SIZE)
        )
        return consumed(batches, len(images), most_seconds=LAZY_SECONDS)

    return epoch


def _patch(image: torch.Tensor) -> torch.Tensor:
    """Return an image ``[H, W, C]`` as float32 ``[C, P, P]`` in 0 .. 1."""
    wide = image.permute(2, 0, 1)[None].float()
    patch = functional.interpolate(wide, (PATCH, PATCH), mode="bilinear", align_corners=False)[0]
    low, high = patch.min(), patch.max()
    return (patch - low) / (high - low).clamp_min(1e-12)


_OPTIONS = ImageOptions(patch_size=PATCH)
_FACTS = {
    "height": HEIGHT,
    "width": WIDTH,
    "channels": CHANNELS,
    "patch": PATCH,
    "batch_size": BATCH_SIZE,
}

if __name__ == "__main__":
    print(training_mb(sys.argv[1]))
