"""The report of a benchmark: a table, and one line of JSON."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import wdsbench
from wdsbench import _core
from wdsbench.bench.data import SEED
from wdsbench.bench.part import Part, Settings
from wdsbench.bench.timing import CaseResult
from wdsbench.cores import usable_cores


def machine() -> dict[str, Any]:
    """Return the machine and software versions that the figures depend on."""
    return {
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "half_kernel": _core.half_kernel(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "wdsbench": wdsbench.__version__,
    }


def as_json(scenario: str, parts: Sequence[Part], settings: Settings) -> dict[str, Any]:
    """Return the JSON of a benchmark: cases and ratios, each named ``PART/NAME``."""
    return {
        "scenario": scenario,
        "machine": machine(),
        "settings": {
            "repeats": settings.repeats,
            "scale": settings.scale,
            "least_seconds": settings.least_seconds,
            "more_readers": settings.more_readers,
            "seed": SEED,
        },
        "parts": {
            part.name: {
                **{name: getattr(part, name) for name in ("title", "measure", "unit", "baseline")},
                "facts": dict(part.facts),
                "notes": list(part.notes),
            }
            for part in parts
        },
        "cases": [
            {**asdict(result), "name": f"{part.name}/{result.name}"}
            for part in parts
            for result in part.results
        ],
        "ratios": {
            f"{part.name}/{name}": value for part in parts for name, value in part.ratios.items()
        },
    }


def print_part(part: Part, console: Console) -> None:
    """Print the table of one part, with ratios to its baseline, then its notes."""
    baseline = None if part.baseline is None else part.value(part.baseline)
    table = Table()
    for column, _ in _cells(part.results[0], part, baseline):
        left = column == "case"
        table.add_column(column, justify="left" if left else "right", no_wrap=left, overflow="fold")
    for result in part.results:
        table.add_row(*(text for _, text in _cells(result, part, baseline)))
    console.print(part.title, highlight=False, soft_wrap=True)
    console.print(table)
    for note in part.notes:
        console.print(note, highlight=False, soft_wrap=True)


def _cells(result: CaseResult, part: Part, baseline: float | None) -> list[tuple[str, str]]:
    """Return (column, text) of one row; the columns depend on the part's measure."""
    cells = [("case", result.name)]
    if part.measure in ("seconds", "memory_mb"):
        digits = ".4f" if part.measure == "seconds" else ",.1f"
        return [
            *cells,
            (part.unit, f"{part.value(result.name):{digits}}"),
            ("spread", f"{result.spread:.1%}"),
            ("repeats", str(result.repeats)),
        ]
    if part.measure == "batches_per_s":
        cells += [
            (part.unit, _number(result.batches_per_s, ",.1f")),
            ("GB/s", _number(result.gbps, ".2f")),
        ]
    else:
        rate = "float32 GB/s" if part.measure == "samples_per_s" else part.unit
        cells.append((rate, _number(result.gbps, ".2f")))
    if baseline is not None:
        cells.append((f"over {part.baseline}", f"{part.value(result.name) / baseline:.2f}"))
    if part.measure != "batches_per_s":
        cells.append(("samples/s", _number(result.samples_per_s, ",.0f")))
    return [
        *cells,
        ("spread", f"{result.spread:.0%}"),
        ("epochs", _number(result.epochs, ",.0f")),
    ]


def _number(value: float | None, digits: str) -> str:
    return "" if value is None else f"{value:{digits}}"


def _commit() -> str | None:
    """Return the commit of the checkout that this package runs from, with ``-dirty`` if files
    differ; None outside a checkout.
    """
    git, package = shutil.which("git"), Path(wdsbench.__file__).parent

    def answer(*words: str) -> str | None:
        if git is None:
            return None
        done = subprocess.run(
            [git, "-C", str(package), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed package may be inside an unrelated checkout.
    if answer("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return answer("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
