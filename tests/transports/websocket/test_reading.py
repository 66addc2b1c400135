"""A WebSocket reads when it is asked to, writes whole messages, and answers pings in between."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.transports.socket_stream import SocketStream
from rsocket_trio.transports.websocket.framing import MessageReader, join
from rsocket_trio.transports.websocket.transport import WebSocketTransport
from tests.transports.pairs import receive_frames, transport_pair
from tests.transports.websocket.test_transport import URI, our_server, upgrade

PING, PONG = b"\x89\x01p", b"\x8a\x01p"


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
def over_sockets() -> Iterator[tuple[WebSocketTransport, WebSocketTransport]]:
    """A client and a server over two ends of a socket."""
    here, there = socket.socketpair()
    with here, there:
        yield client_over(SocketStream(here)), server_over(SocketStream(there))


def at_once(transport: WebSocketTransport, *frames: EncodedFrame) -> bool:
    assert transport.send_at_once is not None
    return transport.send_at_once(frames)


async def test_a_write_at_once_is_there_without_a_step_of_the_scheduler() -> None:
    with over_sockets() as (client, server):
        assert at_once(client, b"one", (b"tw", memoryview(b"o")))
        assert at_once(server, *[bytes([number]) * 9 for number in range(20)])

        assert await server.receive() == [b"one", b"two"]
        assert await client.receive() == [bytes([number]) * 9 for number in range(20)]
    assert client_over(Line()).send_at_once is None


async def test_what_a_write_at_once_left_goes_first_with_the_next_one_and_answers_stand_between_messages() -> None:
    large = bytes(range(256)) * 8192
    with over_sockets() as (client, server):
        there = server_socket(server)
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


def server_socket(transport: WebSocketTransport) -> SocketStream:
    stream = transport._stream
    assert isinstance(stream, SocketStream)
    return stream


async def test_a_write_at_once_waits_behind_an_answer_that_waits_for_room() -> None:
    with over_sockets() as (client, server):
        filler = bytes(1 << 22)
        assert not at_once(client, filler)  # and no byte more fits
        server_socket(server).write(PING + b"\x82\x01a")
        async with trio.open_nursery() as nursery:
            assert await client.receive() == [b"a"]
            nursery.start_soon(client.receive)  # begins with the answer
            await wait_all_tasks_blocked()
            assert client.mid_frame
            assert not at_once(client, b"behind it")
            assert await receive_frames(server, 2) == [filler, b"behind it"]
            nursery.cancel_scope.cancel()


async def test_a_write_at_once_to_a_peer_that_closed_is_a_broken_transport() -> None:
    with over_sockets() as (client, server):
        server_socket(server).write(b"\x88\x02\x03\xe8")
        assert await client.receive() == []

        with pytest.raises(trio.BrokenResourceError, match="closed with 1000"):
            at_once(client, b"too late")


async def test_a_large_body_crosses_in_pieces_of_its_own() -> None:
    body = bytes(range(256)) * 4096
    with over_sockets() as (client, server):
        for left, right in ((client, server), (server, client)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(left.send, [(b"head", memoryview(body)), b"small"]))
                assert await receive_frames(right, 2) == [b"head" + body, b"small"]


async def test_nothing_is_read_before_it_is_asked_for_and_no_more_than_a_read() -> None:
    line = Line(b"\x82\x01a\x82\x01b", b"\x82\x01c")
    client = client_over(line)
    await wait_all_tasks_blocked()
    assert line.reads == 0

    assert await client.receive() == [b"a", b"b"]

    assert line.reads == 1


class Full(Line):
    """Brings as many bytes as it is asked for, always of the same frames, and remembers how many those were."""

    def __init__(self, frames: bytes, times: int) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.frames = frames
        self.place = 0
        self.times = times

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        assert max_bytes is not None
        if len(self.asked) == self.times:
            return b""
        self.asked.append(max_bytes)
        frames, place = self.frames, self.place % len(self.frames)
        self.place += max_bytes
        return (frames * (max_bytes // len(frames) + 2))[place : place + max_bytes]


async def test_reads_grow_with_large_messages() -> None:
    line = Full(join([bytes(4092)]), 4)
    client = client_over(line)
    for _ in range(4):
        await client.receive()

    assert line.asked == [16384, 32768, 65536, 65536]


async def test_reads_grow_further_with_messages_that_are_large_themselves() -> None:
    line = Full(join([bytes(65_526)]), 5)
    client = client_over(line)
    for _ in range(5):
        await client.receive()

    assert line.asked[-1] == 4 * 65536


async def test_other_tasks_run_between_portions_of_a_large_read() -> None:
    line = Line(join([b"%d" % number for number in range(20_000)]))
    client = client_over(line)
    steps = 0
    heard: list[bytes] = []

    async def count() -> None:
        nonlocal steps
        while True:
            steps += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        while len(heard) < 20_000:
            heard += await client.receive()
        assert not client.has_unread
        nursery.cancel_scope.cancel()

    assert heard == [b"%d" % number for number in range(20_000)]
    assert line.reads == 1
    assert steps > 10


async def test_what_is_pending_at_a_finish_is_dropped_and_the_goodbye_behind_it_heard() -> None:
    line = Line(join([b"tiny"] * 20_000) + b"\x88\x00", b"more")
    client = client_over(line)
    await client.receive()
    assert client.has_unread

    with trio.fail_after(5):
        await client.finish()

    assert len(line.writes) == 1


async def test_a_read_brings_more_of_a_message_that_has_begun() -> None:
    line = Full(join([bytes(100_000)]), 2)
    await client_over(line).receive()

    assert line.asked == [16384, 32768 + 100_000 - (16384 - 10)]


async def test_reads_shrink_with_pongs_that_nobody_asked_for() -> None:
    line = Full(b"\x8a\0", 4)

    assert await client_over(line).receive() == []

    assert line.asked == [16384, 8192, 4096, 4096]


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


async def test_messages_do_not_wait_for_an_answer_that_waits_behind_a_send() -> None:
    line = Line(PING + b"\x82\x01a", PING + b"\x82\x01b")
    client = client_over(line)
    async with trio.open_nursery() as nursery:
        line.may_write = trio.Event()
        nursery.start_soon(client.send, [b"long"])
        await wait_all_tasks_blocked()

        assert await client.receive() == [b"a"]
        assert await client.receive() == [b"b"]

        assert len(line.writes) == 1
        line.may_write.set()
    # Who wrote has written the answers, too.
    assert len(line.writes) == 2
    assert line.writes[1][0] == 0x8A


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


async def test_an_answer_never_stands_within_a_message() -> None:
    line = Line(b"\x89\x81\0\0\0\0p" + b"\x82\x81\0\0\0\0a")
    server = server_over(line)
    line.may_write = trio.Event()
    heard: list[bytes] = []

    async def receive() -> None:
        heard.extend(await server.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.send, [b"message"])
        await wait_all_tasks_blocked()
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        line.may_write.set()

    assert line.writes == [b"\x82\x07message", PONG]
    assert heard == [b"a"]


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


async def test_messages_right_behind_the_request_are_not_lost() -> None:
    async with (
        our_server() as (uri, accepted, _),
        await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) as stream,
    ):
        await stream.send_all(upgrade("/rsocket") + b"\x82\x85\0\0\0\0hello\x82\x85\0\0\0\0wo")
        server = await accepted.receive()
        assert await server.receive() == [b"hello"]
        await stream.send_all(b"rld")
        assert await server.receive() == [b"world"]


async def test_messages_right_behind_the_answer_are_not_lost() -> None:
    async def answer(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            await transport.send([b"hello"])
            await trio.sleep_forever()

    (listener,) = await open_listeners([URI])
    async with trio.open_nursery() as nursery:
        uri = await nursery.start(listener.serve, answer)
        async with open_transport(uri) as client:
            assert await client.receive() == [b"hello"]
        nursery.cancel_scope.cancel()


async def test_a_handshake_may_come_byte_by_byte() -> None:
    async with (
        our_server() as (uri, accepted, _),
        await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) as stream,
    ):
        for byte in upgrade("/rsocket") + b"\x82\x85\0\0\0\0hello":
            await stream.send_all(bytes((byte,)))
        assert await (await accepted.receive()).receive() == [b"hello"]


async def test_a_cut_is_at_once_over_a_socket_and_takes_waiting_elsewhere() -> None:
    async with transport_pair(URI) as (client, server):
        assert client.cut()
        assert await server.receive() == []
    assert not client_over(Line()).cut()


async def test_both_may_finish_at_once() -> None:
    async with transport_pair(URI) as (client, server):
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.finish)
                nursery.start_soon(finish_and_close, server)


async def finish_and_close(server: Transport) -> None:
    await server.finish()
    await server.aclose()


async def test_a_large_message_in_pieces_passes_masked_and_not() -> None:
    async with transport_pair(URI) as (client, server):
        message = bytes(range(251)) * 4000
        for left, right in ((client, server), (server, client)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(left.send, [message, b"end"])
                heard: list[bytes] = []
                while len(heard) < 2:
                    heard += await right.receive()
            assert heard == [message, b"end"]
