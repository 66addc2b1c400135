"""When does a client dial again that lost its transport, and what of its function's failures is a try that failed?"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio_websocket
from trio.testing import MockClock

from rsocket_trio import ConnectionLost, Rejected, RSocketError, open_connection_over, serve
from tests.connection.resuming import OPTIONS, Book, Network, numbers, pair, settle
from tests.each_row import each_row


class Watched(Network):
    """Notes when each link was opened. So many of the next ones die as soon as the session goes on over them."""

    def __init__(self) -> None:
        super().__init__()
        self.dialled: list[float] = []
        self.dying = 0

    def kill(self, state: str) -> None:
        """To be told of the client's state."""
        if state == "open" and self.dying:
            self.dying -= 1
            self.link.cut()

    async def connect(self) -> trio.abc.Stream:
        self.dialled.append(trio.current_time())
        return await super().connect()

    @property
    def pauses(self) -> list[float]:
        """Seconds from one try to the next."""
        return [round(later - sooner, 6) for sooner, later in zip(self.dialled, self.dialled[1:], strict=False)]


async def test_who_is_let_in_and_loses_it_at_once_pauses_longer_each_time(autojump_clock: MockClock) -> None:
    network = Watched()
    async with pair(network=network) as both:
        both.client.on_state(network.kill)
        network.dying = 12
        await network.cut()
        await trio.sleep(80)

        assert network.pauses[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
        assert both.client.status == "open"


async def test_links_that_carry_something_are_followed_soon(autojump_clock: MockClock) -> None:
    network = Watched()
    async with (
        pair(Book().responder, network=network) as both,
        both.client.request_stream(b"300", initial_request_n=8) as items,
    ):
        got = []
        async for item in items:
            got.append(item.data)
            if len(got) % 20 == 0:
                network.link.cut()

        assert got == numbers(300)
        assert len(network.pauses) >= 14
        assert set(network.pauses[1:]) == {0.1}


# What a function that opens streams may raise

PASSING: list[Callable[[], Exception]] = [
    OSError,
    partial(ssl.SSLError, "handshake"),
    partial(socket.gaierror, "no such name"),
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    trio_websocket.HandshakeError,
    trio_websocket.ConnectionTimeout,
    partial(trio_websocket.ConnectionRejected, 503, (), b""),
    partial(ConnectionLost, "a transport of ours"),
]
"""What a network does that is not there, or a server that can't be asked just now."""
FAULTS = [ValueError, KeyError, RuntimeError, AttributeError, Rejected]
"""What a function raises that is wrong, or means something else."""


class Failing(Network):
    """Raises what it is told to before a link is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    async def connect(self) -> trio.abc.Stream:
        if self.errors:
            await trio.sleep(0.001)
            raise self.errors.pop()
        return await super().connect()


@each_row("make", PASSING, ids=lambda make: type(make()).__name__)
async def test_a_network_that_is_away_is_tried_again(autojump_clock: MockClock, make: Callable[[], Exception]) -> None:
    network = Failing()
    async with pair(Book().responder, network=network) as both:
        network.errors = [make(), make()]
        await network.cut()
        assert (await both.client.request_response(b"x")).data == b"x"
        assert both.client_states == ["suspended", "open"]
        assert network.errors == []


@each_row("make", PASSING, ids=lambda make: type(make()).__name__)
async def test_a_first_stream_that_cannot_be_opened_is_a_lost_connection(make: Callable[[], Exception]) -> None:
    network = Failing()
    error = make()
    network.errors = [error]
    with pytest.raises(ConnectionLost) as caught:
        async with open_connection_over(network.connect):
            pytest.fail("there is no connection")
    assert error in (caught.value, caught.value.__cause__)


@each_row("kind", FAULTS)
async def test_a_fault_of_the_function_leaves_the_block_as_itself(
    autojump_clock: MockClock, kind: type[Exception]
) -> None:
    network, error = Failing(), kind("own")
    waiting: list[object] = []

    async def ask() -> None:
        try:
            await client.request_response(b"wait")
        except RSocketError as lost:
            waiting.append(lost)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Book().responder, [network], resume=OPTIONS))
        with pytest.raises(kind) as caught:  # noqa: PT012
            async with open_connection_over(network.connect, resume=OPTIONS) as client:
                nursery.start_soon(ask)
                await settle()
                network.errors = [error]
                await network.cut()
                await trio.sleep_forever()
        await settle()
        assert caught.value is error
        assert [type(one) for one in waiting] == [ConnectionLost]
        assert "own" in str(waiting[0])
        nursery.cancel_scope.cancel()


async def test_links_may_be_opened_by_a_context_manager_with_tasks_of_its_own(autojump_clock: MockClock) -> None:
    network = Network()
    open_now = 0

    @asynccontextmanager
    async def opened() -> AsyncIterator[trio.abc.Stream]:
        nonlocal open_now
        stream = await network.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            open_now += 1
            try:
                yield stream
            finally:
                open_now -= 1
                nursery.cancel_scope.cancel()

    book = Book()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, resume=OPTIONS), book.responder, [network])
        async with (
            open_connection_over(opened, resume=OPTIONS) as client,
            client.request_stream(b"50", initial_request_n=8) as items,
        ):
            got = []
            async for item in items:
                got.append(item.data)
                if len(got) % 20 == 0:
                    await network.cut(down=True)
                    await trio.sleep(1)
                    network.down = False
                assert open_now <= 2  # the first one is open for as long as the block
        nursery.cancel_scope.cancel()

    assert got == numbers(50)
    assert len(network.links) > 2
    assert open_now == 0
