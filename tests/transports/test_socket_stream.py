"""A socket that is read and written directly is as good a stream as Trio's own."""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from rsocket_trio.streamux.chunks import Unframed
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.socket_stream import IN_A_ROW, SocketStream
from rsocket_trio.transports.sockets import SocketListener, open_tcp, open_unix

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


async def test_a_read_that_took_all_is_followed_by_a_wait_and_one_that_did_not_by_a_read() -> None:
    here, there = await over_tcp()
    async with here, there:
        here.write(b"abcdef")
        assert await there.receive_some(4) == b"abcd"
        drained = [there.is_drained]
        assert there.read(4) == b"ef"
        assert [*drained, there.is_drained] == [False, True]
        assert there.read(4) is None
        with trio.move_on_after(0.01) as waiting:
            await there.receive_some(4)
        assert waiting.cancelled_caught
        here.write(b"g")
        assert await there.receive_some(4) == b"g"


async def test_the_end_is_told_as_often_as_it_is_asked_for() -> None:
    here, there = await over_tcp()
    async with here, there:
        await here.send_eof()
        await here.send_eof()
        for _ in range(3):
            assert await there.receive_some() == b""
        with pytest.raises(trio.ClosedResourceError):
            await here.send_all(b"late")


async def test_writes_in_a_row_let_others_run_now_and_then() -> None:
    here, there = await over_tcp()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with here, there, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await trio.lowlevel.checkpoint()
        before = turns
        for _ in range(3 * IN_A_ROW):
            await here.put_all(b"x")
        assert 2 <= turns - before <= 4  # who comes first in a round of the scheduler is open
        nursery.cancel_scope.cancel()


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


async def test_a_large_write_waits_for_the_reader_and_arrives_whole() -> None:
    here, there = await over_tcp()
    sent = bytes(range(256)) * 65536
    got = bytearray()
    async with here, there, trio.open_nursery() as nursery:

        async def send() -> None:
            await here.put_all(sent)
            await here.send_eof()

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        while chunk := await there.receive_some():
            got += chunk
    assert got == sent


async def test_nothing_is_sent_by_a_write_that_was_cancelled_before_it_began() -> None:
    here, there = await over_tcp()
    async with here, there:
        with trio.CancelScope() as scope:
            scope.cancel()
            await here.put_all(b"x")
        await settle()
        assert there.read(1) is None


async def test_a_refused_connection_says_so_and_leaves_no_socket() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await open_tcp("127.0.0.1", free.getsockname()[1])
    with pytest.raises(FileNotFoundError):
        await open_unix("/nowhere/at.all")


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
    transport.use_framing(Unframed())
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


async def test_only_bare_sockets_are_written_at_once_and_left_without_farewell() -> None:
    here, _ = trio.testing.memory_stream_pair()
    transport = ByteStreamTransport(here)
    assert transport.send_at_once is None
    assert not idle(transport)


async def test_a_connect_that_fails_at_once_still_lets_others_run() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await open_tcp("255.255.255.255", 80)
    assert scope.cancelled_caught


async def test_who_was_reached_is_named_and_not_what_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with await open_tcp("0.0.0.0", port) as stream:
            assert stream.peer_address == f"127.0.0.1:{port}"
        accepted, address = listening.accept()
        async with SocketStream(accepted, address) as there:
            assert there.peer_address.startswith("127.0.0.1:")


async def test_a_connection_that_was_reset_before_it_is_accepted_ends_no_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # macOS refuses options then.
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    listener = SocketListener(socket.create_server(("127.0.0.1", 0)))
    async with listener:
        monkeypatch.setattr(socket.socket, "setsockopt", refuse)
        with socket.create_connection(listener.socket.getsockname()):
            await (await listener.accept()).aclose()


async def test_an_error_that_accepting_never_gets_over_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Denied:
        def __init__(self, inner: socket.socket) -> None:
            self.fileno = inner.fileno

        def accept(self) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    listener = SocketListener(socket.create_server(("127.0.0.1", 0)))
    async with listener:
        with monkeypatch.context() as patch, socket.create_connection(listener.socket.getsockname()):
            patch.setattr(listener, "socket", Denied(listener.socket))
            with trio.move_on_after(0.01) as waited:
                await listener.accept()
            assert waited.cancelled_caught
