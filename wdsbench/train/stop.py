"""Signals, and a callback, that ask a run to save its state and end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from wdsbench.errors import StoppedError

#: Ctrl-C, and the signal of a cluster's scheduler.
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StopRequest:
    """Records the first signal in ``requested``.

    ``deferred``: True if the block polls ``requested``; otherwise a signal ends it at once.
    ``cancel`` is asked before every batch; True has the effect of a signal. ``what`` has happened.
    """

    requested: bool = False
    deferred: bool = True
    cancel: Callable[[], bool] | None = None
    what: str = "stopped by a signal"

    def ask(self) -> None:
        """Call ``cancel``; raise StoppedError if it returns True and nothing is deferred."""
        if self.cancel is not None and not self.requested and self.cancel():
            self.requested, self.what = True, "cancelled"
            if not self.deferred:
                raise StoppedError("cancelled; --resume continues from the last saved state")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record the first signal in the block; a second one has its usual effect. StoppedError is
        raised if the signal was not deferred, or for a second Ctrl-C.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def request(number: int, _frame: FrameType | None) -> None:
            self.requested = True
            signal.signal(number, before[signal.Signals(number)])
            if not self.deferred:
                raise KeyboardInterrupt  # not caught by `except Exception`

        for number in SIGNALS:
            signal.signal(number, request)
        try:
            yield
        except KeyboardInterrupt as error:
            raise StoppedError(
                "stopped by a signal; --resume continues from the last saved state"
            ) from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferring(self) -> Iterator[None]:
        """Defer signals in the block, which polls ``requested`` when its work is saved."""
        before, self.deferred = self.deferred, True
        try:
            yield
        finally:
            self.deferred = before
