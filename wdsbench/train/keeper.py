"""Who keeps the state of a fit, and who asks it to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from wdsbench.errors import StoppedError
from wdsbench.train.state import FitState, Progress, load_state, require_same, save_state

#: What asks a run to save its state and end: Ctrl-C, and a cluster's scheduler.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StopSwitch:
    """Whether somebody asked for the end.

    Attributes:
        asked: Set by the first signal.
        waits: Whether it waits to be looked at; else it ends the block where it stands.
    """

    asked: bool = False
    waits: bool = True

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Let the first signal set the switch, and the second one do what it always does.

        Raises:
            StoppedError: A signal did not wait, or Ctrl-C came twice.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # handlers are the main thread's
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def ask(number: int, _frame: FrameType | None) -> None:
            self.asked = True
            signal.signal(number, before[signal.Signals(number)])
            if not self.waits:
                raise KeyboardInterrupt  # no `except Exception` on the way swallows it

        for number in SIGNALS:
            signal.signal(number, ask)
        try:
            yield
        except KeyboardInterrupt as error:
            raise StoppedError(
                "stopped by a signal; --resume goes on from what was saved before"
            ) from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let a signal wait within the block, which looks at it when its work is saved."""
        before, self.waits = self.waits, True
        try:
            yield
        finally:
            self.waits = before


@dataclass(frozen=True)
class Keeper:
    """Keeps the state of one fit in a folder.

    Attributes:
        folder: None: nothing is kept.
        setting: What must be the same when the fit goes on.
        resume: Whether a state that is there is gone on from.
        switch: Whether somebody asked for the end.
    """

    folder: Path | None = None
    setting: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    switch: StopSwitch = field(default_factory=StopSwitch)

    @property
    def keeps(self) -> bool:
        """Whether states are saved."""
        return self.folder is not None

    @property
    def stop_asked(self) -> bool:
        """Whether somebody asked for the end."""
        return self.switch.asked

    def load(self) -> FitState | None:
        """Return the state to go on from; None: begin.

        Raises:
            DetectorError: It is damaged, or of another setting.
        """
        if self.folder is None or not self.resume:
            return None
        state = load_state(self.folder)
        if state is not None:
            require_same(state.setting, self.setting, self.folder)
        return state

    def save(self, progress: Progress, **parts: Any) -> None:
        """Save a state; ``parts`` are the other attributes of `FitState`."""
        assert self.folder is not None
        save_state(FitState(progress=progress, setting=self.setting, **parts), self.folder)


NOTHING_KEPT = Keeper()
