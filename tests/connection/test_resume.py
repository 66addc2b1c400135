"""What users see of a session that outlives its transport: nothing but a pause; how it ends; what it is offered."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.testing
import trio_websocket
from trio.testing import MockClock

from rsocket_trio import (
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Keepalive,
    Limits,
    Rejected,
    RejectedSetup,
    Responder,
    ResumeOptions,
    RSocketError,
    Unsupported,
    open_connection,
    open_connection_over,
    serve,
)
from rsocket_trio.rsocket.extensions.entries import Resumable
from rsocket_trio.transports.listen import QUIET_TIME
from tests.connection.resuming import CLIENTS, DIALECTS, OPTIONS, SERVERS, Book, Network, each, numbers, pair, settle
from tests.each_row import each_row
from tests.serving import running_server

# Everything goes on


@each
async def test_what_is_asked_without_a_link_is_sent_over_the_next(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        await both.network.cut(down=True)
        answers: list[object] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"late")).data)
            async with both.client.request_stream(b"5") as items:
                answers.extend([item.data async for item in items])

        nursery.start_soon(ask)
        await both.client.fire_and_forget(b"note")
        await trio.sleep(20)
        assert (both.client.status, answers, book.seen) == ("suspended", [], [])
        both.network.down = False
        await trio.sleep(15)
        assert answers == [b"late", *numbers(5)]
        assert sorted(map(str, book.seen)) == ["b'late'", "b'note'"]


@each
async def test_deadlines_and_cancels_work_without_a_link_and_are_told_later(
    autojump_clock: object, dialect: str
) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        await both.network.cut(down=True)
        with trio.move_on_after(3) as late:
            await both.client.request_response(b"never left")
        assert late.cancelled_caught
        both.network.down = False
        await trio.sleep(10)
        assert book.seen == []

        cancelled = trio.CancelScope()

        async def ask() -> None:
            with cancelled:
                await both.client.request_response(b"wait")

        nursery.start_soon(ask)
        await settle()
        await both.network.cut(down=True)
        cancelled.cancel()
        await trio.sleep(3)
        assert cancelled.cancelled_caught
        assert book.seen == [b"wait"]
        both.network.down = False
        await trio.sleep(10)
        assert book.seen == [b"wait", "Cancelled"]


# Streams that are not to go on


async def test_a_stream_that_is_not_to_outlive_its_transport_ends_with_it_and_the_others_go_on(
    autojump_clock: object,
) -> None:
    book = Book()
    async with (
        pair(book.responder, "rsocket/2.0-draft") as both,
        both.client.request_stream(b"50", initial_request_n=5) as lasting,
        both.client.request_stream(b"50", initial_request_n=5, extension_entries=[Resumable(False)]) as live,
    ):
        assert (await anext(lasting)).data == (await anext(live)).data == b"0"
        await both.network.cut()
        with pytest.raises(ConnectionLost, match="did not outlive its transport"):
            async for _ in live:
                pass
        assert [item.data async for item in lasting] == numbers(50)[1:]
        assert both.client_states == ["suspended", "open"]


# Nothing is left


@each
async def test_no_link_and_no_stream_is_left_open(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect, limits=Limits(streams=100)) as both:
        for _ in range(30):
            with trio.move_on_after(0.5):
                await both.client.request_response(b"wait")
            await both.network.cut()
            await trio.sleep(0.5)
            with trio.fail_after(5):
                assert (await both.client.request_response(b"x")).data == b"x"
        await settle()
        for connection in (both.client, both.server):
            session = connection._engine.session
            assert session.is_quiet
            assert session.outbox.size == 0
        links = both.network.links
    assert len(links) == 31
    for link in links:
        for stream in (link.client, link.server):
            with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
                await stream.send_all(b"x")


@each
async def test_both_sides_are_told_of_their_states(autojump_clock: object, dialect: str) -> None:
    async with pair(None, dialect) as both:
        assert (both.client.status, both.server.status) == ("open", "open")
        assert both.client.can_resume
        assert both.server.can_resume
        await both.network.cut()
        assert (both.client.status, both.server.status) == ("suspended", "suspended")
        assert both.client.can_resume
        await trio.sleep(1)
        assert (both.client.status, both.server.status) == ("open", "open")
        await both.network.cut(down=True)
        await trio.sleep(70)
        assert (both.client.status, both.server.status) == ("closed", "closed")
        assert [one.can_resume for one in (both.client, both.server)] == [False, False]
        told = ["suspended", "open", "suspended", "closed"]
        assert both.client_states == told
        assert both.server_states == told


@each
async def test_when_the_time_is_over_everybody_who_waits_hears_of_it(autojump_clock: object, dialect: str) -> None:
    book = Book()
    options = attrs.evolve(OPTIONS, session_seconds=20)
    async with pair(book.responder, dialect, options=options) as both, trio.open_nursery() as nursery:
        errors: list[object] = []

        async def ask() -> None:
            try:
                await both.client.request_response(b"wait")
            except RSocketError as error:
                errors.append(error)

        nursery.start_soon(ask)
        await settle()
        await both.network.cut(down=True)
        nursery.start_soon(ask)
        await trio.sleep(19)
        assert errors == []
        assert book.seen == [b"wait"]
        await trio.sleep(2)
        assert [type(error) for error in errors] == [ConnectionLost] * 2
        assert "20 s" in str(errors[0])
        assert book.seen == [b"wait", "Cancelled"]
        with pytest.raises(ConnectionLost):
            await both.client.ping()
        errors.clear()


@each
async def test_a_silent_link_is_left_for_another(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with (
        pair(book.responder, dialect, keepalive=Keepalive(2, 7)) as both,
        both.client.request_stream(b"50", initial_request_n=5) as items,
    ):
        assert (await anext(items)).data == b"0"
        both.network.link.deaf = {CLIENTS, SERVERS}
        started = trio.current_time()
        assert [item.data async for item in items] == numbers(50)[1:]
        assert 5 < trio.current_time() - started < 9
        assert both.client_states == ["suspended", "open"]
        assert both.server_states == ["suspended", "open"]


@each
async def test_a_client_that_leaves_ends_the_session_at_once(autojump_clock: object, dialect: str) -> None:
    book = Book()
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, book.responder, [network], resume=OPTIONS, dialects=[dialect]))
        async with open_connection_over(network.connect, resume=OPTIONS, dialect=dialect) as client:
            with trio.move_on_after(1):
                await client.request_response(b"wait")
            await trio.sleep(1)
            nursery.start_soon(swallow, client, b"wait")
            await settle()
        await settle()
        assert book.seen == [b"wait", "Cancelled"] * 2
        nursery.cancel_scope.cancel()


async def swallow(connection: Connection, data: bytes) -> None:
    with pytest.raises(RSocketError):
        await connection.request_response(data)


@each
async def test_leaving_without_a_link_does_not_wait_for_one(autojump_clock: object, dialect: str) -> None:
    started = 0.0
    async with pair(None, dialect) as both:
        await both.network.cut(down=True)
        await trio.sleep(1)
        started = trio.current_time()
        states, server = both.client_states, both.server
        both.stop_serving()
    assert trio.current_time() - started < 2
    assert states == ["suspended", "closed"]
    assert server.status == "closed"
    del server, both


@each
async def test_a_drain_ends_well_when_the_link_comes_back_in_time(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"wait")).data)

        nursery.start_soon(ask)
        await settle()
        await both.network.cut(down=True)
        nursery.start_soon(partial(both.client.drain, grace=30))
        await settle()
        with pytest.raises(ConnectionClosed):
            await both.client.request_response(b"new")
        book.go_on.set()
        await trio.sleep(2)
        both.network.down = False
        await trio.sleep(10)
        assert answers == [b"wait"]
        assert both.client_states == ["suspended", "draining", "closed"]
        assert both.server.status == "closed"


@each
async def test_a_server_that_stops_waits_for_nobody_who_is_away(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect, grace=4) as both, trio.open_nursery() as nursery:
        nursery.start_soon(swallow, both.client, b"wait")
        await settle()
        await both.network.cut(down=True)
        both.stop_serving()
        await trio.sleep(2 * QUIET_TIME)  # nobody else comes to its listener
        assert (both.server.status, book.seen) == ("closed", [b"wait", "Cancelled"])
        assert "its client is away" in str(await both.server.wait_closed())
        await trio.sleep(61)
        assert both.client.status == "closed"


@each_row(
    ("field", "bad", "kind"),
    [
        ("store_bytes", 1023, ValueError),
        ("session_seconds", 0, ValueError),
        ("session_seconds", "60", TypeError),
        ("answer_seconds", 0, ValueError),
        ("first_delay", -0.1, ValueError),
        ("jitter", 1.1, ValueError),
        ("sessions", 0, ValueError),
        ("sessions_bytes", 0, ValueError),
        ("live_bytes", 0, ValueError),
    ],
)
def test_options_that_cannot_be_are_refused(field: str, bad: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=field):
        ResumeOptions(**{field: bad})  # type: ignore[arg-type]


async def test_a_plain_stream_is_not_enough_to_resume() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(TypeError, match="function"):
        async with open_connection_over(ours, resume=OPTIONS):
            pytest.fail("the block began")
    await trio.aclose_forcefully(ours)
    await trio.aclose_forcefully(theirs)


@each_row("dialect", ["reactivesocket/0.1", "reactivesocket/0.0", "streamux/1"])
async def test_dialects_without_resumption_say_so(dialect: str) -> None:
    with pytest.raises(Unsupported, match=f"{dialect}"):
        async with open_connection_over(Network().connect, dialect=dialect, resume=OPTIONS):
            pytest.fail("the block began")
    with pytest.raises(Unsupported, match=f"{dialect}"):
        async with open_connection("tcp://127.0.0.1:1", dialect=dialect, resume=OPTIONS):
            pytest.fail("the block began")
    with pytest.raises(Unsupported, match=f"{dialect}"):
        await serve(Responder(), [Network()], dialects=[dialect], resume=OPTIONS)


async def test_a_server_of_many_dialects_resumes_where_it_can(autojump_clock: object) -> None:
    network = Network()
    async with running_server(Book().responder, network, resume=OPTIONS):
        for dialect in DIALECTS:
            async with open_connection_over(network.connect, dialect=dialect, resume=OPTIONS) as client:
                assert (await client.request_response(b"x")).data == b"x"
                await network.cut()
                assert (await client.request_response(b"y")).data == b"y"
        for dialect in ("reactivesocket/0.1", "streamux/1"):
            async with open_connection_over(network.connect, dialect=dialect) as client:
                assert (await client.request_response(b"x")).data == b"x"
                assert not client.can_resume


async def test_a_fragment_has_to_fit_into_the_store() -> None:
    small = ResumeOptions(store_bytes=1024)
    with pytest.raises(ValueError, match="store"):
        async with open_connection_over(Network().connect, resume=small, fragment_size=1025):
            pytest.fail("the block began")
    with pytest.raises(ValueError, match="store"):
        await serve(Responder(), [Network()], resume=small, fragment_size=1025)


@each
async def test_a_server_without_resumption_refuses(autojump_clock: object, dialect: str) -> None:
    network = Network()
    async with running_server(Responder(), network, dialects=[dialect]):
        with pytest.raises(RSocketError) as caught:
            async with open_connection_over(network.connect, dialect=dialect, resume=OPTIONS) as client:
                await client.request_response(b"x")
        assert type(caught.value) is not ConnectionLost
        if dialect != "rsocket/2.0-draft":
            assert type(caught.value) is RejectedSetup
        del caught


# An end


@each
@pytest.mark.parametrize("link", ["lost", "there"])
async def test_a_connection_that_is_over_keeps_nothing_of_what_it_sent(
    autojump_clock: object, dialect: str, link: str
) -> None:
    book = Book()
    async with (
        pair(book.responder, dialect, options=attrs.evolve(OPTIONS, session_seconds=5)) as both,
        both.client.request_stream(b"3000", initial_request_n=3000) as items,
        both.client.request_channel(initial_request_n=3000) as channel,
    ):
        assert (await anext(items)).data == b"0"
        outboxes = [connection._engine.session.outbox for connection in (both.client, both.server)]
        if link == "lost":
            both.network.link.deaf = {CLIENTS, SERVERS}
        for _ in range(100):
            await channel.send(b"x" * 1000)
        assert all(kept(outbox) for outbox in outboxes)
        if link == "lost":
            await both.network.cut(down=True)
        else:
            both.client._leave()
        await trio.sleep(6)
        assert (both.client.status, both.server.status) == ("closed", "closed")
        assert [kept(outbox) for outbox in outboxes] == [0, 0]


def kept(outbox: Any) -> int:
    """Bytes that an outbox refers to."""
    store = outbox.store
    frames = [*outbox._resending, *(store.kept() if store is not None else ())]
    return sum(map(len, frames)) + int(outbox.size)


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
    async with (
        running_server(book.responder, network, resume=OPTIONS),
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

    assert got == numbers(50)
    assert len(network.links) > 2
    assert open_now == 0
