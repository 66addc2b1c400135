"""A peer made of bytes for the layouts with 32-bit lengths: frames of 0.0 and 0.1, as their documents draw them."""

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
from tests.conformance.raw import OPAQUE, PATIENCE, settle, u32, u64

__all__ = [
    "OLD",
    "RS00",
    "RS01",
    "Log",
    "Old",
    "Peer",
    "bare_server",
    "both",
    "client",
    "server",
    "settle",
    "u32",
    "u64",
]

INVALID_SETUP, UNSUPPORTED_SETUP, REJECTED_SETUP = "INVALID_SETUP", "UNSUPPORTED_SETUP", "REJECTED_SETUP"
CONNECTION_ERROR = 0x101
APPLICATION_ERROR, REJECTED, CANCELED, INVALID = 0x201, 0x202, 0x203, 0x204


class Raw(NamedTuple):
    """One frame as it was on the wire."""

    type: str
    flags: str
    stream_id: int | None
    body: bytes


@attrs.frozen(eq=False)
class Old:
    """How one of the two documents draws its frames."""

    name: str
    header: str
    types: dict[str, int]
    flags: dict[str, int]
    codes: dict[str, int]
    count: str
    """Numbers of items."""
    first_ids: tuple[int, int]
    """The client's and the server's."""

    def __str__(self) -> str:
        return self.name

    @property
    def has_version(self) -> bool:
        """Every frame has it; otherwise SETUP."""
        return self.header == ">BBHQ"

    @property
    def counted(self) -> str:
        """The flag that peers of 0.1 set, and Go needs, where a number stands always; the document does not name it."""
        return "" if self.has_version else "N"

    # The header

    def frame(
        self, kind: str | int, flags: str | int = "", stream_id: int | None = 0, body: bytes = b"", *, version: int = 0
    ) -> bytes:
        number = self.types[kind] if isinstance(kind, str) else kind
        bits = flags if isinstance(flags, int) else sum(self.flags[flag] for flag in flags)
        if self.has_version:  # RS00-HDR-05
            head = struct.pack(">BBH", version, bits, number)
            return head + (b"" if stream_id is None else u64(stream_id)) + body
        return struct.pack(">HH", number, bits) + (b"" if stream_id is None else u32(stream_id)) + body  # RS01-HDR-05

    def parsed(self, data: bytes) -> Raw:
        if self.has_version:
            version, bits, number = struct.unpack_from(">BBH", data)
            assert version == 0
            size = 8
        else:
            number, bits = struct.unpack_from(">HH", data)
            size = 4
        kind = next(name for name, value in self.types.items() if value == number)
        names = self.flags if not self.has_version else {**self.flags}
        meaning = {
            "SETUP": "IMLS",
            "KEEPALIVE": "IMR",
            "REQUEST_CHANNEL": "IMFCN",
            "REQUEST_STREAM": "IMFN",
            "REQUEST_SUB": "IMFN",
        }.get(kind, "IMFC")
        flags = "".join(flag for flag in meaning if flag in names and bits & names[flag])
        assert sum({names[flag] for flag in flags}) == bits, f"spare bits in {data!r}"
        if kind == "EXT":
            return Raw(kind, flags, None, data[4:])
        return Raw(kind, flags, int.from_bytes(data[4 : 4 + size], "big"), data[4 + size :])

    def prefixed(self, *frames: bytes) -> bytes:
        """RS00-HDR-04, RS01-HDR-04: the length counts its own four bytes."""
        return b"".join(u32(len(one) + 4) + one for one in frames)

    def sized(self, metadata: bytes, kind: int = 0) -> bytes:
        """RS00-MD-03, RS01-MD-02: the length counts its own word, which has the type in 0.0."""
        return u32(kind << 24 | len(metadata) + 4) + metadata

    def n(self, number: int) -> bytes:
        return struct.pack(self.count, number)

    # Frames

    def setup(
        self,
        flags: str = "",
        *,
        version: tuple[int, int] | None = None,
        keepalive: int = 20_000,
        lifetime: int = 90_000,
        metadata_mime: bytes = OPAQUE,
        data_mime: bytes = OPAQUE,
        metadata: bytes | None = None,
        data: bytes = b"",
        stream_id: int = 0,
    ) -> bytes:
        body = bytes([len(metadata_mime)]) + metadata_mime + bytes([len(data_mime)]) + data_mime
        if metadata is not None:
            flags += "M"
            body += self.sized(metadata)
        if self.has_version:
            return self.frame("SETUP", flags, stream_id, body + data, version=version[0] if version else 0)
        fields = struct.pack(">HHII", *(version or (0, 1)), keepalive, lifetime)
        return self.frame("SETUP", flags, stream_id, fields + body + data)

    def keepalive(self, data: bytes = b"", flags: str = "R") -> bytes:
        return self.frame("KEEPALIVE", flags, 0, data)

    def _with(self, kind: str, flags: str, stream_id: int, fields: bytes, data: bytes, metadata: bytes | None) -> bytes:
        if metadata is not None:
            return self.frame(kind, flags + "M", stream_id, fields + self.sized(metadata) + data)
        return self.frame(kind, flags, stream_id, fields + data)

    def ask(self, stream_id: int, data: bytes = b"", flags: str = "", metadata: bytes | None = None) -> bytes:
        return self._with("REQUEST_RESPONSE", flags, stream_id, b"", data, metadata)

    def forget(self, stream_id: int, data: bytes = b"", flags: str = "") -> bytes:
        return self.frame("REQUEST_FNF", flags, stream_id, data)

    def stream(self, stream_id: int, n: int, data: bytes = b"", flags: str = "") -> bytes:
        return self.frame("REQUEST_STREAM", flags + self.counted, stream_id, self.n(n) + data)

    def sub(self, stream_id: int, n: int, data: bytes = b"", flags: str = "") -> bytes:
        return self.frame("REQUEST_SUB", flags + self.counted, stream_id, self.n(n) + data)

    def channel(self, stream_id: int, n: int | None = None, data: bytes = b"", flags: str = "") -> bytes:
        if n is None:
            return self.frame("REQUEST_CHANNEL", flags, stream_id, data)
        return self.frame("REQUEST_CHANNEL", flags + "N", stream_id, self.n(n) + data)

    def request_n(self, stream_id: int, n: int) -> bytes:
        return self.frame("REQUEST_N", "", stream_id, self.n(n))

    def cancel(self, stream_id: int) -> bytes:
        return self.frame("CANCEL", "", stream_id)

    def item(self, stream_id: int, data: bytes = b"", flags: str = "", metadata: bytes | None = None) -> bytes:
        return self._with("RESPONSE", flags, stream_id, b"", data, metadata)

    def done(self, stream_id: int) -> bytes:
        return self.frame("RESPONSE", "C", stream_id)

    def error(self, stream_id: int, code: int = APPLICATION_ERROR, text: bytes = b"") -> bytes:
        """A stream's error, or in 0.1 the connection's."""
        return self.frame("ERROR", "", stream_id, (b"" if self.has_version else u32(code)) + text)

    def refusal(self, code: str | int, text: bytes = b"", stream_id: int = 0) -> bytes:
        number = self.codes[code] if isinstance(code, str) else code
        return self.frame("SETUP_ERROR" if self.has_version else "ERROR", "", stream_id, u32(number) + text)

    def push(self, metadata: bytes, stream_id: int = 0, kind: int = 0) -> bytes:
        return self.frame("METADATA_PUSH", "M", stream_id, self.sized(metadata, kind))

    def lease(self, seconds: float, requests: int, flags: str = "", metadata: bytes | None = None) -> bytes:
        if self.has_version:
            fields = u64(round(seconds * 1e9)) + u64(requests)
        else:
            fields = u32(round(seconds * 1e3)) + u32(requests)
        return self._with("LEASE", flags, 0, fields, b"", metadata)

    def ext(self, number: int, body: bytes = b"", flags: str = "") -> bytes:
        return self.frame("EXT", flags, None, u32(number) + body)


