"""What is written without a send task, and what is left without a farewell: over sockets, where both can be."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio import (
    ConnectionLost,
    Limits,
    Payload,
    Responder,
    open_connection,
    serve,
)
from rsocket_trio.connection.link import CLOSE_TIMEOUT, DIRECT_WRITES
from tests.conformance import raw
from tests.each_row import each_row

RESET = b"\1\0\0\0\0\0\0\0"


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, trio.SocketListener]]:
    """A URI, and where its connections come to."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        yield f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}", listener


def echoing() -> Responder:
    """A responder whose handler takes a task."""
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    return responder


@each_row("and_then_forget", [False, True])
async def test_who_was_answered_last_leaves_at_once_and_who_said_more_waits_until_it_was_read(
    autojump_clock: MockClock, and_then_forget: bool
) -> None:
    async with listening() as (uri, listener), trio.open_nursery() as nursery:
        has_left = trio.Event()

        async def answer_and_never_close() -> None:
            async with await listener.accept() as stream:
                peer = raw.RawPeer(stream)
                assert (await peer.receive()).type == raw.SETUP
                await peer.expect(raw.ask(1, b"?"))
                await peer.send(raw.payload(1, b"!", raw.N | raw.C))
                if and_then_forget:
                    await peer.expect(raw.forget(3, b"note"))
                await peer.expect_end()
                await has_left.wait()

        nursery.start_soon(answer_and_never_close)
        async with open_connection(uri) as connection:
            assert (await connection.request_response(b"?")).data == b"!"
            if and_then_forget:
                await connection.fire_and_forget(b"note")
            before = trio.current_time()
        assert trio.current_time() - before == (CLOSE_TIMEOUT if and_then_forget else 0)
        has_left.set()


async def test_the_first_answers_of_a_connection_need_no_send_task() -> None:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, echoing(), "tcp://127.0.0.1:0"))
        async with await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2])) as stream:
            peer = raw.RawPeer(stream)
            await peer.send(raw.setup())
            tasks = []
            for first in range(1, 4 * DIRECT_WRITES, 4):
                asked = (first, first + 2)
                await peer.send(*(raw.ask(stream_id, b"x") for stream_id in asked))
                await peer.expect_in_any_order(*(raw.payload(each, b"x", raw.N | raw.C) for each in asked))
                await wait_all_tasks_blocked()
                tasks.append(trio.lowlevel.current_statistics().tasks_living)
            assert tasks == [tasks[0]] * (DIRECT_WRITES // 2) + [tasks[0] + 1] * (DIRECT_WRITES // 2)
        nursery.cancel_scope.cancel()


async def test_where_both_sides_take_turns_no_send_task_is_needed() -> None:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, echoing(), "tcp://127.0.0.1:0"))
        async with open_connection(uri) as connection:
            for _ in range(2):  # the task of the first is kept for no other
                await connection.request_response(b"?")
            await wait_all_tasks_blocked()
            tasks = trio.lowlevel.current_statistics().tasks_living
            for _ in range(3 * DIRECT_WRITES):
                await connection.request_response(b"?")
            await wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == tasks
        nursery.cancel_scope.cancel()


async def test_an_answer_that_the_socket_does_not_take_at_once_arrives_whole() -> None:
    responder = Responder()
    large = bytes(range(256)) * 32768

    @responder.request_response
    async def answer(_: Payload) -> bytes:
        return large

    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, "tcp://127.0.0.1:0"))
        async with open_connection(uri) as connection:
            assert (await connection.request_response(b"?")).data == large
        nursery.cancel_scope.cancel()


async def test_a_peer_that_resets_before_the_first_write_is_told_of() -> None:
    async with listening() as (uri, listener), trio.open_nursery() as nursery:

        async def reset() -> None:
            stream = await listener.accept()
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            stream.socket.close()

        nursery.start_soon(reset)
        with pytest.raises(ConnectionLost):
            async with open_connection(uri) as connection:
                await connection.request_response(b"?")


async def test_reading_that_pauses_for_answers_goes_on_when_they_were_written_at_once(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()

    @responder.request_response
    async def slow(_: Payload) -> bytes:
        await trio.sleep(1)
        return b"done"

    limits = Limits(payload_size=1000, reassembly_size=1000)
    serving = partial(serve, responder, "tcp://127.0.0.1:0", limits=limits, dialects=["streamux/1"])
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serving)
        async with open_connection(uri, dialect="streamux/1") as connection, trio.open_nursery() as asking:
            for _ in range(2):
                asking.start_soon(connection.request_response, bytes(600))
            await trio.sleep(0.1)
            asking.start_soon(connection.request_response, bytes(600))
        assert trio.current_time() < limits.silence
        nursery.cancel_scope.cancel()
