"""What users see of a session that outlives its transport: nothing but a pause, and its state if they ask."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import attrs
import pytest
import trio
import trio.testing

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Keepalive,
    Limits,
    LocalProtocolError,
    Payload,
    RejectedResume,
    RejectedSetup,
    Responder,
    ResumeOptions,
    RSocketError,
    Unsupported,
    current_connection,
    open_connection,
    open_connection_over,
    serve,
    serve_stream,
)
from rsocket_trio.rsocket.extensions import Entry

DIALECTS = ["rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft"]
each = pytest.mark.parametrize("dialect", DIALECTS)
OPTIONS = ResumeOptions(jitter=0)


class Link:
    """One stream between two ends. It breaks when told to, or after so many bytes of either end's."""

    def __init__(self, lifetime: int | None) -> None:
        self._left = lifetime
        self._one_ways = [trio.testing.memory_stream_one_way_pair() for _ in range(2)]
        for send, _ in self._one_ways:
            send.send_all_hook = self._move
        (to_server, from_client), (to_client, from_server) = self._one_ways
        self.client = trio.StapledStream(to_server, from_server)
        self.server = trio.StapledStream(to_client, from_client)
        self.deaf: set[int] = set()

    async def _move(self) -> None:
        for number, (send, receive) in enumerate(self._one_ways):
            if number in self.deaf or self._left == 0:
                continue
            try:
                data = send.get_data_nowait(self._left)
            except trio.WouldBlock:
                continue
            receive.put_data(data)
            if self._left is not None:
                self._left -= len(data)
                if not self._left:
                    self.cut()

    async def hear(self, number: int) -> None:
        """What was swallowed arrives."""
        self.deaf.discard(number)
        await self._move()

    def cut(self) -> None:
        """Both ends find it broken."""
        for send, receive in self._one_ways:
            send.close()
            receive.close()


CLIENTS, SERVERS = 0, 1
"""Whose bytes do not arrive."""


class Network(trio.abc.Listener[trio.abc.Stream]):
    """Opens links to one server, unless it is down. ``lifetimes`` are the bytes after which the next links break."""

    def __init__(self, lifetimes: Iterable[int] = ()) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](1000)
        self.links: list[Link] = []
        self.lifetimes = list(lifetimes)
        self.down = False

    async def connect(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise OSError("the network is down")
        link = Link(self.lifetimes.pop(0) if self.lifetimes else None)
        self.links.append(link)
        self._send.send_nowait(link.server)
        return link.client

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()
        await trio.lowlevel.checkpoint()

    @property
    def link(self) -> Link:
        return self.links[-1]

    async def cut(self, *, down: bool = False) -> None:
        """The link breaks, and with ``down`` there is no other."""
        self.down = down
        self.link.cut()
        await settle()


class Pair(NamedTuple):
    client: Connection
    server: Connection
    network: Network
    client_states: list[str]
    server_states: list[str]
    stop_serving: Callable[[], None]


@asynccontextmanager
async def pair(
    responder: Responder | None = None,
    dialect: str = "rsocket/1.0",
    *,
    client_responder: Responder | None = None,
    options: ResumeOptions = OPTIONS,
    server_options: ResumeOptions | None = None,
    network: Network | None = None,
    fragment_size: int = 65536,
    grace: float = 10,
    **more: Any,
) -> AsyncIterator[Pair]:
    """A client that resumes and its server, with the connections of both."""
    network = network or Network()
    responder = responder or Responder()
    accepted: list[Connection] = []
    client_states: list[str] = []
    server_states: list[str] = []

    @responder.setup
    def meet(terms: Any, connection: Connection) -> None:
        accepted.append(connection)
        connection.on_state(server_states.append)

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[list[str]]) -> None:
            with scope:
                await serve(
                    *(responder, [network]),
                    dialects=[dialect],
                    resume=server_options or options,
                    fragment_size=fragment_size,
                    grace=grace,
                    task_status=task_status,
                )

        await nursery.start(run)
        async with open_connection_over(
            network.connect,
            dialect=dialect,
            resume=options,
            responder=client_responder,
            fragment_size=fragment_size,
            **more,
        ) as client:
            client.on_state(client_states.append)
            await settle()
            yield Pair(client, accepted[0], network, client_states, server_states, scope.cancel)
        scope.cancel()
    accepted.clear()
    responder.__dict__.clear()  # it refers to this frame, and so to the connections


