"""A peer made of bytes for every dialect of RSocket, and the frames of 1.0 and 0.2.

Frames are written and read by hand from the documents, with nothing of the code under test. The frames of the other
dialects are in ``old_frames`` and ``draft_frames``.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import attrs
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
    """One frame as it was on the wire. Type and flags are numbers, or names where the dialect's drawing has names."""

    type: Any
    flags: Any
    stream_id: Any
    body: bytes

    @property
    def error_code(self) -> int:
        """The code of an ERROR of 1.0 or 0.2."""
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


@attrs.frozen
class Wire:
    """The frames of a dialect that peers and scenes need, as RSocket 1.0 and ReactiveSocket 0.2 have them."""

    name: str
    version: tuple[int, int] = (1, 0)
    sized_push: bool = False
    """Metadata that stands alone has its length too (RS02-MD-04)."""

    length_size = 3
    """Bytes of the length before a frame on a byte stream."""
    length_counts_itself = False
    first_ids = (1, 2)
    """The first stream id of a client of ours and of a server of ours."""

    def __str__(self) -> str:
        return self.name

    def prefixed(self, *frames: bytes) -> bytes:
        """Return these frames as they stand on a byte stream."""
        return prefixed(*frames)

    def parsed(self, data: bytes) -> Raw:
        """Return a frame without its length as it was on the wire."""
        return parsed(data)

    def setup(self, **fields: Any) -> bytes:
        return setup(self.version, **fields)

    def push(self, metadata: bytes, stream_id: int = 0) -> bytes:
        return frame(METADATA_PUSH, M, stream_id, sized(metadata) if self.sized_push else metadata)

    def probe(self, stream_id: int, data: bytes) -> tuple[bytes, bytes]:
        """Return a frame that is always answered, and its answer."""
        return keepalive(data), keepalive(data, respond=False)

    def failure(self, got: Raw, code: int | str) -> tuple[bool, bytes]:
        """Return whether this is an error with this code, whatever its stream, and its text."""
        return (got.error_code, got.flags) == (code, 0), got.body[4:]

    def is_told(self, code: int | str) -> bool:
        """Return whether an error of the connection is said before it closes."""
        return True

    def ask(self, stream_id: int, data: bytes = b"") -> bytes:
        return ask(stream_id, data)

    def stream(self, stream_id: int, n: int, data: bytes = b"") -> bytes:
        return stream(stream_id, n, data)

    def channel(self, stream_id: int, n: int, data: bytes = b"") -> bytes:
        return channel(stream_id, n, data)

    def item(self, stream_id: int, data: bytes = b"") -> bytes:
        return payload(stream_id, data)

    def request_n(self, stream_id: int, n: int) -> bytes:
        return request_n(stream_id, n)


RS10 = Wire("rsocket/1.0", (1, 0), sized_push=False)
RS02 = Wire("reactivesocket/0.2", (0, 2), sized_push=True)
both = pytest.mark.parametrize("wire", [RS10, RS02], ids=lambda wire: wire.name)


PROBE = b"are you there?"
"""The data of a request that every ``Log`` answers and does not write down."""


