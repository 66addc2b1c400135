"""The receiving half of a stream, and the budget of received bytes that all streams of a connection share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Self

import trio

from rsocket_trio.errors import LocalProtocolError, Rejected, RSocketError, fresh_copy
from rsocket_trio.limits import ENTRY_OVERHEAD
from rsocket_trio.mux.stream_state import Window, checked_request_n
from rsocket_trio.payload import MetadataPush, Payload

if TYPE_CHECKING:
    from rsocket_trio.connection.streams import StreamPort
    from rsocket_trio.mux.stream_state import StreamState


class ReceiveBudget:
    """The bytes that all streams of a connection received and their readers have not taken yet.

    Above the limit no new credit is granted; inboxes without credit are kept until readers caught up. In protocols
    without credit each item counts ``overhead`` bytes more, and reading pauses above ``pause_above`` bytes until
    readers have made room for half of the limit, unless messages have a budget each. ``is_awaited`` says that an inbox
    or the link waits for a smaller sum.
    """

    __slots__ = ("_deferred", "_limit", "_resume", "is_awaited", "overhead", "pause_above", "size")

    def __init__(self, limit: int, *, counts_items: bool = False, pauses: bool = False) -> None:
        self._limit = limit
        self.is_awaited = False
        self.pause_above = limit if pauses else math.inf
        self._deferred: dict[Inbox, None] = {}
        self._resume: Callable[[], None] | None = None
        self.overhead = ENTRY_OVERHEAD if counts_items else 0
        self.size = 0

    @property
    def is_exceeded(self) -> bool:
        """Return whether reading must pause, or go on pausing."""
        return self.size > self.pause_above

    @property
    def pauses_reading(self) -> bool:
        """Return whether reading pauses until readers have made room."""
        return self._resume is not None

    def pause_reading(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once readers have made room for half of the limit."""
        if self._resume is None:
            self.pause_above = self._limit // 2
        self._resume = resume
        self.is_awaited = True

    def resume_reading(self) -> None:
        """Note that reading goes on, and pauses again above the whole limit."""
        if self._resume is not None:
            self._resume = None
            self.pause_above = self._limit

    @property
    def is_full(self) -> bool:
        """Return whether no new credit is granted."""
        return self.size > self._limit

    def defer_credit(self, inbox: Inbox) -> None:
        """Withhold the credit of an inbox until there is room."""
        self._deferred[inbox] = None
        self.is_awaited = True

    def taken(self, size: int) -> None:
        """Subtract bytes that were read or dropped, and grant withheld credit if there is room again."""
        self.size -= size
        if self.is_awaited:
            self.notify()

    def notify(self) -> None:
        """Resume reading and grant withheld credit, as far as the smaller sum allows."""
        if self._resume is not None and self.size <= self.pause_above:
            self._resume()
        if self._deferred and self.size <= self._limit:
            # Replaced first: an inbox whose turn makes the sum too large again defers anew.
            deferred, self._deferred = self._deferred, {}
            for inbox in deferred:
                inbox.top_up()
        self.is_awaited = self._resume is not None or bool(self._deferred)

    def clear(self) -> None:
        """Drop all withheld credit, because the connection is over."""
        self._deferred.clear()


checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled

DATA = attrgetter("data")
ITEMS_PER_TURN = 128
"""Items after which a reader that never had to wait lets others run: half of the default credit."""


