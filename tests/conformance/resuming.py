"""Sessions that outlive their transports, with a peer made of bytes on the other side: for what our own API shows."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from rsocket_trio import Connection, Responder, ResumeOptions, open_connection_over
from tests.conformance.raw import (
    KEEPALIVE,
    OPAQUE,
    PATIENCE,
    REJECTED_RESUME,
    RESUME,
    RESUME_OK,
    SETUP,
    Raw,
    RawPeer,
    Wire,
    frame,
    parsed,
    payload,
    u64,
)
from tests.serving import running_server

TOKEN = b"a token of ours"
OPTIONS = ResumeOptions(jitter=0)
TICK = 12
"""Bytes of the frame of one tick."""
STREAM = 10
"""Bytes of the request that asks for them."""


def tick(number: int) -> bytes:
    """One item of the stream with id 1."""
    return payload(1, b"tick %d" % number)


def with_options(**changes: Any) -> ResumeOptions:
    """The usual options, but for these."""
    return attrs.evolve(OPTIONS, **changes)


def resume(wire: Wire, token: bytes = TOKEN, *, got: int = 0) -> bytes:
    """RS10-RES-01, RS02-RES-01: what came of the server's bytes. All of our own are kept."""
    head = struct.pack(">HHH", *wire.version, len(token))
    return frame(RESUME, 0, 0, head + token + u64(got) + u64(0))


def resume_ok(got: int) -> bytes:
    """RS10-RES-02, RS02-RES-02."""
    return frame(RESUME_OK, 0, 0, u64(got))


def token_of(setup: Raw) -> bytes:
    """The token of a SETUP: behind version, interval and lifetime."""
    size = int.from_bytes(setup.body[12:14], "big")
    return setup.body[14 : 14 + size]


class Harbour(trio.abc.Listener[trio.abc.Stream]):
    """A listener whose streams are opened here."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](1000)

    async def connect(self) -> trio.abc.Stream:
        """The client's end of a new stream."""
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.memory_stream_pair()
        self._send.send_nowait(theirs)
        return ours

    async def accept(self) -> trio.abc.Stream:
        """The server's end of the next one."""
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()

    # For peers made of bytes

    async def peer(self) -> RawPeer:
        """A client made of bytes."""
        return RawPeer(await self.connect())

    async def met(self) -> RawPeer:
        """A server made of bytes: the client has to come in time."""
        with trio.fail_after(PATIENCE):
            return RawPeer(await self.accept())


async def cut(peer: RawPeer) -> None:
    """The network fails."""
    await trio.aclose_forcefully(peer.stream)
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def server(
    wire: Wire, responder: Responder, options: ResumeOptions | None = OPTIONS, **more: Any
) -> AsyncIterator[Harbour]:
    """A server that resumes sessions."""
    harbour = Harbour()
    more = {"dialects": [wire.name], "resume": options, **more}
    async with running_server(responder, harbour, **more):
        yield harbour


async def begin(harbour: Harbour, wire: Wire, token: bytes = TOKEN, **fields: Any) -> RawPeer:
    """A client whose session can be resumed."""
    peer = await harbour.peer()
    await peer.send(wire.setup(token=token, **fields))
    return peer


async def come_back(harbour: Harbour, wire: Wire, *, got: int, sent: int) -> RawPeer:
    """The same client on a new transport, which is let in; ``sent`` are the bytes that the server must have."""
    peer = await harbour.peer()
    await peer.send(resume(wire, got=got))
    await peer.expect(resume_ok(sent))
    return peer


async def expect_refused(harbour: Harbour, first: bytes) -> bytes:
    """A client that begins like this is refused: it can't go on with a session. The reason is returned."""
    peer = await harbour.peer()
    await peer.send(first)
    return await peer.expect_failure(REJECTED_RESUME)


@attrs.define
class Side:
    """A client's connection, the server made of bytes that it speaks to now, and its token."""

    wire: Wire
    connection: Connection
    peer: RawPeer
    token: bytes
    harbour: Harbour

    async def asked(self, *, got: int) -> RawPeer:
        """The network fails, and the client dials again and asks to resume: it has so much."""
        await trio.aclose_forcefully(self.peer.stream)
        self.peer = await self.harbour.met()
        assert await self.peer.receive() == parsed(resume(self.wire, self.token, got=got))
        return self.peer


@asynccontextmanager
async def client(wire: Wire) -> AsyncIterator[Side]:
    """A client that resumes, and a server made of bytes that has read its SETUP."""
    harbour = Harbour()
    side: Side | None = None
    try:
        async with open_connection_over(
            harbour.connect, dialect=wire.name, resume=OPTIONS, metadata_mime=OPAQUE.decode()
        ) as connection:
            peer = await harbour.met()
            setup = await peer.receive()
            assert setup.type == SETUP
            side = Side(wire, connection, peer, token_of(setup), harbour)
            yield side
    finally:
        if side is not None:
            await trio.aclose_forcefully(side.peer.stream)


async def position_of(peer: RawPeer) -> int:
    """Return the number of bytes that the other side says it received."""
    await peer.send(frame(KEEPALIVE, 0x080, 0, u64(0) + b"how far?"))
    got = await peer.receive()
    assert (got.type, got.flags, got.body[8:]) == (KEEPALIVE, 0, b"how far?"), got
    return int.from_bytes(got.body[:8], "big")
