"""A peer made of bytes: frames written and read by hand from the documents, with nothing of the code under test."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from rsocket_trio import Connection, Responder, RSocketError, open_connection_over, serve_stream

# Types and flags of RS10-TYP-01 and RS02-TYP-01.
SETUP, LEASE, KEEPALIVE = 0x01, 0x02, 0x03
REQUEST_RESPONSE, REQUEST_FNF, REQUEST_STREAM, REQUEST_CHANNEL = 0x04, 0x05, 0x06, 0x07
REQUEST_N, CANCEL, PAYLOAD, ERROR = 0x08, 0x09, 0x0A, 0x0B
METADATA_PUSH, RESUME, RESUME_OK, EXT = 0x0C, 0x0D, 0x0E, 0x3F
I, M, F, C, N = 0x200, 0x100, 0x080, 0x040, 0x020  # noqa: E741
R, L, S = 0x080, 0x040, 0x020  # resume or respond, lease, strict

INVALID_SETUP, UNSUPPORTED_SETUP, REJECTED_SETUP, REJECTED_RESUME = 1, 2, 3, 4
CONNECTION_ERROR, CONNECTION_CLOSE = 0x101, 0x102
APPLICATION_ERROR, REJECTED, CANCELED, INVALID = 0x201, 0x202, 0x203, 0x204

PATIENCE = 5.0
"""Seconds, on a clock that jumps, in which the other side has to do what is expected of it."""
OPAQUE = b"application/octet-stream"
"""A metadata MIME type that nobody looks into."""


class Raw(NamedTuple):
    """One frame as it was on the wire."""

    type: int
    flags: int
    stream_id: int
    body: bytes

    @property
    def error_code(self) -> int:
        """The code of an ERROR."""
        assert self.type == ERROR, f"no ERROR but {self}"
        return int.from_bytes(self.body[:4], "big")


def frame(kind: int, flags: int = 0, stream_id: int = 0, body: bytes = b"") -> bytes:
    """RS10-HDR-01: stream id, six bits of type, ten of flags."""
    return struct.pack(">IH", stream_id, kind << 10 | flags) + body


def parsed(data: bytes) -> Raw:
    stream_id, word = struct.unpack_from(">IH", data)
    return Raw(word >> 10, word & 0x3FF, stream_id, data[6:])


def prefixed(*frames: bytes) -> bytes:
    """RS10-FRM-03: a length of 24 bits that does not count itself."""
    return b"".join(len(one).to_bytes(3, "big") + one for one in frames)


def sized(metadata: bytes) -> bytes:
    """RS10-MD-01: metadata behind its length of 24 bits."""
    return len(metadata).to_bytes(3, "big") + metadata


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def setup(
    version: tuple[int, int] = (1, 0),
    *,
    flags: int = 0,
    keepalive: int = 20_000,
    lifetime: int = 90_000,
    token: bytes | None = None,
    metadata_mime: bytes = OPAQUE,
    data_mime: bytes = OPAQUE,
    metadata: bytes | None = None,
    data: bytes = b"",
    stream_id: int = 0,
) -> bytes:
    body = struct.pack(">HHII", *version, keepalive, lifetime)
    if token is not None:
        flags |= R
        body += len(token).to_bytes(2, "big") + token
    body += bytes([len(metadata_mime)]) + metadata_mime + bytes([len(data_mime)]) + data_mime
    if metadata is not None:
        flags |= M
        body += sized(metadata)
    return frame(SETUP, flags, stream_id, body + data)


def resume(version: tuple[int, int] = (1, 0), token: bytes = b"token", stream_id: int = 0) -> bytes:
    return frame(RESUME, 0, stream_id, struct.pack(">HHH", *version, len(token)) + token + u64(0) + u64(0))


def keepalive(data: bytes = b"", *, respond: bool = True, position: int = 0, flags: int = 0) -> bytes:
    return frame(KEEPALIVE, flags | (R if respond else 0), 0, u64(position) + data)


def request(kind: int, stream_id: int, data: bytes = b"", *, n: int | None = None, flags: int = 0) -> bytes:
    return frame(kind, flags, stream_id, (b"" if n is None else u32(n)) + data)


def ask(stream_id: int, data: bytes = b"", flags: int = 0) -> bytes:
    return request(REQUEST_RESPONSE, stream_id, data, flags=flags)


def forget(stream_id: int, data: bytes = b"", flags: int = 0) -> bytes:
    return request(REQUEST_FNF, stream_id, data, flags=flags)


def stream(stream_id: int, n: int, data: bytes = b"", flags: int = 0) -> bytes:
    return request(REQUEST_STREAM, stream_id, data, n=n, flags=flags)


def channel(stream_id: int, n: int, data: bytes = b"", flags: int = 0) -> bytes:
    return request(REQUEST_CHANNEL, stream_id, data, n=n, flags=flags)


def request_n(stream_id: int, n: int) -> bytes:
    return frame(REQUEST_N, 0, stream_id, u32(n))


def cancel(stream_id: int) -> bytes:
    return frame(CANCEL, 0, stream_id)


def payload(stream_id: int, data: bytes = b"", flags: int = N) -> bytes:
    return frame(PAYLOAD, flags, stream_id, data)


def complete(stream_id: int) -> bytes:
    return frame(PAYLOAD, C, stream_id)


def error(stream_id: int, code: int, data: bytes = b"") -> bytes:
    return frame(ERROR, 0, stream_id, u32(code) + data)


def lease(ttl: int, number: int) -> bytes:
    return frame(LEASE, 0, 0, u32(ttl) + u32(number))


def ext(ext_type: int, body: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    return frame(EXT, flags, stream_id, u32(ext_type) + body)


class Wire(NamedTuple):
    """What tests written once for both dialects have to know of each."""

    name: str
    version: tuple[int, int]
    sized_push: bool
    """Metadata that stands alone has its length too (RS02-MD-04)."""

    def setup(self, **fields: Any) -> bytes:
        return setup(self.version, **fields)

    def push(self, metadata: bytes, stream_id: int = 0) -> bytes:
        return frame(METADATA_PUSH, M, stream_id, sized(metadata) if self.sized_push else metadata)


RS10 = Wire("rsocket/1.0", (1, 0), sized_push=False)
RS02 = Wire("reactivesocket/0.2", (0, 2), sized_push=True)
both = pytest.mark.parametrize("wire", [RS10, RS02], ids=lambda wire: wire.name)


class RawPeer:
    """The other end of a byte stream, which says what a test tells it to and hears everything."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(prefixed(*frames))

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self) -> Raw:
        """The next frame."""
        with trio.fail_after(PATIENCE):
            await self._fill(3)
            size = int.from_bytes(self._buffer[:3], "big")
            await self._fill(3 + size)
        data, self._buffer = self._buffer[3 : 3 + size], self._buffer[3 + size :]
        return parsed(data)

    async def expect(self, *frames: bytes) -> None:
        """Exactly these frames come next."""
        for wanted in frames:
            assert await self.receive() == parsed(wanted)

    async def expect_in_any_order(self, *frames: bytes) -> None:
        """Exactly these frames come next, of streams that do not wait for each other."""
        assert sorted([await self.receive() for _ in frames]) == sorted(parsed(wanted) for wanted in frames)

    async def expect_error(self, stream_id: int, code: int) -> bytes:
        """An ERROR comes next; its text is returned."""
        got = await self.receive()
        assert (got.stream_id, got.error_code, got.flags) == (stream_id, code, 0), got
        return got.body[4:]

    async def expect_end(self) -> None:
        """Nothing more comes: the other side closed."""
        with trio.fail_after(PATIENCE):
            rest = self._buffer + bytes(await self.stream.receive_some())
        assert rest == b""

    async def expect_failure(self, code: int) -> bytes:
        """One ERROR on stream 0, then the transport is closed."""
        text = await self.expect_error(0, code)
        await self.expect_end()
        return text

    async def expect_alive(self, data: bytes = b"are you there?") -> None:
        """Nothing was said, and a KEEPALIVE is answered."""
        await self.send(keepalive(data))
        await self.expect(keepalive(data, respond=False))

    async def expect_silence(self, seconds: float) -> None:
        with trio.move_on_after(seconds) as scope:
            got = await self.stream.receive_some()
            raise AssertionError(f"{got!r} came")
        assert scope.cancelled_caught
        assert self._buffer == b""

    async def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            chunk = await self.stream.receive_some()
            assert chunk, f"the other side closed; {self._buffer!r} was left"
            self._buffer += chunk