class RawPeer:
    """The other end of a byte stream: it sends what a test tells it to and hears everything."""

    def __init__(self, stream: trio.abc.Stream, wire: Wire = RS10, *, client: bool = True) -> None:
        self.stream = stream
        self.wire = wire
        self._buffer = b""
        self._probes = count(0x7F00 + wire.first_ids[not client], 2)

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(self.wire.prefixed(*frames))

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self) -> Raw:
        """Return the next frame."""
        head = self.wire.length_size
        with trio.fail_after(PATIENCE):
            await self._fill(head)
            size = int.from_bytes(self._buffer[:head], "big") + head * (not self.wire.length_counts_itself)
            await self._fill(size)
        data, self._buffer = self._buffer[head:size], self._buffer[size:]
        return self.wire.parsed(data)

    async def expect(self, *frames: bytes) -> None:
        """Exactly these frames come next."""
        for wanted in frames:
            assert await self.receive() == self.wire.parsed(wanted)

    async def expect_in_any_order(self, *frames: bytes) -> None:
        """Exactly these frames come next, of streams that do not wait for each other."""
        assert sorted([await self.receive() for _ in frames]) == sorted(self.wire.parsed(wanted) for wanted in frames)

    async def expect_error(self, stream_id: int, code: int | str) -> bytes:
        """An error comes next on this stream, with this code. Return its text."""
        got = await self.receive()
        is_right, text = self.wire.failure(got, code)
        assert is_right, got
        assert got.stream_id == stream_id, got
        return text

    async def expect_end(self) -> None:
        """Nothing more comes: the other side closed."""
        with trio.fail_after(PATIENCE):
            rest = self._buffer + bytes(await self.stream.receive_some())
        assert rest == b""

    async def expect_failure(self, code: int | str = CONNECTION_ERROR) -> bytes:
        """The connection is refused or ended for a fault: an error on stream 0 where the dialect has one, then the end.

        Return the error's text.
        """
        text = await self.expect_error(0, code) if self.wire.is_told(code) else b""
        await self.expect_end()
        return text

    async def expect_alive(self, data: bytes = PROBE) -> None:
        """Nothing was said, and a KEEPALIVE is answered; a request, where the dialect's KEEPALIVE is not always."""
        sent, answer = self.wire.probe(next(self._probes), data)
        await self.send(sent)
        await self.expect(answer)

    async def expect_silence(self, seconds: float = 0.5) -> None:
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
async def bare_server(
    wire: Wire, responder: Responder, *, pair: tuple[trio.abc.Stream, trio.abc.Stream] | None = None, **options: Any
) -> AsyncIterator[RawPeer]:
    """A client made of bytes, connected to a server that waits for its first frame. ``pair`` are their streams."""
    ours, theirs = pair or trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder, theirs, **{"dialects": [wire.name], **options}))
        try:
            yield RawPeer(ours, wire)
        finally:
            await trio.aclose_forcefully(ours)
            nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


@asynccontextmanager
async def server(
    wire: Wire, responder: Responder, flags: int | str | None = None, **options: Any
) -> AsyncIterator[RawPeer]:
    """The same, after a SETUP with these flags."""
    async with bare_server(wire, responder, **options) as peer:
        await peer.send(wire.setup() if flags is None else wire.setup(flags=flags))
        yield peer


@asynccontextmanager
async def client(
    wire: Wire, responder: Responder | None = None, **options: Any
) -> AsyncIterator[tuple[Connection, RawPeer]]:
    """A server made of bytes that has read the SETUP, and the client's connection."""
    options.setdefault("metadata_mime", OPAQUE.decode())
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawPeer(ours, wire, client=False)
    try:
        async with open_connection_over(theirs, dialect=wire.name, responder=responder, **options) as connection:
            assert (await peer.receive()).type in (SETUP, "SETUP")
            yield connection, peer
    finally:
        await trio.aclose_forcefully(ours)


@asynccontextmanager
async def slow_server(wire: Wire, responder: Responder, **options: Any) -> AsyncIterator[RawPeer]:
    """A server each of whose writes waits until the client has read it."""
    to_server, server_reads = trio.testing.memory_stream_one_way_pair()
    server_writes, from_server = trio.testing.lockstep_stream_one_way_pair()
    pair = trio.StapledStream(to_server, from_server), trio.StapledStream(server_writes, server_reads)
    async with bare_server(wire, responder, pair=pair, **options) as peer:
        yield peer


class Log:
    """A responder of every interaction, and what its handlers saw; probes are answered and not written down."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.responder = responder = Responder()

        @responder.request_response
        async def echo(request: Any) -> Any:
            if request.data == PROBE:
                return PROBE
            self.seen.append(self.noted("request", request))
            if request.data == b"wait":
                try:
                    await trio.sleep_forever()
                finally:
                    self.seen.append("cancelled")
            return request

        @responder.request_stream
        @responder.request_subscription
        async def ticks(request: Any) -> AsyncIterator[bytes]:
            self.seen.append(self.noted("stream", request))
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
                await self.stay(channel)

        @responder.fire_and_forget
        def note(request: Any) -> None:
            self.seen.append(self.noted("note", request))

        @responder.metadata_push
        def pushed(metadata: bytes) -> None:
            self.seen.append(("push", metadata))

    def noted(self, interaction: str, request: Any) -> tuple[object, ...]:
        """Return what is written down of a request."""
        return interaction, request.data, request.metadata

    async def stay(self, channel: Any) -> None:
        """Go on in a channel whose requester completed."""
        await trio.sleep_forever()


async def settle() -> None:
    """Let every task run until all of them wait."""
    await trio.testing.wait_all_tasks_blocked()
