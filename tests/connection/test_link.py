"""The tasks of a link: one write at a time, the last word is said, and no end of a transport goes unnoticed."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio import (
    Channel,
    Connection,
    ConnectionLost,
    Limits,
    Payload,
    Responder,
    open_connection,
    open_connection_over,
    serve,
)
from rsocket_trio.connection.link import CLOSE_TIMEOUT, DIRECT_WRITES
from tests.conformance import raw
from tests.conformance.raw import CONNECTION_ERROR, RS10, F, Wire, ask, both, channel, complete, error, settle, stream
from tests.connection.pairs import Recorded, connected_pair, echo_responder
from tests.each_row import each_row
from tests.serving import running_server


async def test_what_one_tick_queues_leaves_in_one_write(autojump_clock: MockClock) -> None:
    async with connected_pair() as pair:
        before = pair.client_said.writes
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(pair.client.fire_and_forget, b"%d" % number)
        await settle()
        assert pair.client_said.writes == before + 1
        assert pair.client_said.count(raw.REQUEST_FNF) == 100


@pytest.mark.clause("RS10-QOS-01")
async def test_an_urgent_frame_waits_for_one_write_and_not_for_megabytes(autojump_clock: MockClock) -> None:
    async with connected_pair() as pair:
        pair.client_wire.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.client.fire_and_forget, bytes(3_000_000))
            await settle()
            nursery.start_soon(pair.client.ping)
            await settle()
            pair.client_wire.release()

    place = pair.client_said.names.index("KEEPALIVE")
    assert sum(len(frame.body) for frame in pair.client_said[1:place]) <= 65536


async def test_leaving_while_the_last_write_is_on_its_way_waits_for_it(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[bytes] = []

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        got.append(request.data)

    async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
        pair.client_wire.hold()
        await pair.client.fire_and_forget(b"last word")
        await settle()

        async def release() -> None:
            await trio.sleep(0.5)
            pair.client_wire.release()

        nursery.start_soon(release)
        pair.client._leave()

    assert got == [b"last word"]


class Breaking(Recorded):
    """A transport whose next write fails."""

    breaks = False

    async def send(self, frames: object) -> None:
        if self.breaks:
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError("the cable was cut") from OSError("no carrier")
        await super().send(frames)  # type: ignore[arg-type]


async def test_a_write_that_fails_reaches_whoever_waits_with_its_cause(autojump_clock: MockClock) -> None:
    ours, _ = trio.testing.memory_stream_pair()
    wire = Breaking(ours)
    async with open_connection_over(wire) as connection:
        await settle()
        wire.breaks = True
        with pytest.raises(ConnectionLost, match="no carrier") as caught:
            await connection.request_response()
        assert isinstance(caught.value.__cause__, trio.BrokenResourceError)
        with pytest.raises(ConnectionLost, match="no carrier"):
            await connection.ping()


async def test_what_the_peer_said_before_a_write_failed_is_still_read(autojump_clock: MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    wire = Breaking(ours)
    async with open_connection_over(wire) as connection:
        await settle()
        wire.breaks = True
        async with trio.open_nursery() as nursery:

            async def speak() -> None:
                await trio.sleep(0.1)
                await theirs.send_all(raw.prefixed(raw.error(0, raw.CONNECTION_ERROR, b"you said too much")))

            nursery.start_soon(speak)
            with pytest.raises(ConnectionLost, match="you said too much"):
                await connection.request_response()


async def test_what_waits_is_counted_and_is_read_by_the_answer_of_a_ping_behind_it(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[int] = []
    responder.fire_and_forget("log")(lambda request: got.append(len(request.data)))

    async with connected_pair(responder) as pair:
        client = pair.client
        assert client.unsent == 0
        for _ in range(3):
            await client.fire_and_forget(Payload(bytes(500_000)), route="log")
        assert client.unsent > 500_000
        while client.unsent:
            await client.ping()
        await client.ping()

        assert got == [500_000] * 3


RESET = b"\1\0\0\0\0\0\0\0"


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, trio.SocketListener]]:
    """A URI, and where its connections come to."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        yield f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}", listener


@each_row("and_then_forget", [False, True])
async def test_who_was_answered_last_leaves_at_once_and_who_said_more_waits_until_it_was_read(
    autojump_clock: MockClock, and_then_forget: bool
) -> None:
    async with listening() as (uri, listener), trio.open_nursery() as nursery:
        has_left = trio.Event()

        async def answer_and_never_close() -> None:
            async with await listener.accept() as stream:
                peer = raw.RawPeer(stream)
                assert (await peer.receive()).type == raw.SETUP
                await peer.expect(raw.ask(1, b"?"))
                await peer.send(raw.payload(1, b"!", raw.N | raw.C))
                if and_then_forget:
                    await peer.expect(raw.forget(3, b"note"))
                await peer.expect_end()
                await has_left.wait()

        nursery.start_soon(answer_and_never_close)
        async with open_connection(uri) as connection:
            assert (await connection.request_response(b"?")).data == b"!"
            if and_then_forget:
                await connection.fire_and_forget(b"note")
            before = trio.current_time()
        assert trio.current_time() - before == (CLOSE_TIMEOUT if and_then_forget else 0)
        has_left.set()


