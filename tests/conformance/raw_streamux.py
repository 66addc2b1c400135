"""A Streamux peer made of bytes, for what the cases of the tester do not say: pace, limits, and what our API tells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import trio
import trio.testing

from rsocket_trio import Connection, Payload, Responder, open_connection_over, serve_stream
from rsocket_trio.conformance.streamux_notation import ChunkFields, Widths

PATIENCE = 5.0
"""Seconds, on a clock that jumps, in which the other side has to do what is expected of it."""


class Mux(NamedTuple):
    """Chunks of a session with these widths."""

    id_bits: int
    length_bits: int

    @property
    def says(self) -> bytes:
        """An initialize message that leaves the other side no choice."""
        number = 1 << 4
        for bits in self:
            number = ((number << 4 | min(bits, 15)) << 5 | bits) << 5 | bits
        return number.to_bytes(5, "big")

    @property
    def header_size(self) -> int:
        return Widths(*self).header_size

    def header(self, request_id: int, length: int, response: int, last: int) -> bytes:
        number = (request_id << self.length_bits | length) << 2 | response << 1 | last
        return number.to_bytes(self.header_size, "little")

    def parsed(self, header: bytes) -> tuple[int, int, int, int]:
        """Id, length, response and termination."""
        number = int.from_bytes(header, "little")
        length = number >> 2 & (1 << self.length_bits) - 1
        return number >> 2 + self.length_bits, length, number >> 1 & 1, number & 1

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
WIDE = Mux(10, 14)


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

    async def receive(self) -> ChunkFields:
        """The next chunk."""
        request_id, length, response, last = self.mux.parsed(await self.read(self.mux.header_size))
        return ChunkFields(request_id, response, last, await self.read(length))

    async def expect_request(self, data: bytes) -> int:
        """A request of one chunk comes next: its id."""
        got = await self.receive()
        assert got == ChunkFields(got.id, 0, 1, data)
        return got.id

    async def expect_alive(self, request_id: int = 0) -> None:
        """Nothing was said, and a ping is answered."""
        await self.send(self.mux.ping(request_id))
        await self.expect(self.mux.ping_ack(request_id))

    async def expect_end(self) -> None:
        """Nothing more comes: the other side closed."""
        with trio.fail_after(PATIENCE):
            assert await self.stream.receive_some() == b""

    async def expect_silence(self, seconds: float = 1) -> None:
        with trio.move_on_after(seconds) as scope:
            got = await self.stream.receive_some()
            raise AssertionError(f"{got!r} came")
        assert scope.cancelled_caught


def stream_pair(slow: bool) -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """The raw peer's end and the other one. Writes of a slow one wait until they are read."""
    sends, receives = trio.testing.memory_stream_one_way_pair()
    one_way = trio.testing.lockstep_stream_one_way_pair if slow else trio.testing.memory_stream_one_way_pair
    answers, hears = one_way()
    return trio.StapledStream(sends, hears), trio.StapledStream(answers, receives)


@asynccontextmanager
async def server(
    responder: Responder, mux: Mux = SMALL, *, slow: bool = False, **options: Any
) -> AsyncIterator[RawMux]:
    """A client made of bytes, and a server, after both initialize messages."""
    ours, theirs = stream_pair(slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, responder, theirs, **{"dialects": ["streamux/1"], **options}))
        peer = RawMux(ours, mux)
        try:
            await peer.send(mux.says)
            await peer.read(5)
            yield peer
        finally:
            await trio.aclose_forcefully(ours)
            nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end"


@asynccontextmanager
async def client(mux: Mux = SMALL, *, slow: bool = False, **options: Any) -> AsyncIterator[tuple[Connection, RawMux]]:
    """A server made of bytes, and our connection, after both initialize messages."""
    ours, theirs = stream_pair(slow)
    peer = RawMux(ours, mux)
    await peer.send(mux.says)
    try:
        async with open_connection_over(theirs, dialect="streamux/1", **options) as connection:
            await peer.read(5)
            yield connection, peer
    finally:
        await trio.aclose_forcefully(ours)


class Log:
    """A responder of whole messages, and what its handler saw."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.responder = Responder()

        @self.responder.request_response
        async def echo(request: Payload) -> bytes:
            self.seen.append(request.data)
            if request.data == b"wait":
                await trio.sleep_forever()
            return request.data


async def settle() -> None:
    """Let every task run until all of them wait."""
    await trio.testing.wait_all_tasks_blocked()
