"""Frames over a stream of bytes: one write per send, whole frames per receive, a clean end; and sockets as streams."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from rsocket_trio.errors import ConnectionLost, RemoteProtocolError
from rsocket_trio.mux.framing import AT_ONCE, Framing, Framing24
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT, ByteStreamTransport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.socket_stream import SocketStream
from rsocket_trio.transports.sockets import open_tcp
from tests.transports.pairs import transport_pair

FRAMES = [b"frame one", b"frame two", b"x" * 70_000]


class CountingStream(trio.abc.Stream):
    """Remembers what was written, write by write, and delivers what it was given."""

    def __init__(self, *chunks: bytes) -> None:
        self.writes: list[bytes] = []
        self.chunks = list(chunks)
        self.reads = 0
        self.asked: list[int | None] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        self.reads += 1
        self.asked.append(max_bytes)
        return self.chunks.pop(0) if self.chunks else b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class FullStream(CountingStream):
    """Delivers as much as it is asked for, while there is any."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        self.asked.append(max_bytes)
        data, self.chunks = b"".join(self.chunks), []
        self.chunks.append(data[max_bytes:])
        return data[:max_bytes]


def over(stream: trio.abc.Stream) -> ByteStreamTransport:
    transport = ByteStreamTransport(stream)
    transport.use_framing(Framing24())
    return transport


async def test_one_send_is_one_write_whatever_the_number_of_frames() -> None:
    stream = CountingStream()

    await over(stream).send([b"frame one", (b"frame ", memoryview(b"two"))])

    assert stream.writes == [Framing24().join([b"frame one", b"frame two"])]


async def test_tiny_frames_behind_large_ones_are_handed_out_in_portions_and_others_run_between() -> None:
    large, tiny = [bytes(65_000)] * 40, [b"123456"] * 40_000
    transport = over(FullStream(Framing24().join(large + tiny)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    came: list[bytes] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        while frames := await transport.receive():
            assert len(frames) <= AT_ONCE // 9 + 1
            came += frames
        nursery.cancel_scope.cancel()

    assert came == large + tiny
    assert turns > 0  # the stream itself never lets others run


async def test_receive_reads_on_until_a_frame_is_whole() -> None:
    data = Framing24().join([b"frame one"])
    transport = over(CountingStream(data[:1], data[1:5], data[5:]))

    assert await transport.receive() == [b"frame one"]
    assert not transport.mid_frame
    assert await transport.receive() == ()


async def test_an_end_inside_a_frame_is_an_end_and_still_mid_frame() -> None:
    transport = over(CountingStream(Framing24().join([b"frame one", b"frame two"])[:-1]))

    assert await transport.receive() == [b"frame one"]
    assert await transport.receive() == ()
    assert await transport.receive() == ()
    assert transport.mid_frame


async def test_frames_before_a_broken_prefix_are_handed_out_first() -> None:
    transport = over(CountingStream(Framing24().join([b"frame one"]) + b"\x00\x00\x01"))

    assert await transport.receive() == [b"frame one"]
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="frame of 1 bytes"):
            await transport.receive()


async def test_peeking_to_the_end_loses_nothing() -> None:
    data = Framing24().join([b"frame one"])
    transport = ByteStreamTransport(CountingStream(data))

    assert await transport.peek() == (data, False)
    assert await transport.peek() == (data, True)
    assert await transport.peek() == (data, True)
    transport.use_framing(Framing24())
    assert await transport.receive() == [b"frame one"]
    assert await transport.receive() == ()


async def test_finish_waits_for_the_peer_and_discards_what_it_still_sends() -> None:
    async with transport_pair() as (client, server), trio.open_nursery() as nursery:
        await client.send([b"last words"])
        nursery.start_soon(client.finish)
        assert await server.receive() == [b"last words"]
        assert await server.receive() == ()
        for _ in range(10):
            await server.send([bytes(100_000)])
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        await server.finish()


async def test_finish_ends_early_once_four_mebibytes_were_discarded() -> None:
    left, right = memory_stream_pair()

    await right.send_all(bytes(DISCARD_LIMIT + 1))

    await over(left).finish()


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("tcp://127.0.0.1:1", "connection refused"),
        ("unix:///nowhere/at/all.sock", "no such file or directory"),
        ("tls://127.0.0.1:1", "connection refused"),
        ("ws://127.0.0.1:1/", "connection refused"),
        ("memory://nowhere", "nobody listens"),
        ("tcp://no-such-host.invalid:1", ""),
    ],
)
async def test_dialling_nobody_names_the_uri_and_the_reason(uri: str, text: str) -> None:
    with pytest.raises(ConnectionLost) as caught:
        async with open_transport(uri):
            pass

    assert str(caught.value).startswith(f"{uri}: {text}")
    assert isinstance(caught.value.__cause__, OSError)


