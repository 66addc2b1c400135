"""Writes of many tasks, which one of them writes for all."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import attrs
import outcome
import trio

from rsocket_trio.tools.parking_lot import ParkingLot

ItemT = TypeVar("ItemT")
DoneT = TypeVar("DoneT")


@attrs.define(eq=False)
class QueuedWrite(Generic[ItemT, DoneT]):
    """An item that a task wants written, and the outcome once that is known."""

    item: ItemT
    done: outcome.Outcome[Sequence[DoneT]] | None = None


class WriteQueue(Generic[ItemT, DoneT]):
    """The writes that wait: the task of one of them writes all that are there.

    ``write(take)`` writes the items that ``take()`` returns, all or nothing, and returns what each of them gets. It
    calls ``take``, in any thread, once nothing can hinder it: a write can be cancelled until then, and has written
    nothing. If it raises ``ValueError``, because of one of them, each is written alone.
    """

    def __init__(self, write: Callable[[Callable[[], list[ItemT]]], Awaitable[Sequence[DoneT]]]) -> None:
        self._write = write
        self._pending: deque[QueuedWrite[ItemT, DoneT]] = deque()
        self._is_writing = False
        self._written = ParkingLot()

    async def write(self, item: ItemT) -> DoneT:
        """Return what the item gets, once it is written, or raise why it is not."""
        own: QueuedWrite[ItemT, DoneT] = QueuedWrite(item)
        self._pending.append(own)
        try:
            while own.done is None:
                await (self._written.park() if self._is_writing else self._write_all())
        except trio.Cancelled:
            with suppress(ValueError):
                # In one step: a thread may take it now.
                self._pending.remove(own)
                raise
            with trio.CancelScope(shield=True):
                # It is being written: the caller learns the outcome first and is cancelled then.
                while own.done is None:
                    await self._written.park()
        assert own.done is not None
        [done] = own.done.unwrap()
        return done

    async def _write_all(self) -> None:
        self._is_writing = True
        taken: list[QueuedWrite[ItemT, DoneT]] = []

        def take() -> list[ItemT]:
            with suppress(IndexError):
                while True:
                    # One by one: a task that is cancelled meanwhile removes its own, or finds it gone.
                    taken.append(self._pending.popleft())
            return [queued.item for queued in taken]

        failure: Exception = RuntimeError("interrupted: nobody knows what was written")
        try:
            # Tasks that the last write has woken write again: all of that is written together.
            await trio.lowlevel.checkpoint()
            try:
                for queued, done in zip(taken, await self._write(take), strict=True):
                    queued.done = outcome.Value([done])
            except ValueError:
                with trio.CancelScope(shield=True):
                    for queued in taken:
                        queued.done = await outcome.acapture(self._write, partial(list, (queued.item,)))
        except Exception as error:
            # Raised in every task that writes: it was closed, or can't be written at all.
            failure = error
            take()
        finally:
            for queued in taken:
                queued.done = queued.done or outcome.Error(failure)
            self._is_writing = False
            self._written.wake_all()
