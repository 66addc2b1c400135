"""Serving: accepting connections, telling their dialects apart, and letting them finish at the end."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any

import trio

from rsocket_trio.connection.client import FRAGMENT_SIZE, LIMITS, as_transport
from rsocket_trio.connection.connection import GRACE, Connection
from rsocket_trio.connection.dialects import ALL, Found, detect, name_of
from rsocket_trio.connection.ends import ServerEnd, framing_for, server_ends
from rsocket_trio.connection.handlers import only_leaf
from rsocket_trio.connection.resuming import ServerRoad
from rsocket_trio.connection.sessions import Sessions
from rsocket_trio.errors import InvalidSetup, RejectedResume, RemoteProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.detection import UNDECIDED, answer_for
from rsocket_trio.rsocket.frames import ErrorFrame
from rsocket_trio.rsocket.session import Session
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.listen import Accepted, AcceptedStream, BoundListener, GivenListener, open_listeners
from rsocket_trio.transports.reasons import HandshakeFailed

logger = logging.getLogger("rsocket_trio")

Where = str | trio.abc.Listener[Any]
"""What can be served: a URI, or a listener of the application's own that accepts Trio streams."""
LEAVING = 1.0


class Server:
    """What all connections of one ``serve`` share: the responder, the terms, and the connections that are open."""

    def __init__(
        self,
        responder: Responder,
        dialects: Iterable[str],
        limits: Limits,
        fragment_size: int,
        resume: ResumeOptions | None,
        quirks: Iterable[str],
        streamux: StreamuxOptions | None = None,
    ) -> None:
        self.responder = responder
        self.ends = server_ends(dialects, responder, limits, fragment_size, quirks, streamux, resume)
        self.sessions = Sessions(resume) if resume is not None else None
        self.limits = limits
        self.connections: set[Connection] = set()
        self.draining = False
        self._noise = 0

    async def accept(self, accepted: Accepted | AcceptedStream) -> None:
        """Serve one accepted connection. What a client does here is nobody else's trouble."""
        deadline = trio.current_time() + self.limits.setup_timeout
        try:
            with trio.CancelScope(deadline=deadline) as patience:
                async with accepted.open(self.limits) as transport:
                    await self._serve(transport, deadline, patience)
        except HandshakeFailed:
            raise
        except Exception:
            # A fault of ours: it may cost this connection, but not the others.
            logger.exception("%s: a connection failed", accepted.endpoint)

    async def serve_one(self, transport: Transport, served: trio.Event) -> None:
        """Serve one transport that needs no handshake, and close it."""
        deadline = trio.current_time() + self.limits.setup_timeout
        try:
            with trio.CancelScope(deadline=deadline) as patience:
                await self._serve(transport, deadline, patience)
        finally:
            served.set()
            with trio.CancelScope(shield=True):
                await transport.aclose()

    async def run_until_cancelled(self, grace: float, ended: trio.Event | None = None) -> None:
        """Wait to be cancelled (or for ``ended``), then let all connections finish."""
        try:
            await (trio.Event() if ended is None else ended).wait()
        finally:
            self.draining = True
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for connection in list(self.connections):
                        nursery.start_soon(partial(connection.drain, grace=grace))

    async def _serve(self, transport: Transport, deadline: float, patience: trio.CancelScope) -> None:
        """Find out the dialect while ``patience`` lasts, then run the connection, which minds the deadline itself."""
        try:
            end = await self._end_for(transport)
            first: Sequence[bytes] | None = ()
            if end is not None and end.resume is not None:
                first = await self._meet(transport, end, patience)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            logger.debug("a client went before its SETUP: %s", error)
            return
        except RemoteProtocolError as error:
            logger.debug("a client sent what is no frame: %s", error)
            await self._say_goodbye(transport)
            return
        if end is not None and first is not None and not self.draining:
            patience.deadline = math.inf
            await self.run(transport, end, deadline, first)

    async def run(
        self, transport: Transport, end: ServerEnd, setup_deadline: float, first: Sequence[bytes] = ()
    ) -> None:
        """Run one connection to its end; ``first`` are the frames that came on its transport already."""
        begun = end.begin(trio.current_time())
        if end.resume is None:
            transport.use_framing(end.framing(first=True))
        road = None
        if begun.resumable is not None and end.resume is not None:
            road = ServerRoad(end.resume)
        connection = Connection(begun.session, self.responder, begun.setup, transport.handshake, road)
        self.connections.add(connection)
        try:
            with self._resumable(connection, begun.resumable, road):
                await connection.run(transport, setup_deadline=setup_deadline, first=first)
        finally:
            self.connections.discard(connection)

    @contextmanager
    def _resumable(self, connection: Connection, session: Session | None, road: ServerRoad | None) -> Iterator[None]:
        """Let the client of this connection come back, if it asks for that, for as long as the block."""
        sessions = self.sessions
        if sessions is None or session is None or road is None:
            yield
            return
        returning = connection.resumable(session, road)
        session.continuity.claim = partial(sessions.claim, returning)
        returning.watch(sessions.on_growth)
        connection.on_state(lambda _: sessions.on_state(returning))
        try:
            yield
        finally:
            sessions.release(returning)
            road.let_go()

    async def _meet(self, transport: Transport, end: ServerEnd, patience: trio.CancelScope) -> Sequence[bytes] | None:
        """The first frames of a client that is new. One that comes back is brought to its session: then ``None``."""
        transport.use_framing(end.framing(first=True))
        try:
            frames = await transport.receive()
        except RemoteProtocolError:
            return ()  # the session meets it again, and answers
        back = end.comeback(frames[0]) if frames else None
        if back is None:
            return frames or None
        assert self.sessions is not None
        try:
            arrival = self.sessions.resume(back, transport, frames[1:])
        except RejectedResume as refusal:
            with trio.move_on_after(LEAVING):
                await transport.send([end.refusal(refusal)])
            await self._say_goodbye(transport)
            return None
        patience.deadline = math.inf
        # The transport stays open for as long as its session goes on over it, and while that drains.
        with trio.CancelScope(shield=True):
            await arrival.done.wait()
        return None

    async def _end_for(self, transport: Transport) -> ServerEnd | None:
        """Whom the first bytes speak to; ``None`` after the peer was told, or not, that it is nobody here."""
        if len(self.ends) == 1:
            return next(iter(self.ends.values()))
        while True:
            data, ended = await transport.peek()
            found = detect(data, message=transport.is_message_based, ended=ended)
            if found is UNDECIDED:
                continue
            if found is not None and name_of(found) in self.ends:
                return self.ends[name_of(found)]
            if data or not ended:
                await self._turn_away(transport, data, found)
            return None

    async def _turn_away(self, transport: Transport, data: bytes, found: Found | None) -> None:
        self._noise += 1
        if self._noise == 1:
            logger.warning("first bytes that fit no dialect served here: %s; further ones are counted", data[:16].hex())
        answer = found or answer_for(data, message=transport.is_message_based)
        if answer is None or isinstance(answer, str):
            # Streamux has no word for a refusal.
            if transport.is_message_based:
                # Closed without an answer; a WebSocket still says goodbye.
                await self._say_goodbye(transport)
            return
        refusal = ErrorFrame(0, InvalidSetup.default_code, b"the first frame must be a SETUP of a version served here")
        transport.use_framing(framing_for(answer, self.limits))
        with trio.move_on_after(LEAVING):
            await transport.send([answer.codec.encode(refusal)])
        await self._say_goodbye(transport)

    async def _say_goodbye(self, transport: Transport) -> None:
        with trio.move_on_after(LEAVING):
            try:
                await transport.finish()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                # The peer was quicker.
                return


