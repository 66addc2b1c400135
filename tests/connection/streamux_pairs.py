"""A Streamux client and server of ours over memory, and every write of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio
import trio.testing

from rsocket_trio import Connection, Limits, Responder, StreamuxOptions
from rsocket_trio.client.options import FRAGMENT_SIZE, LIMITS
from rsocket_trio.mux.framing import EncodedFrame, Framing
from rsocket_trio.streamux.negotiation import Terms
from rsocket_trio.streamux_magic import SIZE
from tests.connection.pairs import HeldTransport, over_wires, settle
from tests.streamux.pairs import Chunk, chunks_in

STREAMUX = "streamux/1"


class Recorded(HeldTransport):
    """A transport that remembers each write."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.writes: list[bytes] = []
        self.size = 0

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
    streams = trio.testing.lockstep_stream_pair() if bounded else trio.testing.memory_stream_pair()
    client_wire, server_wire = map(Recorded, streams)
    serving = {"dialects": [STREAMUX], "limits": server_limits or limits, "streamux": server}
    options = {"dialect": STREAMUX, "responder": client_responder, "limits": limits, "streamux": client}
    sizes = {"fragment_size": fragment_size}
    async with over_wires(client_wire, server_wire, responder, serving | sizes, options | sizes) as connections:
        if settled:
            await settle()
        yield Pair(*connections, client_wire, server_wire)


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
