"""A client and a server that are connected over a simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from rsocket_trio import (
    Connection,
    Limits,
    Responder,
    ResumeOptions,
    Setup,
    open_connection_over,
    serve,
    serve_stream,
)
from rsocket_trio.forms import Handler, Kind
from rsocket_trio.testing.network import SimulatedNetwork

DIALECT = "rsocket/1.0"
LIMITS = Limits()


@asynccontextmanager
async def connected_pair(
    responder: Responder | None = None,
    *,
    client_responder: Responder | None = None,
    network: SimulatedNetwork | None = None,
    dialect: str = DIALECT,
    limits: Limits = LIMITS,
    server_limits: Limits | None = None,
    resume: ResumeOptions | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Connection, Connection]]:
    """Open a client and the server that it is connected to, for as long as the block; yield both their connections.

    ``responder`` serves the client, ``client_responder`` the server. ``network`` is a network without faults by
    default. ``dialect`` is the protocol of both. ``limits`` are those of both sides, or with ``server_limits`` the
    client's; ``options`` are the others of ``open_connection_over``. With ``resume``, for both sides, sessions outlive
    the connections of the network: after a cut the client comes back over the next one.

    The block starts when the server has admitted the client. A refusal is raised at once, and so is ``ConnectionLost``
    or ``OSError`` if the network does not let the client through. An exception of the block leaves it unchanged.
    """
    network = SimulatedNetwork() if network is None else network
    served = _Noticing(responder if responder is not None else Responder())
    listener = network.listener()
    limits_there = limits if server_limits is None else server_limits
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        if resume is None:
            await nursery.start(trio.serve_listeners, partial(served.serve, dialect, limits_there), [listener])
        else:
            # One server for all connections: it is where sessions wait for their clients.
            terms: dict[str, Any] = {"dialects": [dialect], "limits": limits_there, "resume": resume, "grace": 0}
            await nursery.start(partial(serve, **terms), served, [listener])
        try:
            stream = network.connect if resume is not None else await network.connect()
            async with open_connection_over(
                stream, dialect=dialect, responder=client_responder, limits=limits, resume=resume, **options
            ) as client:
                yield client, await served.server_of(client)
        except BaseException as exc:
            error = exc  # alone, in no group of this nursery's
        nursery.cancel_scope.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


class _Noticing(Responder):
    """Another responder that tells when it let a connection in, or when none is left that it could let in.

    Its handlers are those of ``inner``, also those that are registered later: every attribute that is missing here.
    """

    def __init__(self, inner: Responder) -> None:  # no handlers of its own: those of ``inner`` would be hidden
        self.noticed = trio.Event()
        self.connection: Connection | None = None
        self._inner = inner
        self._served = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def serve(self, dialect: str, limits: Limits, stream: trio.abc.Stream) -> None:
        """Serve one connection to its end."""
        self._served += 1
        try:
            await serve_stream(self, stream, dialects=[dialect], limits=limits, grace=0)
        finally:
            self._served -= 1
            if not self._served:
                self.noticed.set()

    async def server_of(self, client: Connection) -> Connection:
        """Return the server's side, once the application there has let the client in."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_for_its_end, client)
            await self.noticed.wait()
            nursery.cancel_scope.cancel()
        if self.connection is None:
            # The server has refused the client: this raises the error that the client got.
            await client.request_response(b"?")
        assert self.connection is not None
        return self.connection

    async def _wait_for_its_end(self, client: Connection) -> None:
        await client.wait_closed()
        self.noticed.set()

    @property
    def _setup_handler(self) -> Handler:
        """Return a handler that asks the other responder, and notes the connection."""
        inner = self._inner._setup_handler
        if inner is None:
            return Handler(self._notice, Kind.INLINE)
        return Handler(partial(self._ask, inner), Kind.ASYNC)

    async def _ask(self, inner: Handler, setup: Setup, connection: Connection) -> None:
        answer = inner.function(setup, connection)
        if inner.kind is Kind.ASYNC:
            await answer
        self._notice(setup, connection)

    def _notice(self, setup: Setup, connection: Connection) -> None:
        self.connection = connection
        self.noticed.set()