async def serve(
    responder: Responder,
    uris: Where | Iterable[Where],
    *,
    dialects: Iterable[str] = ALL,
    resume: ResumeOptions | None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    ssl_context: ssl.SSLContext | None = None,
    unix_mode: int | None = None,
    grace: float = GRACE,
    quirks: Iterable[str] = (),
    streamux: StreamuxOptions | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on all URIs until cancelled; to be started with ``nursery.start``, which returns the bound URIs.

    A listener that is no URI, but a ``trio.abc.Listener`` of streams, is served as well, and closed at the end.
    One port serves every dialect that ``dialects`` names. ``unix_mode`` are the permissions of a Unix socket.
    When cancelled: listening stops, every connection drains for at most ``grace`` seconds, then is closed.

    Each of ``quirks`` changes those of the dialects that know it. ``streamux`` are the options of ``streamux/1``; by
    default a quick init is allowed. With ``resume`` clients that ask for it when they connect may come back after their
    transport was lost, and go on where they were.

    Raises ``OSError`` for an address that can't be bound, ``ValueError`` for a URI, a dialect or a quirk that is none.
    """
    server = Server(responder, dialects, limits, fragment_size, resume, quirks, streamux)
    listeners = await _open(uris, ssl_context, unix_mode)
    async with AsyncExitStack() as stack:
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(partial(listener.serve, server.accept, handler_nursery=nursery))
                task_status.started([listener.uri for listener in listeners])
                await server.run_until_cancelled(grace)
        except BaseExceptionGroup as group:
            leaf = only_leaf(group)
            raise leaf from leaf.__cause__


async def _open(
    uris: Where | Iterable[Where], ssl_context: ssl.SSLContext | None, unix_mode: int | None
) -> list[BoundListener | GivenListener]:
    """A listener for each, in the order given."""
    wanted: list[Where] = [uris] if isinstance(uris, str | trio.abc.Listener) else list(uris)
    bound = iter(
        await open_listeners(
            [uri for uri in wanted if isinstance(uri, str)], ssl_context=ssl_context, unix_mode=unix_mode
        )
    )
    return [next(bound) if isinstance(each, str) else GivenListener(each) for each in wanted]


async def serve_stream(
    responder: Responder,
    stream: trio.abc.Stream | Transport,
    *,
    dialects: Iterable[str] = ALL,
    resume: ResumeOptions | None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    grace: float = GRACE,
    quirks: Iterable[str] = (),
    streamux: StreamuxOptions | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve one stream (or transport) that is connected already, until its peer ends it; it is closed then.

    When cancelled the connection drains for at most ``grace`` seconds.
    """
    server = Server(responder, dialects, limits, fragment_size, resume, quirks, streamux)
    transport = as_transport(stream)
    try:
        async with trio.open_nursery() as nursery:
            served = trio.Event()
            nursery.start_soon(server.serve_one, transport, served)
            task_status.started()
            await server.run_until_cancelled(grace, served)
    except BaseExceptionGroup as group:
        leaf = only_leaf(group)
        raise leaf from leaf.__cause__
