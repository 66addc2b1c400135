"""A Streamux peer made of bytes: packed from the drawings of the document, with nothing of the code under test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from rsocket_trio import Channel, Connection, Payload, Responder, RSocketError, open_connection_over, serve_stream

PATIENCE = 5.0
"""Seconds, on a clock that jumps, in which the other side has to do what is expected of it."""
CLIENT_SAYS = bytes.fromhex("01 00 EB 87 10")
"""The initialize message of our client: version 1, ids of 0 to 29 bits, rather 14, lengths of 1 to 24, rather 16."""
SERVER_SAYS = bytes.fromhex("01 10 EB 87 10")
"""That of our server, which allows a quick init."""


def bits(*fields: tuple[int, int]) -> str:
    """Numbers and their widths, as the document draws them."""
    return "".join(f"{number:0{width}b}" if width else "" for number, width in fields)


def initialize(
    id_bits: tuple[int, int, int],
    length_bits: tuple[int, int, int],
    *,
    version: int = 1,
    reserved: int = 0,
    request: int = 0,
    allow: int = 0,
) -> bytes:
    """The string of 40 bits: minimum, maximum and recommendation of both."""
    drawn = bits(
        *((version, 8), (reserved, 2), (request, 1), (allow, 1)),
        *zip(id_bits, (4, 5, 5), strict=True),
        *zip(length_bits, (4, 5, 5), strict=True),
    )
    assert len(drawn) == 40
    return int(drawn, 2).to_bytes(5, "big")


class Chunk(NamedTuple):
    """One chunk as it was on the wire."""

    id: int
    response: int
    last: int
    data: bytes


class Mux(NamedTuple):
    """Chunks of a session with these widths."""

    id_bits: int
    length_bits: int

    def __str__(self) -> str:
        return f"{self.id_bits}/{self.length_bits}"

    @property
    def says(self) -> bytes:
        """An initialize message that leaves the other side no choice."""
        return initialize(self.exactly(self.id_bits), self.exactly(self.length_bits))

    @staticmethod
    def exactly(width: int) -> tuple[int, int, int]:
        return min(width, 15), width, width

    @property
    def most(self) -> int:
        """Bytes of the largest payload."""
        return (1 << self.length_bits) - 1

    @property
    def header_size(self) -> int:
        """The table of the document."""
        total = self.id_bits + self.length_bits
        return 1 if total <= 6 else 2 if total <= 14 else 3 if total <= 22 else 4

    def header(self, request_id: int, length: int, response: int, last: int) -> bytes:
        drawn = bits((request_id, self.id_bits), (length, self.length_bits), (response, 1), (last, 1))
        assert len(drawn) == self.id_bits + self.length_bits + 2
        return int(drawn, 2).to_bytes(self.header_size, "little")

    def parsed(self, header: bytes) -> tuple[int, int, int, int]:
        """Id, length, response and termination."""
        drawn = f"{int.from_bytes(header, 'little'):0{8 * self.header_size}b}"
        used = drawn[-(self.id_bits + self.length_bits + 2) :]
        unused = drawn[: -len(used)]
        assert "1" not in unused, f"unused bits are set in {drawn}"
        id_drawn, rest = used[: self.id_bits], used[self.id_bits :]
        return int(id_drawn or "0", 2), int(rest[:-2], 2), int(rest[-2]), int(rest[-1])

    def chunk(self, data: bytes) -> Chunk:
        """One whole chunk."""
        request_id, length, response, last = self.parsed(data[: self.header_size])
        assert len(data) == self.header_size + length
        return Chunk(request_id, response, last, data[self.header_size :])

    def request(self, request_id: int, data: bytes, last: int = 1) -> bytes:
        return self.header(request_id, len(data), 0, last) + data

    def response(self, request_id: int, data: bytes, last: int = 1) -> bytes:
        return self.header(request_id, len(data), 1, last) + data

    def cancel(self, request_id: int) -> bytes:
        return self.header(request_id, 0, 0, 0)

    def cancel_ack(self, request_id: int) -> bytes:
        return self.header(request_id, 0, 1, 0)

    def ping(self, request_id: int) -> bytes:
        return self.header(request_id, 0, 0, 1)

    def ping_ack(self, request_id: int) -> bytes:
        return self.header(request_id, 0, 1, 1)


SMALL = Mux(5, 9)
"""The second drawing of the document: a header of two octets without an unused bit."""
WIDE = Mux(10, 14)
"""The first one: four octets, six bits unused."""
BULK = Mux(4, 16)
"""Chunks of 64 KiB, one for each write of ours."""
LARGE = 4 * BULK.most + 5
"""Bytes of a message of five of them."""
widths = pytest.mark.parametrize("mux", [SMALL, WIDE, Mux(0, 6), Mux(1, 5), Mux(8, 10)], ids=str)


class RawMux:
    """The other end of a byte stream, which says what a test tells it to and hears everything."""

    def __init__(self, stream: trio.abc.Stream, mux: Mux) -> None:
        self.stream = stream
        self.mux = mux

    async def send(self, *chunks: bytes) -> None:
        await self.stream.send_all(b"".join(chunks))

    async def read(self, size: int) -> bytes:
        """The next bytes, and not one more: who writes to a slow pair goes on waiting."""
        data = b""
        with trio.fail_after(PATIENCE):
            while len(data) < size:
                came = await self.stream.receive_some(size - len(data))
                assert came, f"the other side closed; {data!r} was left"
                data += came
        return data

    async def expect(self, *wanted: bytes) -> None:
        """Exactly these bytes come next."""
        for one in wanted:
            got = await self.read(len(one))
            assert got == one, f"{got.hex(' ')} and not {one.hex(' ')}"

    async def expect_in_any_order(self, *wanted: bytes) -> None:
        """Exactly these chunks come next, of messages that do not wait for each other."""
        got = [await self.receive() for _ in wanted]
        assert sorted(got) == sorted(self.mux.chunk(one) for one in wanted)

    async def receive(self) -> Chunk:
        """The next chunk."""
        request_id, length, response, last = self.mux.parsed(await self.read(self.mux.header_size))
        return Chunk(request_id, response, last, await self.read(length))

    async def expect_request(self, data: bytes, last: int = 1) -> int:
        """A request of one chunk comes next: its id."""
        got = await self.receive()
        assert got == Chunk(got.id, 0, last, data)
        return got.id

    async def expect_alive(self, request_id: int = 0) -> None:
        """Nothing was said, and a ping is answered."""
        await self.send(self.mux.ping(request_id))
        await self.expect(self.mux.ping_ack(request_id))

    async def expect_end(self) -> None:
        """Nothing more comes: the other side closed."""
        with trio.fail_after(PATIENCE):
            rest = await self.stream.receive_some()
        assert rest == b""

    async def expect_silence(self, seconds: float = 1) -> None:
        with trio.move_on_after(seconds) as scope:
            got = await self.stream.receive_some()
            raise AssertionError(f"{got!r} came")
        assert scope.cancelled_caught

    async def say_no_more(self) -> None:
        """End the stream, and go on listening."""
        assert isinstance(self.stream, trio.StapledStream)
        await self.stream.send_stream.aclose()


def stream_pair(*, slow: bool = False, paced: bool = False) -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """The raw peer's end and the other one. Writes of a slow one, and of a paced peer, wait until they are read."""
    lockstep, unbounded = trio.testing.lockstep_stream_one_way_pair, trio.testing.memory_stream_one_way_pair
    sends, receives = lockstep() if paced else unbounded()
    answers, hears = lockstep() if slow else unbounded()
    return trio.StapledStream(sends, hears), trio.StapledStream(answers, receives)


