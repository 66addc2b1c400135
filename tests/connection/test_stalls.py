"""A process that stalls finds what its peers said in time in its sockets, and reads it before it judges anybody."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import trio
from trio.testing import MockClock

from rsocket_trio import (
    Keepalive,
    Payload,
    Responder,
    ResumeOptions,
    open_connection_over,
    serve,
)
from rsocket_trio.testing import deterministic_scheduling
from tests.conformance import raw
from tests.connection.pairs import settle
from tests.each_row import each_row

Dial = Callable[..., Awaitable[socket.socket]]
LIFETIME = 1.5
STALL = 2.5
CLIENTS = 40
SETUP = raw.prefixed(raw.setup(keepalive=500, lifetime=1500))
BEAT, BEATEN = raw.prefixed(raw.keepalive()), raw.prefixed(raw.keepalive(respond=False))


class Says(Protocol):
    def sendall(self, data: bytes, /) -> None: ...


class Stalling(Responder):
    """Blocks the loop for ``seconds`` when it is told to; meanwhile ``others`` go on."""

    def __init__(self, clock: MockClock, seconds: float = STALL) -> None:
        super().__init__()
        self.others: Callable[[], object] = lambda: None

        @self.fire_and_forget
        def stall(request: Payload) -> None:
            clock.jump(seconds / 2)
            self.others()
            clock.jump(seconds / 2)

        @self.request_response
        def echo(request: Payload) -> Payload:
            return request


@asynccontextmanager
async def serving(responder: Responder, *uris: str, **options: Any) -> AsyncIterator[Any]:
    """The port of a server of ours, or those of its listeners."""
    async with trio.open_nursery() as nursery:
        wanted = uris or ("tcp://127.0.0.1:0",)
        bound = await nursery.start(partial(serve, responder, wanted, grace=0, **options))
        ports = [int(uri.rpartition(":")[2].strip("/")) for uri in bound]
        yield ports[0] if len(ports) == 1 else ports
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def dialling(port: int) -> AsyncIterator[Dial]:
    """Dials clients that nothing runs for: each says what it is given, and more whenever a test wants it to."""
    with ExitStack() as stack:

        async def dial(said: bytes = b"", at: int = port) -> socket.socket:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", at)))
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(said)
            await settle()
            return client

        yield dial


def say(clients: Iterable[Says], data: bytes) -> None:
    """Have each of them say this."""
    for client in clients:
        client.sendall(data)


async def heard(client: socket.socket) -> bytes:
    """Return what has come, and nothing at the end."""
    await settle()
    try:
        return client.recv(65536)
    except BlockingIOError:
        return b"nothing yet"


@each_row("seed", range(3))
async def test_of_forty_clients_whose_keepalives_lie_in_the_sockets_none_is_taken_for_dead(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock)
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            clients = [await dial(SETUP) for _ in range(CLIENTS)]
            responder.others = lambda: say(clients, BEAT)
            clients[seed].sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert [await heard(client) for client in clients] == [BEATEN] * CLIENTS
            await trio.sleep(LIFETIME - 0.01)
            assert [await heard(client) for client in clients] == [b"nothing yet"] * CLIENTS


@each_row("seed", range(3))
async def test_who_was_silent_while_the_server_stalled_is_told_as_soon_as_it_goes_on(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock)
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            clients = [await dial(SETUP) for _ in range(CLIENTS)]
            live = clients[::3]
            responder.others = lambda: say(live, BEAT)
            began = trio.current_time()
            live[0].sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert trio.current_time() == began + STALL
            for client in clients:
                said = await heard(client)
                if client in live:
                    assert said == BEATEN
                else:
                    assert raw.parsed(said[3:]).error_code == raw.CONNECTION_ERROR
                    assert b"no frame came for 1.5 s" in said


@each_row("seed", range(3))
async def test_a_keepalive_behind_a_large_frame_counts(seed: int, autojump_clock: MockClock) -> None:
    responder = Stalling(autojump_clock)
    large = raw.prefixed(raw.frame(raw.EXT, raw.I, 0, raw.u32(1) + bytes(1_500_000)))
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            clients = [await dial(SETUP) for _ in range(4)]

            def pour() -> None:
                for client in clients:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(large))
                    client.sendall(large + BEAT)

            responder.others = pour
            clients[0].sendall(raw.prefixed(raw.forget(1)))
            await trio.sleep(1)
            assert [await heard(client) for client in clients] == [BEATEN] * 4


# Beginnings


@each_row("seed", range(3))
async def test_whose_setup_came_while_the_server_stalled_is_let_in(seed: int, autojump_clock: MockClock) -> None:
    responder = Stalling(autojump_clock, 30)
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            first = await dial(SETUP)
            late = [await dial(SETUP[:number]) for number in range(10)]
            await trio.sleep(1)

            def go_on() -> None:
                for number, client in enumerate(late):
                    client.sendall(SETUP[number:] + BEAT)

            responder.others = go_on
            first.sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert [await heard(client) for client in late] == [BEATEN] * 10


# Clients


@asynccontextmanager
async def asked(keepalive: Keepalive) -> AsyncIterator[tuple[socket.socket, Callable[[], object]]]:
    """A server of bytes, and what asks our client whether it is connected."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    async with open_connection_over(
        trio.SocketStream(trio.socket.from_stdlib_socket(ours)),
        keepalive=keepalive,
    ) as connection:
        await settle()
        theirs.recv(65536)
        yield theirs, lambda: connection.status
    theirs.close()


BEATS = Keepalive(interval=0.5, max_lifetime=LIFETIME)


async def test_a_client_that_stalls_reads_what_its_server_said_meanwhile(autojump_clock: MockClock) -> None:
    async with asked(BEATS) as (server, status):
        autojump_clock.jump(1)
        server.sendall(BEATEN)
        autojump_clock.jump(1)
        await settle()
        assert status() == "open"


async def test_a_server_that_was_not_asked_while_its_client_stalled_is_asked_first(autojump_clock: MockClock) -> None:
    async with asked(BEATS) as (server, status):
        autojump_clock.jump(10)
        await settle()
        assert server.recv(65536).endswith(BEAT)
        await trio.sleep(LIFETIME - BEATS.interval - 0.01)
        assert status() == "open"
        server.sendall(BEATEN)
        await trio.sleep(LIFETIME - 0.02)
        assert status() == "open"


async def test_stalls_without_end_keep_no_dead_server_alive(autojump_clock: MockClock) -> None:
    async with asked(BEATS) as (_, status):
        began = trio.current_time()
        while status() == "open":
            autojump_clock.jump(0.7)
            await trio.sleep(0.001)
        assert trio.current_time() - began < 5 * LIFETIME


# Sessions


@each_row("seed", range(3))
async def test_a_session_whose_client_came_back_while_the_server_stalled_goes_on(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock, 10)
    token = b"0123456789abcdef"
    with deterministic_scheduling(seed):
        options = ResumeOptions(session_seconds=5)
        async with serving(responder, resume=options) as port, dialling(port) as dial:
            other = await dial(SETUP)
            (await dial(raw.prefixed(raw.setup(token=token)))).close()
            await trio.sleep(1)
            back: list[socket.socket] = []

            def come_back() -> None:
                back.append(socket.create_connection(("127.0.0.1", port)))
                back[0].setblocking(False)
                back[0].sendall(raw.prefixed(raw.resume(token=token)))

            responder.others = come_back
            other.sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert raw.parsed((await heard(back[0]))[3:]).type == raw.RESUME_OK
            back[0].close()
