"""Fan-out: an item that is sent goes to every subscriber, each of which has a bounded mailbox and a policy for slow
readers."""

from __future__ import annotations

import typing
from collections import deque
from collections.abc import Callable
from typing import Generic, Literal, Self, TypeAlias, TypeVar

import attrs
import trio

from rsocket_trio.errors import ApplicationError, Canceled, RSocketError, fresh_copy

T = TypeVar("T")

Policy: TypeAlias = Literal["wait", "drop_oldest", "drop_newest", "disconnect"]
"""The ways to treat a subscriber whose mailbox is full."""
POLICIES: tuple[str, ...] = typing.get_args(Policy)
OUTSIDE = "a subscription is read inside of its 'async with' block"


class TooSlow(ApplicationError):
    """A subscriber was disconnected: its mailbox was full when one more item came.

    ``data`` is the text. A handler that lets it through tells its peer, and does not count as failed.
    """


class Broadcast(Generic[T]):
    """Sends each item to all subscribers of the moment, in one order for all of them.

    ``size`` is the number of items that wait for one subscriber at most. ``policy`` says what happens to an item for a
    subscriber whose mailbox is full:

    * ``wait``: the sender waits until every such subscriber has room
    * ``drop_oldest``: the oldest item that waits for this subscriber makes room
    * ``drop_newest``: this subscriber does not get the item
    * ``disconnect``: the subscription ends with ``TooSlow`` behind the items that wait

    An item reaches either all subscribers or, if its sender waits and is cancelled, none of them. ``async with`` closes
    the broadcast with its block; if that raises, the subscriptions end with ``Canceled``. All is for Trio's thread.

    Raise ``ValueError`` for a size below 1 or an unknown policy.
    """

    def __init__(self, size: int = 64, policy: Policy = "wait") -> None:
        _check(size, policy)
        self._size = size
        self._policy = policy
        self._subscriptions: dict[Subscription[T], None] = {}
        self._turn = trio.StrictFIFOLock()
        self._room = trio.lowlevel.ParkingLot()
        """The sender in turn waits here. A subscriber that reads, leaves or is moved wakes it to look again."""
        self._end: Exception | None = None

    @property
    def _is_full(self) -> bool:
        return any(subscription._is_full for subscription in self._subscriptions)

    @property
    def subscribers(self) -> int:
        """Number of subscriptions that get what is sent now."""
        return len(self._subscriptions)

    def subscribe(
        self, *, size: int | None = None, policy: Policy | None = None, gap: Callable[[int], T] | None = None
    ) -> Subscription[T]:
        """Return a subscription, which is open for as long as its ``async with`` block.

        ``size`` and ``policy`` replace those of the broadcast, and are checked like them. ``gap`` makes an item out of
        a number: if it is given, the reader gets such an item in the place of items that were dropped.
        """
        size, policy = self._size if size is None else size, policy or self._policy
        _check(size, policy)
        return Subscription(self, size, policy, gap)

    async def send(self, item: T) -> None:
        """Send ``item`` to all subscribers; wait first until those of the policy ``wait`` have room, all of them.

        Senders get their turns in the order in which they came. If ``send`` returns, every subscriber of that moment
        has the item in its mailbox, as far as its policy allows; if it is cancelled, no subscriber has it. Raise
        ``trio.ClosedResourceError`` if the broadcast is closed, also while it waits.
        """
        async with self._turn:
            while self._is_full:
                await self._room.park()
            self._deliver(item)

    def send_nowait(self, item: T) -> None:
        """Send ``item`` to all subscribers at once. Raise ``trio.WouldBlock`` where ``send`` would wait."""
        if self._end is None and (self._is_full or self._turn.locked()):
            raise trio.WouldBlock
        self._deliver(item)

    def close(self, error: RSocketError | None = None) -> None:
        """End all subscriptions, behind the items that wait for them, and with ``error`` if there is one.

        Do nothing the second time. Later subscriptions end at once in the same way. Senders that wait get
        ``trio.ClosedResourceError``, and nobody gets their items.
        """
        if self._end is None:
            self._end = StopAsyncIteration() if error is None else error
            for subscription in list(self._subscriptions):
                subscription._leave(self._end)

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Readers must not take the failure of the source for its end. Nothing here waits.
        self.close(None if kind is None else Canceled("the broadcast ended early"))

    def _deliver(self, item: T) -> None:
        if self._end is not None:
            raise trio.ClosedResourceError("the broadcast is closed")
        for subscription in list(self._subscriptions):
            subscription._put(item)


