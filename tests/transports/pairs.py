"""A client and the server's side of its connection, over whatever a URI names, and the contexts that TLS needs."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio
import trustme

from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import Framing24
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners

AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("127.0.0.1", "localhost")


def make_server_context() -> ssl.SSLContext:
    """Return a context of a server on this machine."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CERTIFICATE.configure_cert(context)
    return context


def make_client_context() -> ssl.SSLContext:
    """Return a context of a client that trusts it."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@asynccontextmanager
async def transport_pair(
    uri: str = "tcp://127.0.0.1:0",
    *,
    server_context: ssl.SSLContext | None = None,
    client_context: ssl.SSLContext | None = None,
    headers: Iterable[tuple[str, str]] = (),
    limits: Limits | None = None,
) -> AsyncIterator[tuple[Transport, Transport]]:
    """The two ends, client first, their framing set. Real sockets, where the URI means sockets."""
    tell, told = trio.open_memory_channel[Transport](1)
    done = trio.Event()

    async def stay(accepted: Accepted) -> None:
        async with accepted.open(limits) as transport:
            transport.use_framing(Framing24())
            tell.send_nowait(transport)
            await done.wait()

    async with listening(stay, uri, ssl_context=server_context) as [bound]:
        async with open_transport(bound, ssl_context=client_context, headers=headers, limits=limits) as client:
            client.use_framing(Framing24())
            yield client, await told.receive()
        done.set()


@asynccontextmanager
async def listening(
    handler: Callable[[Accepted], Awaitable[None]], *uris: str, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[list[str]]:
    """Listeners that have a handler for each connection. Provide the URIs that were bound."""
    listeners = await open_listeners(uris, ssl_context=ssl_context)
    async with trio.open_nursery() as nursery:
        yield [await nursery.start(listener.serve, handler) for listener in listeners]
        nursery.cancel_scope.cancel()


async def hold(accepted: Accepted) -> None:
    """Accept a connection, and keep it."""
    async with accepted.open():
        await trio.sleep_forever()


async def receive_frames(transport: Transport, count: int) -> list[bytes]:
    """As many frames as were asked for, however they came."""
    frames: list[bytes] = []
    while len(frames) < count:
        more = await transport.receive()
        assert more, f"the end after {len(frames)} of {count} frames"
        frames += more
    return frames
