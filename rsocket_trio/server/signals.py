"""Process settings of a program that serves: how SIGINT and SIGTERM stop it, and how often Python collects.

The first signal stops it in good order, a second one ends the process. ``until_interrupted`` handles SIGINT alone, for
work that has a result.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import ClassVar, Final, TypeVar

import trio

from rsocket_trio.tools.exception_groups import nursery_beside

T = TypeVar("T")

STOP = (signal.SIGINT, signal.SIGTERM)
"""The signals that ask a server to stop."""

INIT = 1
"""The process id of the first process, a container's: signals that nobody handles do nothing to it."""


DEFAULT_THRESHOLDS: Final = frozenset({(700, 10, 10), (2000, 10, 10), (2000, 10, 0)})
"""Those of CPython, by version."""
THRESHOLDS: Final = (10_000, 10, 10)
"""New objects before a collection, and how many of those before one of older ones: see ``gc.set_threshold``."""


class Stop:
    """SIGINT and SIGTERM, handled for as long as the block; ``run`` in it is cancelled by the first one.

    A second one ends the process, even where the loop is blocked and can't hear of the first: by the signal itself, as
    if nobody handled it. It also works where SIGINT was ignored, as in what a shell script starts with ``&``.

    Several can be in use at once: a signal is for all of them. At the end the handlers from before are restored.
    """

    _used: ClassVar[list[Stop]] = []
    _before: ClassVar[dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None]] = {}

    def __init__(self) -> None:
        self._was_signalled = False
        self.number: int | None = None
        """The first signal that came."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()

    def __enter__(self) -> Stop:
        """Handle signals from now on. Raise ``RuntimeError`` outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("SIGINT and SIGTERM can be handled in the main thread only: serve without signals here")
        self._used.append(self)
        if len(self._used) == 1:
            self._before.update((number, signal.signal(number, _on_signal)) for number in STOP)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._used.remove(self)
        if not self._used:
            for number, before in self._before.items():
                signal.signal(number, signal.SIG_DFL if before is None else before)
            self._before.clear()

    async def run(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Do this, until it is done or a signal cancels it."""
        with self._scope:
            # Before the look at whether a signal came: a signal in between finds the token.
            self._token = trio.lowlevel.current_trio_token()
            if self._was_signalled:
                self._cancel()
            await work(*args)

    def tell(self, number: int) -> bool:
        """Cancel the work, running or to come. Return whether this was the first signal.

        A signal's handler calls it, at any moment.
        """
        if self._was_signalled:
            return False
        self._was_signalled = True
        self.number = number
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._cancel, idempotent=True)
        return True

    def _cancel(self) -> None:
        self._scope.cancel()
        # The loop has heard. From now on no Python is needed to end the process, should it be blocked later.
        if self in self._used and all(stop._was_signalled for stop in self._used) and os.getpid() != INIT:
            for number in STOP:
                signal.signal(number, signal.SIG_DFL)


def _on_signal(number: int, frame: FrameType | None) -> None:
    news = [stop.tell(number) for stop in list(Stop._used)]
    if not any(news):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Only for somebody to whom the signal does nothing.
        os._exit(128 + number)


async def until_interrupted(work: Callable[[], Awaitable[T]], stop: trio.Event | None = None) -> T:
    """Return the result of the work, which the first SIGINT cancels; with ``stop`` it sets that, the second cancels.

    Raise ``KeyboardInterrupt`` if it was cancelled. Outside of the main thread no signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        return await work()

    async def watch() -> None:
        async for _ in signals:
            if stop is not None and not stop.is_set():
                stop.set()
            else:
                scope.cancel()

    with trio.CancelScope() as scope, trio.open_signal_receiver(signal.SIGINT) as signals:
        async with nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery:
            nursery.start_soon(watch)
            try:
                result = await work()
                if not scope.cancel_called:
                    return result
            except Exception:
                if not scope.cancel_called:
                    raise
    raise KeyboardInterrupt


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Have the collector look for cycles less often for the block, unless the application has set its thresholds.

    Requests in flight outlive several collections and are then freed without the collector: with 64,000 requests at
    once the default spends half of the time looking at them.
    """
    before = gc.get_threshold()
    if before not in DEFAULT_THRESHOLDS:
        yield
        return
    had_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not had_frozen:
            gc.unfreeze()
