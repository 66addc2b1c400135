"""How a Streamux connection begins: the negotiation, quick init, what its options refuse, and what it never has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Channel,
    Connection,
    ConnectionLost,
    NegotiationFailed,
    Payload,
    Responder,
    StreamuxOptions,
    Unsupported,
    open_connection,
    open_connection_over,
    serve,
    serve_stream,
)
from rsocket_trio.rsocket.frames import ExtensionEntry
from rsocket_trio.streamux.negotiation import Terms
from rsocket_trio.streamux_magic import SIZE
from tests.connection.pairs import settle
from tests.connection.streamux_pairs import STREAMUX, echoing, streamux_pair, widths
from tests.each_row import each_row
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


@each_row(
    ("requests", "answers"),
    [
        ("auto", [b"whole 3", b"whole 100", b"chunks 2"]),
        ("whole", [b"whole 3", b"whole 100", b"whole 6"]),
        ("chunks", [b"chunks 1", b"chunks 7", b"chunks 2"]),
    ],
)
async def test_the_options_choose_between_two_handlers(
    requests: Any, answers: list[bytes], autojump_clock: MockClock
) -> None:
    responder = Responder()

    @responder.request_response
    def whole(request: Payload) -> bytes:
        return b"whole %d" % len(request.data)

    @responder.request_channel
    async def chunks(channel: Channel) -> None:
        await channel.send(b"chunks %d" % len([item async for item in channel]))

    async with streamux_pair(responder, server=widths(4, 4, qa=True, requests=requests)) as pair:
        client = pair.client
        got = [(await client.request_response(b"abc")).data, (await client.request_response(bytes(100))).data]
        async with client.request_channel(b"abc") as channel:
            await channel.send(b"def")
            await channel.send_eof()
            got.append((await anext(channel)).data)

    assert got == answers


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
    ("field", "value", "error"),
    [
        ("qr", 1, TypeError),
        ("min_id", 16, ValueError),
        ("max_id", 30, ValueError),
        ("max_id", 13, ValueError),
        ("rec_id", 32, ValueError),
        ("min_len", 0, ValueError),
        ("max_len", 31, ValueError),
        ("rec_len", 25, ValueError),
        ("rec_len", "16", TypeError),
        ("in_flight", 0, ValueError),
        ("in_flight", True, TypeError),
        ("requests", "some", ValueError),
        ("message_budget", 0, ValueError),
        ("spurious", "ignore", ValueError),
        ("encode_error", b"error", TypeError),
    ],
)
def test_options_are_checked_when_they_are_made_and_name_the_field(
    field: str, value: Any, error: type[Exception]
) -> None:
    named = "rec_id" if (field, value) == ("max_id", 13) else field  # 14 is recommended
    with pytest.raises(error, match=rf"StreamuxOptions(\.|: ){named} "):
        StreamuxOptions(**{field: value})


@each_row(
    ("together", "text"),
    [
        ({"qr": True, "qa": True}, "qr and qa are both set"),
        ({"qr": True, "rec_id": 31}, "rec_id of 31"),
        ({"qr": True, "rec_len": 31}, "rec_len of 31"),
        ({"min_id": 10, "max_id": 8}, "max_id of 8 is below min_id of 10"),
        ({"min_len": 10, "max_len": 8}, "max_len of 8 is below min_len of 10"),
    ],
)
def test_options_that_contradict_each_other_are_refused(together: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^StreamuxOptions: {text}"):
        StreamuxOptions(**together)


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
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(partial(serve, echoing(), [address]))
            async with open_connection(uri, dialect=STREAMUX, streamux=options) as connection:
                await ask(connection)
                await send(connection)
                await ping(connection)
                assert (await connection.request_response(data)).data == data.upper()
                with trio.move_on_after(0.0):
                    await connection.request_response(b"given up")
                await ask(connection)
            nursery.cancel_scope.cancel()
