"""Options of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wdsbench.options import option


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of :func:`wdsbench.demo.run.run_demo`."""

    out: Path = option(Path("wdsbench-demo"), "Folder for all files.")
    questions: int = option(3600, "Number of embedded questions to ask.")
    seed: int = option(0, "Seed of training.")
    fresh: bool = option(False, "Repeat all stages, including finished ones.")
