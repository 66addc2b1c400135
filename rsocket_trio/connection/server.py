"""Serving: accepting connections, telling their dialects apart, and letting them finish at the end."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial

import trio

from rsocket_trio.connection.client import (
    FRAGMENT_SIZE,
    LIMITS,
    as_transport,
    check_limits,
    framing_for,
    refuse_resume,
)
from rsocket_trio.connection.connection import GRACE, Connection
from rsocket_trio.connection.handlers import only_leaf
from rsocket_trio.errors import InvalidSetup, RemoteProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import COMPOSITE_METADATA
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.detection import UNDECIDED, answer_for, detect
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import ALL, dialect_named
from rsocket_trio.rsocket.frames import ErrorFrame
from rsocket_trio.rsocket.quirks import all_with_quirks
from rsocket_trio.rsocket.session import Session, checked_fragment_size
from rsocket_trio.terms import Setup
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.reasons import HandshakeFailed

logger = logging.getLogger("rsocket_trio")

LONGEST_TOKEN = 65535
"""Bytes of a resume token, which do not count against the limit of a SETUP."""
LEAVING = 1.0


class Server:
    """What all connections of one ``serve`` share: the responder, the terms, and the connections that are open."""

    def __init__(
        self,
        responder: Responder,
        dialects: Iterable[str],
        limits: Limits,
        fragment_size: int,
        resume: None,
        quirks: Iterable[str],
    ) -> None:
        if not isinstance(responder, Responder):
            raise TypeError(f"a Responder serves, not {type(responder).__name__}")
        names = (dialects,) if isinstance(dialects, str) else tuple(dialects)
        if not names:
            raise ValueError("no dialect to serve")
        refuse_resume(resume)
        self.responder = responder
        wanted = all_with_quirks([dialect_named(name) for name in names], quirks)
        self.dialects: dict[str, Dialect] = {dialect.name: dialect for dialect in wanted}
        check_limits(limits)
        self.limits = limits
        self.fragment_size = checked_fragment_size(
            fragment_size, min(dialect.codec.largest for dialect in self.dialects.values())
        )
        self.connections: set[Connection] = set()
        self.draining = False
        self._noise = 0

    async def accept(self, accepted: Accepted) -> None:
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
            dialect = await self._dialect_of(transport)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            logger.debug("a client went before its SETUP: %s", error)
            return
        except RemoteProtocolError as error:
            logger.debug("a client sent what is no frame: %s", error)
            await self._say_goodbye(transport)
            return
        if dialect is not None and not self.draining:
            patience.deadline = math.inf
            await self.run(transport, dialect, deadline)

    async def run(self, transport: Transport, dialect: Dialect, setup_deadline: float) -> None:
        """Run one connection to its end."""
        responder, limits = self.responder, self.limits
        session = Session(
            dialect,
            client=False,
            limits=limits,
            fragment_size=self.fragment_size,
            extensions=frozenset(responder.extensions),
        )
        session.start_server(grants_leases=responder.lease_policy is not None)
        # A SETUP may be a little above its own limit, so that its sender hears of the limit and not of a broken frame.
        transport.use_framing(framing_for(dialect, limits, first_limit=limits.setup_size + LONGEST_TOKEN + 2))
        unknown = Setup(dialect=dialect.name, metadata_mime=COMPOSITE_METADATA)
        connection = Connection(session, responder, unknown, transport.handshake)
        self.connections.add(connection)
        try:
            await connection.run(transport, setup_deadline=setup_deadline)
        finally:
            self.connections.discard(connection)

    async def _dialect_of(self, transport: Transport) -> Dialect | None:
        """Which dialect the first bytes speak; ``None`` after the peer was told, or not, that it is none of ours."""
        if len(self.dialects) == 1:
            return next(iter(self.dialects.values()))
        while True:
            data, ended = await transport.peek()
            found = detect(data, message=transport.is_message_based, ended=ended)
            if found is UNDECIDED:
                continue
            if isinstance(found, Dialect) and found.name in self.dialects:
                return self.dialects[found.name]
            if data or not ended:
                await self._turn_away(transport, data, found if isinstance(found, Dialect) else None)
            return None

    async def _turn_away(self, transport: Transport, data: bytes, found: Dialect | None) -> None:
        self._noise += 1
        if self._noise == 1:
            logger.warning("first bytes that fit no dialect served here: %s; further ones are counted", data[:16].hex())
        answer = found or answer_for(data, message=transport.is_message_based)
        if answer is None:
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
    uris: str | Iterable[str],
    *,
    dialects: Iterable[str] = ALL,
    resume: None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    ssl_context: ssl.SSLContext | None = None,
    unix_mode: int | None = None,
    grace: float = GRACE,
    quirks: Iterable[str] = (),
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on all URIs until cancelled; to be started with ``nursery.start``, which returns the bound URIs.

    One port serves every dialect that ``dialects`` names. ``unix_mode`` are the permissions of a Unix socket.
    When cancelled: listening stops, every connection drains for at most ``grace`` seconds, then is closed.

    Each of ``quirks`` changes those of the dialects that know it.

    Raises ``OSError`` for an address that can't be bound, ``ValueError`` for a URI, a dialect or a quirk that is none.
    """
    server = Server(responder, dialects, limits, fragment_size, resume, tuple(quirks))
    wanted = [uris] if isinstance(uris, str) else list(uris)
    listeners = await open_listeners(wanted, ssl_context=ssl_context, unix_mode=unix_mode)
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


async def serve_stream(
    responder: Responder,
    stream: trio.abc.Stream | Transport,
    *,
    dialects: Iterable[str] = ALL,
    resume: None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    grace: float = GRACE,
    quirks: Iterable[str] = (),
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve one stream (or transport) that is connected already, until its peer ends it; it is closed then.

    When cancelled the connection drains for at most ``grace`` seconds.
    """
    server = Server(responder, dialects, limits, fragment_size, resume, tuple(quirks))
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
