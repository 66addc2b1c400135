"""Arguments of the wrong kind, and payloads that a dialect can't say, fail in the call that gives them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import (
    Keepalive,
    Lease,
    Limits,
    Payload,
    Responder,
    Setup,
    Unsupported,
    connect_forever,
    open_connection,
    open_connection_over,
    serve,
    serve_stream,
)
from tests.connection.pairs import connected_pair, echo_responder
from tests.each_row import each_row
from tests.serving import running_server

NOWHERE = "memory://nobody-listens-here"


@each_row(
    ("option", "error", "match"),
    [
        ({"limits": 5}, TypeError, "limits are Limits, not int"),
        ({"keepalive": 5}, TypeError, "keepalive is a Keepalive, not int"),
        ({"setup": 5}, TypeError, "a payload is"),
        ({"setup": Payload(bytes(2**24))}, ValueError, "the SETUP can't be said"),
        ({"strict": True}, Unsupported, "strict"),
        ({"fragment_size": 63}, ValueError, "fragment_size of 63"),
        ({"quirks": ["none"]}, ValueError, "quirk 'none'"),
        ({"resume": Ellipsis}, TypeError, "ResumeOptions"),
    ],
)
async def test_wrong_terms_are_refused_before_anything_is_dialled(
    option: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        async with open_connection(NOWHERE, **option):
            raise AssertionError("nothing was dialled")


async def test_a_header_that_would_break_the_handshake_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be said in HTTP"):
        async with open_connection("ws://127.0.0.1:1/", headers=[("a", "b\r\nX: y")]):
            raise AssertionError("nothing was dialled")


SHORT = {
    "1.0": "rsocket/1.0",
    "0.2": "reactivesocket/0.2",
    "0.1": "reactivesocket/0.1",
    "0.0": "reactivesocket/0.0",
    "ext": "rsocket/2.0-draft",
    "streamux": "streamux/1",
}


@each_row("short", SHORT)
async def test_a_dialect_has_a_short_name_wherever_one_is_given(short: str) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, echo_responder(), theirs, dialects=[short]))
        async with open_connection_over(ours, dialect=short) as connection:
            assert (await connection.request_response(b"here")).data == b"here"
            assert connection.dialect == SHORT[short]
    async with running_server(echo_responder(), "memory://short", dialects=short):
        async with open_connection("memory://short", dialect=short) as connection:
            assert (await connection.request_response(b"here")).data == b"here"
        async with connect_forever("memory://short", dialect=short) as client:
            assert (await client.request_response(b"here")).data == b"here"
            assert (await client.connected()).dialect == SHORT[short]


async def test_an_unknown_dialect_is_told_both_kinds_of_names() -> None:
    known = "dialect '1': the known ones are rsocket/1.0, .*streamux/1, in short 1.0, 0.2, 0.1, 0.0, ext, streamux"
    with pytest.raises(ValueError, match=known):
        async with open_connection(NOWHERE, dialect="1"):
            raise AssertionError("nothing was dialled")
    with pytest.raises(ValueError, match=known):
        await serve(echo_responder(), NOWHERE, dialects=["1.0", "1"])


@each_row("said", [{"X-One": "1", "X-Two": "2"}, [("X-One", "1"), ("X-Two", "2")]], ids=["map", "pairs"])
async def test_headers_are_a_mapping_or_pairs(said: Any) -> None:
    heard: list[tuple[str | None, str | None]] = []
    responder = echo_responder()

    @responder.setup
    def hear(setup: Setup, connection: Any) -> None:
        heard.append((setup.header("x-one"), setup.header("x-two")))

    async with running_server(responder, "ws://127.0.0.1:0") as uri:
        async with open_connection(uri, headers=said) as connection:
            await connection.request_response()
        async with connect_forever(uri, headers=said) as client:
            await client.request_response()
        async with connect_forever(uri, headers=lambda: said) as client:
            await client.request_response()
    assert heard == [("1", "2")] * 3


@each_row("said", ["X-One: 1", ["X-One"], [("X-One", "1", "2")], {"X-One": 1}])
async def test_headers_that_are_none_say_what_they_are(said: Any) -> None:
    with pytest.raises(TypeError, match="headers are a mapping or pairs of text, not "):
        async with open_connection("ws://127.0.0.1:1/", headers=said):
            raise AssertionError("nothing was dialled")
    with pytest.raises(TypeError, match="headers are a mapping or pairs of text, not "):
        async with connect_forever("ws://127.0.0.1:1/", headers=said):
            raise AssertionError("nothing was dialled")


@each_row("which", ["data_mime", "metadata_mime"])
@each_row(
    ("mime", "hint"),
    [
        ("json", "did you mean 'application/json'?"),
        ("utf-8", "did you mean 'text/plain'?"),
        ("composite", "did you mean 'message/x.rsocket.composite-metadata.v0'?"),
        ("whatever that is", "it has no slash, as 'application/json' has"),
    ],
)
async def test_a_mime_type_without_a_slash_is_refused_and_the_right_one_suggested(
    which: str, mime: str, hint: str
) -> None:
    terms: dict[str, Any] = {which: mime}
    with pytest.raises(ValueError, match=re.escape(f"{which} {mime!r} is no MIME type: {hint}")):
        async with open_connection(NOWHERE, **terms):
            raise AssertionError("nothing was dialled")


async def test_a_server_takes_whatever_mime_type_a_client_says() -> None:
    # SETUP of 1.0, keepalive 20 s and lifetime 90 s, with "utf8" for both MIME types; then a request.
    setup = "00001c 00000000 0400 0001 0000 00004e20 00015f90 04 75746638 04 75746638"
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, echo_responder(), theirs)
        await ours.send_all(bytes.fromhex(setup) + bytes.fromhex("000008 00000001 1000 6869"))
        assert bytes(await ours.receive_some()) == bytes.fromhex("000008 00000001 2860 6869")
        await ours.aclose()


async def test_a_server_refuses_quirks_that_are_one_text() -> None:
    with pytest.raises(TypeError, match="quirks are several names, not one text: 'client_ids_odd'"):
        await serve(Responder(), NOWHERE, quirks="client_ids_odd")


@each_row("number", [1.5, "3", True, None])
async def test_credit_that_is_no_whole_number_fails_in_the_call_and_the_stream_goes_on(number: Any) -> None:
    responder = Responder()

    @responder.request_stream
    async def count(request: Payload) -> Any:
        for item in range(3):
            yield b"%d" % item

    async with connected_pair(responder) as pair:
        client = pair.client
        with pytest.raises(TypeError, match="request_n is an int"):
            client.request_stream(initial_request_n=number)
        async with client.request_stream(initial_request_n=1, refill=False) as items:
            with pytest.raises(TypeError, match="request_n is an int"):
                items.request_n(number)
            items.request_n(2)
            assert [item.data async for item in items] == [b"0", b"1", b"2"]


async def test_a_route_that_is_no_text_fails_in_the_call() -> None:
    wrong: Any = 5
    async with connected_pair(Responder()) as pair:
        with pytest.raises(TypeError, match="a route is a str, not int"):
            await pair.client.request_response(route=wrong)


def test_numbers_of_terms_are_whole_where_the_wire_has_whole_ones() -> None:
    wrong: Any = 1.5
    with pytest.raises(TypeError, match="whole number"):
        Lease(wrong, 1.0)
    with pytest.raises(TypeError, match="whole number"):
        Limits(streams=wrong)
    assert Keepalive(1.5, 3.5).interval == 1.5


MIMED = Payload(b"x", data_mime="a/b")
TYPED = Payload(b"x", b"m", metadata_type=7)


@each_row(
    ("dialect", "payload"),
    [
        ("rsocket/1.0", MIMED),
        ("rsocket/1.0", TYPED),
        ("reactivesocket/0.1", MIMED),
        ("reactivesocket/0.0", MIMED),
        ("rsocket/2.0-draft", TYPED),
    ],
)
async def test_a_payload_that_the_dialect_cannot_say_is_unsupported(dialect: str, payload: Payload) -> None:
    async with connected_pair(Responder(), dialect=dialect) as pair:
        before = len(pair.client_said)
        with pytest.raises(Unsupported):
            await pair.client.request_response(payload)
        with pytest.raises(Unsupported):
            await pair.client.fire_and_forget(payload)
        assert pair.client.status == "open"
        assert len(pair.client_said) == before
