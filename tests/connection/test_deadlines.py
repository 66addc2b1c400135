"""One task rings for all deadlines, and after a stall nobody is judged before what came was read."""

from __future__ import annotations

import math
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Keepalive, Payload, Responder, open_connection_over, serve
from rsocket_trio.connection.deadlines import BATCH, LATE_READ_LIMIT, SLACK, Deadlines, Timeout, Timer
from rsocket_trio.testing import deterministic_scheduling
from tests.conformance import raw
from tests.connection.pairs import settle
from tests.each_row import each_row


class Bell(Timer):
    """Remembers when it rang, and may want to ring again."""

    def __init__(self, deadlines: Deadlines, started: float, every: float = 0.0) -> None:
        super().__init__()
        self._started = started
        self.rang: list[float] = []
        self._deadlines = deadlines
        self._every = every

    def expire(self, now: float) -> None:
        self.rang.append(now - self._started)
        if self._every:
            self._deadlines.set(self, now + self._every)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Deadlines, float]]:
    """Deadlines at work, and the time now."""
    deadlines = Deadlines()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        await settle()
        yield deadlines, trio.current_time()
        nursery.cancel_scope.cancel()


async def test_others_run_between_portions_of_those_that_ring_at_once(autojump_clock: MockClock) -> None:
    rounds: list[int] = []
    async with running() as (deadlines, started), trio.open_nursery() as nursery:
        bells = [Bell(deadlines, started) for _ in range(3 * BATCH)]
        for bell in bells:
            deadlines.set(bell, started + 1)

        async def watch() -> None:
            await trio.sleep_until(started + 1)
            while not bells[-1].rang:
                rounds.append(sum(len(bell.rang) for bell in bells))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(watch)

    assert BATCH in rounds or 2 * BATCH in rounds


async def test_connections_that_come_and_go_leave_no_entries_for_deadlines_that_never_come(
    autojump_clock: MockClock,
) -> None:
    async with running() as (deadlines, started):
        for _ in range(10_000):
            bell = Bell(deadlines, started)
            deadlines.set(bell, started + 90)
            deadlines.clear(bell)
        assert len(deadlines._heap) <= SLACK + 1


async def test_a_task_that_waits_refers_to_no_timer_that_has_expired(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        bell = Bell(deadlines, started)
        deadlines.set(bell, started + 1)
        await trio.sleep(2)
        assert bell.rang == [1]
        reference = weakref.ref(bell)
        del bell
        assert reference() is None


# Judgements


class PeerTimer(Bell):
    """Gives somebody up who was not heard of for so long."""

    def __init__(self, deadlines: Deadlines, started: float, patience: float = 1.0) -> None:
        super().__init__(deadlines, started)
        self.heard = started
        self.patience = patience
        self.unread = False
        self.judged: list[float] = []
        deadlines.set(self, started + patience)

    @property
    def has_unread(self) -> bool:
        return self.unread

    def overdue_since(self, now: float) -> float:
        over = self.heard + self.patience
        return over if over <= now else math.inf

    def expire(self, now: float) -> None:
        super().expire(trio.current_time())
        if self.overdue_since(now) <= now:
            self.judged.append(trio.current_time())
        else:
            self._deadlines.set(self, self.heard + self.patience)


async def test_whoever_reads_gets_turns_before_a_judgement_that_comes_late(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        judges = [PeerTimer(deadlines, started) for _ in range(40)]
        read = [judge for number, judge in enumerate(judges) if number % 4]

        async def listen() -> None:
            for turn in range(6):  # as many as a TLS connection takes, and more than a plain one
                await trio.lowlevel.checkpoint()
                del turn
            for judge in read:
                judge.heard = trio.current_time()

        autojump_clock.jump(2.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
        await settle()

        silent = [judge for judge in judges if judge not in read]
        assert [judge.judged for judge in silent] == [[started + 2.5]] * 10
        assert not any(judge.judged for judge in read)
        await trio.sleep(5)

    assert [judge.judged for judge in read] == [[started + 3.5]] * 30


@each_row(("late", "more"), [(0.0, 0.0), (0.3, 0.3), (30.0, LATE_READ_LIMIT)])
async def test_of_who_has_more_to_be_read_a_late_judgement_waits_but_not_for_ever(
    late: float, more: float, autojump_clock: MockClock
) -> None:
    async with running() as (deadlines, started):
        judge = PeerTimer(deadlines, started)
        judge.unread = True
        autojump_clock.jump(1 + late)
        await trio.sleep(5)

    assert judge.judged == [pytest.approx(started + 1 + late + more)]
    assert not deadlines._put_off


# Blocks with a deadline


async def test_a_block_gets_back_some_of_the_time_that_its_deadline_came_late_by(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        with Timeout(deadlines, started + 3) as patience:
            autojump_clock.jump(3.4)
            await trio.sleep(0.3)
        assert not patience.scope.cancel_called

        with Timeout(deadlines, trio.current_time() + 3) as patience:
            began = trio.current_time()
            autojump_clock.jump(3.4)
            await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(began + 3.8)


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
