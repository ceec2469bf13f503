"""The embedded model, its questions, and the main job on them.

``model/`` is a small Llama that ``tools/train_demo_model.py`` trained on an invented world; it
hallucinates for the same reasons as large models. ``questions.jsonl.gz`` has questions about that
world with reference answers. With ``images`` the demo makes scenes with planted anomalies instead
(module ``scenes``). Both take a few minutes on two cores and need no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wdsbench.options import option


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of :func:`wdsbench.demo.run.run_demo`."""

    out: Path = option(Path("wdsbench-demo"), "Folder for all files.")
    questions: int = option(3400, "Number of embedded questions to ask.")
    seed: int = option(0, "Seed of training.")
    images: bool = option(
        False, "Find planted anomalies in synthetic multispectral images, in place of traces."
    )
    fresh: bool = option(False, "Repeat all stages, including finished ones.")
