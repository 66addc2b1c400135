"""Connections over HTTP/2: one stream each, alone on their HTTP/2 connection or many of them sharing it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ConnectionLost,
    Limits,
    Payload,
    Responder,
    ResumeOptions,
    current_connection,
    open_connection,
    open_shared,
    serve,
)
from rsocket_trio.transports import connect
from rsocket_trio.transports.schemes import SharedConnection
from tests.serving import running_server
from tests.transports.pairs import make_client_context, make_server_context

URI = "h2://127.0.0.1:0/rsocket"
BIG = bytes(range(256)) * 12_000


def responder(log: Callable[[bytes], object] = len) -> Responder:
    """Echoes, counts without end, says what it knows of its client, and passes on what is to be logged."""
    made = Responder()

    @made.fire_and_forget("log")
    async def note(payload: Payload) -> None:
        log(payload.data)

    @made.request_response("echo")
    async def echo(payload: Payload) -> Payload:
        return Payload(payload.data)

    @made.request_stream("count")
    async def count(payload: Payload) -> AsyncIterator[bytes]:
        for number in range(1_000_000):
            yield b"%d" % number

    @made.request_response("known")
    async def known(payload: Payload) -> str:
        facts = current_connection().handshake
        return f"{facts.transport} {facts.path} {dict(facts.headers).get('x-who')} {facts.certificate}"

    return made


def served(uri: str = URI, log: Callable[[bytes], object] = len, **options: Any) -> AbstractAsyncContextManager[str]:
    """A server, which drains at the end."""
    return running_server(responder(log), uri, resume=ResumeOptions(), **options)


@pytest.mark.parametrize("scheme", ["h2", "h2s"])
async def test_a_connection_alone_moves_requests_of_every_size_and_shows_path_and_headers(scheme: str) -> None:
    trusting = make_client_context()
    async with (
        served(f"{scheme}://127.0.0.1:0/rsocket", ssl_context=make_server_context) as uri,
        open_connection(f"{uri}?a=1", headers={"X-Who": "me"}, ssl_context=trusting) as connection,
    ):
        assert (await connection.request_response(b"small", route="echo")).data == b"small"
        assert (await connection.request_response(BIG, route="echo")).data == BIG
        async with connection.request_stream(b"", route="count") as stream:
            assert [(await anext(stream)).data for _ in range(1_000)] == [b"%d" % number for number in range(1_000)]
        assert (await connection.request_response(route="known")).text == f"{scheme} /rsocket?a=1 me None"
        assert connection.handshake.path == "/rsocket?a=1"


async def test_connections_share_one_and_each_goes_its_own_way() -> None:
    async with served() as uri, open_shared(uri) as shared:
        async with (
            open_connection(uri, over=shared) as one,
            open_connection(uri, over=shared) as other,
            one.request_stream(b"", route="count") as stream,
        ):
            assert (await anext(stream)).data == b"0"
            assert (await other.request_response(BIG, route="echo")).data == BIG
        async with open_connection(uri, over=shared) as third:
            assert (await third.request_response(b"3", route="echo")).data == b"3"


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_is_said_before_a_cancellation_still_goes_out(is_shared: bool) -> None:
    logged: list[bytes] = []
    came = trio.Event()

    def log(data: bytes) -> None:
        logged.append(data)
        came.set()

    async with served(log=log) as uri:
        with trio.CancelScope() as scope:
            async with AsyncExitStack() as stack:
                shared = await stack.enter_async_context(open_shared(uri)) if is_shared else None
                connection = await stack.enter_async_context(open_connection(uri, over=shared))
                await connection.fire_and_forget(BIG, route="log")
                scope.cancel()
        with trio.fail_after(10):
            await came.wait()

    assert logged == [BIG]


REFUSED = [
    ("/elsewhere", {}, "the server answered HTTP 404 to the request"),
    ("/rsocket", {"Content-Type": "text/plain"}, "the content type is application/rsocket, and no other can be sent"),
    ("/rsocket", {":odd": "x"}, "HTTP/2: "),
]


@pytest.mark.parametrize(("path", "headers", "text"), REFUSED)
async def test_what_is_refused_is_lost_with_the_reason(path: str, headers: dict[str, str], text: str) -> None:
    async with served() as uri:
        where = uri.replace("/rsocket", path)
        with pytest.raises(ConnectionLost, match=f"^{re.escape(where)}: .*{re.escape(text)}"):
            async with open_connection(where, headers=headers):
                pass


async def test_another_scheme_is_not_carried() -> None:
    async with served() as uri, open_shared(uri) as shared:
        with pytest.raises(ValueError, match="a connection of h2 is shared here"):
            async with open_connection(uri.replace("h2:", "h2s:"), over=shared):
                pass


async def test_a_server_that_drains_takes_no_more_connections_and_lets_open_ones_finish() -> None:
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            with scope:
                await serve(responder(), [URI], task_status=task_status)

        [uri] = await nursery.start(run)
        async with (
            open_shared(uri) as shared,
            open_connection(uri, over=shared) as connection,
            connection.request_stream(b"", route="count", initial_request_n=1) as stream,
        ):
            assert (await anext(stream)).data == b"0"
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked(0.05)
            # It connects again, and nobody listens.
            with pytest.raises(ConnectionLost, match=f"^{uri}: connection refused"):
                async with open_connection(uri, over=shared):
                    pass
            assert (await anext(stream)).data == b"1"


async def test_one_that_connects_in_the_moment_of_a_cancellation_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = trio.CancelScope()

    async def share(*_: object) -> object:
        scope.cancel()
        return object()

    monkeypatch.setattr(connect, "_share", share)
    with trio.fail_after(5), scope:
        async with open_shared("h2://127.0.0.1:1"):
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_one_connection_more_than_the_server_allows_is_told_so() -> None:
    limits = Limits(shared_connections=2)
    async with served(limits=limits) as uri, open_shared(uri) as shared, open_connection(uri, over=shared) as one:
        async with open_connection(uri, over=shared):
            with pytest.raises(ConnectionLost, match=f"^{uri}: HTTP/2: Max outbound streams is 2, 2 open"):
                async with open_connection(uri, over=shared):
                    pass
        async with open_connection(uri, over=shared) as next_one:
            for connection in (one, next_one):
                assert (await connection.request_response(b"1", route="echo")).data == b"1"


async def test_what_is_open_as_the_shared_block_ends_is_lost() -> None:
    ended = trio.Event()

    async def stay(uri: str, shared: SharedConnection, *, task_status: trio.TaskStatus[None]) -> None:
        async with open_connection(uri, over=shared) as connection:
            await connection.request_response(b"", route="echo")
            task_status.started()
            await ended.wait()
            with pytest.raises(ConnectionLost):
                await connection.request_response(b"", route="echo")
        with pytest.raises(ConnectionLost, match="the block of open_shared has ended"):
            async with open_connection(uri, over=shared):
                pass

    async with served() as uri, trio.open_nursery() as nursery:
        async with open_shared(uri) as shared:
            await nursery.start(partial(stay, uri, shared))
        ended.set()


async def test_a_client_that_begins_nothing_is_closed_in_time(autojump_clock: MockClock) -> None:
    async with served("h2://127.0.0.1:0", limits=Limits(setup_timeout=3)) as uri:
        host, port = uri.removeprefix("h2://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            begun = trio.current_time()
            while await stream.receive_some():
                pass
            assert trio.current_time() - begun == pytest.approx(3, abs=1.1)
