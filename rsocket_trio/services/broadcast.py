"""Fan-out: an item that is sent goes to every subscriber, each of which has a bounded mailbox and a policy for slow
readers."""

from __future__ import annotations

import enum
import typing
from collections import OrderedDict, deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Literal, NoReturn, Self, TypeAlias, TypeVar

import outcome
import trio

from rsocket_trio.errors import ApplicationError, Canceled, RSocketError, fresh_copy

T = TypeVar("T")

Policy: TypeAlias = Literal["wait", "drop_oldest", "drop_newest", "disconnect"]
"""The ways to treat a subscriber whose mailbox is full."""
POLICIES: tuple[str, ...] = typing.get_args(Policy)


class TooSlow(ApplicationError):
    """A subscriber was disconnected: its mailbox was full when one more item came.

    ``data`` is the text. A handler that lets it through tells its peer, and does not count as failed.
    """


class Broadcast(Generic[T]):
    """Sends each item to all subscribers of the moment, in one order for all of them.

    ``size`` is the number of items that wait for one subscriber at most. ``policy`` says what happens to an item for a
    subscriber whose mailbox is full:

    ===============  ====================================================================
    ``wait``         the sender waits until every such subscriber has room
    ``drop_oldest``  the oldest item that waits for this subscriber makes room
    ``drop_newest``  this subscriber does not get the item
    ``disconnect``   the subscription ends with ``TooSlow`` behind the items that wait
    ===============  ====================================================================

    Each subscription may have a size and a policy of its own. An item reaches either all subscribers or, if its sender
    waits and is cancelled, none of them. Sending costs a constant time for each subscriber; reading, coming and going
    cost a constant time. ``async with`` closes the broadcast at the end of its block; if the block raises, the
    subscriptions end with ``Canceled``. Objects may be made before Trio runs. All methods belong to Trio's thread.

    Raise ``ValueError`` for a size below 1 or an unknown policy.
    """

    def __init__(self, size: int = 64, policy: Policy = "wait") -> None:
        self._size = _checked_size(size)
        self._policy = _checked_policy(policy)
        self._subscriptions: dict[Subscription[T], None] = {}
        # Senders wait only while a subscriber is full whom they must wait for. The step that makes room for the last
        # of these delivers for the senders, so nobody can come between them and their turn.
        self._full = 0
        self._senders: OrderedDict[trio.lowlevel.Task, T] = OrderedDict()
        self._closed = False
        self._error: RSocketError | None = None

    @property
    def subscribers(self) -> int:
        """Number of subscriptions that get what is sent now."""
        return len(self._subscriptions)

    def subscribe(
        self, *, size: int | None = None, policy: Policy | None = None, gap: Callable[[int], T] | None = None
    ) -> Subscription[T]:
        """Return a subscription, which is open for as long as its ``async with`` block.

        ``size`` and ``policy`` replace those of the broadcast. ``gap`` makes an item out of a number: if it is given,
        the reader gets such an item in the place of items that were dropped. Raise ``ValueError`` for a size below 1 or
        an unknown policy.
        """
        return Subscription(
            self,
            self._size if size is None else _checked_size(size),
            self._policy if policy is None else _checked_policy(policy),
            gap,
        )

    async def send(self, item: T) -> None:
        """Send ``item`` to all subscribers; wait first until those of the policy ``wait`` have room, all of them.

        Senders get their turns in the order in which they came. If ``send`` returns, every subscriber of that moment
        has the item in its mailbox, as far as its policy allows; if it is cancelled, no subscriber has it. Raise
        ``trio.ClosedResourceError`` if the broadcast is closed, also while it waits.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        if not self._full:
            self._deliver(item)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        task = trio.lowlevel.current_task()
        self._senders[task] = item

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._senders[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def send_nowait(self, item: T) -> None:
        """Send ``item`` to all subscribers at once.

        Raise ``trio.WouldBlock``, and send it to nobody, if a subscriber of the policy ``wait`` has no room; without
        such subscribers this never happens. Raise ``trio.ClosedResourceError`` if the broadcast is closed.
        """
        self._check_open()
        if self._full:
            raise trio.WouldBlock
        self._deliver(item)

    def close(self, error: RSocketError | None = None) -> None:
        """End all subscriptions, behind the items that wait for them; do nothing the second time.

        With ``error`` they end with that error. Later subscriptions end at once in the same way. Senders that wait get
        ``trio.ClosedResourceError``, and nobody gets their items.
        """
        if self._closed:
            return
        self._closed = True
        self._error = error
        self._full = 0
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions:
            subscription._end(_State.CLOSED, error)
        while self._senders:
            task, _ = self._senders.popitem(last=False)
            trio.lowlevel.reschedule(task, outcome.Error(_closed()))

    async def aclose(self, error: RSocketError | None = None) -> None:
        """Do what ``close`` does, with its ``error``; a checkpoint."""
        self.close(error)
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Readers must not take the failure of the source for its end. Nothing here waits.
        self.close(None if error is None else Canceled("the broadcast ended early"))

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _deliver(self, item: T) -> None:
        too_slow = [one for one in self._subscriptions if not one._put(item) and one._policy == "disconnect"]
        for subscription in too_slow:
            subscription._disconnect()

    def _add(self, subscription: Subscription[T]) -> None:
        if self._closed:
            subscription._end(_State.CLOSED, self._error)
            return
        self._subscriptions[subscription] = None
        subscription._broadcast = self
        if subscription._blocks:
            self._full += 1

    def _remove(self, subscription: Subscription[T]) -> None:
        del self._subscriptions[subscription]
        subscription._broadcast = None
        if subscription._blocks:
            self._make_room()

    def _make_room(self) -> None:
        """Note that a subscriber has room again or is gone, and deliver for the senders that waited for it."""
        self._full -= 1
        while self._senders and not self._full:
            task, item = self._senders.popitem(last=False)
            self._deliver(item)
            trio.lowlevel.reschedule(task)


class _State(enum.Enum):
    NEW = "not open yet"
    OPEN = "open"
    CLOSED = "closed"
    TOO_SLOW = "disconnected"
    LEFT = "its block is left"


class _Gap:
    """The place of items that were dropped, and how many."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


