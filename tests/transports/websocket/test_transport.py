"""One binary message is one frame: a WebSocket reads when asked to, writes whole messages, and answers in between."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.limits import MAX_FRAME_BYTES
from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT
from rsocket_trio.transports.socket_stream import SocketStream
from rsocket_trio.transports.websocket.transport import WebSocketTransport
from rsocket_trio.transports.websocket.websocket_frames import MessageReader, join
from tests.transports.pairs import transport_pair

URI = "ws://127.0.0.1:0/rsocket"
PING = b"\x89\x01p"


def upgrade(path: str, *more: bytes) -> bytes:
    """Return what a browser would send."""
    lines = [
        b"GET " + path.encode() + b" HTTP/1.1",
        *(b"Host: h", b"Upgrade: websocket", b"Connection: Upgrade"),
        *(b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", b"Sec-WebSocket-Version: 13"),
        *more,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class Line(trio.abc.Stream):
    """Delivers what it was given, chunk by chunk, remembers what was written, and may be slow to write."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)
        self.reads = 0
        self.writes: list[bytes] = []
        self.may_write = trio.Event()
        self.may_write.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        return self.chunks.pop(0) if self.chunks else b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        half = len(data) // 2
        self.writes.append(bytes(data[:half]))
        await self.may_write.wait()
        self.writes[-1] += bytes(data[half:])

    async def wait_send_all_might_not_block(self) -> None:
        await self.may_write.wait()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def client_over(stream: trio.abc.Stream) -> WebSocketTransport:
    return WebSocketTransport(stream, MessageReader(client=True, max_message=1 << 24), Handshake(), b"")


def server_over(stream: trio.abc.Stream) -> WebSocketTransport:
    return WebSocketTransport(stream, MessageReader(client=False, max_message=1 << 24), Handshake(), b"")


async def test_the_largest_frame_passes_and_one_byte_more_closes_with_1009() -> None:
    """RS10-FRM-04."""
    async with transport_pair(URI) as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(client.send, [bytes(MAX_FRAME_BYTES)])
        (frame,) = await server.receive()
        assert len(frame) == MAX_FRAME_BYTES
        nursery.start_soon(send_ignoring_a_loss, client, bytes(MAX_FRAME_BYTES + 1))
        with pytest.raises(RemoteProtocolError, match="1009"):
            await server.receive()
        nursery.start_soon(server.finish)
        with pytest.raises(trio.BrokenResourceError, match="closed with 1009"):
            await client.receive()
        nursery.cancel_scope.cancel()


async def send_ignoring_a_loss(transport: Transport, frame: bytes) -> None:
    try:
        await transport.send([frame])
    except trio.BrokenResourceError:
        pass


async def test_one_send_is_one_write_whatever_the_number_of_frames() -> None:
    line = Line()

    await server_over(line).send([b"one", (b"tw", memoryview(b"o"))])

    assert line.writes == [b"\x82\x03one\x82\x03two"]


async def test_every_message_of_a_client_has_a_mask_of_its_own() -> None:
    line = Line()

    await client_over(line).send([bytes(4)] * 100)

    (write,) = line.writes
    assert len({write[start + 2 : start + 6] for start in range(0, len(write), 10)}) == 100
    assert MessageReader(client=False, max_message=10).feed(write) == [bytes(4)] * 100


# Writes that do not wait


@contextmanager
def over_sockets() -> Iterator[tuple[WebSocketTransport, SocketStream]]:
    """A client, and the server's end of its socket."""
    here, there = socket.socketpair()
    with here, there:
        yield client_over(SocketStream(here)), SocketStream(there)


def at_once(transport: WebSocketTransport, *frames: EncodedFrame) -> bool:
    assert transport.send_at_once is not None
    return transport.send_at_once(frames)


