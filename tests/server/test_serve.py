"""What a server does with a connection: the gate, leases, draining, refused clients, and leaving ``serve``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Canceled,
    Connection,
    ConnectionClosed,
    InvalidSetup,
    Keepalive,
    Lease,
    Limits,
    NegotiationFailed,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    ResumeOptions,
    Setup,
    UnsupportedSetup,
    current_connection,
    open_connection,
    serve,
    serve_stream,
)
from rsocket_trio.connection.link import MAX_REFUSED
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.each_row import each_row
from tests.serving import running_server


def waiting(seconds: float = 1.0) -> Responder:
    responder = Responder()

    @responder.request_response
    async def wait(request: Payload) -> bytes:
        await trio.sleep(seconds)
        return b"done"

    @responder.request_response("never")
    async def never(request: Payload) -> bytes:
        await trio.sleep_forever()

    return responder


# The gate


async def test_until_the_setup_handler_returns_no_request_runs(autojump_clock: MockClock) -> None:
    responder = waiting()
    ran: list[str] = []

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        assert connection.setup is setup
        await trio.sleep(3)
        connection.state.user = setup.payload.text
        ran.append("gate")

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        ran.append(f"note of {current_connection().state.user}")

    @responder.metadata_push
    def push(metadata: bytes) -> None:
        ran.append(f"push of {current_connection().state.user}")

    async with raw.bare_server(raw.RS10, responder) as peer:
        await peer.send(raw.setup(data=b"ann"), raw.forget(1), raw.RS10.push(b"x"), raw.ask(3))
        await peer.expect_alive()
        assert ran == []
        assert (await peer.receive()).body == b"done"

    assert sorted(ran) == ["gate", "note of ann", "push of ann"]
    assert ran[0] == "gate"


@each_row(
    ("error", "code", "text"),
    [
        (RejectedSetup("not you"), raw.REJECTED_SETUP, b"not you"),
        (InvalidSetup("what?"), raw.INVALID_SETUP, b"what?"),
        (UnsupportedSetup("cannot"), raw.UNSUPPORTED_SETUP, b"cannot"),
        (ExceptionGroup("", [RejectedSetup("leaf")]), raw.REJECTED_SETUP, b"leaf"),
        (ValueError("secret"), raw.REJECTED_SETUP, b"internal error"),
        (NegotiationFailed("no code"), raw.REJECTED_SETUP, b"internal error"),
    ],
    ids=lambda value: getattr(type(value), "__name__", None) if isinstance(value, Exception) else "",
)
async def test_a_refused_peer_is_told_and_the_connection_closed_and_what_was_held_is_dropped(
    error: Exception, code: int, text: bytes, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    responder = Responder()
    ran: list[str] = []

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        raise error.with_traceback(None)

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        ran.append("note")

    @responder.metadata_push
    def push(metadata: bytes) -> None:
        ran.append("push")

    async with raw.bare_server(raw.RS10, responder) as peer:
        await peer.send(raw.setup(), raw.forget(1), raw.RS10.push(b"x"))
        assert await peer.expect_failure(code) == text

    assert ran == []
    assert [record for record in caplog.records if record.levelno == logging.WARNING] == []
    error.__traceback__ = None


async def test_a_gate_that_holds_enough_pauses_reading_and_all_of_it_happens_after(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[bytes] = []
    opened = trio.Event()

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await opened.wait()

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        got.append(request.data)

    async with raw.bare_server(raw.RS10, responder, limits=Limits(held_frames=16)) as peer:
        await peer.send(raw.setup())
        for number in range(100):
            await peer.send(raw.forget(2 * number + 1, b"%d" % number))
            await settle()
        assert got == []
        opened.set()
        await settle()
        assert got == [b"%d" % number for number in range(100)]


async def test_the_setup_handler_sees_what_the_handshake_told(autojump_clock: MockClock) -> None:
    responder = Responder()
    seen: list[Setup] = []

    @responder.setup
    def gate(setup: Setup, connection: Connection) -> None:
        seen.append(setup)

    async with (
        running_server(responder, "ws://127.0.0.1:0/rsocket") as uri,
        open_connection(
            uri,
            setup=Payload(b"hello", b"meta"),
            data_mime="text/plain",
            headers=[("X-Token", "abc")],
            keepalive=Keepalive(interval=5, max_lifetime=15),
        ) as connection,
    ):
        await connection.ping()

    (setup,) = seen
    assert (setup.transport, setup.path, setup.header("x-TOKEN")) == ("ws", "/rsocket", "abc")
    assert setup.peer_address.startswith("127.0.0.1:")
    assert (setup.payload, setup.data_mime) == (Payload(b"hello", b"meta"), "text/plain")
    assert (setup.keepalive_interval, setup.max_lifetime, setup.lease) == (5.0, 15.0, False)


# Leases


def fixed(*leases: Lease) -> Responder:
    responder = waiting(0)

    @responder.lease
    async def policy(setup: Setup) -> AsyncIterator[Lease]:
        for lease in leases:
            yield lease
            await trio.sleep(10)

    return responder


async def test_a_lease_works_from_end_to_end_and_differs_by_user(autojump_clock: MockClock) -> None:
    responder = waiting(0)

    @responder.lease
    async def policy(setup: Setup) -> AsyncIterator[Lease]:
        while True:
            yield Lease(int(setup.payload.text), 1)
            await trio.sleep(1)

    async with connected_pair(responder, lease=True, setup=b"3") as pair:
        started = trio.current_time()
        for _ in range(9):
            await pair.client.request_response()
        assert trio.current_time() - started == pytest.approx(2)


@pytest.mark.clause("RS10-CON-10", "RS02-CON-02", "RS10-LS-01")
async def test_a_clients_own_policy_bounds_the_servers_requests(autojump_clock: MockClock) -> None:
    async with connected_pair(fixed(Lease(1, 10)), fixed(Lease(2, 5)), lease=True) as pair:
        await pair.server.request_response()
        await pair.server.request_response()
        with trio.move_on_after(2) as waited:
            await pair.server.request_response()
        assert waited.cancelled_caught


# Draining


@pytest.mark.parametrize("drainer", ["client", "server"])
async def test_draining_refuses_what_is_new_lets_open_streams_finish_and_closes(
    drainer: str, autojump_clock: MockClock
) -> None:
    async with connected_pair(waiting(3), waiting(3)) as pair, trio.open_nursery() as nursery:
        ours, theirs = (pair.client, pair.server) if drainer == "client" else (pair.server, pair.client)
        said = pair.client_said if drainer == "client" else pair.server_said
        replies: list[bytes] = []

        async def ask(connection: Connection) -> None:
            replies.append((await connection.request_response()).data)

        nursery.start_soon(ask, ours)
        nursery.start_soon(ask, theirs)
        await settle()
        nursery.start_soon(ours.drain)
        await settle()
        assert ours.status == "draining"
        with pytest.raises(Rejected, match="closing"):
            await theirs.request_response()
        with pytest.raises(ConnectionClosed):
            await ours.request_response()
        await trio.sleep(4)
        assert replies == [b"done", b"done"]
        assert (ours.status, theirs.status) == ("closed", "closed")
        assert (said[-1].type, said[-1].stream_id, said[-1].error_code) == (raw.ERROR, 0, raw.CONNECTION_CLOSE)
        for connection in (ours, theirs):
            with pytest.raises(ConnectionClosed):
                await connection.request_response()


async def test_what_outlasts_the_grace_is_cancelled_and_connection_close_comes_last(autojump_clock: MockClock) -> None:
    responder = waiting()
    ended: list[str] = []

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
        finally:
            ended.append("stream")

    async with connected_pair(responder) as pair, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(Canceled):
                await pair.client.request_response(route="never")
            ended.append("request")

        async def read() -> None:
            async with pair.client.request_stream(initial_request_n=30, refill=False) as items:
                assert items.request.data == b""
                await trio.sleep_forever()

        pair.server_wire.hold()
        nursery.start_soon(ask)
        nursery.start_soon(read)
        await settle()
        started = trio.current_time()
        nursery.start_soon(pair.server.drain)
        await trio.sleep(10.5)
        pair.server_wire.release()
        await settle()
        assert trio.current_time() - started <= 11
        nursery.cancel_scope.cancel()

    assert sorted(ended) == ["request", "stream"]
    errors = [(frame.stream_id, frame.error_code) for frame in pair.server_said.of(raw.ERROR)]
    assert sorted(errors[:-1]) == [(1, raw.CANCELED), (3, raw.CANCELED)]
    assert errors[-1] == (0, raw.CONNECTION_CLOSE)
    assert pair.server_said[-1].stream_id == 0


async def test_a_drain_that_is_announced_says_so_first_and_once(autojump_clock: MockClock) -> None:
    async with connected_pair(waiting(3)) as pair, trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.request_response)
        await settle()
        nursery.start_soon(lambda: pair.server.drain(announce=True))
        await settle()
        assert pair.server_said.names == ["ERROR"]
        with pytest.raises(ConnectionClosed, match="closing"):
            await pair.client.request_response()
        await trio.sleep(4)

    assert pair.server_said.names == ["ERROR", "PAYLOAD"]
    assert pair.client_said.names == ["REQUEST_RESPONSE"]


@each_row(
    ("grace", "error", "text"),
    [
        ("x", TypeError, "grace is a number of seconds, not str"),
        (None, TypeError, "grace is a number of seconds, not NoneType"),
        (True, TypeError, "grace is a number of seconds, not bool"),
        (-1, ValueError, "grace of -1 seconds: must be at least 0"),
        (float("nan"), ValueError, "grace of nan seconds: must be at least 0"),
    ],
)
async def test_a_grace_that_is_no_time_is_refused_at_once(grace: Any, error: type[Exception], text: str) -> None:
    _, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(error, match=f"^{text}$"):
        await serve(Responder(), "memory://grace", grace=grace)
    with pytest.raises(error, match=f"^{text}$"):
        await serve_stream(Responder(), theirs, grace=grace)
    async with connected_pair() as pair:
        with pytest.raises(error, match=f"^{text}$"):
            await pair.server.drain(grace=grace)
        assert pair.server.status == "open"


async def test_a_path_that_is_no_text_is_refused() -> None:
    _, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(TypeError, match="path must be a text or None, not 5"):
        await serve_stream(Responder(), theirs, path=5)  # type: ignore[arg-type]


Client: TypeAlias = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]
TIME = 0.3
"""Seconds that a refused client has."""
ran: list[bytes] = []


def refusing() -> Responder:
    """A responder whose setup handler refuses everybody, and that notes what its other handlers get."""
    ran.clear()
    responder = Responder()
    responder.request_response(lambda request: ran.append(request.data))
    responder.fire_and_forget(lambda request: ran.append(request.data))
    responder.metadata_push(ran.append)

    @responder.setup
    def gate(setup: Setup, connection: object) -> None:
        raise RejectedSetup("not you")

    return responder


@asynccontextmanager
async def refused(first: bytes, **options: Any) -> AsyncIterator[Client]:
    """A client that has sent these bytes to a server on a stream, and got its ERROR."""
    near, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, refusing(), far, **options))
        await near.send_all(first)
        began = trio.current_time()
        error = await near.receive_some()
        assert error[3:9] == raw.frame(raw.ERROR), "no ERROR on stream 0"
        assert trio.current_time() == began
        yield near


async def end_of(stream: Client) -> float:
    """Return the seconds until the server sends the end of the stream, and nothing before it."""
    began = trio.current_time()
    assert await stream.receive_some() == b""
    return trio.current_time() - began


SETUP = raw.prefixed(raw.setup())
FIRST: dict[str, tuple[bytes, dict[str, Any]]] = {
    "the application refuses": (SETUP, {}),
    "another version": (raw.prefixed(raw.setup(version=(1, 7))), {"dialects": ["rsocket/1.0"]}),
    "leases": (raw.prefixed(raw.setup(flags=raw.L)), {}),
    "a request": (raw.prefixed(raw.ask(1, b"x")), {"dialects": ["rsocket/1.0"]}),
    "a RESUME that is not offered": (raw.prefixed(raw.resume()), {}),
    "a RESUME of no session": (raw.prefixed(raw.resume()), {"resume": ResumeOptions()}),
    "a dialect that is not served": (SETUP, {"dialects": ["rsocket/2.0-draft", "reactivesocket/0.1"]}),
}


@each_row("why", FIRST)
async def test_the_end_follows_the_error_after_a_short_time(why: str, autojump_clock: MockClock) -> None:
    first, options = FIRST[why]
    async with refused(first, **options) as client:
        assert await end_of(client) == pytest.approx(TIME)
        await client.aclose()


@each_row("why", FIRST)
async def test_a_client_that_closes_is_closed_at_once(why: str, autojump_clock: MockClock) -> None:
    first, options = FIRST[why]
    async with refused(first, **options) as client:
        await client.send_eof()
        assert await end_of(client) == 0


async def test_nothing_that_comes_meanwhile_is_served_or_answered(autojump_clock: MockClock) -> None:
    meanwhile = raw.prefixed(raw.ask(1, b"x"), raw.forget(3, b"y"), raw.RS10.push(b"z"), raw.setup())
    async with refused(SETUP + meanwhile) as client:
        await client.send_all(meanwhile)
        assert await end_of(client) == pytest.approx(TIME)
        await client.aclose()
    assert ran == []


@each_row(("frame", "number"), [(raw.ask(1, bytes(1_000_000)), 10), (raw.forget(1), 20_000)], ids=["large", "small"])
async def test_a_client_that_goes_on_sending_is_not_read_without_end(
    frame: bytes, number: int, autojump_clock: MockClock
) -> None:
    async with refused(SETUP) as client:
        await client.send_all(raw.prefixed(*[frame] * number))
        assert await end_of(client) == 0
        await client.aclose()


async def ask_to_serve(transport: Transport) -> None:
    """Send a SETUP, and read the ERROR that refuses it."""
    await transport.send([raw.setup()])
    (error,) = await transport.receive()
    assert error[:6] == raw.frame(raw.ERROR)


async def test_so_many_wait_at_once_and_a_further_one_is_closed_behind_its_error(autojump_clock: MockClock) -> None:
    async with running_server(refusing(), "memory://refused") as uri:
        waits: list[float] = []

        async def be_refused(*, task_status: trio.TaskStatus[None]) -> None:
            async with open_transport(uri) as transport:
                await ask_to_serve(transport)
                task_status.started()
                assert await transport.receive() == []
                waits.append(trio.current_time() - began)

        began = trio.current_time()
        async with trio.open_nursery() as clients:
            for _ in range(MAX_REFUSED + 2):
                await clients.start(be_refused)
        assert [wait for wait in waits if wait == 0] == [0, 0]
        assert len([wait for wait in waits if wait == pytest.approx(TIME)]) == MAX_REFUSED
        again = trio.current_time()
        async with open_transport(uri) as transport:
            await ask_to_serve(transport)
            assert await transport.receive() == []
            assert trio.current_time() - again == pytest.approx(TIME), "their places are free again"