class Inbox:
    """Items in order, then an end: complete, or an error. One task reads.

    A reader that keeps up never waits for credit: it is topped up when half of it was used. Items that wait count
    against the connection's inbox limit; above it no new credit is granted.

    A turn ends when half of the credit was used, or others have to run. Items are counted towards the credit at its
    end, or when credit is granted earlier: ``_turn`` less ``_left`` are those that were read since.
    """

    __slots__ = (
        "_budget",
        "_ended",
        "_error",
        "_items",
        "_left",
        "_port",
        "_reader",
        "_stream",
        "_turn",
        "_window",
        "_woken",
    )

    def __init__(
        self, port: StreamPort, budget: ReceiveBudget, stream: StreamState, credit: int, *, refill: bool
    ) -> None:
        self._port = port
        self._budget = budget
        self._stream = stream
        self._items: deque[Payload] = deque()
        self._ended = False
        self._error: RSocketError | None = None
        self._reader: trio.lowlevel.Task | None = None
        self._window = Window(credit) if refill else None
        self._begin_turn()
        self._woken = False

    @property
    def unread(self) -> int:
        """The number of items that were not taken."""
        return len(self._items)

    def put(self, payload: Payload, complete: bool) -> None:
        """Add an item; with ``complete`` it is the last."""
        self._items.append(payload)
        metadata, budget = payload.metadata, self._budget
        budget.size += budget.overhead + len(payload.data) + (len(metadata) if metadata is not None else 0)
        if complete:
            self._ended = True
        self._wake()

    def put_all(self, payloads: Sequence[Payload]) -> None:
        """Add items that came together, none of them with metadata."""
        self._items.extend(payloads)
        budget = self._budget
        budget.size += sum(map(len, map(DATA, payloads))) + len(payloads) * budget.overhead
        self._wake()

    def end(self, error: RSocketError | None) -> None:
        """End the stream; items that came before can still be read."""
        if self._ended:
            return
        self._ended = True
        self._error = error
        self._wake()

    def drop(self) -> None:
        """Drop all items: no task reads any more."""
        if self._items or not self._ended:
            self._error = LocalProtocolError("the stream was left: nothing more can be read from it")
        self._ended = True
        self._wake()
        size = sum(payload.size for payload in self._items) + len(self._items) * self._budget.overhead
        self._items.clear()
        self._budget.taken(size)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Payload:
        if self._reader is not None:
            raise trio.BusyResourceError("another task reads from this stream already")
        items = self._items
        if items:
            if self._left:
                await checkpoint_if_cancelled()
            else:
                # A reader that never finds the inbox empty lets others run at every half of its credit.
                await trio.lowlevel.checkpoint()
                self._begin_turn()
        while not items:
            await self._wait()
        payload = items.popleft()
        metadata, budget = payload.metadata, self._budget
        # As ``ReceiveBudget.taken``: calls count, here.
        budget.size -= budget.overhead + len(payload.data) + (len(metadata) if metadata is not None else 0)
        if budget.is_awaited:
            budget.notify()
        self._left -= 1
        if not self._left and self._is_half_used(0):
            self.top_up()
        return payload

    def _begin_turn(self) -> None:
        """Set the number of items after which others run, or half of the credit was used."""
        window = self._window
        if window is None:
            self._turn = self._left = ITEMS_PER_TURN
        else:
            self._turn = self._left = min(ITEMS_PER_TURN, max(1, window.half - window.used))

    def _is_half_used(self, more: int) -> bool:
        """Count the items of this turn that were read, and ``more``. Return whether it is time to top up."""
        read = self._turn - self._left + more
        self._turn = self._left
        return self._window is not None and self._window.use(read)

    async def get_all(self) -> list[Payload]:
        """Return all items that wait, at least one; none at the end. Raise the error that ended the stream."""
        # Once per batch, others may run each time: the senders among them, so that the next batch is no smaller.
        await trio.lowlevel.checkpoint()
        if self._reader is not None:
            raise trio.BusyResourceError("another task reads from this stream already")
        try:
            while not self._items:
                await self._wait()
        except StopAsyncIteration:
            return []
        batch = list(self._items)
        self._items.clear()
        # Before the budget is reduced, which may grant deferred credit.
        due = self._is_half_used(self._credit_of(batch))
        self._begin_turn()
        budget = self._budget
        budget.taken(sum([payload.size for payload in batch]) + len(batch) * budget.overhead)
        if due:
            self.top_up()
        return batch

    def top_up(self) -> None:
        """Grant credit for what was read, unless too many bytes wait on this connection."""
        if self._ended or self._window is None:
            return
        if self._budget.is_full:
            self._budget.defer_credit(self)
            return
        self._is_half_used(0)
        amount = self._window.refill()
        if amount:
            self._port.request_n(self._stream, amount)

    def request_n(self, amount: int) -> None:
        """Grant credit by hand. Raise ``ValueError`` for a number outside of 1 to 2^31-1."""
        checked_request_n(amount)
        if not self._ended:
            self._port.request_n(self._stream, amount)

    def _credit_of(self, batch: list[Payload]) -> int:
        """Return the credit that the items of a batch took."""
        return len(batch)

    async def _wait(self) -> None:
        if self._ended:
            await trio.lowlevel.checkpoint()
            self._raise_end()
        # No other task may read until this one has taken the item that it was woken for.
        self._reader = trio.lowlevel.current_task()
        self._woken = False
        try:
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        finally:
            self._reader = None
        if not self._left:
            self._begin_turn()
        if not self._items and self._ended:
            self._raise_end()

    def _wake(self) -> None:
        # Several items may come before the reader runs: a task may be rescheduled once only.
        if self._reader is not None and not self._woken:
            self._woken = True
            trio.lowlevel.reschedule(self._reader)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._woken = True
        return trio.lowlevel.Abort.SUCCEEDED

    def _raise_end(self) -> None:
        if self._error is not None:
            raise fresh_copy(self._error)
        raise StopAsyncIteration


