"""A Streamux connection: how it begins, what arrives, what is cancelled, what failures and slow readers cost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    ConnectionLost,
    Invalid,
    Limits,
    LocalProtocolError,
    NegotiationFailed,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    Setup,
    StreamuxOptions,
    Unsupported,
    open_connection,
    open_connection_over,
    serve_stream,
)
from rsocket_trio.errors import StreamError
from rsocket_trio.rsocket.frames import ExtensionEntry
from rsocket_trio.streamux.negotiation import Terms
from rsocket_trio.streamux_magic import SIZE
from tests.connection.pairs import settle
from tests.connection.streamux_pairs import STREAMUX, Pair, echoing, streamux_pair, widths
from tests.each_row import each_row
from tests.serving import running_server
from tests.streamux.pairs import Chunk, chunks_in

clause = pytest.mark.clause
QUICK = widths(4, 10, qr=True)
NOWHERE = "memory://nobody-listens-here"


# The negotiation


@each_row(
    ("client", "server", "text"),
    [
        (widths(4), StreamuxOptions(min_id=6, qa=True), "min_id of 6 against max_id of 4"),
        (
            StreamuxOptions(max_len=8, rec_len=8),
            StreamuxOptions(min_len=10, rec_len=10),
            "min_len of 10 against max_len of 8",
        ),
    ],
)
@clause("SMX-NEG-02", "SMX-NEG-04")
async def test_options_that_do_not_meet_fail_when_the_connection_opens_and_name_the_field(
    client: StreamuxOptions, server: StreamuxOptions, text: str, autojump_clock: MockClock
) -> None:
    with pytest.raises(NegotiationFailed, match=text):
        async with streamux_pair(echoing(), client=client, server=server):
            raise AssertionError("it opened")


async def opening_over(stream: trio.abc.Stream, **options: Any) -> None:
    async with open_connection_over(stream, dialect=STREAMUX, **options):
        raise AssertionError("it opened")


@each_row(
    ("said", "error", "text"),
    [
        (b"\x01\x00\x00", NegotiationFailed, "after 3 of the 5 bytes of its initialize message"),
        (b"", ConnectionLost, "the peer closed the transport"),
        (b"\x02" + StreamuxOptions()._initialize().encode()[1:], NegotiationFailed, "version 1 against 2"),
        (b"HTTP/1.1 400", NegotiationFailed, "the peer's reserved of 1"),
    ],
)
async def test_a_peer_that_says_something_else_is_told_apart(
    said: bytes, error: type[Exception], text: str, autojump_clock: MockClock
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(said)
    await theirs.send_eof()
    with pytest.raises(error, match=text):
        await opening_over(ours)


@clause("SMX-INI-02")
async def test_a_server_says_nothing_more_before_the_client_has_spoken(autojump_clock: MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, echoing(), theirs, dialects=[STREAMUX]))
        await trio.sleep(5)
        assert len(await ours.receive_some()) == SIZE
        await trio.sleep(10)  # longer than a server waits for a client to speak
        assert await ours.receive_some() == b""


# Quick init


async def ask(connection: Connection) -> None:
    assert (await connection.request_response(b"q")).data == b"Q"


async def send(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        await channel.send(b"q")
        await channel.send_eof()
        assert (await anext(channel)).data == b"Q"


async def ping(connection: Connection) -> None:
    await connection.ping()


@clause("SMX-QI-03", "SMX-QI-04")
@each_row(
    ("first", "chunks"),
    [
        (ask, [Chunk(0, b"q", termination=True)]),
        (send, [Chunk(0, b"q")]),
        (ping, [Chunk(0, termination=True)]),
    ],
)
async def test_a_quick_init_leaves_in_one_write_with_what_is_asked_first(
    first: Callable[[Connection], Any], chunks: list[Chunk], autojump_clock: MockClock
) -> None:
    async with streamux_pair(echoing(), client=widths(0, 10, qr=True), settled=False) as pair:
        assert pair.client_wire.writes == []
        await first(pair.client)

    assert pair.terms == Terms(0, 10)
    write = pair.client_wire.writes[0]
    assert write[:SIZE] == widths(0, 10, qr=True)._initialize().encode()
    assert chunks_in(pair.terms, write[SIZE:])[: len(chunks)] == chunks


@clause("SMX-QI-05", "SMX-QI-07")
async def test_a_quick_init_that_is_not_allowed_fails_in_calls_that_wait(autojump_clock: MockClock) -> None:
    async with streamux_pair(echoing(), client=QUICK, server=widths(4, 10)) as pair:
        for _ in range(2):
            with pytest.raises(NegotiationFailed, match="the quick init is not allowed"):
                await pair.client.request_response(b"q")
    assert len(b"".join(pair.server_wire.writes)) == SIZE


# Which handler


# What is refused before anything is sent


@each_row(
    ("options", "error", "text"),
    [
        ({"setup": b"hello"}, Unsupported, "no SETUP payload"),
        ({"lease": True}, Unsupported, "no leases"),
        ({"strict": True}, Unsupported, "no strict flag"),
        ({"quirks": ["some"]}, ValueError, "quirks some of streamux/1: there are none"),
        ({"extension_entries": [ExtensionEntry("ours")]}, Unsupported, "no extension entries"),
        ({"streamux": {"qr": True}}, TypeError, "streamux options are StreamuxOptions, not dict"),
        ({"dialect": "rsocket/1.0", "streamux": StreamuxOptions()}, ValueError, "streamux options for rsocket/1.0"),
    ],
)
async def test_terms_that_streamux_does_not_have_are_refused_before_anything_is_dialled(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        async with open_connection(NOWHERE, **{"dialect": STREAMUX, **options}):
            raise AssertionError("it was dialled")


async def opened(make: Callable[[], Any]) -> None:
    async with make():
        raise AssertionError("it opened")


async def pushed(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        await channel.metadata_push(b"x")


async def item(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        await channel.send(Payload(b"x", b"m"))


@each_row(
    ("call", "text"),
    [
        (lambda c: c.fire_and_forget(b"x"), "fire_and_forget"),
        (lambda c: c.metadata_push(b"x"), "metadata"),
        (lambda c: c.request_response(Payload(b"x", b"m")), "metadata"),
        (lambda c: c.request_response(Payload(b"x", data_mime="a/b")), "MIME types"),
        (lambda c: c.request_response(b"x", route="somewhere"), "routes"),
        (lambda c: c.send_extension(0x100, b"x"), "extension frames"),
        (lambda c: c.send_entries([ExtensionEntry("ours")]), "extension entries"),
        (lambda c: opened(lambda: c.request_stream(b"x")), "request_stream"),
        (lambda c: opened(lambda: c.request_subscription(b"x")), "request_subscription"),
        (pushed, "metadata"),
        (item, "metadata"),
    ],
)
async def test_what_streamux_does_not_have_is_unsupported_and_nothing_is_sent(
    call: Callable[[Connection], Any], text: str, autojump_clock: MockClock
) -> None:
    async with streamux_pair(echoing()) as pair:
        with pytest.raises(Unsupported, match=text):
            await call(pair.client)
        await settle()
        assert pair.client_said == []
        await ask(pair.client)


@each_row(
    ("options", "error", "text"),
    [
        ({"qr": 1}, TypeError, r"\.qr "),
        ({"min_id": 16}, ValueError, r"(\.|: )min_id "),
        ({"max_id": 30}, ValueError, r"(\.|: )max_id "),
        ({"max_id": 13}, ValueError, r"(\.|: )rec_id "),  # 14 is recommended
        ({"rec_id": 32}, ValueError, r"(\.|: )rec_id "),
        ({"min_len": 0}, ValueError, r"(\.|: )min_len "),
        ({"max_len": 31}, ValueError, r"(\.|: )max_len "),
        ({"rec_len": 25}, ValueError, r"(\.|: )rec_len "),
        ({"rec_len": "16"}, TypeError, r"\.rec_len "),
        ({"in_flight": 0}, ValueError, r"\.in_flight "),
        ({"in_flight": True}, TypeError, r"\.in_flight "),
        ({"requests": "some"}, ValueError, r"\.requests "),
        ({"message_budget": 0}, ValueError, r"\.message_budget "),
        ({"spurious": "ignore"}, ValueError, r"\.spurious "),
        ({"encode_error": b"error"}, TypeError, r"\.encode_error "),
        ({"qr": True, "qa": True}, ValueError, ": qr and qa are both set"),
        ({"qr": True, "rec_id": 31}, ValueError, ": rec_id of 31"),
        ({"qr": True, "rec_len": 31}, ValueError, ": rec_len of 31"),
        ({"min_id": 10, "max_id": 8}, ValueError, ": max_id of 8 is below min_id of 10"),
        ({"min_len": 10, "max_len": 8}, ValueError, ": max_len of 8 is below min_len of 10"),
    ],
)
def test_options_are_checked_when_they_are_made_and_name_the_field(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"^StreamuxOptions{text}"):
        StreamuxOptions(**options)


# Over whatever carries bytes


@clause("SMX-GEN-01")
@each_row("options", [None, QUICK], ids=["normal", "quick"])
@each_row("scheme", ["memory", "tcp", "unix", "ws", "h2"])
async def test_the_same_over_every_transport(scheme: str, options: StreamuxOptions | None, tmp_path: Path) -> None:
    address = {
        "memory": "memory://streamux",
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path}/s",
        "ws": "ws://127.0.0.1:0/streamux",
        "h2": "h2://127.0.0.1:0/streamux",
    }[scheme]
    data = b"abc" * 50_000
    with trio.fail_after(60):
        async with (
            running_server(echoing(), address) as uri,
            open_connection(uri, dialect=STREAMUX, streamux=options) as connection,
        ):
            await ask(connection)
            await send(connection)
            await ping(connection)
            assert (await connection.request_response(data)).data == data.upper()
            with trio.move_on_after(0.0):
                await connection.request_response(b"given up")
            await ask(connection)


# Whole messages


# Channels


async def test_the_chunks_of_a_channel_are_its_items(autojump_clock: MockClock) -> None:
    responder = Responder()
    asked: list[Payload] = []

    @responder.request_channel
    async def echo(channel: Channel) -> None:
        asked.append(channel.request)
        async for item in channel:
            await channel.send(item.data.upper())

    async with streamux_pair(responder) as pair:
        async with pair.client.request_channel(b"one") as channel:
            await channel.send(b"two")
            await channel.send(b"three")
            await channel.send_eof()
            got = [item.data async for item in channel]
        await settle()

    assert asked == [Payload()]
    assert got == [b"ONE", b"TWO", b"THREE"]
    assert [chunk.payload for chunk in pair.client_said] == [b"one", b"two", b"three", b""]
    assert pair.client_said[-1].termination
    assert pair.server_said[-1] == Chunk(channel._opened()[0].id, response=True, termination=True)


@clause("SMX-MSG-09")
async def test_a_handler_that_returns_first_ends_the_channel_and_sending_says_so(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_channel
    async def enough(channel: Channel) -> None:
        await channel.send(await anext(channel))

    async with streamux_pair(responder, client=widths(0)) as pair:
        async with pair.client.request_channel(b"only") as channel:
            assert [item.data async for item in channel] == [b"only"]
            with pytest.raises(Canceled):
                await channel.send(b"more")
            with trio.fail_after(1):
                await channel.wait_send_closed()
        with trio.fail_after(1):  # the id is free again
            await pair.client.ping()

    assert pair.client_said[:2] == [Chunk(0, b"only"), Chunk(0)]


@clause("SMX-MSG-04", "SMX-MSG-05")
async def test_what_would_be_a_ping_or_a_cancel_is_a_value_error_and_the_connection_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with streamux_pair(echoing()) as pair:
        with pytest.raises(ValueError, match="it would be a ping"):
            await pair.client.request_response()
        async with pair.client.request_channel() as channel:
            with pytest.raises(ValueError, match="it would be a ping"):
                await channel.send_eof()
            with pytest.raises(ValueError, match="it would be a cancel"):
                await channel.send(b"")
            await settle()
            assert pair.client_said == []
            await channel.send(b"first")
            await channel.send_eof()
            assert [item.data async for item in channel] == [b"FIRST"]
            with pytest.raises(LocalProtocolError):
                await channel.send(b"late")


# Cancelling


@clause("SMX-CAN-01", "SMX-CAN-03")
@each_row("how", ["deadline", "error"])
async def test_giving_up_cancels_the_handler_and_frees_the_id_on_the_ack(how: str, autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_channel
    async def forever(channel: Channel) -> None:
        try:
            async for _ in channel:
                await channel.send(b"got it")
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    async with streamux_pair(responder, client=widths(0)) as pair:
        if how == "deadline":
            with pytest.raises(trio.TooSlowError), trio.fail_after(5):
                await pair.client.request_response(b"q")
        else:
            with pytest.raises(KeyError):  # noqa: PT012
                async with pair.client.request_channel(b"q") as channel:
                    await anext(channel)
                    raise KeyError
        await settle()
        assert ended == ["cancelled"]
        async with pair.client.request_channel(b"again") as channel:
            assert (await anext(channel)).data == b"got it"

    assert Chunk(0) in pair.client_said
    assert Chunk(0, response=True) in pair.server_said


# Ids


@clause("SMX-FLD-07", "SMX-NEG-08")
async def test_with_all_ids_in_flight_requests_wait_in_order_and_may_give_up(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def slow(request: Payload) -> bytes:
        await trio.sleep(1)
        return request.data

    async with streamux_pair(responder, client=widths(1)) as pair, trio.open_nursery() as nursery:
        answered: list[bytes] = []
        scopes = [trio.CancelScope() for _ in range(10)]

        async def ask(number: int) -> None:
            with scopes[number]:
                answered.append((await pair.client.request_response(b"%d" % number)).data)

        for number in range(10):
            nursery.start_soon(ask, number)
            await settle()
        assert [chunk.payload for chunk in pair.client_said] == [b"0", b"1"]
        scopes[3].cancel()
        scopes[4].cancel()

    served = [b"%d" % number for number in range(10) if number not in (3, 4)]
    assert [chunk.payload for chunk in pair.client_said] == served
    assert sorted(answered) == served


KIB = 1024
INBOX = 100 * KIB
SMALL = Limits(inbox_size=INBOX, outbox_size=20 * KIB)
ITEM = 2 * KIB
WRITE = 64 * KIB
"""Bytes that one read may bring above a limit."""


class Slow:
    """A handler that reads ``may_read`` items and then waits; it answers pings of a channel named so at once."""

    def __init__(self) -> None:
        self.responder = Responder()
        self.got = 0
        self.may_read = trio.Event()
        self.responder.request_channel(self.read)

        @self.responder.request_response
        def answer(request: Payload) -> bytes:
            return b"answer"

    async def read(self, channel: Channel) -> None:
        await self.may_read.wait()
        async for item in channel:
            self.got += len(item.data)
        await channel.send(b"%d" % self.got)


async def sends(pair: Pair, count: int, size: int = ITEM) -> bytes:
    """Return what a channel answers that is sent so many items."""
    async with pair.client.request_channel() as channel:
        for _ in range(count):
            await channel.send(bytes(size))
        await channel.send_eof()
        return (await anext(channel)).data


async def test_a_slow_handler_makes_reading_pause_and_nothing_is_lost(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with streamux_pair(slow.responder, limits=SMALL, bounded=True) as pair, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def send() -> None:
            answers.append(await sends(pair, 500))

        nursery.start_soon(send)
        await trio.sleep(60)
        accepted = pair.client_wire.size
        assert INBOX - WRITE < accepted < INBOX + 2 * WRITE
        await trio.sleep(20)
        assert (pair.client_wire.size, slow.got) == (accepted, 0)
        slow.may_read.set()

    assert answers == [b"%d" % (500 * ITEM)]


async def test_half_a_chunk_may_wait_for_its_rest_no_longer_than_the_limit_of_silence(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    silent = Responder()

    @silent.request_response
    async def never(request: Payload) -> bytes:
        await trio.sleep_forever()

    async with streamux_pair(Slow().responder, silent, limits=Limits(silence=30)) as pair:
        await trio.sleep(1000)  # to be idle is no fault
        assert pair.server.status == "open"
        await pair.client_wire._stream.send_all(b"\x00\x01")
        start = trio.current_time()
        with pytest.raises(ConnectionLost):
            await pair.server.request_response(b"q")
        assert trio.current_time() - start < 50

    assert "half a frame came, and its rest did not" in caplog.text


async def test_a_peer_that_reads_no_answers_is_left_after_the_limit_of_silence_and_the_log_says_why(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def ping() -> None:
        with suppress(ConnectionLost):
            await pair.client.ping()

    limits = Limits(silence=30, reply_frames=4)
    async with streamux_pair(limits=limits) as pair, trio.open_nursery() as nursery:
        pair.server_wire.hold()
        start = trio.current_time()
        for _ in range(20):
            nursery.start_soon(ping)
            await settle()
        assert pair.server._engine.session.is_congested
        await pair.server.wait_closed()
        assert 30 <= trio.current_time() - start < 50
        assert pair.server.faults.peer_faults == 1
        pair.server_wire.release()

    assert "the peer read none of the answers that wait for it" in caplog.text
    assert "half a frame" not in caplog.text


# A budget for each message instead


async def test_a_callers_budget_cancels_the_response_and_its_reader_hears_why(autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_channel
    async def many(channel: Channel) -> None:
        try:
            for _ in range(100):
                await channel.send(bytes(ITEM))
                await trio.sleep(0.1)
        finally:
            ended.append("many")

    async with streamux_pair(responder, limits=SMALL, client=widths(0, message_budget=10 * KIB), bounded=True) as pair:
        async with pair.client.request_channel(b"begin") as channel:
            await trio.sleep(30)
            assert ended == ["many"]
            got = 0

            async def read() -> None:
                nonlocal got
                async for item in channel:
                    got += len(item.data)

            with pytest.raises(Rejected, match="more than 10240 bytes of a message waited for their reader"):
                await read()
            assert 0 < got <= 10 * KIB
        with trio.fail_after(1):
            await pair.client.ping()  # the id is free again


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