@asynccontextmanager
async def bare_server(
    responder: Responder, mux: Mux = SMALL, *, slow: bool = False, paced: bool = False, **options: Any
) -> AsyncIterator[RawMux]:
    """A client made of bytes that has not said a word, and a server."""
    ours, theirs = stream_pair(slow=slow, paced=paced)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder, theirs, **{"dialects": ["streamux/1"], **options}))
        try:
            yield RawMux(ours, mux)
        finally:
            await trio.aclose_forcefully(ours)
            nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


@asynccontextmanager
async def server(responder: Responder, mux: Mux = SMALL, **options: Any) -> AsyncIterator[RawMux]:
    """The same, after both initialize messages."""
    async with bare_server(responder, mux, **options) as peer:
        await peer.send(mux.says)
        if "streamux" in options:
            await peer.read(5)
        else:
            await peer.expect(SERVER_SAYS)
        yield peer


@asynccontextmanager
async def client(
    mux: Mux = SMALL,
    responder: Responder | None = None,
    *,
    slow: bool = False,
    said: bytes | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Connection, RawMux]]:
    """A server made of bytes after both initialize messages, of which ``said`` is its own, and our connection."""
    ours, theirs = stream_pair(slow=slow)
    peer = RawMux(ours, mux)
    await peer.send(mux.says if said is None else said)
    try:
        async with open_connection_over(theirs, dialect="streamux/1", responder=responder, **options) as connection:
            if "streamux" in options:
                await peer.read(5)
            else:
                await peer.expect(CLIENT_SAYS)
            yield connection, peer
    finally:
        await trio.aclose_forcefully(ours)


async def fails_to_open(says: bytes, *, close: bool = False, **options: Any) -> tuple[RSocketError, bytes, float]:
    """Return what opening a connection raises when the server says this, what the client said, and how long it took."""
    ours, theirs = trio.testing.memory_stream_pair()
    started = trio.current_time()
    await ours.send_all(says)
    if close:
        await ours.send_stream.aclose()
    with trio.fail_after(60), pytest.raises(RSocketError) as caught:
        async with open_connection_over(theirs, dialect="streamux/1", **options):
            pytest.fail("the block began")
    took = trio.current_time() - started
    return caught.value, bytes([byte async for piece in ours.receive_stream for byte in piece]), took


class Log:
    """A responder of whole messages, and what its handler saw."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.responder = Responder()

        @self.responder.request_response
        async def echo(request: Payload) -> bytes:
            self.seen.append(request.data)
            if request.data == b"wait":
                try:
                    await trio.sleep_forever()
                finally:
                    self.seen.append("cancelled")
            if request.data == b"nothing":
                return b""
            if request.data.startswith(b"large "):
                return bytes(int(request.data[6:]))
            return request.data


class Talk:
    """A responder that takes every chunk as it comes, and what its handler saw."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.responder = Responder()

        @self.responder.request_channel
        async def talk(channel: Channel) -> None:
            try:
                async for item in channel:
                    self.seen.append(item.data)
                    if item.data == b"leave":
                        await channel.send(b"bye")
                        return
                    await channel.send(b"<" + item.data + b">")
            except BaseException as error:
                self.seen.append(type(error).__name__)
                raise
            self.seen.append("complete")


async def asked(connection: Connection, data: bytes, answers: list[bytes]) -> None:
    """Make a request; its answer is added to those."""
    answers.append((await connection.request_response(data)).data)


async def settle() -> None:
    """Let every task run until all of them wait."""
    await trio.testing.wait_all_tasks_blocked()
