"""A client that is refused may close first, for a short time: some lose an ERROR with the end of stream behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    RejectedSetup,
    Responder,
    ResumeOptions,
    Setup,
    serve,
    serve_stream,
)
from rsocket_trio.connection.link import MAX_REFUSED
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from tests.conformance import raw
from tests.each_row import each_row

Client: TypeAlias = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]
TIME = 0.3
"""Seconds that a refused client has."""
ran: list[bytes] = []


def refusing() -> Responder:
    """A responder whose setup handler refuses everybody, and that notes what its other handlers get."""
    ran.clear()
    responder = Responder()
    responder.request_response(lambda request: ran.append(request.data))
    responder.fire_and_forget(lambda request: ran.append(request.data))
    responder.metadata_push(ran.append)

    @responder.setup
    def gate(setup: Setup, connection: object) -> None:
        raise RejectedSetup("not you")

    return responder


@asynccontextmanager
async def refused(first: bytes, **options: Any) -> AsyncIterator[Client]:
    """A client that has sent these bytes to a server on a stream, and got its ERROR."""
    near, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, refusing(), far, **options))
        await near.send_all(first)
        began = trio.current_time()
        error = await near.receive_some()
        assert error[3:9] == raw.frame(raw.ERROR), "no ERROR on stream 0"
        assert trio.current_time() == began
        yield near


async def end_of(stream: Client) -> float:
    """Return the seconds until the server sends the end of the stream, and nothing before it."""
    began = trio.current_time()
    assert await stream.receive_some() == b""
    return trio.current_time() - began


SETUP = raw.prefixed(raw.setup())
FIRST: dict[str, tuple[bytes, dict[str, Any]]] = {
    "the application refuses": (SETUP, {}),
    "another version": (raw.prefixed(raw.setup(version=(1, 7))), {"dialects": ["rsocket/1.0"]}),
    "leases": (raw.prefixed(raw.setup(flags=raw.L)), {}),
    "a request": (raw.prefixed(raw.ask(1, b"x")), {"dialects": ["rsocket/1.0"]}),
    "a RESUME that is not offered": (raw.prefixed(raw.resume()), {}),
    "a RESUME of no session": (raw.prefixed(raw.resume()), {"resume": ResumeOptions()}),
    "a dialect that is not served": (SETUP, {"dialects": ["rsocket/2.0-draft", "reactivesocket/0.1"]}),
}


@each_row("why", FIRST)
async def test_the_end_follows_the_error_after_a_short_time(why: str, autojump_clock: MockClock) -> None:
    first, options = FIRST[why]
    async with refused(first, **options) as client:
        assert await end_of(client) == pytest.approx(TIME)
        await client.aclose()


@each_row("why", FIRST)
async def test_a_client_that_closes_is_closed_at_once(why: str, autojump_clock: MockClock) -> None:
    first, options = FIRST[why]
    async with refused(first, **options) as client:
        await client.send_eof()
        assert await end_of(client) == 0


async def test_nothing_that_comes_meanwhile_is_served_or_answered(autojump_clock: MockClock) -> None:
    meanwhile = raw.prefixed(raw.ask(1, b"x"), raw.forget(3, b"y"), raw.RS10.push(b"z"), raw.setup())
    async with refused(SETUP + meanwhile) as client:
        await client.send_all(meanwhile)
        assert await end_of(client) == pytest.approx(TIME)
        await client.aclose()
    assert ran == []


@each_row(("frame", "number"), [(raw.ask(1, bytes(1_000_000)), 10), (raw.forget(1), 20_000)], ids=["large", "small"])
async def test_a_client_that_goes_on_sending_is_not_read_without_end(
    frame: bytes, number: int, autojump_clock: MockClock
) -> None:
    async with refused(SETUP) as client:
        await client.send_all(raw.prefixed(*[frame] * number))
        assert await end_of(client) == 0
        await client.aclose()


async def ask_to_serve(transport: Transport) -> None:
    """Send a SETUP, and read the ERROR that refuses it."""
    await transport.send([raw.setup()])
    (error,) = await transport.receive()
    assert error[:6] == raw.frame(raw.ERROR)


async def test_so_many_wait_at_once_and_a_further_one_is_closed_behind_its_error(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, refusing(), "memory://refused")
        waits: list[float] = []

        async def be_refused(*, task_status: trio.TaskStatus[None]) -> None:
            async with open_transport(uri) as transport:
                await ask_to_serve(transport)
                task_status.started()
                assert await transport.receive() == []
                waits.append(trio.current_time() - began)

        began = trio.current_time()
        async with trio.open_nursery() as clients:
            for _ in range(MAX_REFUSED + 2):
                await clients.start(be_refused)
        assert [wait for wait in waits if wait == 0] == [0, 0]
        assert len([wait for wait in waits if wait == pytest.approx(TIME)]) == MAX_REFUSED
        again = trio.current_time()
        async with open_transport(uri) as transport:
            await ask_to_serve(transport)
            assert await transport.receive() == []
            assert trio.current_time() - again == pytest.approx(TIME), "their places are free again"
        nursery.cancel_scope.cancel()


async def test_a_server_that_leaves_waits_no_longer_than_its_refused_clients(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as clients:
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, refusing(), "memory://left")

            async def be_refused(*, task_status: trio.TaskStatus[None]) -> None:
                async with open_transport(uri) as transport:
                    await ask_to_serve(transport)
                    task_status.started()
                    await trio.sleep(60)

            for _ in range(3):
                await clients.start(be_refused)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began <= 1
        clients.cancel_scope.cancel()
