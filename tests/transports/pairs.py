"""A client and the server's side of its connection, over whatever a URI names."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import Framing24
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners


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
    (listener,) = await open_listeners([uri], ssl_context=server_context)
    tell, told = trio.open_memory_channel[Transport](1)
    done = trio.Event()

    async def hold(accepted: Accepted) -> None:
        async with accepted.open(limits) as transport:
            transport.use_framing(Framing24())
            tell.send_nowait(transport)
            await done.wait()

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(listener.serve, hold)
        async with open_transport(bound, ssl_context=client_context, headers=headers, limits=limits) as client:
            client.use_framing(Framing24())
            yield client, await told.receive()
        done.set()
        nursery.cancel_scope.cancel()


async def receive_frames(transport: Transport, count: int) -> list[bytes]:
    """As many frames as were asked for, however they came."""
    frames: list[bytes] = []
    while len(frames) < count:
        more = await transport.receive()
        assert more, f"the end after {len(frames)} of {count} frames"
        frames += more
    return frames