async def test_what_a_write_at_once_left_goes_first_with_the_next_one_and_answers_stand_between_messages() -> None:
    large = bytes(range(256)) * 8192
    with over_sockets() as (client, there):
        assert not at_once(client, large)
        assert not at_once(client, b"behind it")
        there.write(PING + b"\x82\x01a")
        written = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.send, []))
            assert await client.receive() == [b"a"]
            nursery.start_soon(client.receive)  # begins with the answer, which another task is asked to write
            while len(written) < len(large) + 14 + 9 + 6 + 7:
                written += await there.receive_some()
            nursery.cancel_scope.cancel()

    reader = MessageReader(client=False, max_message=1 << 24)
    assert reader.feed(written) == [large, b"behind it"]
    assert (reader.judged, reader.closed, reader.mid_frame) == (1, None, False)  # the answer


# Reading


async def test_a_cancelled_receive_loses_nothing() -> None:
    ours, theirs = memory_stream_pair()
    client = client_over(ours)
    data = b"\x82\x05hello" + PING + b"\x02\x03wor\x80\x02ld"
    heard: list[bytes] = []
    for place in range(len(data)):
        await theirs.send_all(data[place : place + 1])
        with trio.move_on_after(0):
            heard += await client.receive()
        with trio.CancelScope() as scope:
            scope.cancel()
            heard += await client.receive()
    while len(heard) < 2:
        heard += await client.receive()
    assert heard == [b"hello", b"world"]


async def test_who_is_cancelled_while_its_answer_waits_for_room_has_torn_nothing() -> None:
    line = Line(PING, b"\x82\x01a")
    client = client_over(line)
    line.may_write = trio.Event()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.receive)
            await wait_all_tasks_blocked()
            assert client.mid_frame
            scope.cancel()
    line.may_write.set()

    await client.send([b"last words"])

    assert line.writes[0][0] == 0x8A
    assert not client.mid_frame
    assert await client.receive() == [b"a"]


async def test_who_floods_with_pings_and_does_not_read_is_not_read_either() -> None:
    line = Line(*[PING * 100] * 50)
    line.may_write = trio.Event()
    client = client_over(line)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.receive)
        await wait_all_tasks_blocked()
        reads = line.reads
        nursery.cancel_scope.cancel()

    assert reads == 1


# Cancelled writes, and ends


async def test_nothing_is_written_behind_a_message_that_was_cancelled_half_way() -> None:
    line = Line()
    line.may_write = trio.Event()
    server = server_over(line)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.send, [b"message"])
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    written = [bytes(each) for each in line.writes]
    line.may_write.set()

    with pytest.raises(trio.BrokenResourceError, match="cancelled"):
        await server.send([b"more"])
    await server.finish()

    assert line.writes == written


async def test_a_send_that_was_cancelled_before_it_began_harms_nothing() -> None:
    line = Line()
    server = server_over(line)
    with trio.CancelScope() as scope:
        scope.cancel()
        await server.send([b"never"])

    await server.send([b"message"])

    assert line.writes == [b"\x82\x07message"]


async def test_finish_discards_4_mib_and_no_more() -> None:
    line = Line(*[join([bytes(65526)])] * 100)
    client = client_over(line)

    await client.finish()

    assert 0 <= line.reads * 65536 - DISCARD_LIMIT <= 65536


async def test_finish_is_an_end_for_the_peer_and_a_broken_pipe_for_its_sends() -> None:
    async with transport_pair(URI) as (client, server):
        await client.send([b"last words"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.finish)
            assert await server.receive() == [b"last words"]
            assert await server.receive() == []
            assert await server.receive() == []
            with pytest.raises(trio.BrokenResourceError):
                await server.send([b"too late"])
            await server.finish()
            await server.aclose()
        await client.finish()
        await client.aclose()


async def test_the_peer_sees_the_code_that_finish_was_given() -> None:
    line = Line()
    await server_over(line).finish(1002)
    assert line.writes == [b"\x88\x02\x03\xea"]


async def test_an_ordinary_close_is_the_end_of_the_stream_and_one_for_a_fault_a_loss_that_names_it() -> None:
    for ordinary in (b"\x88\x02\x03\xe8", b"\x88\x02\x03\xe9", b""):
        assert await client_over(Line(ordinary)).receive() == []
    with pytest.raises(trio.BrokenResourceError, match="closed with 1008 not you"):
        await client_over(Line(b"\x88\x09\x03\xf0not you")).receive()
