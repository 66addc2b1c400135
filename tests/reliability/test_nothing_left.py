"""Nothing is left: no payload of a stream that ended and no cycle on the hot paths."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Channel, Connection, Payload, Rejected, Responder, open_connection
from tests.connection.pairs import connected_pair, settle
from tests.serving import running_server


def busy() -> Responder:
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    @responder.request_response("inline")
    def inline(request: Payload) -> Payload:
        return request

    @responder.request_response("fail")
    async def fail(request: Payload) -> Payload:
        raise Rejected("no")

    @responder.request_response("never")
    async def never(request: Payload) -> Payload:
        await trio.sleep_forever()

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        for _ in range(5):
            yield request.data

    @responder.request_channel
    async def chat(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    @responder.fire_and_forget
    async def note(request: Payload) -> None:
        pass

    return responder


async def respond(connection: Connection, data: bytes) -> None:
    await connection.request_response(data)


async def respond_inline(connection: Connection, data: bytes) -> None:
    await connection.request_response(data, route="inline")


async def fail(connection: Connection, data: bytes) -> None:
    try:
        await connection.request_response(data, route="fail")
    except Rejected:
        return


async def cancel(connection: Connection, data: bytes) -> None:
    with trio.move_on_after(0.1):
        await connection.request_response(data, route="never")


async def stream(connection: Connection, data: bytes) -> None:
    async with connection.request_stream(data, initial_request_n=2) as items:
        async for _ in items:
            pass


async def leave_stream(connection: Connection, data: bytes) -> None:
    async with connection.request_stream(data, initial_request_n=2) as items:
        await anext(items)


async def channel(connection: Connection, data: bytes) -> None:
    async with connection.request_channel(data) as channel:
        await channel.send(data)
        await anext(channel)
        await channel.send_eof()


async def forget(connection: Connection, data: bytes) -> None:
    await connection.fire_and_forget(data)


async def ping(connection: Connection, data: bytes) -> None:
    await connection.ping()
    await connection.metadata_push(data)


CALLS = [respond, respond_inline, fail, cancel, stream, leave_stream, channel, forget, ping]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_a_stream_that_ended_keeps_no_payload_alive(call: object, autojump_clock: MockClock) -> None:
    assert callable(call)
    async with connected_pair(busy()) as pair:
        gc.collect()
        gc.disable()
        try:
            await call(pair.client, b"marked" * 10)
            await settle()
            alive = [one for one in gc.get_objects() if type(one) is Payload and one.data.startswith(b"marked")]
            assert alive == []
        finally:
            gc.enable()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_a_connection_that_is_over_leaves_no_cycles(call: object) -> None:
    assert callable(call)
    async with running_server(busy()) as uri:

        async def connect() -> None:
            async with open_connection(uri) as connection:
                await call(connection, b"data")
            await trio.testing.wait_all_tasks_blocked()

        await connect()
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                await connect()
            found = gc.collect()
        finally:
            gc.enable()
        assert found < 10


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_what_is_called_often_makes_no_cycles(call: object, autojump_clock: MockClock) -> None:
    assert callable(call)
    async with connected_pair(busy()) as pair:
        pair.client_wire.forget()
        pair.server_wire.forget()
        await call(pair.client, b"warm")
        await settle()
        gc.collect()
        gc.disable()
        try:
            for _ in range(200):
                await call(pair.client, b"data")
            await settle()
            # Not nought: Trio's own machinery makes a few, but not with each call.
            assert gc.collect() < 100
        finally:
            gc.enable()
