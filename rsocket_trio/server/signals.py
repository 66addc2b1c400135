"""What a program that serves sets in its process: how SIGINT and SIGTERM stop it, and how often Python collects.

The first signal stops it in good order, a second one ends the process. ``until_interrupted`` handles SIGINT alone, for
work that has a result.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, TypeVar

import trio

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
    _before: ClassVar[dict[signal.Signals, Any]] = {}

    def __init__(self) -> None:
        self._told = False
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
            # Before the look at what was told: a signal in between finds the token.
            self._token = trio.lowlevel.current_trio_token()
            if self._told:
                self._cancel()
            await work(*args)

    def tell(self, number: int) -> bool:
        """Cancel the work, running or to come. Return whether this was the first signal.

        A signal's handler calls it, at any moment.
        """
        if self._told:
            return False
        self._told = True
        self.number = number
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._cancel, idempotent=True)
            except trio.RunFinishedError:
                return True
        return True

    def _cancel(self) -> None:
        self._scope.cancel()
        # The loop has heard. From now on no Python is needed to end the process, should it be blocked later.
        if self in self._used and all(each._told for each in self._used) and os.getpid() != INIT:
            for number in STOP:
                signal.signal(number, signal.SIG_DFL)


def _on_signal(number: int, frame: FrameType | None) -> None:
    news = [each.tell(number) for each in list(Stop._used)]
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
    results: list[T] = []
    error: Exception | None = None
    is_cancelled = False

    async def watch() -> None:
        nonlocal is_cancelled
        async for _ in signals:
            if stop is not None and not stop.is_set():
                stop.set()
            else:
                is_cancelled = True
                nursery.cancel_scope.cancel()

    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                results.append(await work())
            except Exception as exc:
                # Raised below: in the nursery it would leave it in a group.
                error = exc
            nursery.cancel_scope.cancel()
    if is_cancelled:
        raise KeyboardInterrupt
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return results[0]


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
