"""``serve --workers``: several processes on one port, replaced without a word to clients, and none left at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from rsocket_trio import ConnectionClosed, ConnectionLost, open_connection
from tests.cli.commands import Running, app_served, started
from tests.each_row import ALL_CASES, some

APP = """
import os
import sys
import time
from pathlib import Path

import trio
from rsocket_trio import Responder

if Path("deadly").exists():
    os._exit(3)

responder = Responder()
generation = Path("generation").read_text()

@responder.request_response
async def who(request):
    await trio.sleep(0.01)
    return f"{generation} {os.getpid()}"

@responder.request_response("block")
def block(request):
    print("blocked", file=sys.stderr, flush=True)
    time.sleep(1000)

@responder.request_channel
async def echo(channel):
    async for item in channel:
        await channel.send(item)

number = 5
"""
RESTARTS = 3 if ALL_CASES else 1
CONNECTIONS = 50 if ALL_CASES else 25
"""With each generation of workers."""
CLIENTS = 8 if ALL_CASES else 2


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A directory with the module ``app``."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "generation").write_text("1")
    return tmp_path


def become(app: Path, generation: str) -> None:
    """Have workers that start from now on be of this generation; none finds the file empty."""
    (app / "next").write_text(generation)
    (app / "next").replace(app / "generation")


async def ask(uri: str) -> tuple[str, int]:
    """The generation and the process that a new connection comes to."""
    async with open_connection(uri) as connection:
        generation, pid = (await connection.request_response()).text.split()
    return generation, int(pid)


async def ask_until(uri: str, count: int, *, without: frozenset[int] = frozenset()) -> set[int]:
    """Connect until so many processes have answered, beside those that are known."""
    found: set[int] = set()
    while len(found) < count:
        found |= {(await ask(uri))[1]} - without
    return found


async def gone(pid_descriptor: int) -> None:
    """Wait for the end of a process that is somebody else's child."""
    try:
        await trio.lowlevel.wait_readable(pid_descriptor)
    finally:
        os.close(pid_descriptor)


@asynccontextmanager
async def blocked(server: Running, uri: str) -> AsyncIterator[None]:
    """One worker does nothing but run a handler that does not end."""

    async def ask_for_it() -> None:
        try:
            async with open_connection(uri) as connection:
                await connection.request_response(route="block")
        except (ConnectionLost, ConnectionClosed):
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_for_it)
        assert await server.line("stderr") == "blocked"
        yield
        nursery.cancel_scope.cancel()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Restarting


@attrs.define
class Crowd:
    """Clients that connect and ask, one after the other, and what they were answered."""

    uri: str
    answers: list[tuple[str, int]] = attrs.field(factory=list)
    heard: trio.Condition = attrs.field(factory=trio.Condition)
    enough: bool = False

    async def keep_asking(self) -> None:
        while not self.enough:
            answer = await ask(self.uri)
            async with self.heard:
                self.answers.append(answer)
                self.heard.notify_all()

    async def until(self, generation: str, count: int) -> None:
        """Wait until so many answered, and somebody of this generation."""
        async with self.heard:
            while len(self.answers) < count or generation not in {each for each, _ in self.answers}:
                await self.heard.wait()


@pytest.mark.parametrize("scheme", ["tcp", "unix"] if ALL_CASES else ["tcp"])
async def test_no_connection_is_refused_or_cut_while_workers_are_replaced(scheme: str, app: Path) -> None:
    listen = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{app}/socket"
    async with app_served(app, "--listen", listen, "--workers", "2", "--grace", "60") as (server, (uri,)):
        crowd = Crowd(uri)
        async with open_connection(uri) as old, old.request_channel() as channel, trio.open_nursery() as nursery:
            await channel.send(b"before")
            assert (await anext(channel)).data == b"before"
            for _ in range(CLIENTS):
                nursery.start_soon(crowd.keep_asking)

            for restart in range(1, RESTARTS + 1):
                await crowd.until(str(restart), restart * CONNECTIONS)
                become(app, str(restart + 1))
                server.process.send_signal(signal.SIGHUP)
            await crowd.until(str(RESTARTS + 1), (RESTARTS + 1) * CONNECTIONS)
            crowd.enough = True

            await channel.send(b"after")
            assert (await anext(channel)).data == b"after"
            await channel.send_eof()
            assert [item async for item in channel] == []

        assert len(crowd.answers) >= (RESTARTS + 1) * CONNECTIONS
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == (0, "")
    assert [pid for _, pid in crowd.answers if lives(pid)] == []


async def test_new_workers_that_do_not_start_leave_the_old_ones_in_place(app: Path) -> None:
    async with app_served(app, "--listen", "tcp://127.0.0.1:0", "--workers", "1") as (server, (uri,)):
        before = await ask(uri)
        error = "ZeroDivisionError: division by zero"
        (app / "app.py").write_text("1 / 0\n")
        server.process.send_signal(signal.SIGHUP)

        line = await server.line("stderr")
        assert line.endswith("old ones go on: module 'app' failed while it was imported: app.py line 1: " + error)
        assert await ask(uri) == before


# Deaths


async def test_a_worker_that_is_killed_is_replaced(app: Path) -> None:
    async with app_served(app, "--listen", "tcp://127.0.0.1:0", "--workers", "2") as (server, (uri,)):
        known = await ask_until(uri, 2)
        victim = min(known)
        os.kill(victim, signal.SIGKILL)

        line = await server.line("stderr")
        assert line.endswith(f"worker {victim} ended: SIGKILL; the next one is started in 0.1 seconds")
        await ask_until(uri, 1, without=frozenset(known))


# Ends


async def test_a_worker_that_is_stuck_is_killed_after_the_grace_period(app: Path) -> None:
    listen = ("--listen", "tcp://127.0.0.1:0", "--workers", "1", "--grace", "0")
    async with app_served(app, *listen) as (server, (uri,)), blocked(server, uri):
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == (0, "")


@pytest.mark.parametrize("stuck", some([True, False], 1), ids=lambda stuck: "stuck in a handler" if stuck else "idle")
async def test_workers_go_when_their_supervisor_is_killed(stuck: bool, app: Path) -> None:
    listen = ("--listen", "tcp://127.0.0.1:0", "--workers", "2", "--grace", "0")
    async with app_served(app, *listen) as (server, (uri,)), AsyncExitStack() as stack:
        workers = [os.pidfd_open(pid) for pid in await ask_until(uri, 2)]
        if stuck:
            await stack.enter_async_context(blocked(server, uri))
        server.process.kill()
        for worker in workers:
            await gone(worker)


@pytest.mark.parametrize("number", some([signal.SIGKILL, signal.SIGTERM], 1), ids=lambda number: number.name)
async def test_workers_that_still_import_go_at_once(number: signal.Signals, app: Path) -> None:
    (app / "app.py").write_text("import os, sys, time\nprint(os.getpid(), file=sys.stderr)\ntime.sleep(1000)\n")
    async with started("serve", "app:responder", "--listen", "tcp://127.0.0.1:0", "--workers", "1", cwd=app) as server:
        worker = os.pidfd_open(int(await server.line("stderr")))
        server.process.send_signal(number)
        assert await server.end() == (0 if number == signal.SIGTERM else -number, "")
        await gone(worker)
