"""What a caller sees of its connection: answers, errors, deadlines, and what leaving does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Connection,
    Invalid,
    LocalProtocolError,
    Payload,
    PayloadLike,
    Rejected,
    Responder,
    RSocketError,
    Unsupported,
    current_connection,
)
from tests.conformance import raw
from tests.connection.pairs import connected_pair, echo_responder, settle


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


async def test_a_stream_left_with_its_deadline_expired_sends_cancel_once(autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_stream
    async def slow(request: Payload) -> AsyncIterator[bytes]:
        yield b"first"
        try:
            await trio.sleep_forever()
        finally:
            ended.append("handler")

    async with connected_pair(responder) as pair:
        with trio.move_on_after(2) as scope:
            async with pair.client.request_stream() as items:
                async for item in items:
                    assert item.data == b"first"
        assert scope.cancelled_caught
        await settle()
        assert ended == ["handler"]

    assert pair.client_said.names == ["REQUEST_STREAM", "CANCEL"]


async def test_a_cancelled_nursery_outside_cancels_each_stream_then_closes(autojump_clock: MockClock) -> None:
    responder = echo_responder()
    left: list[str] = []
    outer = trio.CancelScope()

    async def call(connection: Connection) -> None:
        await connection.request_response(route="never")

    async def stream(connection: Connection) -> None:
        async with connection.request_stream(initial_request_n=1) as items:
            async for _ in items:
                await trio.sleep_forever()

    with outer:
        async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
            nursery.start_soon(call, pair.client)
            nursery.start_soon(stream, pair.client)
            await settle()
            outer.cancel()
            left.append("cancelled")

    assert left == ["cancelled"]
    assert pair.client_said.count(raw.CANCEL) == 2
    assert sorted(frame.stream_id for frame in pair.client_said.of(raw.CANCEL)) == [1, 3]


async def test_a_request_cancelled_while_it_is_unsent_leaves_no_trace(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        pair.client_wire.hold()
        async with trio.open_nursery() as nursery:
            # One write is on its way; the second request waits behind it.
            nursery.start_soon(pair.client.request_response, b"first")
            await settle()
            with trio.move_on_after(1):
                await pair.client.request_response(b"second")
            with trio.move_on_after(1):
                async with pair.client.request_stream() as items:
                    items.request_n(5)
                    await trio.sleep_forever()
            pair.client_wire.release()
        assert (await pair.client.request_response(b"third")).data == b"third"

    assert pair.client_said.names == ["REQUEST_RESPONSE", "REQUEST_RESPONSE"]


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


@pytest.mark.parametrize("code", [0, 0x101, 0x2FF, 0x300, 0xFFFFFFFF])
async def test_codes_outside_of_the_tables_are_kept_as_numbers(code: int, autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer), trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ApplicationError) as caught:
                await connection.request_response()
            assert caught.value.code == code

        nursery.start_soon(ask)
        await peer.receive()
        await peer.send(raw.error(1, code, b"odd"))


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
