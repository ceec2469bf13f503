"""What a benchmark leaves: a table for people, one line of JSON for machines."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import wdsbench
from wdsbench import _core
from wdsbench.bench.timing import CaseResult


def machine() -> dict[str, Any]:
    """Return what the figures depend on and a reader cannot see."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "half_kernel": _core.half_kernel(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "wdsbench": wdsbench.__version__,
    }


def as_json(
    scenario: str, parts: Mapping[str, tuple[list[CaseResult], dict[str, float]]]
) -> dict[str, Any]:
    """Return the last line of a benchmark: cases and ratios, each named ``PART/NAME``."""
    return {
        "scenario": scenario,
        "machine": machine(),
        "cases": [
            {**asdict(result), "name": f"{part}/{result.name}"}
            for part, (results, _) in parts.items()
            for result in results
        ],
        "ratios": {
            f"{part}/{name}": value
            for part, (_, found) in parts.items()
            for name, value in found.items()
        },
    }


def print_cases(part: str, results: list[CaseResult], console: Console) -> None:
    """Print one part's table, the ceiling first and every rate beside it."""
    ceiling = results[0]
    table = Table(title=part, title_justify="left")
    columns = ("case", "float32 GB/s", f"over {ceiling.name}", "samples/s", "spread", "memory MB")
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.gbps:.2f}",
            f"{result.gbps / ceiling.gbps:.2f}",
            "" if result is ceiling else f"{result.samples_per_s:,.0f}",
            f"{result.spread:.0%}",
            f"{result.memory_mb:,.0f}",
        )
    console.print(table)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
