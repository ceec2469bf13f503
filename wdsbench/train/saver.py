"""Saves and loads the state of one fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsbench.train.state import FitProgress, FitState, load_state, require_same, save_state
from wdsbench.train.stop import StopRequest


@dataclass(frozen=True)
class StateSaver:
    """Saves the state of one fit in a folder.

    Attributes:
        folder: Folder of the state; None: nothing is saved.
        setting: Settings that must not change on resume.
        resume: True to load a saved state.
        stop: The stop request of the run.
    """

    folder: Path | None = None
    setting: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    stop: StopRequest = field(default_factory=StopRequest)

    def load(self) -> FitState | None:
        """Return the saved state; None if there is none or the fit does not resume.

        Raises:
            DetectorError: The state is damaged, or its settings differ.
        """
        if self.folder is None or not self.resume:
            return None
        state = load_state(self.folder)
        if state is not None:
            require_same(state.setting, self.setting, self.folder)
        return state

    def save(self, progress: FitProgress, **parts: Any) -> None:
        """Save a state; ``parts`` are the other attributes of `FitState`."""
        assert self.folder is not None
        save_state(FitState(progress=progress, setting=self.setting, **parts), self.folder)


NO_SAVER = StateSaver()