async def settle() -> None:
    """Let everybody do what can be done without time passing."""
    await trio.testing.wait_all_tasks_blocked()


class Book:
    """A responder, and what its handlers saw."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.go_on = trio.Event()
        self.responder = responder = Responder()

        @responder.request_response
        async def answer(request: Payload) -> Payload:
            self.seen.append(request.data)
            try:
                if request.data == b"wait":
                    await self.go_on.wait()
                if request.data == b"call back":
                    return await current_connection().request_response(b"who are you?")
                if request.data == b"fail":
                    raise ApplicationError("no")
            except BaseException as error:
                self.seen.append(type(error).__name__)
                raise
            return request

        @responder.request_stream
        async def count(request: Payload) -> AsyncIterator[bytes]:
            for number in range(int(request.data)):
                yield b"%d" % number

        @responder.request_channel
        async def echo(channel: Any) -> None:
            async for item in channel:
                await channel.send(item)

        @responder.fire_and_forget
        async def note(request: Payload) -> None:
            self.seen.append(request.data)


def numbers(end: int) -> list[bytes]:
    return [b"%d" % number for number in range(end)]


# Everything goes on


@each
async def test_a_stream_goes_on_over_many_links(autojump_clock: object, dialect: str) -> None:
    async with (
        pair(Book().responder, dialect) as both,
        both.client.request_stream(b"300", initial_request_n=8) as items,
    ):
        got = []
        async for item in items:
            got.append(item.data)
            if len(got) % 20 == 0:
                both.network.link.cut()
        assert got == numbers(300)
        assert len(both.network.links) > 10


@each
async def test_a_channel_goes_on_both_ways(autojump_clock: object, dialect: str) -> None:
    async with pair(Book().responder, dialect) as both:
        got: list[bytes] = []
        async with both.client.request_channel(initial_request_n=8) as channel, trio.open_nursery() as nursery:

            async def say() -> None:
                for number in range(200):
                    await channel.send(b"%d" % number)
                    if number % 30 == 7:
                        both.network.link.cut()
                await channel.send_eof()

            nursery.start_soon(say)
            async for item in channel:
                got.append(item.data)
                if len(got) % 45 == 0:
                    both.network.link.cut()
        assert got == numbers(200)
        assert len(both.network.links) > 5


@each
@pytest.mark.parametrize("seed", range(12))
async def test_nothing_is_lost_and_nothing_comes_twice_wherever_links_break(
    autojump_clock: object, dialect: str, seed: int
) -> None:
    rng = random.Random(seed)
    book = Book()
    # The first link has to get the SETUP across, and its answer.
    network = Network([rng.randrange(200, 600), *(rng.randrange(1, 400) for _ in range(40))])
    sent = [b"note %d" % number for number in range(30)]
    results: dict[str, list[bytes]] = {}
    async with pair(book.responder, dialect, network=network, fragment_size=64) as both, trio.open_nursery() as nursery:

        async def stream(name: str) -> None:
            async with both.client.request_stream(b"60", initial_request_n=rng.choice((1, 3, 50))) as items:
                results[name] = [item.data async for item in items]

        async def channel(name: str) -> None:
            results[name] = []
            async with both.client.request_channel(initial_request_n=4) as talk, trio.open_nursery() as inner:

                async def say() -> None:
                    for number in range(40):
                        await talk.send(b"%d" % number)
                    await talk.send_eof()

                inner.start_soon(say)
                async for item in talk:
                    results[name].append(item.data)

        async def ask(number: int) -> None:
            data = bytes([number]) * rng.randrange(1, 300)
            results[f"answer {number}"] = [data, (await both.client.request_response(data)).data]

        async def tell() -> None:
            for one in sent:
                await both.client.fire_and_forget(one)
                await trio.sleep(rng.random())

        for number in range(3):
            nursery.start_soon(stream, f"stream {number}")
            nursery.start_soon(channel, f"channel {number}")
        for number in range(10):
            nursery.start_soon(ask, number)
        nursery.start_soon(tell)
    assert len(network.links) > 10
    for name, got in results.items():
        if name.startswith("answer"):
            assert got[0] == got[1]
        else:
            assert got == numbers(60 if name.startswith("stream") else 40), name
    assert len(results) == 16
    notes = [one for one in book.seen if isinstance(one, bytes) and one.startswith(b"note")]
    assert sorted(notes) == sorted(sent)


@each
async def test_an_answer_a_failure_and_a_note_come_across_a_break(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        answers: list[object] = []

        async def ask(data: bytes) -> None:
            try:
                answers.append((await both.client.request_response(data)).data)
            except ApplicationError as error:
                answers.append(str(error))

        both.network.link.deaf = {CLIENTS, SERVERS}
        for data in (b"one", b"fail"):
            nursery.start_soon(ask, data)
        await both.client.fire_and_forget(b"noted")
        await settle()
        assert book.seen == []
        await both.network.cut()
        await trio.sleep(1)
        assert set(book.seen) == {b"fail", b"noted", b"one", "ApplicationError"}
        assert len(book.seen) == 4
        assert len(answers) == 2
        assert b"one" in answers
        assert any("no" in str(answer) for answer in answers)


@each
async def test_a_handlers_call_to_its_client_comes_across_a_break(autojump_clock: object, dialect: str) -> None:
    book, mine = Book(), Responder()

    @mine.request_response
    async def who(request: Payload) -> bytes:
        await trio.sleep(5)
        return b"it is me"

    async with pair(book.responder, dialect, client_responder=mine) as both, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"call back")).data)

        nursery.start_soon(ask)
        for _ in range(3):
            await trio.sleep(1)
            await both.network.cut()
        await trio.sleep(5)
        assert answers == [b"it is me"]


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
async def test_a_server_asks_its_client_without_a_link_as_well(autojump_clock: object, dialect: str) -> None:
    mine = Responder()

    @mine.request_response
    async def who(request: Payload) -> Payload:
        return request

    async with pair(None, dialect, client_responder=mine) as both, trio.open_nursery() as nursery:
        await both.network.cut(down=True)
        assert both.server.status == "suspended"
        answers: list[object] = []

        async def ask() -> None:
            answers.append((await both.server.request_response(b"are you there?")).data)

        nursery.start_soon(ask)
        await trio.sleep(5)
        both.network.down = False
        await trio.sleep(10)
        assert answers == [b"are you there?"]


@each
async def test_a_ping_waits_for_the_next_link(autojump_clock: object, dialect: str) -> None:
    async with pair(None, dialect) as both, trio.open_nursery() as nursery:
        took: list[float] = []

        async def ping() -> None:
            took.append(await both.client.ping())

        both.network.link.deaf = {CLIENTS}
        nursery.start_soon(ping)
        await settle()
        await both.network.cut(down=True)
        nursery.start_soon(ping)
        await trio.sleep(5)
        assert took == []
        both.network.down = False
        await trio.sleep(8)
        assert len(took) == 2
        assert all(5 <= seconds < 13 for seconds in took)


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


# States


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


async def test_a_connection_without_resumption_is_never_suspended(autojump_clock: object) -> None:
    network, states = Network(), list[str]()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Responder(), [network], resume=OPTIONS))
        async with open_connection_over(network.connect) as client:
            client.on_state(states.append)
            await settle()
            assert not client.can_resume
            await network.cut()
            assert states == ["closed"]
            with pytest.raises(ConnectionLost):
                await client.request_response(b"x")
        nursery.cancel_scope.cancel()


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
async def test_a_server_that_forgot_the_session_refuses(autojump_clock: object, dialect: str) -> None:
    shorter = attrs.evolve(OPTIONS, session_seconds=5)
    async with pair(None, dialect, server_options=shorter) as both:
        await both.network.cut(down=True)
        await trio.sleep(10)
        assert both.server.status == "closed"
        both.network.down = False
        with pytest.raises(RejectedResume, match="unknown"):
            await both.client.request_response(b"x")
        assert both.client.status == "closed"


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


async def test_who_is_told_of_states_may_fail_without_harm(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(state: str) -> None:
        raise RuntimeError(f"told of {state}")

    async with pair(Book().responder) as both:
        both.client.on_state(fail)
        both.server.on_state(fail)
        later: list[str] = []
        both.client.on_state(later.append)
        await both.network.cut()
        assert (await both.client.request_response(b"x")).data == b"x"
        assert later == ["suspended", "open"]
    assert "told of suspended" in caplog.text


async def test_who_is_told_of_a_loss_may_leave_at_once(autojump_clock: object) -> None:
    async with pair(Book().responder) as both:

        def leave(state: str) -> None:
            if state == "suspended":
                both.client.leave()

        both.client.on_state(leave)
        await both.network.cut()
        await trio.sleep(1)
        assert both.client.status == "closed"
        assert len(both.network.links) == 1


# The end


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
async def test_leaving_while_a_link_is_being_opened_does_not_wait_for_it(autojump_clock: object, dialect: str) -> None:
    async with pair(None, dialect, options=attrs.evolve(OPTIONS, answer_seconds=50)) as both:
        both.network.lifetimes = [1]
        await both.network.cut()
        both.network.link.deaf = {CLIENTS, SERVERS}
        await trio.sleep(0.05)
        started = trio.current_time()
        states = both.client_states
        both.stop_serving()
    assert trio.current_time() - started < 3
    assert states[-1] == "closed"


@each
async def test_draining_without_a_link_waits_for_the_grace_and_ends(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        nursery.start_soon(swallow, both.client, b"wait")
        await settle()
        await both.network.cut(down=True)
        started = trio.current_time()
        await both.client.drain(grace=4)
        assert trio.current_time() - started == pytest.approx(4)
        assert both.client.status == "closed"
        with pytest.raises(ConnectionClosed):
            await both.client.request_response(b"x")


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
async def test_a_server_drains_without_a_link(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect, grace=4) as both, trio.open_nursery() as nursery:
        nursery.start_soon(swallow, both.client, b"wait")
        await settle()
        await both.network.cut(down=True)
        both.stop_serving()
        await trio.sleep(3)
        assert (both.server.status, book.seen) == ("suspended", [b"wait"])
        await trio.sleep(2)
        assert (both.server.status, book.seen) == ("closed", [b"wait", "Cancelled"])
        await trio.sleep(60)
        assert both.client.status == "closed"


@each
async def test_a_server_that_stops_lets_a_resumed_session_finish(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"wait")).data)

        await both.network.cut()
        await trio.sleep(1)
        assert both.client.status == "open"
        nursery.start_soon(ask)
        await settle()
        both.stop_serving()
        await trio.sleep(3)
        assert (both.client.status, both.server.status) == ("open", "draining")
        book.go_on.set()
        await trio.sleep(1)
        assert answers == [b"wait"]
        assert (both.client.status, both.server.status) == ("closed", "closed")
        with pytest.raises(ConnectionClosed):
            await both.client.request_response(b"x")
        assert len(both.network.links) == 2


@each
async def test_what_is_open_when_a_server_leaves_is_cancelled(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect, grace=2) as both:
        await both.network.cut()
        await trio.sleep(1)
        nursery_errors: list[type] = []

        async def ask() -> None:
            try:
                await both.client.request_response(b"wait")
            except RSocketError as error:
                nursery_errors.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settle()
            both.stop_serving()
        assert nursery_errors == [Canceled]


# The store


@each
async def test_a_full_store_stalls_its_sender_and_loses_nothing(autojump_clock: object, dialect: str) -> None:
    options = attrs.evolve(OPTIONS, store_bytes=2048)
    book = Book()
    async with (
        pair(book.responder, dialect, options=options, fragment_size=1024) as both,
        both.client.request_stream(b"3000", initial_request_n=3000) as items,
    ):
        got = [(await anext(items)).data]
        both.network.link.deaf = {CLIENTS}
        with trio.move_on_after(20):
            async for item in items:
                got.append(item.data)
        assert 50 < len(got) < 300
        await both.network.link.hear(CLIENTS)
        async for item in items:
            got.append(item.data)
            if len(got) == 1500:
                both.network.link.cut()
        assert got == numbers(3000)


@each
async def test_a_full_store_is_the_same_to_a_client(autojump_clock: object, dialect: str) -> None:
    options = attrs.evolve(OPTIONS, store_bytes=1024)
    book = Book()
    async with pair(book.responder, dialect, options=options, fragment_size=512) as both:
        both.network.link.deaf = {SERVERS}
        for number in range(100):
            await both.client.fire_and_forget(b"%04d" % number + bytes(46))
        await trio.sleep(1)
        assert 10 < len(book.seen) <= 1024 // 55
        await both.network.cut()
        await trio.sleep(1)
        assert sorted(int(data[:4]) for data in book.seen if isinstance(data, bytes)) == list(range(100))


@each
async def test_metadata_that_is_larger_than_the_store_stalls_nothing(autojump_clock: object, dialect: str) -> None:
    book = Book()
    pushed: list[int] = []

    @book.responder.metadata_push
    def push(metadata: bytes) -> None:
        pushed.append(len(metadata))

    options = attrs.evolve(OPTIONS, store_bytes=1024)
    async with pair(book.responder, dialect, options=options, fragment_size=1024) as both:
        with trio.fail_after(5):
            await both.client.metadata_push(bytes(50_000))
            assert (await both.client.request_response(b"behind")).data == b"behind"
        assert pushed == [50_000]


@each
@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_side_may_give_up_instead_of_stalling(
    autojump_clock: object, dialect: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    small = attrs.evolve(OPTIONS, store_bytes=1024, give_up_when_full=True)
    patient = attrs.evolve(OPTIONS, store_bytes=1024)
    book = Book()
    settings = {"options": small, "server_options": patient} if who == "client" else {"server_options": small}
    if who == "server":
        settings["options"] = patient
    async with pair(book.responder, dialect, fragment_size=512, **settings) as both:  # type: ignore[arg-type]
        if who == "client":
            both.network.link.deaf = {SERVERS}
            for number in range(100):
                await both.client.fire_and_forget(b"%04d" % number + bytes(46))
            await trio.sleep(1)
            assert len(book.seen) == 100
            await both.network.link.hear(SERVERS)
            assert (both.client.can_resume, both.server.can_resume) == (False, True)
            states = both.client_states
        else:
            async with both.client.request_stream(b"500", initial_request_n=500) as items:
                both.network.link.deaf = {CLIENTS}
                await trio.sleep(1)
                await both.network.link.hear(CLIENTS)
                assert [item.data async for item in items] == numbers(500)
            assert (both.client.can_resume, both.server.can_resume) == (True, False)
            states = both.server_states
        assert states == ["open"]
        assert "can't be resumed" in caplog.text
        # The side that still keeps what it sends goes on hearing how far the other got.
        for _ in range(10):
            assert len((await both.client.request_response(bytes(400))).data) == 400
        async with both.client.request_stream(b"400") as items:
            assert [item.data async for item in items] == numbers(400)
        await both.network.cut()
        await trio.sleep(30)
        assert both.client.status == "closed"
        with pytest.raises((ConnectionLost, RejectedResume)):
            await both.client.request_response(b"x")


async def test_a_client_that_gave_up_still_says_when_it_leaves(autojump_clock: object) -> None:
    small = attrs.evolve(OPTIONS, store_bytes=1024, give_up_when_full=True)
    async with pair(Book().responder, options=small, server_options=OPTIONS, fragment_size=512) as both:
        both.network.link.deaf = {SERVERS}
        for _ in range(100):
            await both.client.fire_and_forget(bytes(50))
        await trio.sleep(1)
        assert not both.client.can_resume
        both.network.link.deaf.clear()
        both.client.leave()
        await trio.sleep(3)
        assert both.server_states == ["closed"]


async def test_entries_that_the_store_has_no_room_for_stall_nothing(autojump_clock: object) -> None:
    options = attrs.evolve(OPTIONS, store_bytes=1024)
    huge = [Entry("x.app", ignore=True, payload=bytes(2000))]
    async with pair(Book().responder, "rsocket/2.0-draft", options=options, fragment_size=1024) as both:
        with trio.fail_after(30):
            with pytest.raises(LocalProtocolError, match="store"):
                await both.client.request_response(b"x", entries=huge)
            assert (await both.client.request_response(b"y")).data == b"y"


# Arguments


@pytest.mark.parametrize(
    ("field", "bad", "kind"),
    [
        ("store_bytes", 1023, ValueError),
        ("store_bytes", 4096.0, TypeError),
        ("session_seconds", 0, ValueError),
        ("session_seconds", float("nan"), ValueError),
        ("session_seconds", "60", TypeError),
        ("answer_seconds", 0, ValueError),
        ("first_delay", -0.1, ValueError),
        ("longest_delay", -1, ValueError),
        ("jitter", 1.1, ValueError),
        ("jitter", -0.1, ValueError),
        ("sessions", 0, ValueError),
        ("sessions", 1.5, TypeError),
        ("sessions_bytes", 0, ValueError),
        ("sessions_bytes", True, TypeError),
        ("give_up_when_full", "yes", TypeError),
    ],
)
def test_options_that_cannot_be_are_refused(field: str, bad: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=field):
        ResumeOptions(**{field: bad})  # type: ignore[arg-type]


def test_options_are_named() -> None:
    with pytest.raises(TypeError):
        ResumeOptions(1024)  # type: ignore[call-arg]


def test_delays_double_up_to_the_longest_and_are_shortened_by_chance() -> None:
    options = ResumeOptions(first_delay=0.5, longest_delay=3, jitter=0.2)
    assert [options.delay(tries, 0) for tries in (0, 1, 2, 3, 4, 10_000)] == [0.5, 1, 2, 3, 3, 3]
    assert options.delay(1, 1) == pytest.approx(0.8)
    assert options.delay(9, 0.5) == pytest.approx(2.7)
    assert ResumeOptions(first_delay=0).delay(7, 1) == 0


async def test_a_plain_stream_is_not_enough_to_resume() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    with pytest.raises(TypeError, match="function"):
        async with open_connection_over(ours, resume=OPTIONS):
            pytest.fail("the block began")
    await trio.aclose_forcefully(ours)
    await trio.aclose_forcefully(theirs)


@pytest.mark.parametrize("dialect", ["reactivesocket/0.1", "reactivesocket/0.0", "streamux/1"])
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
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Book().responder, [network], resume=OPTIONS))
        for dialect in DIALECTS:
            async with open_connection_over(network.connect, dialect=dialect, resume=OPTIONS) as client:
                assert (await client.request_response(b"x")).data == b"x"
                await network.cut()
                assert (await client.request_response(b"y")).data == b"y"
        for dialect in ("reactivesocket/0.1", "streamux/1"):
            async with open_connection_over(network.connect, dialect=dialect) as client:
                assert (await client.request_response(b"x")).data == b"x"
                assert not client.can_resume
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("bad", [True, {}, 60])
async def test_options_are_resume_options(bad: Any) -> None:
    with pytest.raises(TypeError, match="ResumeOptions"):
        async with open_connection_over(Network().connect, resume=bad):
            pytest.fail("the block began")
    with pytest.raises(TypeError, match="ResumeOptions"):
        await serve(Responder(), [Network()], resume=bad)


async def test_a_fragment_has_to_fit_into_the_store() -> None:
    small = ResumeOptions(store_bytes=1024)
    with pytest.raises(ValueError, match="store"):
        async with open_connection_over(Network().connect, resume=small, fragment_size=1025):
            pytest.fail("the block began")
    with pytest.raises(ValueError, match="store"):
        await serve(Responder(), [Network()], resume=small, fragment_size=1025)


async def test_a_first_stream_that_cannot_be_opened_is_no_matter_of_resuming(autojump_clock: object) -> None:
    network = Network()
    network.down = True
    with pytest.raises(ConnectionLost, match="down"):
        async with open_connection_over(network.connect, resume=OPTIONS):
            pytest.fail("the block began")


@each
async def test_a_server_without_resumption_refuses(autojump_clock: object, dialect: str) -> None:
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Responder(), [network], dialects=[dialect]))
        with pytest.raises(RSocketError) as caught:
            async with open_connection_over(network.connect, dialect=dialect, resume=OPTIONS) as client:
                await client.request_response(b"x")
        assert type(caught.value) is not ConnectionLost
        if dialect != "rsocket/2.0-draft":
            assert type(caught.value) is RejectedSetup
        del caught
        nursery.cancel_scope.cancel()


async def test_a_function_that_opens_streams_serves_without_resumption_too(autojump_clock: object) -> None:
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Book().responder, network))
        async with open_connection_over(network.connect) as client:
            assert (await client.request_response(b"x")).data == b"x"
        nursery.cancel_scope.cancel()
    assert len(network.links) == 1


async def test_one_stream_is_served_with_resumption_and_nobody_comes_back(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    book = Book()
    streams = [ours]

    async def connect() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not streams:
            raise OSError("there was one stream only")
        return streams.pop()

    async with trio.open_nursery() as nursery:
        options = attrs.evolve(OPTIONS, session_seconds=5)
        nursery.start_soon(partial(serve_stream, book.responder, theirs, resume=options))
        async with open_connection_over(connect, resume=options) as client:
            assert (await client.request_response(b"x")).data == b"x"
            await trio.aclose_forcefully(ours)
            await trio.sleep(10)
            with pytest.raises(ConnectionLost):
                await client.request_response(b"x")


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