@attrs.define
class _Gap:
    """The place of items that were dropped, and how many."""

    count: int = 0


@attrs.define(eq=False)
class Subscription(Generic[T]):
    """The items for one subscriber of a ``Broadcast``: ``async with`` opens it, ``async for`` reads it, in one task.

    A reader that is cancelled loses no item. The iteration ends when the broadcast or the subscription is closed, or
    with ``TooSlow`` under the policy ``disconnect``, in each case behind the items that wait.
    """

    _broadcast: Broadcast[T]
    _size: int
    _policy: Policy
    _gap: Callable[[int], T] | None
    missed: int = attrs.field(default=0, init=False)
    """Number of items that were dropped so far."""
    waiting: int = attrs.field(default=0, init=False)
    """Number of items in the mailbox."""
    _items: deque[T | _Gap] = attrs.field(factory=deque, init=False)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _end: Exception | None = attrs.field(factory=lambda: trio.ClosedResourceError(OUTSIDE), init=False)
    """The end of the iteration, behind the items that wait; ``None`` while it gets more."""

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        self._join(self._broadcast)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Nothing here may wait: the block may be left because it is cancelled, and senders wait for this.
        self._items.clear()
        self.waiting = 0
        self._leave(trio.ClosedResourceError(OUTSIDE))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        await trio.lowlevel.checkpoint()
        while not self._items:
            if self._end is not None:
                raise fresh_copy(self._end)
            if self._arrived:
                raise trio.BusyResourceError("another task reads this subscription")
            await self._arrived.park()
        # From here on nothing waits, so that a cancel cannot lose the item.
        item = self._items.popleft()
        if isinstance(item, _Gap):
            assert self._gap is not None, "without a function no gap is noted"
            return self._gap(item.count)
        self.waiting -= 1
        self._broadcast._room.unpark_all()
        return item

    @property
    def _is_full(self) -> bool:
        return self._policy == "wait" and self.waiting >= self._size

    def put_nowait(self, item: T) -> bool:
        """Leave ``item`` for this subscriber alone. Return whether it will be read, unless it is dropped later.

        The policy decides as for items of the broadcast. Raise ``trio.WouldBlock`` under the policy ``wait`` if there
        is no room.
        """
        if self._end is not None:
            return False
        if self._is_full:
            raise trio.WouldBlock
        return self._put(item)

    def move_to(self, broadcast: Broadcast[T]) -> None:
        """Get the items of ``broadcast`` from now on, behind those that wait. Do nothing if the subscription ended."""
        if self._end is None and broadcast is not self._broadcast:
            self._leave(None)
            self._join(broadcast)

    def close(self) -> None:
        """Get no more items: the iteration ends behind those that wait. Do nothing if it ended."""
        if self._end is None:
            self._leave(StopAsyncIteration())

    def _join(self, broadcast: Broadcast[T]) -> None:
        self._broadcast = broadcast
        self._end = broadcast._end
        if self._end is None:
            broadcast._subscriptions[self] = None
        self._arrived.unpark_all()

    def _leave(self, end: Exception | None) -> None:
        """Get no more items of the broadcast; the iteration ends with ``end``."""
        self._broadcast._subscriptions.pop(self, None)
        self._broadcast._room.unpark_all()
        self._end = end
        self._arrived.unpark_all()

    def _put(self, item: T) -> bool:
        """Put an item into the mailbox, or do what the policy says. Return whether it was kept."""
        if self.waiting >= self._size:
            if self._policy == "disconnect":
                self._leave(TooSlow(f"disconnected: {self._size} items waited when one more came"))
                return False
            self._drop(first=self._policy == "drop_oldest")
            if self._policy == "drop_newest":
                return False
        self.waiting += 1
        self._items.append(item)
        self._arrived.unpark_all()
        return True

    def _drop(self, first: bool) -> None:
        """Count an item that is dropped, and note its place: in front of all items, or behind them."""
        self.missed += 1
        items = self._items
        if first:
            del items[isinstance(items[0], _Gap)]
            self.waiting -= 1
        if self._gap is not None:
            gap = items[0 if first else -1] if items else None
            if not isinstance(gap, _Gap):
                gap = _Gap()
                items.insert(0 if first else len(items), gap)
            gap.count += 1


def _check(size: int, policy: Policy) -> None:
    if size < 1:
        raise ValueError(f"a mailbox of {size!r} items: must be 1 or more")
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}: must be one of {', '.join(POLICIES)}")
