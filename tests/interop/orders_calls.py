"""What typed clients of this side ask the server of a peer, and what they have to hear: a function for each call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import pytest
import trio

from rsocket_trio import ApplicationError, Connection, Payload, RejectedSetup, open_connection
from rsocket_trio.codecs import DEFAULT_CODECS, find_codec
from rsocket_trio.errors import StreamError
from rsocket_trio.metadata import ROUTING, Entry, encode_composite, encode_route
from rsocket_trio.services import Bearer, Simple, TypedChannel
from tests.interop.orders import (
    ANN,
    REASON,
    ROOT,
    TOKEN,
    Answer,
    Document,
    Hello,
    Market,
    Offer,
    Order,
    Orders,
    Reason,
    Receipt,
    Tick,
    answer_to,
    called_responder,
    ticks_of,
)

PATIENCE: Final = 60.0
OFFERS: Final = [Offer(float(price)) for price in range(100)]
WRONG: Final = (Simple("ann", "guess"), Bearer("token-of-nobody"))

OurCall: TypeAlias = Callable[[Connection], Awaitable[None]]


async def lives(connection: Connection) -> None:
    receipt = await connection.request_response(Order("ACME", 3), route="orders.place", reply=Receipt)
    assert receipt == Receipt("ACME-3", 7.5)


async def stream_cancelled(connection: Connection) -> None:
    async with connection.request_stream(route="ticks.ACME", items=Tick, initial_request_n=32) as ticks:
        assert await anext(ticks) == ticks_of("ACME")[0]
    await lives(connection)


async def channel_variable(connection: Connection) -> None:
    async with connection.request_channel(Offer(1.5), route="negotiate.ACME", items=str) as channel:
        await channel.send(Offer(2.5))
        await channel.send_eof()
        assert [answer async for answer in channel] == ["ACME at 1.5", "ACME at 2.5"]


async def details_of_stream(connection: Connection) -> None:
    with pytest.raises(ApplicationError) as failed:
        async with connection.request_stream(route="fail.stream", items=Tick) as ticks:
            assert [tick async for tick in ticks] == ticks_of("ACME")[:3]
    assert failed.value.details_as(Reason) == REASON


async def collect(channel: TypedChannel[Answer, Offer], answers: list[Answer]) -> None:
    await channel.send(OFFERS[1])
    async for answer in channel:
        answers.append(answer)


async def details_of_channel(connection: Connection) -> None:
    answers: list[Answer] = []
    with pytest.raises(ApplicationError) as failed:
        async with connection.request_channel(OFFERS[0], route="fail.channel", items=Answer) as channel:
            await collect(channel, answers)
    assert answers == [Answer(0.0, True), Answer(1.0, True)]
    assert failed.value.details_as(Reason) == REASON
    await lives(connection)


async def wrong_field(connection: Connection) -> None:
    with pytest.raises(StreamError):
        await connection.request_response({"symbol": "ACME", "amount": "many"}, route="orders.place", reply=Receipt)
    await lives(connection)


async def unknown_route(connection: Connection) -> None:
    with pytest.raises(StreamError):
        await connection.request_response(Order("ACME", 3), route="no.such.route", reply=Receipt)
    await lives(connection)


async def credentials_of_a_request(connection: Connection) -> None:
    for credentials in (ANN, TOKEN, lambda: TOKEN):
        assert await connection.request_response(route="secret", reply=str, auth=credentials) == "ann"
    assert await connection.request_response(route="whoami", reply=str) == "nobody"


async def refused_request(connection: Connection) -> None:
    for credentials in (*WRONG, None):
        with pytest.raises(StreamError):
            await connection.request_response(route="secret", reply=str, auth=credentials)
    await lives(connection)


async def requirement(connection: Connection) -> None:
    with pytest.raises(StreamError):
        await connection.request_response(route="admin", reply=str, auth=ANN)
    assert await connection.request_response(route="admin", reply=str, auth=ROOT) == "root"


async def contract(connection: Connection) -> None:
    orders = connection.remote(Orders)
    await orders.clear()
    assert await orders.place(Order("ACME", 3)) == Receipt("ACME-3", 7.5)
    await orders.note(Order("ACME", 4))
    while not (notes := await orders.notes()):  # noqa: ASYNC110
        await trio.sleep(0.005)  # it is another process that has to do something
    assert notes == [Order("ACME", 4)]


async def contract_of_streams(connection: Connection) -> None:
    market = connection.remote(Market)
    async with market.ticks("ACME") as ticks:
        assert [tick async for tick in ticks] == ticks_of("ACME")
    async with market.ticks("ACME", 250) as ticks:
        assert [tick async for tick in ticks] == ticks_of("ACME", 250)
    async with market.negotiate() as channel:
        for offer in OFFERS[:3]:
            await channel.send(offer)
            assert await anext(channel) == answer_to(offer)
        await channel.send_eof()
        assert [answer async for answer in channel] == []
    assert await market.large(Document("0123456789" * 20_000)) == Document("0123456789" * 20_000 + "!")
    with pytest.raises(ApplicationError) as failed:
        await market.fail(Order("ACME", 3))
    assert failed.value.details_as(Reason) == REASON


async def callback(connection: Connection) -> None:
    assert await connection.request_response(route="callback", reply=str) == "rsocket-trio for server has 3"


OUR_CALLS: Final[Sequence[OurCall]] = (
    stream_cancelled,
    channel_variable,
    details_of_stream,
    details_of_channel,
    wrong_field,
    unknown_route,
    credentials_of_a_request,
    refused_request,
    requirement,
    contract,
    contract_of_streams,
    callback,
)


@asynccontextmanager
async def calling(uri: str, mime: str) -> AsyncIterator[Connection]:
    """Open a connection to a peer's server, whose data is of this MIME type, and which serves its callbacks."""
    with trio.fail_after(PATIENCE):
        async with open_connection(uri, data_mime=mime, responder=called_responder()) as connection:
            yield connection


async def call_with_setup(uri: str, mime: str) -> None:
    """Call with a SETUP that has a route and data."""
    octets = mime == "application/octet-stream"
    codec = DEFAULT_CODECS[0] if octets else find_codec(DEFAULT_CODECS, mime)
    route = encode_composite([Entry(ROUTING, encode_route("hello.Oslo"))])
    with trio.fail_after(PATIENCE):
        setup = Payload(codec.encode(Hello("ann")), route)
        async with open_connection(uri, data_mime=mime, setup=setup) as connection:
            assert await connection.request_response(route="name", reply=str) == "ann of Oslo"


async def call_as_user_of_the_setup(uri: str, mime: str) -> None:
    """Call with credentials of the SETUP, given, or by a function."""

    async def fresh() -> Bearer:
        return TOKEN

    for credentials in (ANN, TOKEN, fresh):
        with trio.fail_after(PATIENCE):
            async with open_connection(uri, data_mime=mime, auth=credentials) as connection:
                assert await connection.request_response(route="whoami", reply=str) == "ann"
                assert await connection.request_response(route="secret", reply=str) == "ann"
                with pytest.raises(StreamError):
                    await connection.request_response(route="admin", reply=str)


async def call_with_a_refused_setup(uri: str, mime: str) -> None:
    """Call with wrong credentials in the SETUP."""
    for credentials in WRONG:
        with trio.fail_after(PATIENCE), pytest.raises(RejectedSetup):
            async with open_connection(uri, data_mime=mime, auth=credentials) as connection:
                await connection.request_response(route="whoami", reply=str)
