"""Frames over a stream of bytes: one write per send, whole frames per receive, and a clean end."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from rsocket_trio.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError
from rsocket_trio.mux.framing import AT_ONCE, Framing24
from rsocket_trio.streamux.chunks import Unframed
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT, ByteStreamTransport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.socket_stream import SocketStream
from tests.transports.pairs import receive_frames, transport_pair

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


async def test_a_frame_that_is_too_large_is_refused_before_a_byte_is_written() -> None:
    stream = CountingStream()

    with pytest.raises(LocalProtocolError):
        await over(stream).send([b"frame one", bytes(2**24)])

    assert stream.writes == []


async def test_one_read_hands_out_all_its_frames() -> None:
    stream = CountingStream(Framing24().join([b"frame one", b"frame two"]))

    assert await over(stream).receive() == [b"frame one", b"frame two"]
    assert stream.reads == 1


async def test_a_read_may_bring_the_rest_of_one_frame_beside_all_else() -> None:
    large = (1_000_000).to_bytes(3, "big") + bytes(1_000_000)
    stream = CountingStream(large[:20_000], large[20_000:200_000], large[200_000:])

    assert [len(frame) for frame in await over(stream).receive()] == [1_000_000]

    assert stream.asked == [16_384, 262_144, 262_144]


@pytest.mark.parametrize(("frame_size", "largest"), [(1_000, 65_536), (16_384, 65_536), (65_536, 262_144)])
async def test_reads_bring_four_times_as_much_where_little_happens_for_it(frame_size: int, largest: int) -> None:
    stream = FullStream(Framing24().join([bytes(frame_size)] * (4_000_000 // frame_size)))

    await read_all(over(stream))

    whole = [size for size in stream.asked if size in (16_384, 65_536, 131_072, 262_144)]
    assert max(whole) == largest  # what else is asked for counts what is missing of a frame
    assert max(size for size in stream.asked if size is not None) <= 262_144


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


async def test_where_nobody_counts_frames_reads_stay_small() -> None:
    stream = FullStream(bytes(4_000_000))
    transport = ByteStreamTransport(stream)
    transport.use_framing(Unframed())

    await read_all(transport)

    assert max(size for size in stream.asked if size is not None) == 65_536


async def test_a_transport_with_frames_left_over_is_not_idle() -> None:
    ours, theirs = socket.socketpair()
    framing = Framing24()
    transport = ByteStreamTransport(SocketStream(ours))
    transport.use_framing(framing)
    with theirs:
        was_idle = transport.is_idle
        framing.feed(framing.join([b"123456"] * 40_000))
        assert was_idle
        assert framing.pending
        assert not transport.is_idle
    await transport.aclose()


async def test_a_read_that_found_less_than_it_might_have_is_followed_by_a_usual_one() -> None:
    stream = FullStream(Framing24().join([bytes(65_533)] * 16))

    await read_all(over(stream))

    assert stream.asked[-2:] == [262_144, 65_536]


async def read_all(transport: ByteStreamTransport) -> None:
    while await transport.receive():
        pass


async def test_receive_reads_on_until_a_frame_is_whole() -> None:
    data = Framing24().join([b"frame one"])
    transport = over(CountingStream(data[:1], data[1:5], data[5:]))

    assert await transport.receive() == [b"frame one"]
    assert not transport.mid_frame
    assert await transport.receive() == ()


async def test_streams_that_deliver_a_bytearray_give_frames_of_bytes() -> None:
    transport = over(CountingStream(bytearray(Framing24().join([b"frame one"]))))  # type: ignore[arg-type]

    assert [type(frame) for frame in await transport.receive()] == [bytes]


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


async def test_what_was_peeked_grows_until_the_framing_is_known_and_is_received_then() -> None:
    data = Framing24().join([b"frame one", b"frame two"])
    stream = CountingStream(data[:2], data[2:10], data[10:])
    transport = ByteStreamTransport(stream)

    assert await transport.peek() == (data[:2], False)
    assert await transport.peek() == (data[:10], False)
    transport.use_framing(Framing24())
    assert await transport.receive() == [b"frame one", b"frame two"]


async def test_peeking_to_the_end_loses_nothing() -> None:
    data = Framing24().join([b"frame one"])
    transport = ByteStreamTransport(CountingStream(data))

    assert await transport.peek() == (data, False)
    assert await transport.peek() == (data, True)
    assert await transport.peek() == (data, True)
    transport.use_framing(Framing24())
    assert await transport.receive() == [b"frame one"]
    assert await transport.receive() == ()


async def test_frames_cross_tcp_in_both_directions() -> None:
    async with transport_pair() as (client, server):
        assert client.handshake.transport == server.handshake.transport == "tcp"
        assert server.handshake.peer_address.startswith("127.0.0.1:")
        for left, right in [(client, server), (server, client)]:
            await left.send(FRAMES)
            assert await receive_frames(right, len(FRAMES)) == FRAMES


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


async def test_finish_of_a_stream_that_cannot_half_close_waits_for_its_end() -> None:
    stream = CountingStream(b"x", b"y")

    await over(stream).finish()

    assert stream.chunks == []


async def test_finish_and_close_never_raise_for_a_broken_transport() -> None:
    async with transport_pair() as (client, server):
        await server.aclose()
        await client.finish()
        await client.aclose()
        await client.finish()
        await client.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await client.send([b"nothing"])


async def test_a_reset_is_a_broken_resource() -> None:
    async with transport_pair() as (client, server):
        await client.send([b"never read"])
        await wait_all_tasks_blocked()
        await server.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await client.receive()


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("tcp://127.0.0.1:1", "connection refused"),
        ("unix:///nowhere/at/all.sock", "no such file or directory"),
        ("tls://127.0.0.1:1", "connection refused"),
        ("ws://127.0.0.1:1/", "connection refused"),
    ],
)
async def test_dialling_nobody_names_the_uri_and_the_reason(uri: str, text: str) -> None:
    with pytest.raises(ConnectionLost) as caught:
        async with open_transport(uri):
            pass

    assert str(caught.value) == f"{uri}: {text}"
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_name_that_does_not_resolve_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLost, match=r"^tcp://no-such-host\.invalid:1: "):
        async with open_transport("tcp://no-such-host.invalid:1"):
            pass


async def test_headers_are_for_transports_over_http_only() -> None:
    with pytest.raises(ValueError, match="only ws, wss, h2 and h2s"):
        async with open_transport("tcp://127.0.0.1:1", headers=[("a", "b")]):
            pass