Pair = tuple[SocketStream, SocketStream]


async def over_unix() -> Pair:
    here, there = socket.socketpair()
    return SocketStream(here), SocketStream(there)


async def over_tcp() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = await open_tcp("127.0.0.1", listening.getsockname()[1])
        there, _ = listening.accept()
    return here, SocketStream(there)


async def clogged() -> Pair:
    pair = await over_tcp()
    for each in pair:
        while fill(each):
            await trio.testing.wait_all_tasks_blocked(0.01)
    return pair


def fill(stream: SocketStream) -> int:
    """Send until the system takes no more. Return the number of bytes that it took."""
    sent = 0
    while True:
        try:
            sent += stream.socket.send(bytes(65536))
        except BlockingIOError:
            return sent


def idle(transport: ByteStreamTransport) -> bool:
    """Return whether it is, asked anew."""
    return transport.is_idle


async def settle() -> None:
    """Let everything run that can; the loopback has delivered by then."""
    await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("pair", [over_tcp, over_unix])
async def test_it_keeps_what_a_trio_stream_promises(pair: Callable[[], Awaitable[Pair]]) -> None:
    await trio.testing.check_half_closeable_stream(pair, clogged)


async def test_a_reset_is_a_broken_stream_with_the_systems_error_as_its_cause() -> None:
    here, there = await over_tcp()
    async with here:
        there.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        there.close()
        with pytest.raises(trio.BrokenResourceError) as broken:
            await here.receive_some()
        assert isinstance(broken.value.__cause__, ConnectionResetError)
        with pytest.raises(trio.BrokenResourceError):
            await here.send_all(b"x")


async def test_nothing_is_sent_by_a_write_that_was_cancelled_before_it_began() -> None:
    here, there = await over_tcp()
    async with here, there:
        with trio.CancelScope() as scope:
            scope.cancel()
            await here.put_all(b"x")
        await settle()
        assert not there.has_unread


async def test_what_is_not_taken_at_once_goes_before_what_is_sent_next() -> None:
    here, there = await clogged()
    transport = ByteStreamTransport(here)
    send_at_once = transport.send_at_once
    assert send_at_once is not None
    async with there, trio.open_nursery() as nursery:
        assert not send_at_once([b"first"])
        assert not send_at_once([b"second"])
        nursery.start_soon(transport.send, [b"third"])
        got = b""
        while not got.endswith(b"third"):
            got = got[-20:] + await there.receive_some()
        assert got.endswith(b"\0firstsecondthird")
    await transport.aclose()


async def test_a_transport_is_idle_while_nothing_came_that_nobody_read() -> None:
    here, there = await over_tcp()
    transport = ByteStreamTransport(here)
    transport.use_framing(Framing())
    async with there:
        assert idle(transport)
        await there.send_all(b"frame")
        assert not idle(transport)
        assert await transport.receive() == [b"frame"]
        assert idle(transport)
        await there.send_eof()
        assert not idle(transport)
    await transport.aclose()
    assert not idle(transport)
