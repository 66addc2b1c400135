"""The sending half of a stream: each item waits for the peer's credit and for room in the outbox."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from math import inf
from typing import TYPE_CHECKING, Any, Final

import trio

from rsocket_trio.errors import ApplicationError, Canceled, LocalProtocolError, RSocketError, fresh_copy
from rsocket_trio.forms import Items
from rsocket_trio.mux.stream_state import SENDING, Interaction
from rsocket_trio.payload import MetadataPush, Payload, PayloadLike, as_payload
from rsocket_trio.tools.parking_lot import ParkingLot

if TYPE_CHECKING:
    from rsocket_trio.connection.hooks import Call
    from rsocket_trio.connection.streams import StreamPort
    from rsocket_trio.mux.stream_state import StreamState


def as_item(stream: StreamState, item: Any) -> Payload:
    """Return what is sent on a stream as a payload: an object as the handler of the stream encodes its answers.

    Raise ``TypeError`` if it can't be encoded, or no handler serves the stream.
    """
    if isinstance(item, Payload):
        return item
    if isinstance(item, bytes | bytearray | memoryview | str):
        return Payload(item)
    payload: Payload = as_payload(item) if stream.owner is None else stream.owner._as_payload(item)
    return payload


checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled

ITEMS_PER_TURN = 128
"""Items after which a sender that never had to wait lets others run: half of the default credit."""


class Sender:
    """Sends items on one stream. Several tasks may send; each waits its turn."""

    __slots__ = (
        *("_commands", "_left", "_outbox", "_parking", "_port", "_stream", "_wants_room"),
        *("completed", "error", "on_grant"),
    )

    def __init__(self, port: StreamPort, stream: StreamState) -> None:
        self._port = port
        self._stream = stream
        self._commands = port.session.commands
        self._outbox = port.session.outbox
        self._parking: ParkingLot | None = None
        self._wants_room: set[trio.lowlevel.Task] | None = None
        self._left = ITEMS_PER_TURN
        self.completed = False
        self.error: RSocketError | None = None
        self.on_grant: Callable[[], object] | None = None

    @property
    def room(self) -> int:
        """Return the number of items that the peer's credit allows right now."""
        return max(0, self._stream.room) if self._stream.open & SENDING else 0

    async def send(self, payload: PayloadLike) -> None:
        """Send one item, waiting for credit and room. A send that is cancelled has sent nothing."""
        self._left -= 1
        if self._left:
            await checkpoint_if_cancelled()
        else:
            self._left = ITEMS_PER_TURN
            await trio.lowlevel.checkpoint()
        stream, port = self._stream, self._port
        if not self._commands.offer_item(stream, payload):
            item = payload if type(payload) is Payload else as_item(stream, payload)
            while stream.room <= 0 or not stream.open & SENDING or not self._outbox.has_room(item):
                # A handler that was woken for room and cancelled before it ran is cancelled here.
                await checkpoint_if_cancelled()
                self._check()
                if stream.room <= 0:
                    # From here, and not from a coroutine of its own: one is kept for every stream that waits for
                    # credit.
                    await self._waiters().park()
                else:
                    await self._wait_for_room(item.size)
            self._commands.send_item(stream, item)
        link = port.link
        if not link.is_awake:
            link.wake()

    async def serve(
        self, items: Items, *, ends: bool = True, offer: Callable[[StreamState, object], bool] | None = None
    ) -> None:
        """Send the items that a handler yields, without a coroutine for each that ``offer`` sends at once.

        End the stream behind them, if ``ends``. Raise as ``end`` does.
        """
        stream, port = self._stream, self._port
        offer = offer or self._commands.offer_item
        left = ITEMS_PER_TURN
        try:
            item = await items.__anext__()
            while True:
                try:
                    left -= 1
                    if left:
                        await checkpoint_if_cancelled()
                    else:
                        left = ITEMS_PER_TURN
                        await trio.lowlevel.checkpoint()
                    if offer(stream, item):
                        link = port.link
                        if not link.is_awake:
                            link.wake()
                    else:
                        await self.send(item)
                except BaseException as error:
                    item = await items.athrow(error)
                else:
                    item = await items.__anext__()
        except StopAsyncIteration:
            if ends:
                self.end()

    def end(self) -> None:
        """Complete the stream. Raise ``ApplicationError`` for a subscription, which has no COMPLETE."""
        if self._stream.interaction is Interaction.REQUEST_SUBSCRIPTION:
            raise ApplicationError("subscription ended")
        self._port.complete_stream(self._stream)

    async def send_many(self, payloads: Iterable[PayloadLike]) -> None:
        """Send items in order. Items stay sent if a later one is cancelled or cannot be sent."""
        stream, port = self._stream, self._port
        put, has_room = self._commands.send_item, self._outbox.has_room
        await trio.lowlevel.checkpoint()
        turn = ITEMS_PER_TURN
        try:
            for payload in payloads:
                item = payload if type(payload) is Payload else as_item(stream, payload)
                turn -= 1
                if turn and stream.room > 0 and stream.open & SENDING and has_room(item):
                    put(stream, item)
                else:
                    # What was put goes out while this waits: a wake for each item would cost as much as a send.
                    port.link.wake()
                    turn = ITEMS_PER_TURN
                    await trio.lowlevel.checkpoint()
                    await self.send(item)
        finally:
            port.link.wake()

    async def wait_room(self, beyond: int) -> int:
        """Wait until more than ``beyond`` items may be sent, and return how many."""
        await trio.lowlevel.checkpoint()
        stream = self._stream
        while stream.room <= beyond or not stream.open & SENDING:
            self._check()
            await self._waiters().park()
        self._check()
        return stream.room

    async def push(self, push: MetadataPush) -> None:
        """Send metadata for the stream, waiting for room. Raise ``Unsupported`` if the dialect has none."""
        stream, port = self._stream, self._port
        await trio.lowlevel.checkpoint()
        await port.request_queue.wait_for_room(len(push.metadata))
        if not stream.open:
            raise fresh_copy(self.error) if self.error is not None else Canceled("the stream is over")
        self._commands.metadata_push(stream, push)
        port.wake()

    async def wait_closed(self) -> None:
        """Wait until nothing more can be sent, for whatever reason."""
        await trio.lowlevel.checkpoint()
        while self._stream.open & SENDING and self._port.ended is None:
            await self._waiters().park()

    def on_credit(self) -> None:
        """Wake the waiting senders, and tell who passes the credit on: more may be sent, or nothing more."""
        if self.on_grant is not None:
            self.on_grant()
        if self._parking is not None:
            self._parking.wake_all()
        if self._wants_room and not self._stream.open & SENDING:
            # These wait among all that want room, which a write may never make: their stream is over now.
            for task in tuple(self._wants_room):
                self._port.request_queue.wake_task(task)

    def _check(self) -> None:
        """Raise when nothing can be sent any more."""
        stream = self._stream
        self._port.check_open()
        if not stream.open & SENDING:
            if self.completed:
                raise LocalProtocolError(f"stream {stream.id} was completed by this side already")
            if self.error is not None:
                raise fresh_copy(self.error)
            raise Canceled("the peer wants no more items")

    async def _wait_for_room(self, size: int) -> None:
        """Wait among all that wait for room on this connection; remembered here, for the stream may end first."""
        if self._wants_room is None:
            self._wants_room = set()
        task = trio.lowlevel.current_task()
        self._wants_room.add(task)
        try:
            await self._port.request_queue.park_for_room(size)
        finally:
            self._wants_room.discard(task)

    def _waiters(self) -> ParkingLot:
        if self._parking is None:
            self._parking = ParkingLot()
        return self._parking


