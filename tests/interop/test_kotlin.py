"""rsocket-kotlin as a server and as a client: what it can, and what ``peer="rsocket-kotlin/0.20"`` is for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    ConnectionLost,
    LocalProtocolError,
    Payload,
    RejectedSetup,
    Responder,
    ResumeOptions,
    Setup,
    UnsupportedSetup,
    current_connection,
    open_connection,
    serve,
)
from tests.interop.kotlin_peer import KotlinPeer, missing_kotlin, shared_kotlin
from tests.interop.peers import pattern
from tests.missing import require

NAME = "rsocket-kotlin/0.20"
LARGEST = 2**24 - 1 - 6
"""Bytes of the largest request/response in one frame."""


@pytest.fixture(autouse=True, scope="module")
def running() -> None:
    """Have the process run before anything looks at what a test leaves behind."""
    require(missing_kotlin())
    shared_kotlin()


@pytest.fixture
def kotlin() -> KotlinPeer:
    return shared_kotlin()


@asynccontextmanager
async def serving(responder: Responder, **options: Any) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(lambda **given: serve(responder, "tcp://127.0.0.1:0", **options, **given))
        yield uri
        nursery.cancel_scope.cancel()


async def texts(items: Any) -> list[str]:
    return [item.text async for item in items]


async def test_its_server_serves_a_client_that_names_it(kotlin: KotlinPeer) -> None:
    async with open_connection(await kotlin.listen(), peer=NAME) as connection:
        for size in 1, 100_000, LARGEST:
            assert (await connection.request_response(pattern(size))).data == pattern(size)
        answer = await connection.request_response(Payload(b"data", b"metadata"))
        assert (answer.data, answer.metadata) == (b"data", b"metadata")
        with pytest.raises(ApplicationError, match="as asked for") as failed:
            await connection.request_response(b"fail")
        assert failed.value.code == 0x301
        async with connection.request_stream(b"10", initial_request_n=3) as items:
            assert await texts(items) == [str(number) for number in range(10)]
        async with connection.request_stream(b"1000000", initial_request_n=3) as items:
            assert [(await anext(items)).text for _ in range(5)] == ["0", "1", "2", "3", "4"]
        async with connection.request_channel(b"first") as channel:
            await channel.send(pattern(1_000_000))
            await channel.send_eof()
            assert [len(item.data) async for item in channel] == [5, 1_000_000]
        await connection.fire_and_forget(pattern(100_000))
        assert await kotlin.line() == "noted 100000"
        await connection.metadata_push(b"hello")
        assert await kotlin.line() == "pushed hello"
        assert connection.faults.peer_faults == 0


async def test_its_server_answers_a_thousand_requests_at_once(kotlin: KotlinPeer) -> None:
    async def ask(number: int) -> None:
        assert (await connection.request_response(b"%d" % number)).data == b"%d" % number

    async with open_connection(await kotlin.listen(), peer=NAME) as connection, trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(ask, number)


async def test_a_request_in_fragments_ends_the_connection_and_its_name_prevents_that(kotlin: KotlinPeer) -> None:
    uri = await kotlin.listen()
    async with open_connection(uri) as connection:
        with pytest.raises(ConnectionLost):
            await connection.request_response(pattern(100_000))
    async with open_connection(uri, peer=NAME) as connection:
        with pytest.raises(LocalProtocolError, match="can't be fragmented: the peer takes requests whole"):
            await connection.request_response(pattern(LARGEST + 1))
        assert (await connection.request_response(b"still here")).text == "still here"


async def test_items_and_answers_in_fragments_arrive_whole_on_either_side(kotlin: KotlinPeer) -> None:
    terms: dict[str, Any] = {"peer": NAME, "fragment_size": 64}
    async with open_connection(await kotlin.listen(100), **terms) as connection:
        assert (await connection.request_response(pattern(5000))).data == pattern(5000)
        async with connection.request_channel(b"first") as channel:
            await channel.send(pattern(5000))
            await channel.send_eof()
            assert [item.data async for item in channel] == [b"first", pattern(5000)]


async def test_its_server_has_no_leases_and_no_resumption(kotlin: KotlinPeer) -> None:
    uri = await kotlin.listen()
    given: tuple[tuple[str, dict[str, Any]], ...] = (
        ("Lease is not supported", {"lease": True}),
        ("Resume is not supported", {"resume": ResumeOptions()}),
    )
    for text, options in given:
        with pytest.raises(UnsupportedSetup, match=text):
            async with open_connection(uri, **options) as connection:
                await connection.request_response(b"x")


def answering() -> Responder:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        if request.data == b"fail":
            raise ApplicationError("as asked for")
        return request

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[str]:
        for number in range(int(request.text)):
            yield str(number)

    @responder.request_channel
    async def back(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    return responder


async def test_its_client_is_served(kotlin: KotlinPeer) -> None:
    noted = trio.Event()
    responder = answering()
    responder.fire_and_forget(lambda request: noted.set())
    async with serving(responder) as uri:
        await kotlin.connect(uri)
        assert await kotlin.do("ask 5 3") == "same"
        assert await kotlin.do("ask 1000000") == "same"
        assert await kotlin.do("fail") == "error 513 as asked for"
        assert await kotlin.do("items 10") == "0 1 2 3 4 5 6 7 8 9"
        assert await kotlin.do("some 3") == "0 1 2"
        assert await kotlin.do("channel 4") == "1 2 3"  # the first is the request's
        assert await kotlin.do("note 100") == "done"
        await noted.wait()
        assert await kotlin.do("leave") == "done"


async def test_a_server_with_the_quirk_sends_its_client_whole_requests(kotlin: KotlinPeer) -> None:
    responder = Responder()

    @responder.request_response
    async def callback(request: Payload) -> Payload:
        answer = await current_connection().request_response(pattern(100_000))
        assert answer.data == pattern(100_000)
        return request

    async with serving(responder, quirks=["whole_requests"]) as uri:
        await kotlin.connect(uri)
        assert await kotlin.do("ask 5") == "same"
        assert await kotlin.do("leave") == "done"
    async with serving(responder) as uri:
        await kotlin.connect(uri)
        assert (await kotlin.do("ask 5")).startswith("error ")


async def test_its_client_hears_a_refusal_at_once(kotlin: KotlinPeer) -> None:
    responder = Responder()

    @responder.setup
    def gate(setup: Setup, connection: Connection) -> None:
        raise RejectedSetup("not you")

    async with serving(responder) as uri:
        with trio.fail_after(15):  # its keepalives last 90 s
            await kotlin.connect(uri)
            assert await kotlin.do("end") == "error 3 not you"


async def test_its_requests_in_fragments_are_too_long_for_streams_only(kotlin: KotlinPeer) -> None:
    responder = Responder()
    responder.request_response(lambda request: request)

    @responder.request_stream
    async def size(request: Payload) -> AsyncIterator[str]:
        yield str(len(request.data))

    async with serving(responder) as uri:
        await kotlin.connect(uri, 100)
        assert await kotlin.do("ask 5000 300") == "same"
        assert await kotlin.do("large 80") == "80"
        assert await kotlin.do("large 5000") == str(5000 + 57 * 4)  # in each of 57 fragments behind the first
        assert await kotlin.do("leave") == "done"
