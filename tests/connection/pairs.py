"""A client and a server of ours over memory, and everything that went over the wire between them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio
import trio.testing

from rsocket_trio import Connection, Keepalive, Limits, Payload, Responder, open_connection_over
from rsocket_trio.client.options import FRAGMENT_SIZE, LIMITS
from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.server.accept import Server
from rsocket_trio.server.serve import serve_options
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from tests.conformance import raw

NAMES = {
    raw.SETUP: "SETUP",
    raw.LEASE: "LEASE",
    raw.KEEPALIVE: "KEEPALIVE",
    raw.REQUEST_RESPONSE: "REQUEST_RESPONSE",
    raw.REQUEST_FNF: "REQUEST_FNF",
    raw.REQUEST_STREAM: "REQUEST_STREAM",
    raw.REQUEST_CHANNEL: "REQUEST_CHANNEL",
    raw.REQUEST_N: "REQUEST_N",
    raw.CANCEL: "CANCEL",
    raw.PAYLOAD: "PAYLOAD",
    raw.ERROR: "ERROR",
    raw.METADATA_PUSH: "METADATA_PUSH",
    raw.EXT: "EXT",
}


class Said(list[raw.Raw]):
    """The frames that one side wrote, in order; ``writes`` counts how many writes that took."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    @property
    def names(self) -> list[str]:
        """The types of all frames but the SETUP."""
        return [NAMES[frame.type] for frame in self if frame.type != raw.SETUP]

    def count(self, kind: object) -> int:
        """Return how many frames of this type there were."""
        return sum(frame.type == kind for frame in self)

    def of(self, kind: int) -> list[raw.Raw]:
        """The frames of this type."""
        return [frame for frame in self if frame.type == kind]

    @property
    def credit(self) -> list[int]:
        """Return what each REQUEST_N said."""
        return [int.from_bytes(frame.body, "big") for frame in self.of(raw.REQUEST_N)]


class HeldTransport(ByteStreamTransport):
    """A transport whose writes wait from ``hold`` until ``release``."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.may_write = trio.Event()
        self.may_write.set()

    def hold(self) -> None:
        """Writes wait from now on: the peer's buffers are full."""
        self.may_write = trio.Event()

    def release(self) -> None:
        """Writes go on."""
        self.may_write.set()


class Recorded(HeldTransport):
    """A transport that remembers what it was told to write."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.said = Said()
        self.remembers = True

    def forget(self) -> None:
        """Remember nothing from now on: a test counts what is left in memory."""
        self.remembers = False

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        self.said.writes += 1
        if self.remembers:
            self.said += [raw.parsed(whole(frame)) for frame in frames]
        await self.may_write.wait()
        await super().send(frames)


class Pair(NamedTuple):
    """Both connections, and what each side wrote."""

    client: Connection
    server: Connection
    client_wire: Recorded
    server_wire: Recorded

    @property
    def client_said(self) -> Said:
        return self.client_wire.said

    @property
    def server_said(self) -> Said:
        return self.server_wire.said


@asynccontextmanager
async def connected_pair(
    responder: Responder | None = None,
    client_responder: Responder | None = None,
    *,
    limits: Limits = LIMITS,
    server_limits: Limits | None = None,
    **options: Any,
) -> AsyncIterator[Pair]:
    """A client inside of its block, and the server's side of it, which has read the SETUP."""
    client_wire, server_wire = map(Recorded, trio.testing.memory_stream_pair())
    options |= {"responder": client_responder, "limits": limits}
    dialect = options.setdefault("dialect", "rsocket/1.0")
    serving = {"dialects": [dialect], "limits": server_limits or limits, "fragment_size": FRAGMENT_SIZE}
    async with over_wires(client_wire, server_wire, responder, serving, options) as (connection, accepted):
        await settle()
        yield Pair(connection, accepted, client_wire, server_wire)


@asynccontextmanager
async def over_wires(
    client_wire: HeldTransport,
    server_wire: HeldTransport,
    responder: Responder | None,
    serving: dict[str, Any],
    options: dict[str, Any],
) -> AsyncIterator[tuple[Connection, Connection]]:
    """Both connections over these transports: the client inside of its block, and the server's."""
    server = Server(responder or Responder(), serve_options(**serving))
    async with nursery_beside(lambda _: None) as nursery:
        nursery.start_soon(server.run, server_wire, server.protocols[options["dialect"]], math.inf)
        await settle()
        (accepted,) = server.connections
        try:
            async with open_connection_over(client_wire, **options) as connection:
                yield connection, accepted
        finally:
            client_wire.release()
            server_wire.release()


def silent(max_lifetime: float) -> Keepalive:
    """Return the terms of a client that sends no KEEPALIVE within its lifetime, as no ``Keepalive`` may say it."""
    keepalive = Keepalive(max_lifetime, max_lifetime)
    object.__setattr__(keepalive, "interval", 1000.0)
    return keepalive


async def settle() -> None:
    """Let everybody do what can be done without time passing."""
    await trio.testing.wait_all_tasks_blocked()


def echo_responder() -> Responder:
    """Answers with what it was asked, never, or for ever."""
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    @responder.request_response("never")
    async def never(request: Payload) -> bytes:
        await trio.sleep_forever()

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        number = 0
        while True:
            yield b"%d" % number
            number += 1

    return responder
