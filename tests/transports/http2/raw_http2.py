"""An HTTP/2 peer that sends whatever bytes a test wants, to our server over streams in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import attrs
import trio
from hpack import Decoder, Encoder
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair, wait_all_tasks_blocked

from rsocket_trio.limits import Limits
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.first_bytes import PREFACE
from rsocket_trio.transports.http2.http2_handshake import AcceptedHttp2, SharedHttp2, accept_http2, share_http2
from rsocket_trio.transports.schemes import AcceptOptions, ConnectOptions, parse_uri

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 8, 9, 11
ENDPOINT = parse_uri("h2://a/x")
REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "a"),
    (":path", "/x"),
    ("content-type", "application/rsocket"),
)
PATIENCE = 100_000.0
"""Seconds of a clock that jumps, after which nothing comes any more."""
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class Frame(NamedTuple):
    """A frame that came."""

    kind: int
    flags: int
    stream_id: int
    body: bytes

    @property
    def code(self) -> int:
        """The error code of a GOAWAY or RST_STREAM."""
        return int.from_bytes(self.body[4:8] if self.kind == GOAWAY else self.body, "big")


def frame(kind: int, flags: int = 0, stream_id: int = 0, body: bytes = b"", *, length: int | None = None) -> bytes:
    """The bytes of a frame, which may lie about its length."""
    size = len(body) if length is None else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + body


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, body=b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs))


def block(headers: Iterable[tuple[str, str]] = REQUEST) -> bytes:
    """A header block that refers to no earlier one."""
    return Encoder().encode([(name, text, True) for name, text in headers])


def request(stream_id: int = 1, flags: int = 0, headers: Iterable[tuple[str, str]] = REQUEST) -> bytes:
    """A request that is granted, or one with these headers."""
    return frame(HEADERS, flags | END_HEADERS, stream_id, block(headers))


def data(stream_id: int = 1, body: bytes = b"x", flags: int = 0) -> bytes:
    """A DATA frame."""
    return frame(DATA, flags, stream_id, body)


def reset(stream_id: int = 1, code: int = CANCEL) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def window(stream_id: int = 0, increment: int = 1) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


BEGIN = PREFACE + settings()
HALT = frame(PING, body=b"are you?")


@attrs.define
class Peer:
    """The client's end."""

    stream: Stream | trio.SocketStream
    accepted: AcceptedHttp2 | None = None
    streams: list[ByteStreamTransport] = attrs.field(factory=list)
    """The streams that the server granted."""
    answers: dict[int, list[tuple[str, str]]] = attrs.field(factory=dict)
    """The headers of the last answer on each stream."""
    _rest: bytes = b""
    _decoder: Decoder = attrs.field(factory=Decoder)
    _frames: list[Frame] = attrs.field(factory=list)

    async def send(self, *parts: bytes) -> None:
        """Send bytes, unless the server has closed already."""
        try:
            await self.stream.send_all(b"".join(parts))
        except trio.BrokenResourceError:
            pass

    async def receive(self) -> Frame | None:
        """The next frame; ``None`` once the server has closed."""
        while not self._frames:
            try:
                with trio.fail_after(PATIENCE):
                    chunk = await self.stream.receive_some(65536)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not chunk:
                return None
            self._rest += chunk
            while len(self._rest) >= 9 and len(self._rest) >= 9 + (size := int.from_bytes(self._rest[:3], "big")):
                kind, flags, stream_id = self._rest[3], self._rest[4], int.from_bytes(self._rest[5:9], "big")
                self._frames.append(Frame(kind, flags, stream_id, self._rest[9 : 9 + size]))
                self._rest = self._rest[9 + size :]
        came = self._frames.pop(0)
        if came.kind == HEADERS:
            self.answers[came.stream_id] = [(str(name), str(text)) for name, text in self._decoder.decode(came.body)]
        return came

    async def wait_for(self, kind: int, *, flags: int = 0) -> Frame:
        """The next frame of a kind with these flags."""
        while (found := await self.receive()) is not None:
            if found.kind == kind and found.flags & flags == flags:
                return found
        raise AssertionError(f"the server closed before a frame of type {kind}")

    async def rest(self) -> list[Frame]:
        """All frames until the answer to a PING, once nothing else happens, or until the server closed."""
        await wait_all_tasks_blocked()
        await self.send(HALT)
        found = []
        while (each := await self.receive()) is not None:
            if each.kind == PING and each.body == b"are you?":
                break
            found.append(each)
        return found