class BudgetedInbox(Inbox):
    """An inbox that refuses its own message where a slow reader would make reading pause for all (Streamux)."""

    __slots__ = ("_message_budget", "_refused", "_waiting")

    def __init__(
        self, port: StreamPort, budget: ReceiveBudget, stream: StreamState, credit: int, message_budget: int
    ) -> None:
        super().__init__(port, budget, stream, credit, refill=False)
        self._message_budget = message_budget
        self._refused = False
        self._waiting = 0

    def put(self, payload: Payload, complete: bool) -> None:
        """Add an item. One too many ends the message here, once the items before it were read."""
        if self._refused:
            return
        self._waiting += payload.size
        # The first one may be as large as it is: a reader that waits for it is not slow.
        if self._items and (self._waiting > self._message_budget or self._budget.is_full):
            self._port.faults.count_dropped()
            self._port.cancel_stream(self._stream)
            # Even where its end came in the same read and was told already.
            self._refused = self._ended = True
            self._error = Rejected(f"more than {self._message_budget} bytes of a message waited for their reader")
            self._wake()
        else:
            super().put(payload, complete)

    def put_all(self, payloads: Sequence[Payload]) -> None:
        """Add items that came together."""
        for payload in payloads:
            self.put(payload, False)

    async def __anext__(self) -> Payload:
        payload = await super().__anext__()
        self._waiting -= payload.size
        return payload

    async def get_all(self) -> list[Payload]:
        """Everything that has come."""
        batch = await super().get_all()
        self._waiting -= sum(payload.size for payload in batch)
        return batch


class PushInbox(Inbox):
    """An inbox that keeps pushed metadata in its place between the items."""

    __slots__ = ("_limit", "_pushes")

    _items: deque[Payload | MetadataPush]  # type: ignore[assignment]

    def __init__(
        self, port: StreamPort, budget: ReceiveBudget, stream: StreamState, credit: int, *, refill: bool, limit: int
    ) -> None:
        super().__init__(port, budget, stream, credit, refill=refill)
        self._limit = limit
        self._pushes = 0

    def push(self, push: MetadataPush) -> bool:
        """Store metadata that came. It needs no credit, so what is kept is bounded: return false at the limit."""
        if self._ended or self._budget.is_full or self._pushes >= self._limit:
            return False
        self._items.append(push)
        self._pushes += 1
        self._budget.size += push.size
        self._wake()
        return True

    async def __anext__(self) -> Payload | MetadataPush:  # type: ignore[override]
        if self._reader is not None:
            raise trio.BusyResourceError("another task reads from this stream already")
        if not self._items:
            await self._wait()
        if not self._items or not isinstance(self._items[0], MetadataPush):
            return await super().__anext__()
        await trio.lowlevel.checkpoint()
        push = self._items.popleft()
        assert isinstance(push, MetadataPush)
        self._pushes -= 1
        self._budget.taken(push.size)
        return push

    def _credit_of(self, batch: list[Payload]) -> int:
        pushes = sum([isinstance(item, MetadataPush) for item in batch])
        self._pushes -= pushes
        return len(batch) - pushes
