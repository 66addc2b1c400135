"""A client and a server that are connected over a simulated network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from typing import Any

import trio

from rsocket_trio import Connection, Limits, Responder, ResumeOptions, Setup, open_connection_over, serve, serve_stream
from rsocket_trio.forms import Handler, Kind
from rsocket_trio.testing.network import SimulatedNetwork
from rsocket_trio.tools.exception_groups import nursery_beside

LIMITS = Limits()


@asynccontextmanager
async def connected_pair(
    responder: Responder | None = None,
    *,
    client_responder: Responder | None = None,
    network: SimulatedNetwork | None = None,
    dialect: str = "rsocket/1.0",
    limits: Limits = LIMITS,
    server_limits: Limits | None = None,
    resume: ResumeOptions | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Connection, Connection]]:
    """Open a client and the server that it is connected to, for as long as the block; yield both their connections.

    ``responder``, as it is at the start, serves the client, ``client_responder`` the server. ``network`` is a network
    without faults by default. ``dialect`` is the protocol of both. ``limits`` are those of both sides, or with
    ``server_limits`` the client's; ``options`` are the others of ``open_connection_over``. With ``resume``, for both
    sides, sessions outlive the connections of the network: after a cut the client comes back over the next one.

    The block starts when the server has admitted the client. A refusal is raised at once, and so is ``ConnectionLost``
    or ``OSError`` if the network does not let the client through. An exception of the block leaves it unchanged.
    """
    network = SimulatedNetwork() if network is None else network
    noticed, servers = trio.Event(), list[Connection]()

    def let_in(connection: Connection) -> None:
        servers.append(connection)
        noticed.set()

    served = _noticing(Responder() if responder is None else responder, let_in)
    terms: dict[str, Any] = {"dialects": [dialect], "limits": server_limits or limits, "grace": 0}
    async with nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery:
        if resume is None:
            await nursery.start(trio.serve_listeners, partial(serve_stream, served, **terms), [network.listener()])
        else:
            # One server for all connections: it is where sessions wait for their clients.
            await nursery.start(partial(serve, resume=resume, **terms), served, [network.listener()])
        stream = network.connect if resume is not None else await network.connect()
        async with open_connection_over(
            stream, dialect=dialect, responder=client_responder, limits=limits, resume=resume, **options
        ) as client:
            client.on_state(lambda status: status == "closed" and noticed.set())
            if client.status != "closed":
                await noticed.wait()
            if not servers:
                # The server has refused the client: this raises the error that the client got.
                await client.request_response(b"?")
            yield client, servers[-1]


def _noticing(responder: Responder, let_in: Callable[[Connection], object]) -> Responder:
    """Return a copy of the responder, with the same handlers, that tells which connections it has let in."""
    inner = responder._specials.get("setup")

    async def ask(setup: Setup, connection: Connection) -> None:
        if inner is not None:
            answer = inner.function(setup, connection)
            if inner.kind is Kind.ASYNC:
                await answer
        let_in(connection)

    noticing = copy(responder)
    noticing._specials = {**responder._specials, "setup": Handler(ask, Kind.ASYNC)}
    return noticing