@asynccontextmanager
async def bare_server(wire: Wire, responder: Responder, **options: Any) -> AsyncIterator[RawPeer]:
    """A client made of bytes, connected to a server that waits for its first frame."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder, theirs, **{"dialects": [wire.name], **options}))
        try:
            yield RawPeer(ours)
        finally:
            await trio.aclose_forcefully(ours)
            nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


@asynccontextmanager
async def server(wire: Wire, responder: Responder, **options: Any) -> AsyncIterator[RawPeer]:
    """The same, after the SETUP."""
    async with bare_server(wire, responder, **options) as peer:
        await peer.send(wire.setup())
        yield peer


@asynccontextmanager
async def client(
    wire: Wire, responder: Responder | None = None, **options: Any
) -> AsyncIterator[tuple[Connection, RawPeer]]:
    """A server made of bytes that has read the SETUP, and the client's connection."""
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawPeer(ours)
    options.setdefault("metadata_mime", OPAQUE.decode())
    try:
        async with open_connection_over(theirs, dialect=wire.name, responder=responder, **options) as connection:
            assert (await peer.receive()).type == SETUP
            yield connection, peer
    finally:
        await trio.aclose_forcefully(ours)


@asynccontextmanager
async def client_that_said(
    wire: Wire, responder: Responder | None = None, **options: Any
) -> AsyncIterator[tuple[Connection, RawPeer, Raw]]:
    """A client's connection, a server made of bytes, and the first frame that came, whatever it was."""
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawPeer(ours)
    try:
        async with open_connection_over(theirs, dialect=wire.name, responder=responder, **options) as connection:
            yield connection, peer, await peer.receive()
    finally:
        await trio.aclose_forcefully(ours)


