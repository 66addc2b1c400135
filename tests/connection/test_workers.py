"""Handler tasks are pooled: few stay, many may run, and connections begin what was asked of them in turn."""

from __future__ import annotations

import contextvars
from contextlib import suppress
from functools import partial

import trio
from trio.testing import MockClock

from rsocket_trio import Connection, ConnectionClosed, Limits, Payload, Responder, open_connection, serve
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.each_row import each_row

number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)
anything: contextvars.ContextVar[object] = contextvars.ContextVar("anything", default=None)


@each_row("idle", [0, 1, 32])
async def test_a_connection_keeps_no_more_idle_tasks_than_its_limit(idle: int, autojump_clock: MockClock) -> None:
    responder = Responder()
    tasks: set[trio.lowlevel.Task] = set()

    @responder.request_response
    async def one(request: Payload) -> bytes:
        tasks.add(trio.lowlevel.current_task())
        await trio.sleep(1)
        return b""

    async with connected_pair(responder, server_limits=Limits(idle_workers=idle)) as pair:
        await pair.client.ping()  # the server's send task begins with the first thing to send
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(pair.client.request_response)
        await settle()
        assert len(tasks) == 100
        assert trio.lowlevel.current_statistics().tasks_living == before + idle
        tasks.clear()


async def test_a_value_that_only_equals_the_former_and_one_more_variable_stay_in_their_request(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()
    ours: list[int] = []
    seen: list[tuple[bool, int]] = []

    @responder.request_response
    async def one(request: Payload) -> bytes:
        seen.append((anything.get() is ours, number.get()))
        if request.data == b"equal":
            anything.set([])
        elif request.data == b"more":
            number.set(1)
        return b""

    anything.set(ours)
    async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
        for what in (b"equal", b"more", b"nothing") * 30:
            nursery.start_soon(pair.client.request_response, what)

    assert seen == [(True, 0)] * 90


async def test_streams_at_their_limit_refuse_the_next_and_take_one_more_each_time_one_ends(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()

    @responder.request_response
    async def cling(request: Payload) -> bytes:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return b""

    async with raw.server(raw.RS10, responder, limits=Limits(streams=3)) as peer:
        await peer.send(raw.ask(1), raw.ask(3), raw.ask(5), raw.ask(7))
        await peer.expect_error(7, raw.REJECTED)
        # A handler that clings to its life after CANCEL goes on counting.
        await settle()
        await peer.send(raw.cancel(1))
        await settle()
        await peer.send(raw.ask(9))
        await peer.expect_error(9, raw.REJECTED)
        await trio.sleep(6)
        assert {(await peer.receive()).stream_id for _ in range(2)} == {3, 5}
        await peer.send(raw.ask(11), raw.ask(13), raw.ask(15))
        await trio.sleep(6)
        assert {(await peer.receive()).stream_id for _ in range(3)} == {11, 13, 15}


async def test_every_call_is_a_checkpoint(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    async def calls(connection: Connection) -> None:
        with trio.testing.assert_checkpoints():
            await connection.fire_and_forget(b"x")
        with trio.testing.assert_checkpoints():
            await connection.request_response(b"x")
        with trio.testing.assert_checkpoints():
            await connection.metadata_push(b"x")
        with trio.testing.assert_checkpoints():
            await connection.ping()
        with trio.testing.assert_checkpoints():
            await connection.send_extension(99)
        stream = connection.request_stream()
        with trio.testing.assert_checkpoints():
            await stream.__aenter__()
        await stream.__aexit__(None, None, None)
        channel = connection.request_channel()
        with trio.testing.assert_checkpoints():
            await channel.__aenter__()
        with trio.testing.assert_checkpoints():
            await channel.send_eof()
        await channel.__aexit__(None, None, None)

    async with connected_pair(responder) as pair:
        await calls(pair.client)
        with trio.testing.assert_checkpoints():
            await pair.client.drain()
        for call in (pair.client.fire_and_forget, pair.client.request_response, pair.client.ping, pair.client.drain):
            with trio.testing.assert_checkpoints(), suppress(ConnectionClosed):  # draining twice is none
                await call()


async def test_many_connections_that_ask_at_once_are_all_answered_and_begin_in_turn(autojump_clock: MockClock) -> None:
    responder = Responder()
    running = most = 0

    @responder.request_response
    async def answer(request: Payload) -> Payload:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.lowlevel.checkpoint()
        running -= 1
        return request

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, responder, "memory://turns"))
        async with trio.open_nursery() as asking:

            async def ask() -> None:
                async with open_connection("memory://turns") as connection, trio.open_nursery() as requests:
                    for number in range(64):
                        requests.start_soon(connection.request_response, b"%d" % number)

            for _ in range(60):
                asking.start_soon(ask)
        nursery.cancel_scope.cancel()

    assert running == 0
    assert most < 60 * 64 / 2
