"""Arguments of the wrong kind fail in the call that gives them, and hurt nobody else."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import (
    ConnectionLost,
    InvalidSetup,
    Keepalive,
    Lease,
    Limits,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    UnsupportedSetup,
    open_connection,
    serve,
)
from tests.connection.pairs import connected_pair

NOWHERE = "memory://nobody-listens-here"


def echo() -> Responder:
    responder = Responder()

    @responder.request_response
    def answer(request: Payload) -> Payload:
        return request

    return responder


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"limits": 5}, "limits are Limits, not int"),
        ({"keepalive": 5}, "keepalive is a Keepalive, not int"),
        ({"setup": 5}, "a payload is"),
    ],
)
async def test_terms_of_the_wrong_kind_are_refused_before_anything_is_dialled(option: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        async with open_connection(NOWHERE, **option):
            raise AssertionError("nothing was dialled")


async def test_a_header_that_would_break_the_handshake_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be said in HTTP"):
        async with open_connection("ws://127.0.0.1:1/", headers=[("a", "b\r\nX: y")]):
            raise AssertionError("nothing was dialled")


async def test_a_server_takes_one_dialect_as_a_word_and_serves_no_other() -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, echo(), "memory://one-word", dialects="rsocket/1.0"))
        async with open_connection("memory://one-word") as connection:
            assert (await connection.request_response(b"here")).data == b"here"
        with pytest.raises((ConnectionLost, RejectedSetup, UnsupportedSetup, InvalidSetup)):
            async with open_connection("memory://one-word", dialect="reactivesocket/0.2") as connection:
                await connection.request_response(b"not here")
        nursery.cancel_scope.cancel()


async def test_a_server_refuses_quirks_that_are_one_text() -> None:
    with pytest.raises(TypeError, match="quirks are several names, not one text: 'client_ids_odd'"):
        await serve(Responder(), NOWHERE, quirks="client_ids_odd")


async def test_a_server_refuses_limits_of_the_wrong_kind() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="limits are Limits"):
        await serve(Responder(), NOWHERE, limits=wrong)


@pytest.mark.parametrize("number", [1.5, "3", True, None])
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


def test_only_application_errors_have_codes_of_ones_own() -> None:
    wrong: Any = {"code": 5}
    with pytest.raises(TypeError):
        Rejected("no", **wrong)