@asynccontextmanager
async def slow_server(wire: Wire, responder: Responder, **options: Any) -> AsyncIterator[RawPeer]:
    """A server each of whose writes waits until the client has read it."""
    to_server, server_reads = trio.testing.memory_stream_one_way_pair()
    server_writes, from_server = trio.testing.lockstep_stream_one_way_pair()
    theirs = trio.StapledStream(server_writes, server_reads)
    ours = trio.StapledStream(to_server, from_server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder, theirs, dialects=[wire.name], **options))
        try:
            yield RawPeer(ours)
        finally:
            await trio.aclose_forcefully(ours)
            nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


class Log:
    """A responder of every interaction, and what its handlers saw."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.responder = responder = Responder()

        @responder.request_response
        async def echo(request: Any) -> Any:
            self.seen.append(("request", request.data, request.metadata))
            if request.data == b"wait":
                try:
                    await trio.sleep_forever()
                finally:
                    self.seen.append("cancelled")
            return request

        @responder.request_stream
        async def ticks(request: Any) -> AsyncIterator[bytes]:
            self.seen.append(("stream", request.data, request.metadata))
            number = 0
            try:
                while request.data != b"%d" % number:
                    yield b"tick %d" % number
                    number += 1
            except BaseException:
                self.seen.append("stopped")
                raise

        @responder.request_channel(initial_request_n=4)
        async def talk(channel: Any) -> None:
            self.seen.append(("channel", channel.request.data))
            try:
                async for item in channel:
                    self.seen.append(("item", item.data))
                    if item.data == b"leave":
                        return
                    if item.data == b"back":
                        await channel.send(b"back")
            except BaseException as error:
                self.seen.append(type(error).__name__)
                if isinstance(error, RSocketError):
                    return
                raise
            self.seen.append("completed")
            if channel.request.data == b"stay":
                await trio.sleep_forever()

        @responder.fire_and_forget
        def note(request: Any) -> None:
            self.seen.append(("note", request.data, request.metadata))

        @responder.metadata_push
        def pushed(metadata: bytes) -> None:
            self.seen.append(("push", metadata))


async def settle() -> None:
    """Let every task run until all of them wait."""
    await trio.testing.wait_all_tasks_blocked()