async def test_the_first_answers_of_a_connection_need_no_send_task() -> None:
    async with (
        running_server(echo_responder()) as uri,
        await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2])) as stream,
    ):
        peer = raw.RawPeer(stream)
        await peer.send(raw.setup())
        tasks = []
        for first in range(1, 4 * DIRECT_WRITES, 4):
            asked = (first, first + 2)
            await peer.send(*(raw.ask(stream_id, b"x") for stream_id in asked))
            await peer.expect_in_any_order(*(raw.payload(each, b"x", raw.N | raw.C) for each in asked))
            await wait_all_tasks_blocked()
            tasks.append(trio.lowlevel.current_statistics().tasks_living)
        assert tasks == [tasks[0]] * (DIRECT_WRITES // 2) + [tasks[0] + 1] * (DIRECT_WRITES // 2)


async def test_where_both_sides_take_turns_no_send_task_is_needed() -> None:
    async with running_server(echo_responder()) as uri, open_connection(uri) as connection:
        for _ in range(2):  # the task of the first is kept for no other
            await connection.request_response(b"?")
        await wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        for _ in range(3 * DIRECT_WRITES):
            await connection.request_response(b"?")
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks


async def test_a_peer_that_resets_before_the_first_write_is_told_of() -> None:
    async with listening() as (uri, listener), trio.open_nursery() as nursery:

        async def reset() -> None:
            stream = await listener.accept()
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            stream.socket.close()

        nursery.start_soon(reset)
        with pytest.raises(ConnectionLost):
            async with open_connection(uri) as connection:
                await connection.request_response(b"?")


async def test_reading_that_pauses_for_answers_goes_on_when_they_were_written_at_once(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()

    @responder.request_response
    async def slow(_: Payload) -> bytes:
        await trio.sleep(1)
        return b"done"

    limits = Limits(payload_size=1000, reassembly_size=1000)
    serving = partial(serve, responder, "tcp://127.0.0.1:0", limits=limits, dialects=["streamux/1"])
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serving)
        async with open_connection(uri, dialect="streamux/1") as connection, trio.open_nursery() as asking:
            for _ in range(2):
                asking.start_soon(connection.request_response, bytes(600))
            await trio.sleep(0.1)
            asking.start_soon(connection.request_response, bytes(600))
        assert trio.current_time() < limits.silence
        nursery.cancel_scope.cancel()


DISPOSED = error(0, CONNECTION_ERROR, b"Disposed")


class Served:
    """A responder, the connections that it was asked over, and what the log had of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture, decided: trio.Event | None = None) -> None:
        caplog.set_level(logging.INFO, "rsocket_trio")
        self._caplog = caplog
        self.connections: list[Connection] = []
        self.responder = responder = Responder()

        @responder.setup
        async def remember(setup: object, connection: Connection) -> None:
            self.connections.append(connection)
            if decided is not None:
                await decided.wait()

        @responder.request_response
        async def answer(request: Payload) -> Payload:
            if request.data == b"wait":
                await trio.sleep_forever()
            return request

        @responder.request_stream
        async def endless(request: Payload) -> AsyncIterator[bytes]:
            while True:
                yield b"x"

        @responder.request_channel
        async def talk(channel: Channel) -> None:
            await trio.sleep_forever()

        @responder.fire_and_forget
        async def note(request: Payload) -> None:
            await trio.sleep(1)

    @property
    def levels(self) -> list[int]:
        """Of the lines that say how a connection ended."""
        return [record.levelno for record in self._caplog.records if "the peer ended the connection" in record.message]


@both
async def test_at_a_server_with_nothing_open(
    wire: Wire, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(caplog)
    async with raw.server(wire, served.responder) as peer:
        await peer.send(ask(1, b"x"), stream(3, 1), raw.cancel(3), raw.forget(5, b"x"))
        await settle()
        await peer.send(DISPOSED)
        await settle()
        [connection] = served.connections
        assert connection.status == "closed"
        assert connection.faults.peer_faults == 0
        ended = await connection.wait_closed()
        assert isinstance(ended, ConnectionLost)
        assert (ended.code, ended.args) == (CONNECTION_ERROR, ("the peer ended the connection: Disposed",))
    assert served.levels == [logging.INFO]


@both
async def test_at_a_client_with_nothing_open(
    wire: Wire, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(caplog)
    async with raw.client(wire) as (connection, peer):
        await peer.send(DISPOSED)
        ended = await connection.wait_closed()
        assert connection.faults.peer_faults == 0
        with pytest.raises(ConnectionLost, match="the peer ended the connection: Disposed"):
            await connection.request_response(b"x")
    assert isinstance(ended, ConnectionLost)
    assert served.levels == [logging.INFO]


OPEN: dict[str, list[bytes]] = {
    "a request": [ask(1, b"wait")],
    "a request in the same read": [ask(1, b"x"), DISPOSED],
    "a stream": [stream(1, 1)],
    "a channel": [channel(1, 1)],
    "a channel of which one half is over": [channel(1, 1), complete(1)],
    "half a request": [ask(1, b"x", F)],
}


@each_row("frames", OPEN.values(), ids=OPEN.keys())
async def test_with_a_stream_open_it_is_a_fault(
    frames: list[bytes], autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(caplog)
    async with raw.server(RS10, served.responder) as peer:
        await peer.send(*frames)
        if DISPOSED not in frames:
            await settle()
            await peer.send(DISPOSED)
        await settle()
        assert served.connections[0].faults.peer_faults == 1
    assert served.levels == [logging.WARNING]
