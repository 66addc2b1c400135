"""A server that stops, by a signal too: what it accepted, and what waits to be accepted, is answered first."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio import (
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Rejected,
    Responder,
    open_connection,
    open_connection_over,
    run,
    serve,
    serve_stream,
)
from rsocket_trio.server.accept import ADMISSION_TIMEOUT, Server
from rsocket_trio.server.serve import serve_here, serve_options
from rsocket_trio.server.signals import STOP
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.listen import BoundListener, Inherited, open_listeners
from tests.cli.test_serve import until_it_drains
from tests.conformance import raw
from tests.connection.pairs import echo_responder
from tests.each_row import each_row, whole
from tests.programs import Running, program

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
        with pytest.raises(RuntimeError, match="a fault"):  # noqa: PT012
            async with server.open_handlers(GRACE) as handlers:
                handlers.start_soon(server.serve_one, ByteStreamTransport(theirs), trio.Event())
                assert await outcome(connection) == "answer"
                handlers.start_soon(fail)
                await trio.sleep_forever()

        assert isinstance(await connection.wait_closed(), ConnectionClosed)


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