class Subscription(Generic[T]):
    """The items for one subscriber of a ``Broadcast``: ``async with`` opens it; ``async for`` or ``receive_batch`` read
    it, in one task at a time.

    A reader that is cancelled loses no item. The iteration ends when the broadcast or the subscription is closed, or
    with ``TooSlow`` under the policy ``disconnect``, in each case behind the items that wait.
    """

    __slots__ = (
        "_broadcast",
        "_error",
        "_gap",
        "_items",
        "_policy",
        "_reader",
        "_size",
        "_state",
        "missed",
        "waiting",
    )

    missed: int
    """Number of items that were dropped so far."""
    waiting: int
    """Number of items in the mailbox."""

    def __init__(
        self, broadcast: Broadcast[T], size: int, policy: Policy, gap: Callable[[int], T] | None = None
    ) -> None:
        self._broadcast: Broadcast[T] | None = broadcast
        self._error: RSocketError | None = None
        self._gap = gap
        self._items: deque[T | _Gap] = deque()
        self._policy = policy
        self._reader: trio.lowlevel.Task | None = None
        self._size = size
        self._state = _State.NEW
        self.missed = 0
        self.waiting = 0

    async def __aenter__(self) -> Self:
        broadcast = self._broadcast
        if self._state is not _State.NEW or broadcast is None:
            raise RuntimeError("a subscription is opened once: subscribe again")
        await trio.lowlevel.checkpoint()
        self._state = _State.OPEN
        broadcast._add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing here may wait: the block may be left because it is cancelled, and senders wait for this.
        self._items.clear()
        if self._broadcast is not None:
            self._broadcast._remove(self)
        self.waiting = 0
        self._end(_State.LEFT, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        await trio.lowlevel.checkpoint()
        while not self._items:
            self._begin_to_wait()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        # From here on nothing waits, so that a cancel cannot lose the item.
        item = self._items.popleft()
        if isinstance(item, _Gap):
            return self._of_gap(item)
        self._take(1)
        return item

    async def receive_batch(self) -> list[T]:
        """Return all items that wait; wait for at least one. An empty list is the end.

        For readers of many small items: one call in place of one for each item. Items and errors are those of
        ``async for``; ``TooSlow``, or the error of the broadcast, is raised by the call after the one that took the
        last items.
        """
        await trio.lowlevel.checkpoint()
        while not self._items:
            try:
                self._begin_to_wait()
            except StopAsyncIteration:
                return []
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        items = [self._of_gap(item) if isinstance(item, _Gap) else item for item in self._items]
        self._items.clear()
        self._take(self.waiting)
        return items

    def put_nowait(self, item: T) -> bool:
        """Leave ``item`` for this subscriber alone. Return whether it will be read, unless it is dropped later.

        The policy decides as for items of the broadcast. Raise ``trio.WouldBlock`` under the policy ``wait`` if there
        is no room.
        """
        if self._state is not _State.OPEN:
            return False
        if self._blocks:
            raise trio.WouldBlock
        kept = self._put(item)
        if not kept and self._policy == "disconnect":
            self._disconnect()
        return kept

    def move_to(self, broadcast: Broadcast[T]) -> None:
        """Get the items of ``broadcast`` from now on, and no more of the one before. What waits is kept, in order.

        Do nothing if the subscription has ended. Raise ``RuntimeError`` if it is not open yet.
        """
        if self._state is _State.NEW:
            self._raise_end()
        if self._broadcast is not None and self._broadcast is not broadcast:
            self._broadcast._remove(self)
            broadcast._add(self)

    def close(self) -> None:
        """Get no more items: the iteration ends behind those that wait. Do nothing if it has ended.

        Raise ``RuntimeError`` if the subscription is not open yet.
        """
        if self._state is _State.NEW:
            self._raise_end()
        if self._broadcast is not None:
            self._broadcast._remove(self)
            self._end(_State.CLOSED, None)

    @property
    def _blocks(self) -> bool:
        """Return whether senders have to wait for this subscriber."""
        return self.waiting >= self._size and self._policy == "wait"

    def _put(self, item: T) -> bool:
        """Put an item into the mailbox, or do what the policy says. Return whether it was kept."""
        if self.waiting < self._size:
            self.waiting += 1
            if self._broadcast is not None and self._blocks:
                self._broadcast._full += 1
        elif self._policy == "drop_oldest":
            self._drop_oldest()
        else:
            if self._policy == "drop_newest":
                self._drop_newest()
            return False
        self._items.append(item)
        self._wake()
        return True

    def _drop_oldest(self) -> None:
        self.missed += 1
        oldest = self._items.popleft()
        if self._gap is None:
            return
        gap = _Gap(0)
        if isinstance(oldest, _Gap):
            gap = oldest
            self._items.popleft()
        gap.count += 1
        self._items.appendleft(gap)

    def _drop_newest(self) -> None:
        self.missed += 1
        if self._gap is None:
            return
        newest = self._items[-1]
        if isinstance(newest, _Gap):
            newest.count += 1
        else:
            self._items.append(_Gap(1))

    def _disconnect(self) -> None:
        if self._broadcast is not None:
            self._broadcast._remove(self)
        self._end(_State.TOO_SLOW, TooSlow(f"disconnected: {self._size} items waited when one more came"))

    def _end(self, state: _State, error: RSocketError | None) -> None:
        self._broadcast = None
        self._error = error
        self._state = state
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, count: int) -> None:
        blocked = self._blocks
        self.waiting -= count
        if blocked and count and self._broadcast is not None:
            self._broadcast._make_room()

    def _of_gap(self, gap: _Gap) -> T:
        assert self._gap is not None, "without a function no gap is noted"
        return self._gap(gap.count)

    def _begin_to_wait(self) -> None:
        """Make this task the reader that is woken. Raise what the iteration ends with, if it has ended."""
        if self._state is not _State.OPEN:
            self._raise_end()
        if self._reader is not None:
            raise trio.BusyResourceError("another task reads this subscription")
        self._reader = trio.lowlevel.current_task()

    def _raise_end(self) -> NoReturn:
        if self._error is not None:
            raise fresh_copy(self._error)
        if self._state is _State.NEW:
            raise RuntimeError("the subscription is not open: use it under 'async with'")
        if self._state is _State.LEFT:
            raise trio.ClosedResourceError("the block of this subscription was left")
        raise StopAsyncIteration


def _closed() -> trio.ClosedResourceError:
    return trio.ClosedResourceError("the broadcast is closed")


def _checked_size(size: int) -> int:
    if size < 1:
        raise ValueError(f"a mailbox of {size!r} items: must be 1 or more")
    return size


def _checked_policy(policy: Policy) -> Policy:
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}: must be one of {', '.join(POLICIES)}")
    return policy
