"""What a new request waits for: room in the outbox, a permit where leases were agreed, a free id where they run out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from rsocket_trio.connection.waiting import Parking
from rsocket_trio.errors import ConnectionClosed, Drained, RSocketError, again
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.mux.stream import StreamState
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.extensions.blocks import Entry

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine

T = TypeVar("T")


class Opening:
    """Opens streams, in the order in which they were asked for.

    ``room`` is where those wait for whom the outbox is too full, ``line`` where those do who need an id or a permit.
    """

    __slots__ = ("_commands", "_engine", "_handed", "_outbox", "_session", "line", "room")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session = engine.session
        self._commands = engine.session.commands
        self._outbox = engine.session.outbox
        self.line = Parking()
        self._handed = False
        self.room = Parking()

    async def open(
        self, interaction: Interaction, payload: Payload, initial_n: int | None, entries: tuple[Entry, ...] = ()
    ) -> StreamState:
        """Open a stream, waiting for what it takes. Nothing waits after it was opened."""
        await trio.lowlevel.checkpoint_if_cancelled()
        stream = self.at_once(interaction, payload, initial_n, entries)
        return await self.in_turn(interaction, payload, initial_n, entries) if stream is None else stream

    def at_once(
        self, interaction: Interaction, payload: Payload, initial_n: int | None, entries: tuple[Entry, ...]
    ) -> StreamState | None:
        """Open a stream, if nothing has to be waited for."""
        engine = self._engine
        size = len(payload.data) if payload.metadata is None else payload.size
        if (
            engine.ended is not None
            or self._handed
            or not self._session.opens_at_once
            or not self._outbox.has_room(size)
        ):
            return None
        stream: StreamState = self._commands.open(interaction, payload, initial_n, entries=entries)
        engine.wake()
        return stream

    async def in_turn(
        self, interaction: Interaction, payload: Payload, initial_n: int | None, entries: tuple[Entry, ...]
    ) -> StreamState:
        """Open a stream behind those who wait longer."""
        session = self._session
        cost = session.cost(entries) if entries else 1
        session.check_request(interaction, payload)  # now: nothing of this is a matter of time
        stream: StreamState = await self._in_turn(
            payload.size, cost, lambda: self._commands.open(interaction, payload, initial_n, entries=entries)
        )
        self._engine.wake()
        return stream

    async def ping(self, token: Any) -> None:
        """Ask for a sign of life, waiting where that takes an id."""
        self._engine.check_open()
        # A lease is no matter of pings.
        if self._session.permits is None and (self._session.is_full or self._handed):
            await self._in_turn(0, 1, lambda: self._session.ping(token))
        else:
            self._session.ping(token)
        self._engine.wake()

    async def wait_for_room(self, size: int) -> None:
        """Wait until so many bytes may be put into the outbox. Raises when the connection is gone."""
        while not self._outbox.has_room(size):
            self._engine.check_open()
            await self.room.park(size)
        self._engine.check_open()

    def next_in_line(self) -> None:
        """Something may go now: who waits longest gets its permit, and lets the next have theirs once it opened."""
        first = self.line.first
        if first is None or self._handed or not self._outbox.has_room(0):
            return  # of two that are woken at once either may run first, and opens its stream first
        if self._take_permit(first.wish):
            self._handed = True
            self.line.wake_one(True)

    def on_written(self) -> None:
        """Something left the outbox: those that wait longest look again, as many as may find room.

        Needed only where somebody waits, in ``room`` or in the ``line``.
        """
        room, outbox = self.room, self._outbox
        if room.first is not None:
            if outbox.size:
                # There is a next write for certain, so thousands need not be woken for the room of four.
                room.wake_for(self._session.limits.outbox_size - outbox.size)
            else:
                room.wake_all()
        self.next_in_line()

    def wake_all(self) -> None:
        """Everybody looks again: the connection drains, or is over."""
        self.line.wake_all()
        self.room.wake_all()

    async def _in_turn(self, size: int, cost: int, act: Callable[[], T]) -> T:
        """Do it once it is allowed, and let the next in the line have their turn."""
        try:
            await self._wait(size, cost)
            return act()
        finally:
            self.next_in_line()

    async def _wait(self, size: int, cost: int) -> None:
        session, engine = self._session, self._engine
        handed = False
        while True:
            if engine.ended is not None or session.draining:
                if not handed:
                    await trio.lowlevel.checkpoint()
                raise self._refusal()
            if handed:
                return
            if not self._outbox.has_room(size):
                await self.room.park(size)
            elif self.line.first is not None or self._handed or not self._take_permit(cost):
                # Who comes later must not take the permit, or the id, of those who wait.
                handed = bool(await self.line.park(cost))
                if handed:
                    self._handed = False
            else:
                return

    def _refusal(self) -> RSocketError:
        """Why nothing can be asked any more."""
        engine, ended = self._engine, self._engine.ended
        if engine.peer_draining and (ended is None or isinstance(ended, ConnectionClosed)):
            return Drained("the connection is closing: no new requests" if ended is None else str(ended))
        return ConnectionClosed("the connection is closing: no new requests") if ended is None else again(ended)

    def _take_permit(self, cost: int) -> bool:
        """Whether a new request may go: an id is free, and the lease allows it."""
        session = self._session
        if session.is_full:
            return False
        return session.permits is None or session.permits.take(trio.current_time(), cost)
