"""A failure over Streamux, which has no word for one: who hears what, and what it costs the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Invalid,
    Limits,
    Payload,
    Rejected,
    RejectedSetup,
    RemoteProtocolError,
    Responder,
    Setup,
)
from rsocket_trio.errors import StreamError
from rsocket_trio.streamux.chunks import HeaderLayout
from tests.connection.pairs import settle
from tests.connection.streamux_pairs import Pair, echoing, streamux_pair, widths
from tests.each_row import each_row
from tests.streamux.pairs import Chunk

clause = pytest.mark.clause
Encode = Callable[[StreamError], Any]


def failing(error: Callable[[], Exception] = lambda: ApplicationError("broken")) -> Responder:
    """Fails what asks for it, after a part of a channel's answer; ``wait`` is never answered."""
    responder = Responder()

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        if request.data == b"wait":
            await trio.sleep_forever()
        if request.data == b"good":
            return b"answer"
        raise error()

    @responder.request_channel
    async def fail_later(channel: Channel) -> None:
        await channel.send(b"part")
        await settle()
        raise error()

    return responder


def in_words(error: StreamError) -> bytes:
    return b"%s: %s" % (type(error).__name__.encode(), error.data)


# With a word of the application's


@each_row(
    ("error", "answer"),
    [
        (lambda: ApplicationError("broken"), b"ApplicationError: broken"),
        (lambda: Invalid("what?"), b"Invalid: what?"),
        (lambda: ExceptionGroup("", [Rejected("busy")]), b"Rejected: busy"),
        (lambda: KeyError("secret"), b"ApplicationError: internal error"),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else "",
)
async def test_a_failed_request_is_answered_in_the_applications_words(
    error: Callable[[], Exception], answer: bytes, autojump_clock: MockClock
) -> None:
    async with streamux_pair(failing(error), server=widths(4, qa=True, encode_error=in_words)) as pair:
        assert (await pair.client.request_response(b"q")).data == answer
        assert (await pair.client.request_response(b"good")).data == b"answer"
        assert pair.server.faults.handler_errors == (b"internal" in answer)


@clause("SMX-MSG-10")
async def test_a_request_above_the_limit_reaches_no_handler(autojump_clock: MockClock) -> None:
    options = widths(4, 10, qa=True, encode_error=in_words)
    limits = Limits(payload_size=5000)
    async with streamux_pair(echoing(), server=options, limits=limits) as pair:
        answer = await pair.client.request_response(bytes(5001))
        assert answer.data.startswith(b"Invalid: message of more than 5000 bytes on id ")
        assert len((await pair.client.request_response(bytes(5000))).data) == 5000
        assert pair.server.faults.peer_faults == 1


@clause("SMX-MSG-10")
async def test_an_answer_above_the_limit_fails_its_caller_only(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    def much(request: Payload) -> bytes:
        return bytes(int(request.data))

    async with streamux_pair(responder, client=widths(0, 10), limits=Limits(payload_size=5000)) as pair:
        with pytest.raises(RemoteProtocolError, match="message of more than 5000 bytes on id 0"):
            await pair.client.request_response(b"9000")
        with trio.fail_after(1):
            assert len((await pair.client.request_response(b"5000")).data) == 5000


# Without one


async def raised_by(*calls: Callable[[], Any]) -> list[Exception]:
    """Return what each of the calls raises."""
    errors: list[Exception] = []

    async def call(one: Callable[[], Any]) -> None:
        try:
            await one()
        except Exception as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for one in calls:
            nursery.start_soon(call, one)
    return errors


def wrong(kind: str) -> Encode | None:
    def none(error: StreamError) -> None:
        return None

    def raising(error: StreamError) -> bytes:
        raise ZeroDivisionError("of the encoder")

    def number(error: StreamError) -> int:
        return 5

    return {"no encoder": None, "None": none, "raises": raising, "wrong type": number}[kind]


@each_row("kind", ["no encoder", "None", "raises", "wrong type"])
async def test_a_failure_without_a_word_for_it_ends_the_connection_for_all_who_wait(
    kind: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with streamux_pair(failing(), server=widths(4, qa=True, encode_error=wrong(kind))) as pair:
        client = pair.client
        errors = await raised_by(
            lambda: client.request_response(b"wait"),
            lambda: client.request_response(b"q"),
            lambda: client.request_response(b"wait"),
        )
        assert [type(error) for error in errors] == [ConnectionLost] * 3
        with pytest.raises(ConnectionLost):
            await client.request_response(b"later")
        with pytest.raises(ConnectionLost, match="failed here, and streamux/1 can't say so: broken"):
            await pair.server.request_response(b"q")

    assert not [chunk for chunk in pair.server_said if chunk.termination]
    assert "can't say so: broken" in caplog.text
    assert ("ZeroDivisionError: of the encoder" in caplog.text) is (kind == "raises")
    assert ("TypeError" in caplog.text) is (kind == "wrong type")


async def test_a_failure_after_a_part_of_the_answer_ends_the_connection_and_the_part_is_not_completed(
    autojump_clock: MockClock,
) -> None:
    async with (
        streamux_pair(failing(), server=widths(4, qa=True, encode_error=in_words)) as pair,
        pair.client.request_channel(b"q") as channel,
    ):
        assert (await anext(channel)).data == b"part"
        with pytest.raises(ConnectionLost):
            await anext(channel)

    assert [(chunk.payload, chunk.termination) for chunk in pair.server_said] == [(b"part", False)]


# Refusing, draining


async def test_a_refused_client_sees_the_connection_close(autojump_clock: MockClock) -> None:
    responder = echoing()

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        assert setup.dialect == "streamux/1"
        await trio.sleep(1)
        raise RejectedSetup("not you")

    async with streamux_pair(responder) as pair:
        with pytest.raises(ConnectionLost):
            await pair.client.request_response(b"q")
        with pytest.raises(RejectedSetup, match="not you"):
            await pair.server.request_response(b"q")

    assert pair.server_said == []


def slow() -> Responder:
    responder = Responder()

    @responder.request_response
    async def answer(request: Payload) -> bytes:
        await trio.sleep(float(request.data))
        return b"done"

    return responder


@each_row("side", ["client", "server"])
async def test_draining_lets_open_requests_of_both_sides_finish(side: str, autojump_clock: MockClock) -> None:
    answered: list[bytes] = []
    async with streamux_pair(slow(), slow()) as pair, trio.open_nursery() as nursery:

        async def ask(connection: Connection) -> None:
            answered.append((await connection.request_response(b"3")).data)

        for one in (pair.client, pair.server):
            nursery.start_soon(ask, one)
        await settle()
        draining = getattr(pair, side)
        start = trio.current_time()
        await draining.drain()
        assert trio.current_time() - start == 3
        with pytest.raises(ConnectionClosed):
            await draining.request_response(b"0")

    assert answered == [b"done", b"done"]


# FaultLog of the peer


def raw_chunk(pair: Pair, chunk: Chunk) -> bytes:
    bits = 2 * chunk.response + chunk.termination
    return HeaderLayout(pair.terms).pack(chunk.request_id, len(chunk.payload), bits) + chunk.payload


@clause("SMX-SPU-03")
@each_row("spurious", ["end", "report"])
async def test_what_nothing_explains_ends_the_connection_or_is_counted(
    spurious: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with streamux_pair(echoing(), server=widths(4, qa=True, spurious=spurious)) as pair:
        # In one write: behind the first one the server may have closed already.
        await pair.client_wire._stream.send_all(3 * raw_chunk(pair, Chunk(3, b"what?", response=True)))
        await settle()
        assert pair.server.faults.peer_faults == (1 if spurious == "end" else 3)
        if spurious == "end":
            with pytest.raises(ConnectionLost):
                await pair.client.request_response(b"q")
        else:
            assert (await pair.client.request_response(b"q")).data == b"Q"

    assert caplog.text.count("response to request id 3, which is not in flight") == 1


@clause("SMX-SPU-05")
async def test_the_end_inside_of_an_answer_is_told_to_who_waits(autojump_clock: MockClock) -> None:
    async with streamux_pair(failing()) as pair, trio.open_nursery() as nursery:
        errors: list[Exception] = []

        async def ask() -> None:
            errors.extend(await raised_by(lambda: pair.client.request_response(b"wait")))

        nursery.start_soon(ask)
        await settle()
        (asked,) = pair.client_said
        whole = raw_chunk(pair, Chunk(asked.request_id, b"answer", response=True, termination=True))
        await pair.server_wire._stream.send_all(whole[:-2])
        await settle()
        await trio.aclose_forcefully(pair.server_wire._stream)

    (error,) = errors
    assert type(error) is ConnectionLost
    assert f"inside a chunk of request id {asked.request_id}: 4 of 6 bytes came" in str(error)