TOO_LATE: Final = "the deadline of the call has passed"


class CountingSender(Sender):
    """A sender that counts its items for ``call``, which interceptors look at, and sends none after its deadline."""

    __slots__ = ("_call",)

    def __init__(self, port: StreamPort, stream: StreamState, call: Call | None) -> None:
        super().__init__(port, stream)
        self._call = call

    async def send(self, payload: PayloadLike) -> None:
        """Send one item, and count it. Raise ``Canceled`` after the deadline in a handler that is shielded."""
        item, call = as_item(self._stream, payload), self._call
        if call is None:
            return await super().send(item)
        if call.deadline == inf and self._stream.room > 0:
            await super().send(item)
        else:
            await self._send(item, call)
        return call._count_sent(1, item.size)

    def serve(
        self, items: Items, *, ends: bool = True, offer: Callable[[StreamState, object], bool] | None = None
    ) -> Coroutine[object, object, None]:
        """Send the items that a handler yields, and count each."""
        return super().serve(items, ends=ends, offer=offer or self._offer)

    def _offer(self, stream: StreamState, item: object) -> bool:
        """Send an item at once and count it, unless it has to wait or the call has a deadline. Return whether it is."""
        call = self._call
        if call is None or call.deadline < inf or stream.room <= 0:
            return False
        payload: Payload | bytes
        if type(item) is bytes:
            payload, size = item, len(item)
        else:
            payload = item if type(item) is Payload else as_item(stream, item)
            size = len(payload.data)  # what is sent at once has no metadata
        if not self._commands.offer_item(stream, payload):
            return False
        if call.first_item_at < inf:
            # As ``_count_sent`` does, without a call for each item.
            call.items_sent += 1
            call.bytes_sent += size
        else:
            call._count_sent(1, size)
        return True

    async def _send(self, item: Payload, call: Call) -> None:
        """Send one item, and measure how long it waits for credit."""
        now = trio.current_time()
        if now >= call.deadline:
            # The handler has not let Trio see that its time is over.
            await trio.lowlevel.checkpoint()
            raise Canceled(TOO_LATE)
        waits = self._stream.room <= 0
        await super().send(item)
        if waits:
            call.credit_seconds += trio.current_time() - now

    async def send_many(self, payloads: Iterable[PayloadLike]) -> None:
        """Send items in order, and count each."""
        for payload in payloads:
            await self.send(payload)