# RS00-TYP-01, RS00-HDR-08, RS00-SERR-03
RS00 = Old(
    "reactivesocket/0.0",
    ">BBHQ",
    {
        "SETUP": 0x0001,
        "SETUP_ERROR": 0x0002,
        "LEASE": 0x0003,
        "REQUEST_RESPONSE": 0x0011,
        "REQUEST_FNF": 0x0012,
        "REQUEST_STREAM": 0x0013,
        "REQUEST_SUB": 0x0014,
        "REQUEST_N": 0x0015,
        "CANCEL": 0x0016,
        "RESPONSE": 0x0020,
        "ERROR": 0x0021,
        "METADATA_PUSH": 0x0031,
        "EXT": 0xFFFF,
    },
    {"I": 0x80, "M": 0x40, "F": 0x20, "L": 0x20, "C": 0x10},
    {INVALID_SETUP: 0x0001, UNSUPPORTED_SETUP: 0x0010, REJECTED_SETUP: 0x0100},
    ">Q",
    (2, 1),
)
# RS01-TYP-01, RS01-HDR-07, RS01-ERR-04
RS01 = Old(
    "reactivesocket/0.1",
    ">HHI",
    {
        "SETUP": 0x0001,
        "LEASE": 0x0002,
        "KEEPALIVE": 0x0003,
        "REQUEST_RESPONSE": 0x0004,
        "REQUEST_FNF": 0x0005,
        "REQUEST_STREAM": 0x0006,
        "REQUEST_SUB": 0x0007,
        "REQUEST_CHANNEL": 0x0008,
        "REQUEST_N": 0x0009,
        "CANCEL": 0x000A,
        "RESPONSE": 0x000B,
        "ERROR": 0x000C,
        "METADATA_PUSH": 0x000D,
        "EXT": 0xFFFF,
    },
    {"I": 0x8000, "M": 0x4000, "F": 0x2000, "L": 0x2000, "R": 0x2000, "C": 0x1000, "S": 0x1000, "N": 0x0800},
    {INVALID_SETUP: 1, UNSUPPORTED_SETUP: 2, REJECTED_SETUP: 3},
    ">I",
    (2, 1),
)
OLD = (RS00, RS01)
both = pytest.mark.parametrize("old", OLD, ids=str)

