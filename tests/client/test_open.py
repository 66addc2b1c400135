"""What a caller sees of its connection: connecting, answers, errors, deadlines, and how it ends."""

from __future__ import annotations

import logging
import math
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock, memory_stream_pair

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Invalid,
    InvalidSetup,
    LocalProtocolError,
    Payload,
    PayloadLike,
    ReconnectingClient,
    Rejected,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    Unsupported,
    UnsupportedSetup,
    connect_forever,
    current_connection,
    open_connection,
    open_connection_over,
    open_shared,
)
from rsocket_trio.transports.error_text import NO_FRAME
from rsocket_trio.transports.memory import listen_memory
from tests.client.reconnecting import CALLS, URI, Told
from tests.conformance import raw
from tests.connection.pairs import connected_pair, echo_responder, settle
from tests.rows import Rows


@pytest.mark.parametrize("content", [b"bytes", bytearray(b"array"), memoryview(b"view"), "tëxt", Payload(b"p", b"")])
async def test_an_answer_carries_what_was_sent(content: PayloadLike, autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        reply = await pair.client.request_response(content)

    wanted = content if isinstance(content, Payload) else Payload(content)
    assert reply == wanted
    assert type(reply.data) is bytes


async def test_a_deadline_around_a_request_sends_cancel_once(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        with pytest.raises(trio.TooSlowError), trio.fail_after(2):
            await pair.client.request_response(route="never")
        assert (await pair.client.request_response(b"on")).data == b"on"

    assert pair.client_said.names == ["REQUEST_RESPONSE", "CANCEL", "REQUEST_RESPONSE"]


@pytest.mark.parametrize(
    ("make", "kind", "code", "data"),
    [
        (lambda: ApplicationError("no"), ApplicationError, 0x201, b"no"),
        (lambda: ApplicationError("own", code=0xFFFFFFFE), ApplicationError, 0xFFFFFFFE, b"own"),
        (lambda: Rejected("later"), Rejected, 0x202, b"later"),
        (lambda: Canceled("gave up"), Canceled, 0x203, b"gave up"),
        (lambda: Invalid(b"\xff\x00"), Invalid, 0x204, b"\xff\x00"),
        (lambda: ExceptionGroup("", [ExceptionGroup("", [Rejected("leaf")])]), Rejected, 0x202, b"leaf"),
        (lambda: ExceptionGroup("", [Rejected("a"), Rejected("b")]), ApplicationError, 0x201, b"internal error"),
        (lambda: RSocketError("secret"), ApplicationError, 0x201, b"internal error"),
    ],
)
async def test_an_error_keeps_its_class_code_and_data(
    make: Callable[[], Exception], kind: type[ApplicationError], code: int, data: bytes, autojump_clock: MockClock
) -> None:
    responder = Responder()

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        raise make()

    @responder.request_stream
    async def fail_later(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        raise make()

    async with connected_pair(responder) as pair:
        with pytest.raises(kind) as caught:
            await pair.client.request_response()
        assert (caught.value.code, caught.value.data) == (code, data)

        seen: list[bytes] = []
        async with pair.client.request_stream() as items:
            with pytest.raises(kind) as later:  # noqa: PT012
                async for item in items:
                    seen.append(item.data)
        assert seen == [b"one"]
        assert (later.value.code, later.value.data) == (code, data)


async def test_both_sides_ask_at_once_and_a_handler_calls_back(autojump_clock: MockClock) -> None:
    server_side, client_side = Responder(), Responder()

    @client_side.request_response("name")
    async def name(request: Payload) -> bytes:
        return b"client of " + request.data

    @server_side.request_response("greet")
    async def greet(request: Payload) -> bytes:
        answer = await current_connection().request_response(request, route="name")
        return b"hello " + answer.data

    replies: list[bytes] = []

    async def ask(connection: Connection, route: str, data: bytes) -> None:
        replies.append((await connection.request_response(data, route=route)).data)

    async with connected_pair(server_side, client_side) as pair, trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(ask, pair.client, "greet", b"%d" % number)
            nursery.start_soon(ask, pair.server, "name", b"%d" % number)

    wanted = [b"client of %d" % number for number in range(10)]
    assert sorted(replies) == sorted(wanted + [b"hello " + one for one in wanted])
    ids = {frame.stream_id for frame in pair.server_said if frame.type == raw.REQUEST_RESPONSE}
    assert all(stream_id % 2 == 0 for stream_id in ids)


async def test_an_interaction_that_the_dialect_lacks_raises_before_anything_is_sent(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        with pytest.raises(Unsupported, match="request_subscription"):
            async with pair.client.request_subscription():
                pass

    assert pair.client_said.names == []


@pytest.mark.parametrize("request_n", [0, -1, 2**31])
async def test_credit_outside_of_its_range_is_refused_at_the_call(request_n: int, autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        with pytest.raises(ValueError, match=str(request_n)):
            pair.client.request_stream(initial_request_n=request_n)
        with pytest.raises(ValueError, match=str(request_n)):
            pair.client.request_channel(initial_request_n=request_n)
        async with pair.client.request_stream(refill=False, initial_request_n=1) as items:
            with pytest.raises(ValueError, match=str(request_n)):
                items.request_n(request_n)


# Small things


async def test_ping_measures_the_way_there_and_back(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer), trio.open_nursery() as nursery:
        seconds: list[float] = []

        async def ping() -> None:
            seconds.append(await connection.ping())

        nursery.start_soon(ping)
        await settle()
        await trio.sleep(1)
        nursery.start_soon(ping)
        await settle()
        await trio.sleep(2)
        # Answers match in order, whatever they carry.
        await peer.send(raw.keepalive(b"not what was sent", respond=False))
        await settle()
        assert seconds == [3.0]
        await peer.send(raw.keepalive(respond=False))
        await settle()
        assert seconds == [3.0, 2.0]


async def test_pushed_metadata_arrives_as_bytes_and_has_no_answer(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[bytes] = []

    @responder.metadata_push
    async def take(metadata: bytes) -> None:
        assert current_connection().dialect == "rsocket/1.0"
        got.append(metadata)

    async with connected_pair(responder) as pair:
        await pair.client.metadata_push("naïve")
        await pair.client.metadata_push(b"")
        await settle()
        with pytest.raises(LocalProtocolError, match="limit"):
            await pair.client.metadata_push(bytes(2**24))
        await pair.client.ping()

    assert sorted(got) == [b"", "naïve".encode()]
    assert all(type(one) is bytes for one in got)
    assert pair.server_said.names == ["KEEPALIVE"]


# Leaving


async def test_the_users_own_error_leaves_the_block_alone(autojump_clock: MockClock) -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:  # noqa: PT012
        async with connected_pair(echo_responder()) as pair:
            await pair.client.request_response(b"x")
            raise error
    assert caught.value is error


async def test_a_body_that_only_sleeps_is_not_cancelled_and_leaving_does_not_raise(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.INFO, "rsocket_trio")
    slept = False
    async with raw.client(raw.RS10) as (connection, peer):
        await peer.stream.aclose()
        await trio.sleep(5)
        slept = True
        assert connection.status == "closed"

    assert slept
    assert len(caplog.records) == 1
    assert "closed the transport" in caplog.text


async def test_a_peer_that_does_not_read_delays_leaving_by_two_seconds_at_most(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, _):
        await connection.fire_and_forget(bytes(1_000_000))
        left_at = trio.current_time()
    assert trio.current_time() - left_at <= 2


async def test_a_connection_that_was_left_answers_no_more(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        pass
    for call in (pair.client.request_response, pair.client.fire_and_forget, pair.client.ping):
        with pytest.raises(ConnectionClosed, match="by this side"):
            await call()
    with pytest.raises(ConnectionClosed):
        await pair.client.metadata_push(b"x")
    with pytest.raises(ConnectionClosed):
        async with pair.client.request_stream():
            pass


async def test_a_stream_is_opened_once_and_used_inside_of_its_block(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        stream = pair.client.request_stream(initial_request_n=2)
        with pytest.raises(LocalProtocolError, match="async with"):
            await anext(stream)
        async with stream:
            await anext(stream)
        for read in (stream.__anext__, stream.receive_batch):
            with pytest.raises(LocalProtocolError, match="left"):
                await read()
        with pytest.raises(LocalProtocolError, match="once only"):
            await stream.__aenter__()


# Refusals


@pytest.mark.parametrize("kind", [RejectedSetup, InvalidSetup, UnsupportedSetup])
async def test_a_refusal_raises_in_every_waiting_and_later_call(
    kind: type[RejectedSetup], autojump_clock: MockClock
) -> None:
    responder = Responder()

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        raise kind("not you")

    caught: list[BaseException] = []

    async def ask(connection: Connection) -> None:
        try:
            await connection.request_response()
        except RSocketError as error:
            caught.append(error)

    async with connected_pair(responder) as pair:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, pair.client)
        with pytest.raises(kind, match="not you"):
            await pair.client.ping()
        with pytest.raises(kind, match="not you"):
            async with pair.client.request_channel():
                pass

    assert [type(error) for error in caught] == [kind] * 3
    assert len({id(error) for error in caught}) == 3


# What waits when the connection is lost


async def _send(connection: ReconnectingClient | Connection) -> None:
    async with connection.request_channel() as channel:
        await channel.send(b"no credit was granted")


WAITS = {name: CALLS[name] for name in ("request", "stream", "channel", "ping")}
WAITS |= {"send": _send, "lease": CALLS["request"]}


@pytest.mark.parametrize("wait", WAITS)
async def test_a_lost_connection_reaches_whoever_waits(wait: str, autojump_clock: MockClock) -> None:
    caught: list[BaseException] = []
    async with raw.client(raw.RS10, lease=wait == "lease") as (connection, peer):

        async def waiter() -> None:
            try:
                await WAITS[wait](connection)
            except RSocketError as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter)
            nursery.start_soon(waiter)
            await settle()
            assert caught == []
            await peer.stream.aclose()

    assert [type(error) for error in caught] == [ConnectionLost] * 2
    assert caught[0] is not caught[1]


async def test_a_lost_connection_cancels_handlers(autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    async def wait(what: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(what)

    @responder.request_response
    async def one(request: Payload) -> bytes:
        await wait("response")
        return b""

    @responder.request_stream
    async def many(request: Payload) -> AsyncIterator[bytes]:
        await wait("stream")
        yield b""

    @responder.request_channel
    async def both(channel: Channel) -> None:
        await wait("channel")

    @responder.fire_and_forget
    async def none(request: Payload) -> None:
        await wait("forgotten")

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.ask(1), raw.stream(3, 1), raw.channel(5, 1), raw.forget(7))
        await settle()
        assert ended == []
        await peer.stream.aclose()
        await trio.sleep(0.5)
        assert sorted(ended) == ["channel", "response", "stream"]
        await trio.sleep(1)  # who answers nobody gets a moment more
    assert "forgotten" in ended


# Lost before the first frame


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss", "h2", "h2s"])
@pytest.mark.parametrize("reads", [True, False], ids=["reads first", "cut"])
async def test_a_server_that_accepts_and_goes_said_nothing(scheme: str, reads: bool) -> None:
    async def go(stream: trio.SocketStream) -> None:
        if reads:
            await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, go, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        context = ssl.create_default_context() if scheme in {"tls", "wss", "h2s"} else None
        with pytest.raises(ConnectionLost, match=NO_FRAME):
            async with open_connection(f"{scheme}://127.0.0.1:{port}", ssl_context=context) as connection:
                await connection.request_response()
        nursery.cancel_scope.cancel()


SHORT = 0.05
PATIENCE = 60.0
"""Seconds after which a test that hangs fails."""
DRAFT = "rsocket/2.0-draft"


@contextmanager
def silent_port(port: int = 0) -> Iterator[int]:
    """Listen without ever accepting: the system completes connections, and nobody says anything on them."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        yield listening.getsockname()[1]


async def failure(opening: AbstractAsyncContextManager[object]) -> str:
    """Return the text of the error with which connecting ends: a ``ConnectionLost`` alone, in no group."""
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        async with opening:
            pytest.fail("the block began")
    assert type(caught.value) is ConnectionLost
    return str(caught.value)


# fmt: off
STEPS = (
    # scheme   the step that is not done
    ("tls",    "no TLS handshake"),
    ("ws",     "the WebSocket upgrade was not answered"),
    ("wss",    "no TLS handshake"),
    ("h2",     "no SETTINGS of HTTP/2"),
    ("h2s",    "no TLS handshake"),
)
# fmt: on


async def test_a_server_that_says_nothing_is_given_up_with_the_step() -> None:
    with silent_port() as port, Rows() as row:
        for scheme, step in STEPS:
            uri = f"{scheme}://127.0.0.1:{port}"
            with row(scheme):
                assert await failure(open_connection(uri, connect_timeout=SHORT)) == f"{uri}: {step} within 0.05 s"


async def test_a_setup_that_asks_for_an_answer_and_gets_none_is_given_up_at_once(autojump_clock: MockClock) -> None:
    mute = listen_memory("mute")
    uri = "memory://mute"
    started = trio.current_time()
    assert (
        await failure(open_connection(uri, dialect=DRAFT, lease=True, connect_timeout=3))
        == f"{uri}: the SETUP was not answered within 3 s"
    )
    assert (
        await failure(open_connection(uri, dialect="streamux/1", connect_timeout=3))
        == f"{uri}: the initialize message was not answered within 3 s"
    )
    # A peer that said nothing is not waited for at the end.
    assert trio.current_time() - started == pytest.approx(6)
    for _ in range(2):
        peer = await mute.accept()
        while await peer.receive():
            pass
    await mute.aclose()


async def test_a_function_that_opens_streams_has_the_time_as_well(autojump_clock: MockClock) -> None:
    closed = 0

    async def connect() -> trio.abc.Stream:
        await trio.sleep(100)
        return memory_stream_pair()[0]

    @asynccontextmanager
    async def opened() -> AsyncIterator[trio.abc.Stream]:
        nonlocal closed
        async with trio.open_nursery():
            try:
                yield await connect()
            finally:
                closed += 1

    for function in (connect, opened):
        assert await failure(open_connection_over(function, connect_timeout=2)) == "no new stream within 2 s"
    assert trio.current_time() == pytest.approx(4)
    ours, _theirs = memory_stream_pair()
    unanswered = open_connection_over(ours, dialect=DRAFT, lease=True, connect_timeout=2)
    assert await failure(unanswered) == "the SETUP was not answered within 2 s"
    assert closed == 1


# What else may end it


async def test_a_cancel_from_outside_stays_one_and_so_does_a_timeout_of_the_callers_own() -> None:
    with silent_port() as port, Rows() as row:
        for scheme, _ in STEPS:
            opening = partial(open_connection, f"{scheme}://127.0.0.1:{port}")
            with row(scheme):
                with trio.move_on_after(SHORT) as scope:
                    async with opening():
                        pytest.fail("the block began")
                assert scope.cancelled_caught
                with pytest.raises(trio.TooSlowError), trio.fail_after(SHORT):
                    async with opening(connect_timeout=math.inf):
                        pytest.fail("the block began")


# fmt: off
WRONG: tuple[tuple[Any, type[Exception], str], ...] = (
    (0,            ValueError, "connect_timeout of 0: must be above 0"),
    (-1,           ValueError, "connect_timeout of -1: must be above 0"),
    (-math.inf,    ValueError, "connect_timeout of -inf: must be above 0"),
    (math.nan,     ValueError, "connect_timeout of nan: must be above 0"),
    (10**400,      ValueError, "connect_timeout of 10000000000000000000: must be above 0, below 1e308"),
    (True,         TypeError,  "connect_timeout is a number of seconds, not bool"),
    ("10",         TypeError,  "connect_timeout is a number of seconds, not str"),
    (None,         TypeError,  "connect_timeout is a number of seconds, not NoneType"),
)
# fmt: on
OPENINGS: dict[str, Callable[[Any], AbstractAsyncContextManager[object]]] = {
    "open_connection": lambda seconds: open_connection(URI, connect_timeout=seconds),
    "open_connection_over": lambda seconds: open_connection_over(memory_stream_pair()[0], connect_timeout=seconds),
    "open_shared": lambda seconds: open_shared("h2://127.0.0.1:1", connect_timeout=seconds),
    "connect_forever": lambda seconds: connect_forever(URI, connect_timeout=seconds),
}


async def test_a_time_that_is_none_is_refused_before_anything_is_dialled(autojump_clock: MockClock) -> None:
    with Rows() as row:
        for name, opening in OPENINGS.items():
            for seconds, error, text in WRONG:
                with row(f"{name}, {seconds!r}"), pytest.raises(error, match=f"^{text}"):
                    async with opening(seconds):
                        pytest.fail("the block began")


# A client that connects again


@pytest.mark.parametrize("name", ["setup", "headers", "auth"])
async def test_a_function_of_a_reconnecting_client_takes_its_time_from_the_try(
    name: str, autojump_clock: MockClock
) -> None:
    told = Told()

    async def forever() -> Any:
        await trio.sleep_forever()

    options: Any = {name: forever}
    async with connect_forever(URI, wait=False, connect_timeout=3, on_state=told, **options) as reconnecting:
        await trio.sleep(3.05)
        with pytest.raises(ConnectionLost, match=f"{URI}: no {name} for a new connection within 3 s"):
            await reconnecting.request_response(b"hi")
        await trio.sleep(1)
    assert told.states[:2] == ["connecting", "connecting"]
    assert told.pauses[0] <= 3.1
