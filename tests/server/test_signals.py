"""SIGINT and SIGTERM: ``run`` and ``serve(signals=True)`` as programs, which a signal ends in good order."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio import (
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Responder,
    open_connection,
    run,
    serve,
)
from rsocket_trio.server.options import ServeOptions
from rsocket_trio.server.signals import STOP
from tests.cli.test_serve import until_it_drains
from tests.each_row import whole
from tests.programs import Running, program

APP = """
import time
import trio
from rsocket_trio import Responder, run, serve

responder = Responder()

@responder.request_response
def ask(request):
    return b"answer"

@responder.request_channel
async def echo(channel):
    try:
        async for item in channel:
            await channel.send(item)
    finally:
        print("the handler is over", flush=True)

@responder.request_response("block")
def block(request):
    print("blocked", flush=True)
    while True:
        time.sleep(1000)
"""
RUN = 'run(responder, "{uri}", grace={grace})\nprint("after", flush=True)\n'
RUN_WORKERS = 'run("app:responder", "{uri}", grace={grace}, workers=2)\nprint("after", flush=True)\n'
IN_A_NURSERY = """
from functools import partial

async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, responder, "{uri}", grace={grace}, signals=True))
        print("ready", flush=True)
    print("after", flush=True)

trio.run(main)
"""
PROGRAMS = {"run": RUN, "run with workers": RUN_WORKERS, "serve in a nursery": IN_A_NURSERY}
IN_THE_BACKGROUND = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
"""How a program begins that a shell without job control started with ``&``."""


@asynccontextmanager
async def server_program(
    folder: Path, source: str, *, grace: float = 1000, background: bool = False
) -> AsyncIterator[tuple[Running, str]]:
    """A program with the handlers of ``APP``, and where it listens: a Unix socket, which appears once it is bound."""
    uri = f"unix://{folder / 'socket'}"
    start = IN_THE_BACKGROUND if background else ""
    (folder / "app.py").write_text(APP)
    (folder / "main.py").write_text(start + "from app import *\n" + source.format(uri=uri, grace=grace))
    async with program("main.py", cwd=folder) as running:
        yield running, uri


@asynccontextmanager
async def connected(uri: str) -> AsyncIterator[Connection]:
    """A connection to a program that may not listen yet."""
    while True:
        try:
            async with open_connection(uri) as connection:
                await connection.request_response()
                yield connection
                return
        except ConnectionLost as error:
            if not isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
                raise
        await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("source", "background", "number"),
    [
        # Each pair of values once.
        pytest.param(RUN, False, signal.SIGINT, id="run-SIGINT"),
        pytest.param(RUN, True, signal.SIGTERM, id="run-background-SIGTERM"),
        pytest.param(RUN_WORKERS, False, signal.SIGTERM, id="workers-SIGTERM"),
        pytest.param(RUN_WORKERS, True, signal.SIGINT, id="workers-background-SIGINT", marks=whole),
        pytest.param(IN_A_NURSERY, False, signal.SIGTERM, id="nursery-SIGTERM"),
        pytest.param(IN_A_NURSERY, True, signal.SIGINT, id="nursery-background-SIGINT"),
    ],
)
async def test_the_first_signal_lets_open_streams_finish_and_the_program_go_on(
    source: str, background: bool, number: signal.Signals, tmp_path: Path
) -> None:
    async with server_program(tmp_path, source, background=background) as (server, uri):
        async with connected(uri) as connection, connection.request_channel() as channel:
            await channel.send(b"before")
            assert (await anext(channel)).data == b"before"

            server.process.send_signal(number)
            await until_it_drains(connection)

            await channel.send(b"after")
            assert (await anext(channel)).data == b"after"
            await channel.send_eof()
            assert [item async for item in channel] == []
        said = [line async for line in lines(server)]
        assert await server.end() == (0, "")
    assert said == [*(["ready"] if source is IN_A_NURSERY else []), "the handler is over", "after"]


async def lines(running: Running) -> AsyncIterator[str]:
    """Everything that a program still says."""
    while line := await running.line():
        yield line


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
async def test_what_does_not_finish_is_cancelled_after_the_grace_period(source: str, tmp_path: Path) -> None:
    async with server_program(tmp_path, source, grace=0) as (server, uri):
        async with connected(uri) as connection, connection.request_channel() as channel:
            await channel.send(b"before")
            assert (await anext(channel)).data == b"before"
            server.process.send_signal(signal.SIGTERM)
            assert isinstance(await connection.wait_closed(), ConnectionClosed | ConnectionLost)
        assert [line async for line in lines(server)][-2:] == ["the handler is over", "after"]
        assert await server.end() == (0, "")


@pytest.mark.parametrize(
    ("source", "first", "second"),
    [
        pytest.param(RUN, signal.SIGINT, signal.SIGINT, id="run-SIGINT-SIGINT"),
        pytest.param(RUN, signal.SIGTERM, signal.SIGTERM, id="run-SIGTERM-SIGTERM"),
        pytest.param(IN_A_NURSERY, signal.SIGINT, signal.SIGTERM, id="nursery-SIGINT-SIGTERM"),
        pytest.param(IN_A_NURSERY, signal.SIGTERM, signal.SIGINT, id="nursery-SIGTERM-SIGINT"),
    ],
)
async def test_a_second_signal_ends_a_server_whose_loop_is_blocked(
    source: str, first: signal.Signals, second: signal.Signals, tmp_path: Path
) -> None:
    async with (
        server_program(tmp_path, source) as (server, uri),
        connected(uri) as connection,
        trio.open_nursery() as nursery,
    ):

        @nursery.start_soon
        async def ask() -> None:
            with pytest.raises(ConnectionLost):
                await connection.request_response(route="block")

        while await server.line() != "blocked":
            continue
        server.process.send_signal(first)
        await until_handled(server.process.pid)
        assert server.process.returncode is None
        server.process.send_signal(second)
        assert await server.end() == (-second, "")


async def until_handled(pid: int) -> None:
    """Wait until no signal is pending for a process whose loop is blocked: so its handler was called."""
    while True:
        if not signals_pending(pid):
            return
        await trio.sleep(0.001)


def signals_pending(pid: int) -> bool:
    """Return whether a process that sleeps has a signal to handle, or is awake to handle it."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(pending) or "State:\tS" not in status


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS)
async def test_a_second_signal_does_not_wait_for_the_grace_period(source: str, tmp_path: Path) -> None:
    async with (
        server_program(tmp_path, source) as (server, uri),
        connected(uri) as connection,
        connection.request_channel() as channel,
    ):
        await channel.send(b"before")
        await anext(channel)
        server.process.send_signal(signal.SIGTERM)
        await until_it_drains(connection)
        server.process.send_signal(signal.SIGTERM)
        assert (await server.end())[0] == -signal.SIGTERM


