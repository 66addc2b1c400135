"""Requests of bytes, text and payloads, and the queue of those that wait for room, a permit or a stream id."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.errors import ConnectionClosed, Drained, RSocketError, Unsupported, unsent_copy
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.metadata.routes import with_route
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream_state import Interaction, StreamState
from rsocket_trio.payload import Payload, as_payload
from rsocket_trio.tools.parking_lot import ParkingLot

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.connection.link import Link, NoLink
    from rsocket_trio.rsocket.frames import ExtensionEntry

T = TypeVar("T")


PAYLOAD_TYPES: Final = frozenset({Payload, bytes, bytearray, memoryview, str})
"""The types that are sent as they are."""


def needs_call(
    port: Engine, payload: object, kind: object, auth: object, metadata: object, *, around: bool = True
) -> bool:
    """Return whether a request needs more than its bytes.

    ``payload`` may be an object, ``kind`` the type of answers, ``auth`` credentials, and ``metadata`` entries; the
    connection of ``port`` may have interceptors, which count only with ``around``, and the call that the running
    handler serves may carry a trace.
    """
    if (
        kind is not None
        or auth is not None
        or metadata
        or type(payload) not in PAYLOAD_TYPES
        or (around and port.calls.around)
        or port.calls.deadlines
    ):
        return True
    serving = current_call_variable.get(None)
    return serving is not None and bool(serving._travelling)


def routed(port: Engine, payload: Any, route: str | None) -> Payload:
    """Return the payload of a request, with the route in its metadata if there is one."""
    request = payload if type(payload) is Payload else as_payload(payload)
    if route is None:
        return request
    if not isinstance(route, str):
        raise TypeError(f"a route is a str, not {type(route).__name__}")
    dialect = port.session.dialect
    if not dialect.routes:
        raise Unsupported(f"{dialect.name} has no routes")
    mime = port.connection.setup.metadata_mime
    if request.metadata_mime not in NO_MIME and dialect.mime_fields:
        mime = mime_name(request.metadata_mime)
    return Payload(
        request.data,
        with_route(route, request.metadata, mime),
        metadata_type=request.metadata_type,
        data_mime=request.data_mime,
        metadata_mime=request.metadata_mime,
    )


class EndedPort:
    """The side of a connection that is over: it refers to nothing of it."""

    __slots__ = ("ended", "link", "peer_draining")

    def __init__(self, port: Engine | EndedPort) -> None:
        self.ended: RSocketError | None = port.ended
        self.link: Link | NoLink = port.link
        self.peer_draining: bool = port.peer_draining


class RequestQueue:
    """Opens streams, in the order of their requests.

    Tasks wait in ``_room`` while the outbox is too full, and in ``_line`` while they need an id or a permit. While any
    task waits, the session has ``attention``: so the connection looks here after each read and each write.
    """

    __slots__ = ("_commands", "_handed", "_line", "_outbox", "_port", "_room", "_session")

    def __init__(self, port: Engine, session: Session) -> None:
        self._port: Engine | EndedPort = port
        self._session = session
        self._commands = session.commands
        self._outbox = session.outbox
        self._line = ParkingLot()
        self._handed = False
        self._room = ParkingLot()

    async def open(
        self,
        interaction: Interaction,
        payload: Payload,
        initial_n: int | None,
        entries: tuple[ExtensionEntry, ...] = (),
        renewed: Callable[[], Payload] | None = None,
    ) -> StreamState:
        """Open a stream, and wait for room, id and permit. There is no checkpoint after it was opened.

        ``renewed`` returns the request as it is to be sent after a wait, in the same size.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        stream = self.at_once(interaction, payload, initial_n, entries)
        return await self.in_turn(interaction, payload, initial_n, entries, renewed) if stream is None else stream

    def at_once(
        self, interaction: Interaction, payload: Payload, initial_n: int | None, entries: tuple[ExtensionEntry, ...]
    ) -> StreamState | None:
        """Open a stream if it need not wait; else return ``None``."""
        port = self._port
        if entries:
            self._session.cost(entries)  # raises where there are none
        if (
            port.ended is not None
            or self._handed
            or not self._session.opens_at_once
            or not self._outbox.has_room(payload)
        ):
            return None
        stream: StreamState = self._commands.open(interaction, payload, initial_n, entries=entries)
        link = port.link
        if not link.is_awake:
            link.flush()
        return stream

    async def in_turn(
        self,
        interaction: Interaction,
        payload: Payload,
        initial_n: int | None,
        entries: tuple[ExtensionEntry, ...],
        renewed: Callable[[], Payload] | None = None,
    ) -> StreamState:
        """Open a stream after the requests that wait longer."""
        cost = self._session.cost(entries) if entries else 1
        self._commands.check_request(interaction, payload)  # before waiting: the result does not depend on time

        def act() -> StreamState:
            request = payload if renewed is None else renewed()
            stream: StreamState = self._commands.open(interaction, request, initial_n, entries=entries)
            return stream

        stream = await self._in_turn(payload.size, cost, act)
        self._port.link.wake()
        return stream

    async def ping(self, token: trio.Event) -> None:
        """Send a ping, after waiting for a free id if a ping takes one."""
        self._check_open()
        # A ping needs no permit of a lease.
        if self._session.permits is None and (self._commands.is_full or self._handed):
            await self._in_turn(0, 1, lambda: self._session.ping(token))
        else:
            self._session.ping(token)
        self._port.link.wake()

    async def wait_for_room(self, size: int) -> None:
        """Wait until the outbox has room for ``size`` bytes. Raise if the connection is gone."""
        while not self._outbox.has_room(size):
            self._check_open()
            await self.park_for_room(size)
        self._check_open()

    def park_for_room(self, size: int) -> Coroutine[object, object, object]:
        """Ask for room for ``size`` bytes, and wait until there may be some; to be awaited at once. A checkpoint."""
        if self._outbox.ask_for_room(size):
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it
        self._session.attention = True
        return self._room.park(size)

    def wake_task(self, task: trio.lowlevel.Task) -> None:
        """Wake this task, if it waits for room."""
        self._room.wake(task)

    @property
    def has_waiters(self) -> bool:
        """Return whether any task waits for room, an id or a permit."""
        return self._room.first is not None or self._line.first is not None

    def grant_next(self) -> None:
        """Grant the task that waits longest its permit; it grants the next one after opening its stream."""
        first = self._line.first
        if first is None or self._handed or not self._outbox.ask_for_room(0):
            return  # one at a time: of two tasks woken together either may run first
        if self._take_permit(first.size):
            # The permit is taken here and handed over: ``wake_one`` gives it for certain, even to a task that is
            # cancelled before it runs, and no other task takes one until that task has run.
            self._handed = True
            self._line.wake_one(True)

    def on_written(self) -> None:
        """Wake the tasks that wait longest after a write, as many as may find room."""
        room, outbox = self._room, self._outbox
        if room.first is not None:
            if outbox.size:
                # Another write is certain to follow, so thousands of tasks need not be woken for the room of four.
                room.wake_for(self._session.limits.outbox_size - outbox.size)
            else:
                room.wake_all()
        # Tasks in line wait for room as well: theirs is looked for once those that have a permit were woken.
        self.grant_next()

    def wake_all(self) -> None:
        """Wake all waiting tasks, because the connection drains or is over."""
        self._line.wake_all()
        self._room.wake_all()

    def release(self) -> None:
        """Forget the connection, which is over and has no link any more, except for why it ended."""
        self._port = EndedPort(self._port)

    async def _in_turn(self, size: int, cost: int, act: Callable[[], T]) -> T:
        """Call ``act`` once room and permit are there, then grant the next task in the line."""
        try:
            await self._wait(size, cost)
            return act()
        finally:
            self.grant_next()

    async def _wait(self, size: int, cost: int) -> None:
        session, port = self._session, self._port
        handed = False
        while True:
            if port.ended is not None or session.draining:
                if not handed:
                    await trio.lowlevel.checkpoint()
                raise self._refusal()
            if handed:
                return
            if not self._outbox.has_room(size):
                await self.park_for_room(size)
            elif self._line.first is not None or self._handed or not self._take_permit(cost):
                # A later request must not take the permit, or the id, of those that wait.
                session.attention = True
                handed = bool(await self._line.park(cost))
                if handed:
                    self._handed = False
            else:
                return

    def _check_open(self) -> None:
        if self._port.ended is not None:
            raise self._refusal()

    def _refusal(self) -> RSocketError:
        """Return the error of requests that are refused because the connection is closing or over."""
        port, ended = self._port, self._port.ended
        if port.peer_draining and (ended is None or isinstance(ended, ConnectionClosed)):
            return Drained("the connection is closing: no new requests" if ended is None else str(ended))
        return unsent_copy(ConnectionClosed("the connection is closing: no new requests") if ended is None else ended)

    def _take_permit(self, cost: int) -> bool:
        """Take a permit of the lease, if an id is free. Return whether a new request may go."""
        session = self._session
        if self._commands.is_full:
            return False
        permits = session.permits
        return permits is None or permits.take(trio.current_time(), cost)
