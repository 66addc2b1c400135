"""A server that stops: what it accepted, and what waits to be accepted, is answered before it closes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio import (
    Connection,
    ConnectionClosed,
    Rejected,
    Responder,
    open_connection,
    open_connection_over,
    serve_stream,
)
from rsocket_trio.connection.connection import ADMISSION_TIMEOUT
from rsocket_trio.server.accept import Server
from rsocket_trio.server.options import serve_options
from rsocket_trio.server.serve import serve_here
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.listen import BoundListener, Inherited, open_listeners
from tests.conformance import raw
from tests.connection.pairs import echo_responder
from tests.each_row import each_row

WAITING = 40
"""Clients that wait: more than are taken in a row."""
GRACE = 5.0


async def outcome(connection: Connection) -> str:
    """Return what a request comes to."""
    try:
        return (await connection.request_response(b"answer")).text
    except Rejected:
        return "Rejected"


class StopsAtOnce:
    """Cancels a server as soon as it reports its URIs: it has accepted nothing by then."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()

    def started(self, value: list[str]) -> None:
        self.scope.cancel()


@asynccontextmanager
async def stoppable(server: Callable[..., Awaitable[Any]]) -> AsyncIterator[tuple[Any, trio.CancelScope]]:
    """Run a server beside the block. Yield what it reports, and the scope that stops it."""
    scope = trio.CancelScope()

    async def run(task_status: trio.TaskStatus[Any]) -> None:
        with scope:
            await server(task_status=task_status)

    async with trio.open_nursery() as nursery:
        yield await nursery.start(run), scope
        scope.cancel()


@asynccontextmanager
async def bare(
    responder: Responder, dialects: tuple[str, ...] = (), grace: float = GRACE
) -> AsyncIterator[tuple[raw.RawPeer, trio.CancelScope]]:
    """Yield a client made of bytes that connected to a server, and the scope that stops the server."""
    options: dict[str, Any] = {"dialects": dialects} if dialects else {}
    ours, theirs = trio.testing.memory_stream_pair()
    async with stoppable(partial(serve_stream, responder, theirs, grace=grace, **options)) as (_, scope):
        yield raw.RawPeer(ours), scope
        await ours.aclose()


async def stop_at_once(listeners: Callable[[], Awaitable[Any]], **options: Any) -> None:
    """Serve on these listeners, whose clients wait already, and stop before the first is accepted."""
    status: Any = StopsAtOnce()
    with status.scope:
        await serve_here(echo_responder(), listeners, serve_options(**options), task_status=status)
    assert status.scope.cancelled_caught


@pytest.mark.parametrize("scheme", ["tcp", "unix", "ws", "h2", "memory"])
async def test_clients_that_wait_when_a_server_stops_are_accepted_and_answered(scheme: str, tmp_path: Path) -> None:
    uri = {"unix": f"unix://{tmp_path}/s", "memory": "memory://waiting"}.get(scheme, f"{scheme}://127.0.0.1:0")
    opened = await open_listeners([uri])
    outcomes: list[str] = []

    async def listeners() -> list[BoundListener]:
        return opened

    async def ask() -> None:
        async with open_connection(opened[0].uri) as connection:
            outcomes.append(await outcome(connection))

    async with trio.open_nursery() as nursery:
        for _ in range(WAITING):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        await stop_at_once(listeners)

    # The first ones may ask before the last one is accepted.
    assert len(outcomes) == WAITING
    assert set(outcomes) <= {"answer", "Rejected"}


async def test_a_worker_that_retires_leaves_those_that_wait_to_the_others() -> None:
    (bound,) = await open_listeners(["tcp://127.0.0.1:0"])
    endpoint, (descriptor,) = bound.to_inherit().endpoint, bound.to_inherit().descriptors
    retiring = trio.Event()

    async def listeners() -> list[BoundListener]:
        return [Inherited(endpoint, (os.dup(descriptor),)).listener({})]

    async def ask() -> None:
        async with open_connection(bound.uri) as connection:
            assert await outcome(connection) == "answer"

    retires = partial(serve_here, echo_responder(), listeners, serve_options(), retiring=retiring)
    async with stoppable(retires) as (_, old), trio.open_nursery() as asking:
        await ask()
        retiring.set()
        await wait_all_tasks_blocked()
        for _ in range(WAITING):
            asking.start_soon(ask)
        await wait_all_tasks_blocked()
        old.cancel()
        await wait_all_tasks_blocked()
        async with stoppable(partial(serve_here, echo_responder(), listeners, serve_options())):
            while len(asking.child_tasks):
                await trio.lowlevel.checkpoint()
    await bound.aclose()


# Clients that were accepted, and have not begun


@each_row(("dialects", "size"), [((), 0), ((), 5), (("rsocket/1.0",), 0), (("rsocket/1.0",), 5)])
async def test_a_client_sends_its_setup_while_the_server_drains_and_is_rejected(
    dialects: tuple[str, ...], size: int, autojump_clock: MockClock
) -> None:
    said = raw.prefixed(raw.setup(), raw.ask(1))
    async with bare(echo_responder(), dialects) as (peer, server):
        await peer.send_bytes(said[:size])
        await wait_all_tasks_blocked()
        server.cancel()
        await trio.sleep(GRACE * 0.9)
        await peer.send_bytes(said[size:])
        await peer.expect_error(1, raw.REJECTED)


@each_row(("grace", "seconds"), [(GRACE, GRACE), (0.0, ADMISSION_TIMEOUT)])
@each_row("dialects", [(), ("rsocket/1.0",)], ids=["all dialects", "one dialect"])
async def test_a_client_that_stays_silent_is_closed_when_the_grace_period_is_over(
    grace: float, seconds: float, dialects: tuple[str, ...], autojump_clock: MockClock
) -> None:
    async with bare(echo_responder(), dialects, grace) as (peer, server):
        await wait_all_tasks_blocked()
        server.cancel()
        begun = trio.current_time()
        assert await peer.stream.receive_some() == b""
        assert trio.current_time() == pytest.approx(begun + seconds)


# The server's own tasks


async def test_a_task_that_fails_ends_the_server_and_the_others_are_drained(autojump_clock: MockClock) -> None:
    server = Server(echo_responder(), serve_options())
    ours, theirs = trio.testing.memory_stream_pair()

    async def fail() -> None:
        raise RuntimeError("a fault")

    async with open_connection_over(ours) as connection:
        with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
            async with server.open_handlers(GRACE) as handlers:
                handlers.start_soon(server.serve_one, ByteStreamTransport(theirs), trio.Event())
                assert await outcome(connection) == "answer"
                handlers.start_soon(fail)
                await trio.sleep_forever()

        assert isinstance(await connection.wait_closed(), ConnectionClosed)
