"""Accepts a server's connections: detects the dialect, runs or resumes the session, and drains it at the end."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import trio

from rsocket_trio.connection.connection import Connection
from rsocket_trio.connection.deadlines import Deadlines, Timeout
from rsocket_trio.connection.fault_log import FailureLog
from rsocket_trio.connection.link import RefusedClients
from rsocket_trio.connection.protocols import (
    MAX_CHUNK_SIZE,
    STREAMUX,
    Detected,
    RSocketServer,
    ServerProtocolFactory,
    StreamuxPeer,
    check_types,
    checked_size,
    detect_protocol,
    framing_for,
    full_name,
    name_of,
    with_quirks,
)
from rsocket_trio.connection.recording import RecordedTransport, with_lengths
from rsocket_trio.connection.resumption import ResumedTransport
from rsocket_trio.errors import InvalidSetup, RejectedResume, RemoteProtocolError, Unsupported
from rsocket_trio.responder import Responder, check_users
from rsocket_trio.rsocket.detection import UNDECIDED, answer_for, keeps_length
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, dialect_named, spoken
from rsocket_trio.rsocket.frames import ErrorFrame
from rsocket_trio.rsocket.resume_protocol import resume_request
from rsocket_trio.rsocket.session import Session as RSocketSession
from rsocket_trio.server.session_registry import ResumableConnection, SessionRegistry
from rsocket_trio.tools.exception_groups import only_leaf
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.first_bytes import client_protocol
from rsocket_trio.transports.listen import Accepted, AcceptedTransport
from rsocket_trio.values import Unsaid

if TYPE_CHECKING:
    from rsocket_trio.mux.framing import Recording
    from rsocket_trio.server.serve import StreamServeOptions
    from rsocket_trio.transports.http2.http2_handshake import AcceptedHttp2
    from rsocket_trio.transports.schemes import Endpoint

logger = logging.getLogger("rsocket_trio")

ADMISSION_TIMEOUT = 1.0
"""Seconds that a client gets at least to be let in, on a connection that drains with a shorter grace period."""
CLOSE_TIMEOUT = 1.0
"""Seconds that a refusal and the end of a transport may take."""

Serving: TypeAlias = Callable[[], Coroutine[object, object, None]]
"""Serves a new client to its end, or keeps the transport of one that resumes; the result is awaited at once."""


class Server:
    """State that all connections of one ``serve`` share: the responder, the terms, and the open connections."""

    def __init__(self, responder: Responder, options: StreamServeOptions, recording: Recording | None = None) -> None:
        """Check the options, which are complete. Raise ``ValueError``, ``TypeError`` and ``Unsupported``."""
        resume = options["resume"]
        check_users(responder)
        self.responder = responder
        self.protocols = server_protocols(responder, options)
        self.sessions = SessionRegistry(resume) if resume is not None else None
        self.limits = options["limits"]
        self.connections: set[Connection] = set()
        self._carrying: set[AcceptedHttp2] = set()
        self._draining: trio.Nursery | None = None
        """The nursery of the tasks that drain connections, once the server drains."""
        self._grace_ends = math.inf
        self.deadlines: Deadlines | None = None
        self.failure_log = FailureLog()
        self._refused_clients = RefusedClients()
        self._turned_away = 0
        self._recording = recording

    async def accept(self, accepted: Accepted | AcceptedTransport) -> None:
        """Serve one accepted connection. A failure here ends this connection only."""
        deadline = trio.current_time() + self.limits.setup_timeout
        endpoint = accepted.endpoint
        try:
            plain = accepted.plain()
            if plain is None:
                assert not isinstance(accepted, AcceptedTransport)  # which needs no handshake
                await self._accept_after_handshake(accepted, deadline)
                return
            del accepted
            transport: Transport = plain
            serve: Serving | None = None
            try:
                # One read, as a rule: Trio reads what a socket holds before it looks at the deadline.
                with trio.CancelScope(deadline=deadline):
                    serve = await self._accept_client(transport, deadline)
                if serve is not None:
                    # As few coroutines as possible, and no reference that only the beginning needs: both cost memory
                    # for as long as the connection lives.
                    serving = serve()
                    del transport, serve
                    await serving
            finally:
                plain.cut()  # returns False for a stream that is no socket: its listener closes that one
        except HandshakeFailed:
            raise
        except Exception:
            # A fault of ours: it may cost this connection, but not the others.
            logger.exception("%s: a connection failed", endpoint)

    async def _accept_after_handshake(self, accepted: Accepted, deadline: float) -> None:
        with Timeout(self.deadlines, deadline) as timeout:
            if accepted.is_shared:
                async with accepted.open_shared(self.limits) as carrying:
                    timeout.lift()
                    await self._accept_each(carrying, accepted.endpoint)
                return
            async with accepted.open(self.limits) as transport:
                serve = await self._accept_client(transport, deadline)
                timeout.lift()
                if serve is not None:
                    await serve()

    async def _accept_each(self, carrying: AcceptedHttp2, endpoint: Endpoint) -> None:
        """Serve the transports of a connection that carries many, until its client opens no more and all are over."""
        self._carrying.add(carrying)
        try:
            async with trio.open_nursery() as nursery:
                if self._draining is not None:
                    carrying.stop_accepting()
                while (transport := await carrying.accept()) is not None:
                    nursery.start_soon(self.accept, AcceptedTransport(endpoint, transport))
        finally:
            self._carrying.discard(carrying)

    async def serve_one(self, transport: Transport, served: trio.Event) -> None:
        """Serve one transport that needs no handshake, and close it."""
        try:
            await self.accept(AcceptedTransport("stream", transport))
        finally:
            served.set()
            with trio.CancelScope(shield=True):
                await transport.aclose()

    @asynccontextmanager
    async def sharing_deadlines(self) -> AsyncIterator[None]:
        """Have one task look after the deadlines of all connections, until the last of them is over."""
        self.deadlines = Deadlines()
        # Connections that finish while everything around them is cancelled still have deadlines.
        minding = trio.CancelScope(shield=True)

        async def mind(deadlines: Deadlines) -> None:
            with minding:
                await deadlines.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mind, self.deadlines)
            try:
                yield
            finally:
                # The block ended with the last connection, so no deadline is left to watch.
                minding.cancel()

    @asynccontextmanager
    async def open_handlers(self, grace: float) -> AsyncIterator[trio.Nursery]:
        """Open a nursery for the tasks that serve connections; a cancellation of the block does not reach them.

        Leaving the block, also by a cancellation, drains the connections for at most ``grace`` seconds. Those that were
        accepted and have not begun get the same time, and at least ``ADMISSION_TIMEOUT``, for their handshake and their
        SETUP, and are drained in their turn.
        """
        over, ended = trio.Event(), trio.Event()

        async def hold(task_status: trio.TaskStatus[trio.Nursery]) -> None:
            try:
                async with trio.open_nursery() as handlers:
                    handlers.cancel_scope.shield = True
                    task_status.started(handlers)
                    try:
                        await over.wait()
                    except trio.Cancelled:
                        nursery.cancel_scope.cancel()  # a task failed: the block ends, and all others drain
                        raise
            finally:
                ended.set()

        try:
            async with self.sharing_deadlines(), trio.open_nursery() as nursery:
                with trio.CancelScope(shield=True):
                    handlers = await nursery.start(hold)
                try:
                    yield handlers
                finally:
                    # Before the first await: a connection whose SETUP arrives from now on is begun to be drained.
                    self._begin_drain(nursery, grace)
                    handlers.cancel_scope.deadline = max(self._grace_ends, trio.current_time() + ADMISSION_TIMEOUT)
                    over.set()
                    # Mostly a cancellation brought us here. Each drain ends by itself after `grace` seconds.
                    with trio.CancelScope(shield=True):
                        await ended.wait()
        except BaseExceptionGroup as group:
            leaf = only_leaf(group)
            raise leaf from leaf.__cause__
        finally:
            self.failure_log.log_repeats()

    def _begin_drain(self, nursery: trio.Nursery, grace: float) -> None:
        """Drain all connections in this nursery, those that are yet to begin as well."""
        self._draining = nursery
        self._grace_ends = trio.current_time() + grace
        for carrying in self._carrying:
            carrying.stop_accepting()
        if self.sessions is not None:
            self.sessions.close()
        for connection in self.connections:
            nursery.start_soon(self._drain, connection)

    async def _drain(self, connection: Connection) -> None:
        """Drain a connection, whose requests are refused from now on.

        A client that was not let in yet has the time for that: it is told that its requests were refused.
        """
        engine = connection._engine
        with trio.CancelScope(shield=True):
            if engine.session.awaits_admission:
                engine.session.drain()
                with trio.CancelScope(deadline=max(self._grace_ends, trio.current_time() + ADMISSION_TIMEOUT)):
                    while engine.ended is None and engine.session.awaits_admission:
                        await engine.changes.park()
            await connection.drain(grace=max(0.0, self._grace_ends - trio.current_time()))

    async def _accept_client(self, transport: Transport, deadline: float) -> Serving | None:
        """Detect the dialect and the session. Return ``None`` if no dialect matches or the client disconnected.

        The connection times the SETUP, which has to come before the ``deadline``.
        """
        serve: Serving | None = None
        try:
            detected = await self._protocol_of(transport)
            if detected is None:
                return None
            protocol, transport = detected
            if self._recording is not None:
                transport = RecordedTransport(transport, self._recording, "server", protocol.name)
            if not isinstance(protocol, RSocketServer) or protocol.resume is None:
                serve = partial(self.run, transport, protocol, deadline)
            else:
                serve = await self._read_first_frames(transport, protocol, deadline)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            logger.debug("a client went before its SETUP: %s", error)
        except RemoteProtocolError as error:
            logger.debug("a client sent what is no frame: %s", error)
            await self._finish(transport)
        finally:
            if serve is None and isinstance(transport, RecordedTransport):
                transport.end("no session came of it", is_over=True)
        return serve

    async def run(
        self, transport: Transport, protocol: ServerProtocolFactory, setup_deadline: float, first: Sequence[bytes] = ()
    ) -> None:
        """Run one connection to its end; ``first`` are the frames that came on its transport already.

        One that begins while the server drains is served like one that was open before: its requests are refused.
        """
        connection, resumable = self._begin(transport, protocol)
        running = connection._run(
            transport,
            setup_deadline=setup_deadline,
            first=first,
            deadlines=self.deadlines,
            refused_clients=self._refused_clients,
        )
        recorded = transport if isinstance(transport, RecordedTransport) else None
        del transport, first
        self.connections.add(connection)
        if self._draining is not None:
            self._draining.start_soon(self._drain, connection)
        try:
            await running
        finally:
            self.connections.discard(connection)
            if recorded is not None:
                recorded.session_over(connection._engine.ended)
            if self.sessions is not None and resumable is not None:
                self.sessions.release(resumable)
                resumable.let_go()

    def _begin(
        self, transport: Transport, protocol: ServerProtocolFactory
    ) -> tuple[Connection, ResumableConnection | None]:
        """Make a connection for this client, resumable if its SETUP asks for that."""
        session, setup = protocol.begin(trio.current_time())
        if self._draining is not None:
            session.drain()  # requests that come together with the SETUP are refused as well
        if protocol.resume is None:
            transport.use_framing(protocol.framing(first=True))
        connection = Connection(session, self.responder, setup, transport.handshake, failure_log=self.failure_log)
        if self.sessions is None or protocol.resume is None or not isinstance(session, RSocketSession):
            return connection, None
        return connection, ResumableConnection(connection._engine, session, self.sessions)

    async def _read_first_frames(
        self, transport: Transport, protocol: RSocketServer, deadline: float
    ) -> Serving | None:
        """Read the first frames of a client. A RESUME hands its transport to the session that it names."""
        transport.use_framing(protocol.framing(first=True))
        try:
            frames = await transport.receive()
        except RemoteProtocolError:
            return partial(self.run, transport, protocol, deadline)  # the session reads it again, and answers
        if not frames:
            return None
        back = resume_request(protocol.dialect, frames[0])
        if back is None:
            return partial(self.run, transport, protocol, deadline, frames)
        assert self.sessions is not None
        try:
            return partial(_wait_done, self.sessions.resume(back, transport, frames[1:]))
        except RejectedResume as refusal:
            answer = protocol.dialect.codec.encode(ErrorFrame(0, refusal.code, refusal.data))
            await self._refuse(transport, answer)
            return None

    async def _protocol_of(self, transport: Transport) -> tuple[ServerProtocolFactory, Transport] | None:
        """Return the protocol of the first bytes, and the transport as its client frames it.

        ``None`` if the client disconnected, or after it was turned away because no dialect matches.
        """
        messages = transport.is_message_based
        if len(self.protocols) == 1:
            (protocol,) = self.protocols.values()
            if messages and isinstance(protocol, RSocketServer) and protocol.dialect.lengths_are_learnt:
                data, _ = await transport.peek()
                if keeps_length(data):
                    transport = with_lengths(transport)
            return protocol, transport
        while True:
            data, ended = await transport.peek()
            dialect = detect_protocol(data, message=messages, ended=ended)
            if dialect is UNDECIDED:
                continue
            learns = dialect is None or (not isinstance(dialect, str) and dialect.lengths_are_learnt)
            if messages and learns and keeps_length(data):
                transport = with_lengths(transport)
            if dialect is not None and name_of(dialect) in self.protocols:
                return self.protocols[name_of(dialect)], transport
            if data or not ended:
                await self._turn_away(transport, data, dialect)
            return None

    async def _turn_away(self, transport: Transport, data: bytes, dialect: Detected | None) -> None:
        self._turned_away += 1
        protocol = client_protocol(data)
        if self._turned_away == 1:
            start = f"{data[:16].hex()}{f' ({protocol})' if protocol else ''}"
            logger.warning("first bytes that fit no dialect served here: %s; further ones are counted", start)
        answer = dialect or answer_for(data, message=transport.is_message_based)
        if answer is None and protocol:
            answer = RSOCKET_1_0  # a client of another protocol may tell by it what answers here
        if answer is None or isinstance(answer, str):
            # Streamux can't express a refusal.
            if transport.is_message_based:
                # Closed without an answer; a WebSocket still sends its close frame.
                await self._finish(transport)
            return
        refusal = ErrorFrame(0, InvalidSetup.default_code, b"the first frame must be a SETUP of a version served here")
        transport.use_framing(framing_for(answer, self.limits))
        await self._refuse(transport, answer.codec.encode(refusal))

    async def _refuse(self, transport: Transport, refusal: bytes) -> None:
        """Send the ERROR that refuses the first frame of a client, which may close first."""
        with trio.move_on_after(CLOSE_TIMEOUT):
            await transport.send([refusal])
            await self._refused_clients.wait_closed(transport)
        await self._finish(transport)

    async def _finish(self, transport: Transport) -> None:
        # The peer may be quicker.
        with trio.move_on_after(CLOSE_TIMEOUT), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await transport.finish()


async def _wait_done(resumed: ResumedTransport) -> None:
    """Keep the transport open for as long as its session goes on over it, and while that drains."""
    with trio.CancelScope(shield=True):
        await resumed.done.wait()
    if isinstance(resumed.transport, RecordedTransport):
        resumed.transport.end(is_over=True)


def server_protocols(responder: Responder, options: StreamServeOptions) -> dict[str, ServerProtocolFactory]:
    """Return a server end for each dialect, by name. Raise ``ValueError`` naming an unknown dialect."""
    dialects, limits, fragment_size = options["dialects"], options["limits"], options["fragment_size"]
    streamux, resume = options["streamux"], options["resume"]
    check_types(limits, streamux)
    names = (dialects,) if isinstance(dialects, str) else tuple(dialects)
    if not names:
        raise ValueError("no dialect to serve")
    names = tuple(dict.fromkeys(map(full_name, names)))
    family = [dialect_named(name) for name in names if name != STREAMUX]
    own_size = not isinstance(fragment_size, Unsaid)
    factories: dict[str, ServerProtocolFactory] = {}
    for record in map(spoken, with_quirks(family, options["quirks"])):
        resumes = resume if record.resumes else None
        factories[record.name] = RSocketServer(record, limits, fragment_size, resumes, responder, own_size)
    if resume is not None and not any(record.resumes for record in family):
        raise Unsupported(f"resumption of {', '.join(names)}: there is none")
    largest = min((record.framing.largest for record in family), default=MAX_CHUNK_SIZE)
    checked_size(fragment_size, largest, resume)
    if STREAMUX in names:
        factories[STREAMUX] = StreamuxPeer(streamux, False, limits, fragment_size, responder)
    elif streamux is not None:
        raise ValueError(f"streamux options, but {STREAMUX} is not among the dialects served")
    return factories