@asynccontextmanager
async def raw_client(
    limits: Limits | None = None, *, begin: bool = True, echoes: bool = True, size: int | None = None
) -> AsyncIterator[Peer]:
    """A client of our server, which sends back what comes on its streams.

    Without ``echoes`` the server leaves its streams alone; ``size`` bounds the bytes on their way to the client.
    """
    ours, theirs = memory_stream_pair()
    peer = Peer(ours)
    if size is not None:
        bound_by(theirs, ours, size)

    async def run() -> None:
        options = AcceptOptions(limits or Limits())
        try:
            async with accept_http2(theirs, ENDPOINT, Handshake(), options) as peer.accepted:
                await serve_streams(peer.accepted, peer.streams, echoes=echoes)
        except HandshakeFailed:
            pass
        finally:
            await trio.aclose_forcefully(theirs)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        if begin:
            await peer.send(BEGIN)
            await peer.wait_for(SETTINGS, flags=ACK)
        yield peer
        await trio.aclose_forcefully(ours)
        nursery.cancel_scope.cancel()


async def serve_streams(accepted: AcceptedHttp2, streams: list[ByteStreamTransport], *, echoes: bool) -> None:
    """Accept streams until no more come, note each in a list, and send back what comes on it or leave it alone."""

    async def echo(stream: Transport) -> None:
        try:
            while chunks := await stream.receive():
                await stream.send([bytes(chunk) for chunk in chunks])
            await stream.finish()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            stream.cut()

    async with trio.open_nursery() as nursery:
        while (stream := await accepted.accept()) is not None:
            streams.append(stream)
            if echoes:
                nursery.start_soon(echo, stream)


def bound_by(sender: Stream, receiver: Stream, size: int) -> None:
    """Have a stream in memory hold so many bytes at most: writes beyond wait for the receiver."""
    room = trio.Semaphore(size, max_value=size)
    sending, receiving = sender.send_stream, receiver.receive_stream
    put, get = sending.send_all, receiving.receive_some

    async def send_all(chunk: bytes) -> None:
        for _ in range(len(chunk)):
            await room.acquire()
        await put(chunk)

    async def receive_some(max_bytes: int | None = None) -> bytes:
        got = bytes(await get(max_bytes))
        for _ in got:
            room.release()
        return got

    sending.send_all = send_all  # type: ignore[method-assign,assignment]
    receiving.receive_some = receive_some  # type: ignore[method-assign,assignment]


@attrs.define
class RawServer(Peer):
    """The server's end, and what our client shares."""

    shared: SharedHttp2 | None = None

    async def read_preface(self) -> None:
        """Read what a client sends first."""
        preface = b""
        while len(preface) < len(PREFACE):
            preface += bytes(await self.stream.receive_some(len(PREFACE) - len(preface)))
        assert preface == PREFACE

    async def answer(self, stream_id: int = 1, status: str = "200", kind: str = "application/rsocket") -> None:
        """Answer a request."""
        await self.send(frame(HEADERS, END_HEADERS, stream_id, block([(":status", status), ("content-type", kind)])))


@asynccontextmanager
async def raw_server(*pairs: tuple[int, int]) -> AsyncIterator[RawServer]:
    """A server of our client, with these settings."""
    ours, theirs = memory_stream_pair()
    server = RawServer(ours)
    await server.send(settings(*pairs))
    async with share_http2(theirs, ENDPOINT, Handshake(), ConnectOptions()) as shared:
        await server.read_preface()
        server.shared = shared
        yield server
        await trio.aclose_forcefully(ours)