@pytest.mark.parametrize("start", [run, serve], ids=["run", "serve"])
def test_signals_outside_of_the_main_thread_are_a_clear_error(start: Callable[..., Any]) -> None:
    errors: list[RuntimeError] = []

    def work() -> None:
        try:
            if start is run:
                run(Responder(), "memory://threaded")
            else:
                trio.run(partial(serve, Responder(), "memory://threaded", signals=True))
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert ["main thread only" in str(error) for error in errors] == [True]


@pytest.mark.parametrize("uri", ["unix:///nowhere/at/all", "nonsense"])
def test_what_cannot_be_served_travels_as_it_is_and_handlers_of_signals_are_as_before(uri: str) -> None:
    before = [signal.getsignal(number) for number in STOP]

    with pytest.raises(OSError if "unix" in uri else ValueError, match=uri.rpartition("/")[2]):
        run(Responder(), uri)

    assert [signal.getsignal(number) for number in STOP] == before


async def test_a_signal_is_for_every_server_of_the_program() -> None:
    before = [signal.getsignal(number) for number in STOP]
    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            await nursery.start(partial(serve, Responder(), f"memory://{name}", signals=True))
        os.kill(os.getpid(), signal.SIGTERM)

    assert [signal.getsignal(number) for number in STOP] == before


class StopAtOnce(logging.Handler):
    """Stops the server of ``run`` by a signal once it listens, and notes the collector's thresholds then."""

    def __init__(self, count: int) -> None:
        super().__init__(logging.INFO)
        self.count = count
        self.lines: list[tuple[str, str]] = []
        self.thresholds: tuple[int, ...] = ()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "listening %s":
            self.lines.append((record.levelname, record.getMessage()))
            self.thresholds = gc.get_threshold()
            if len(self.lines) == self.count:
                os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def at_once() -> Iterator[StopAtOnce]:
    handler, logger = StopAtOnce(2), logging.getLogger("rsocket_trio")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


class Terminal(StringIO):
    """A stderr that is a terminal, or is none."""

    def __init__(self, is_one: bool) -> None:
        super().__init__()
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one


@pytest.mark.parametrize("is_terminal", [True, False])
def test_run_says_where_it_listens_with_the_ports_that_it_bound(
    is_terminal: bool, at_once: StopAtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = Terminal(is_terminal)
    monkeypatch.setattr("sys.stderr", stderr)

    run(Responder(), ["tcp://127.0.0.1:0", "memory://said"])

    (info, first), second = at_once.lines
    assert info == "INFO"
    assert re.fullmatch(r"listening tcp://127\.0\.0\.1:[1-9]\d+", first)
    assert second == ("INFO", "listening memory://said")
    assert stderr.getvalue() == (f"{first}\nlistening memory://said\n" if is_terminal else "")


# fmt: off
# fmt: on


def test_run_takes_what_serve_takes() -> None:
    taken = set(inspect.signature(serve).parameters) - {"responder", "uris", "signals", "task_status"}

    assert set(ServeOptions.__annotations__) == taken
