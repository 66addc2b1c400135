"""A Streamux client and server of ours over memory, and every write of each."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio
import trio.testing

from rsocket_trio import Connection, Limits, Responder, StreamuxOptions, open_connection_over
from rsocket_trio.client.options import FRAGMENT_SIZE, LIMITS
from rsocket_trio.mux.framing import EncodedFrame, Framing
from rsocket_trio.server.accept import Server
from rsocket_trio.server.options import serve_options
from rsocket_trio.streamux.negotiation import Terms
from rsocket_trio.streamux_magic import SIZE
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from tests.connection.pairs import settle
from tests.streamux.pairs import Chunk, chunks_in

STREAMUX = "streamux/1"


class Recorded(ByteStreamTransport):
    """A transport that remembers each write. ``hold`` keeps writes back until ``release``."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.writes: list[bytes] = []
        self.size = 0
        self.may_write = trio.Event()
        self.may_write.set()

    def hold(self) -> None:
        """Writes wait from now on: the peer's buffers are full."""
        self.may_write = trio.Event()

    def release(self) -> None:
        """Writes go on."""
        self.may_write.set()

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        data = Framing().join(frames)
        self.writes.append(data)
        await self.may_write.wait()
        await super().send(frames)
        self.size += len(data)  # what the transport has accepted

    def chunks(self, terms: Terms) -> list[Chunk]:
        """The chunks behind the initialize message."""
        return chunks_in(terms, b"".join(self.writes)[SIZE:])


class Pair(NamedTuple):
    """Both connections and what they write."""

    client: Connection
    server: Connection
    client_wire: Recorded
    server_wire: Recorded

    @property
    def terms(self) -> Terms:
        """Return what the two agreed on."""
        terms = self.client._engine.session.terms  # type: ignore[attr-defined]
        assert isinstance(terms, Terms)
        return terms

    @property
    def client_said(self) -> list[Chunk]:
        return self.client_wire.chunks(self.terms)

    @property
    def server_said(self) -> list[Chunk]:
        return self.server_wire.chunks(self.terms)


@asynccontextmanager
async def streamux_pair(
    responder: Responder | None = None,
    client_responder: Responder | None = None,
    *,
    client: StreamuxOptions | None = None,
    server: StreamuxOptions | None = None,
    limits: Limits = LIMITS,
    server_limits: Limits | None = None,
    bounded: bool = False,
    settled: bool = True,
    fragment_size: int = FRAGMENT_SIZE,
) -> AsyncIterator[Pair]:
    """Both sides, inside of the client's block. With ``bounded`` a write waits until the other side reads it."""
    ours, theirs = trio.testing.lockstep_stream_pair() if bounded else trio.testing.memory_stream_pair()
    client_wire, server_wire = Recorded(ours), Recorded(theirs)
    serving = Server(
        responder or Responder(),
        serve_options(
            dialects=[STREAMUX], limits=server_limits or limits, fragment_size=fragment_size, streamux=server
        ),
    )
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving.run, server_wire, serving.protocols[STREAMUX], math.inf)
        await settle()
        (accepted,) = serving.connections
        try:
            async with open_connection_over(
                client_wire,
                dialect=STREAMUX,
                responder=client_responder,
                limits=limits,
                fragment_size=fragment_size,
                streamux=client,
            ) as connection:
                if settled:
                    await settle()
                yield Pair(connection, accepted, client_wire, server_wire)
        except BaseException as exc:
            error = exc  # alone, in no group of this nursery's
        finally:
            client_wire.release()
            server_wire.release()
    if error is not None:
        try:
            raise error
        finally:
            del error


def widths(id_bits: int, length_bits: int = 16, **others: Any) -> StreamuxOptions:
    """Options that recommend, and allow at most, so many bits."""
    return StreamuxOptions(**{"max_id": id_bits, "rec_id": id_bits, "rec_len": length_bits, **others})


def echoing() -> Responder:
    """Answers a whole request with itself in capitals, and each chunk of a channel with the same."""
    responder = Responder()

    @responder.request_response
    def shout(request: Any) -> bytes:
        return bytes(request.data.upper())

    @responder.request_channel
    async def echo(channel: Any) -> None:
        async for item in channel:
            await channel.send(item.data.upper())

    return responder