PROBE = b"are you there?"


class Peer:
    """The other end of a byte stream, which says what a test tells it to and hears everything."""

    def __init__(self, old: Old, stream: trio.abc.Stream, *, client: bool) -> None:
        self.old = old
        self.stream = stream
        self._buffer = b""
        self._probes = count(0x7F00 + old.first_ids[not client], 2)

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(self.old.prefixed(*frames))

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self) -> Raw:
        """The next frame."""
        with trio.fail_after(PATIENCE):
            await self._fill(4)
            size = int.from_bytes(self._buffer[:4], "big")
            await self._fill(size)
        data, self._buffer = self._buffer[4:size], self._buffer[size:]
        return self.old.parsed(data)

    async def expect(self, *frames: bytes) -> None:
        """Exactly these frames come next."""
        for wanted in frames:
            assert await self.receive() == self.old.parsed(wanted)

    async def expect_error(self, stream_id: int, code: int | str) -> bytes:
        """An ERROR comes next (SETUP_ERROR of 0.0 on stream 0); its text is returned."""
        got = await self.receive()
        kind = "SETUP_ERROR" if self.old.has_version and not stream_id else "ERROR"
        assert (got.type, got.flags, got.stream_id) == (kind, "", stream_id), got
        if kind == "ERROR" and self.old.has_version:
            return got.body
        assert int.from_bytes(got.body[:4], "big") == (self.old.codes[code] if isinstance(code, str) else code), got
        return got.body[4:]

    async def expect_end(self) -> None:
        """Nothing more comes: the other side closed."""
        with trio.fail_after(PATIENCE):
            rest = self._buffer + bytes(await self.stream.receive_some())
        assert rest == b""

    async def expect_refusal(self, code: str) -> bytes:
        """The SETUP is refused, then the transport is closed."""
        text = await self.expect_error(0, code)
        await self.expect_end()
        return text

    async def expect_failure(self) -> None:
        """The connection is ended for a fault: 0.1 can say so (RS01-IGN-02), 0.0 only closes (RS00-HDR-10)."""
        if not self.old.has_version:
            await self.expect_error(0, CONNECTION_ERROR)
        await self.expect_end()

    async def expect_alive(self) -> None:
        """Nothing was said, and a request is answered."""
        stream_id = next(self._probes)
        await self.send(self.old.ask(stream_id, PROBE))
        await self.expect(self.old.item(stream_id, PROBE, "C"))

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
async def bare_server(old: Old, responder: Responder, **options: Any) -> AsyncIterator[Peer]:
    """A client made of bytes, connected to a server that waits for its first frame."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder, theirs, **{"dialects": [old.name], **options}))
        try:
            yield Peer(old, ours, client=True)
        finally:
            await trio.aclose_forcefully(ours)
            nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


@asynccontextmanager
async def server(old: Old, responder: Responder, flags: str = "", **options: Any) -> AsyncIterator[Peer]:
    """The same, after the SETUP."""
    async with bare_server(old, responder, **options) as peer:
        await peer.send(old.setup(flags))
        yield peer


@asynccontextmanager
async def client(
    old: Old, responder: Responder | None = None, **options: Any
) -> AsyncIterator[tuple[Connection, Peer]]:
    """A server made of bytes that has read the SETUP, and the client's connection."""
    ours, theirs = trio.testing.memory_stream_pair()
    peer = Peer(old, ours, client=False)
    options.setdefault("metadata_mime", OPAQUE.decode())
    try:
        async with open_connection_over(theirs, dialect=old.name, responder=responder, **options) as connection:
            assert (await peer.receive()).type == "SETUP"
            yield connection, peer
    finally:
        await trio.aclose_forcefully(ours)


class Log:
    """A responder of every interaction, and what its handlers saw; probes are answered and not written down."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.responder = responder = Responder()

        @responder.request_response
        async def echo(request: Any) -> Any:
            if request.data == PROBE:
                return PROBE
            self.seen.append(("request", request.data))
            if request.data == b"wait":
                try:
                    await trio.sleep_forever()
                finally:
                    self.seen.append("cancelled")
            return request

        @responder.request_stream
        @responder.request_subscription
        async def ticks(request: Any) -> AsyncIterator[bytes]:
            self.seen.append(("stream", request.data))
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
                await channel.send(b"still here")

        @responder.fire_and_forget
        def note(request: Any) -> None:
            self.seen.append(("note", request.data))

        @responder.metadata_push
        def pushed(metadata: bytes) -> None:
            self.seen.append(("push", metadata))
