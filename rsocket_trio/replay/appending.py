"""Appends of many tasks, which one of them writes for all."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs
import outcome
import trio

from rsocket_trio.replay.elements import Element
from rsocket_trio.replay.packs import Pack

Begins: TypeAlias = "outcome.Outcome[dict[int, int]]"
"""The first new position of each partition, or the error of the append."""


@attrs.define(eq=False)
class Appending:
    """The elements of one ``append_all``, and the task that waits until another has written them.

    ``at`` is that of the call, ``begins`` its outcome once that is known. ``has_written``: its task wrote, for all.
    """

    elements: Mapping[int, Iterable[Element | Pack]]
    at: Mapping[int, int] | None
    task: trio.lowlevel.Task | None = None
    begins: Begins | None = None
    has_written: bool = False

    def settle(self, begins: Begins) -> None:
        """Set the outcome."""
        self.begins = begins
        self.wake()

    def wake(self) -> None:
        """Wake the task that waits."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class AppendQueue:
    """The appends that wait. The task of the first writes them all, and then wakes the first of those that came since.

    ``write(take)`` writes what ``take()`` returns, and returns the outcome of each. It calls ``take`` once, in any
    thread, when nothing can hinder it any more: an append can be cancelled until then, and has written nothing.
    """

    def __init__(self, write: Callable[[Callable[[], list[Appending]]], Awaitable[Sequence[Begins]]]) -> None:
        self._write = write
        self._pending: deque[Appending] = deque()
        self._is_writing = False

    async def append(self, own: Appending) -> dict[int, int]:
        """Return where the elements begin, once they are written, or raise why they are not."""
        self._pending.append(own)
        if self._is_writing:
            await self._wait(own)
        if own.begins is None:
            # No task writes, or the one that did has woken this one to go on.
            await self._write_all(own)
        assert own.begins is not None
        return own.begins.unwrap()

    async def _wait(self, own: Appending) -> None:
        own.task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            try:
                self._pending.remove(own)
            except ValueError:
                # It is being written: the caller learns the outcome first and is cancelled then.
                return trio.lowlevel.Abort.FAILED
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _write_all(self, own: Appending) -> None:
        self._is_writing = own.has_written = True
        taken: list[Appending] = []

        def take() -> list[Appending]:
            while self._pending:
                # One by one: a task that is cancelled meanwhile removes its own, or finds it gone.
                taken.append(self._pending.popleft())
            return taken

        try:
            # Tasks that the last append has woken append again: all of that is written together.
            await trio.lowlevel.checkpoint()
            for one, begins in zip(taken, await self._write(take), strict=True):
                one.settle(begins)
        except Exception as error:
            # Raised in every task that appended: the log was closed, or can't be written at all.
            for one in take():
                if one.begins is None:
                    one.settle(outcome.Error(error))
        finally:
            for one in taken:
                if one.begins is None:
                    one.settle(outcome.Error(RuntimeError("interrupted: nobody knows what was written")))
            if own in self._pending:
                self._pending.remove(own)  # it was cancelled while the log was locked
            self._is_writing = bool(self._pending)
            if self._pending:
                self._pending[0].wake()
