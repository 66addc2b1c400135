"""Failures of handlers are heard: a traceback for each new one, ``on_error`` for all; a fault costs one connection."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Call,
    Canceled,
    Connection,
    ConnectionLost,
    Invalid,
    Keepalive,
    Lease,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    current_connection,
    open_connection,
    open_connection_over,
    serve,
)
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.fault_log import MAX_KINDS, REPEATS_INTERVAL, FailureLog, kind_of
from rsocket_trio.rsocket.dialect import DIALECTS
from rsocket_trio.server.accept import Server
from rsocket_trio.testing import connected_pair as simulated_pair
from tests.connection.pairs import connected_pair, settle, silent
from tests.connection.resuming import OPTIONS, Network
from tests.each_row import each_row
from tests.serving import running_server


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Logged]:
    """What the log says of failures."""
    with caplog.at_level(logging.ERROR):
        yield Logged(caplog)


class Logged:
    """The error records of the log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def tracebacks(self) -> list[BaseException]:
        """The exceptions that were logged with their tracebacks."""
        return [record.exc_info[1] for record in self._caplog.records if record.exc_info and record.exc_info[1]]

    @property
    def lines(self) -> list[str]:
        """Return what was logged without."""
        return [record.getMessage() for record in self._caplog.records if not record.exc_info]


async def ask(connection: Connection, data: bytes = b"", route: str | None = None, *, times: int = 1) -> None:
    """Ask what fails."""
    for _ in range(times):
        with pytest.raises(ApplicationError, match="internal error"):
            await connection.request_response(data, route=route)


def failing() -> Responder:
    responder = Responder()

    @responder.request_response
    async def either(request: Payload) -> bytes:
        if request.data == b"key":
            raise KeyError(request.data)
        if request.data == b"value":
            raise ValueError("one")
        raise ValueError("another")

    @responder.request_response("inline")
    def at_once(request: Payload) -> bytes:
        raise ValueError("at once")

    return responder


# The log


async def test_a_second_and_different_failure_of_a_handler_has_its_traceback_too(
    logged: Logged, autojump_clock: MockClock
) -> None:
    async with connected_pair(failing()) as pair:
        for data in (b"key", b"value", b"other"):
            await ask(pair.client, data, times=3)
        await ask(pair.client, route="inline", times=3)
        assert pair.server.faults.handler_errors == 12

    assert [str(error) for error in logged.tracebacks] == ["b'key'", "one", "another", "at once"]
    assert logged.lines == []


async def test_the_connections_of_a_server_share_their_log_and_its_end_tells_the_rest(
    logged: Logged, autojump_clock: MockClock
) -> None:
    async with running_server(failing(), "memory://shared"):
        for _ in range(5):
            async with open_connection("memory://shared") as connection:
                await ask(connection, b"key", times=2)
        assert len(logged.tracebacks) == 1
        assert logged.lines == []
    (line,) = logged.lines
    assert line.startswith("failed again, 9 times: ")


async def test_a_clients_own_handlers_are_heard_and_its_end_tells_the_rest(
    logged: Logged, autojump_clock: MockClock
) -> None:
    async with connected_pair(client_responder=failing()) as pair:
        await ask(pair.server, b"key", times=4)
    assert len(logged.tracebacks) == 1
    assert [line.partition(":")[0] for line in logged.lines] == ["failed again, 3 times"]


async def test_the_log_keeps_no_exception_and_no_frame(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(logging.getLogger("rsocket_trio"), "disabled", True)  # records keep exceptions, too

    class Kept:
        """What a frame of a handler refers to."""

    responder = Responder()
    kept: list[weakref.ref[Kept]] = []

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        local = Kept()
        kept.append(weakref.ref(local))
        raise ValueError("bad day")

    async with connected_pair(responder) as pair:
        await ask(pair.client, times=3)
        gc.collect()
        assert [each() for each in kept] == [None] * 3


# What is told on purpose is no failure


@pytest.mark.parametrize("error", [ApplicationError, Rejected, Canceled, Invalid])
async def test_what_a_handler_tells_its_peer_is_no_failure(
    error: type[ApplicationError | Rejected | Canceled | Invalid], logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[Exception] = []
    responder.on_error(lambda error, call: heard.append(error))

    @responder.request_response
    @responder.fire_and_forget
    async def refuse(request: Payload) -> bytes:
        raise error("no")

    @responder.request_response("inline")
    @responder.fire_and_forget("inline")
    def refuse_at_once(request: Payload) -> bytes:
        raise error("no")

    @responder.request_stream
    async def refuse_items(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        raise error("no")

    @responder.metadata_push
    def refuse_metadata(metadata: bytes) -> None:
        raise error("no")

    async with connected_pair(responder) as pair:
        for route in (None, "inline"):
            with pytest.raises(error):
                await pair.client.request_response(route=route)
            await pair.client.fire_and_forget(route=route)
        async with pair.client.request_stream() as items:
            await anext(items)
            with pytest.raises(error):
                await anext(items)
        await pair.client.metadata_push(b"x")
        await pair.client.ping()
        assert pair.server.faults.handler_errors == 0
    assert (logged.tracebacks, logged.lines, heard) == ([], [], [])


async def test_an_error_that_says_so_is_told_to_the_peer_and_is_a_failure_as_well(
    logged: Logged, autojump_clock: MockClock
) -> None:
    class Broken(ApplicationError):
        is_fault = True

    responder = Responder()
    heard: list[Exception] = []
    responder.on_error(lambda error, call: heard.append(error))

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        raise Broken("the disk is full", code=0x400)

    async with connected_pair(responder) as pair:
        with pytest.raises(ApplicationError, match="the disk is full") as caught:
            await pair.client.request_response()
        assert caught.value.code == 0x400
        assert pair.server.faults.handler_errors == 1
    assert [type(error) for error in heard] == [Broken]
    assert len(logged.tracebacks) == 1


# Every kind of handler, and on_error


def boom(*_: object) -> Any:
    """A function at fault, as handlers call them."""
    raise ValueError("boom")


async def boom_later(*_: object) -> Any:
    """The same, as an async handler."""
    boom()


Ask = Callable[[Connection, str], Awaitable[object]]


async def first_of(connection: Connection, route: str) -> object:
    async with connection.request_stream(route=route) as items:
        return await anext(items)


async def first_said(connection: Connection, route: str) -> object:
    async with connection.request_channel(route=route) as channel:
        return await anext(channel)


FORMS: list[tuple[str, str, Ask]] = [
    ("async", "request_response", lambda one, route: one.request_response(route=route)),
    ("plain", "request_response", lambda one, route: one.request_response(route=route)),
    ("generator", "request_stream", first_of),
    ("channel", "request_channel", first_said),
    ("note", "fire_and_forget", lambda one, route: one.fire_and_forget(route=route)),
]


async def test_a_failure_of_any_request_handler_is_logged_counted_and_reported(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[tuple[str | None, str, Connection]] = []
    responder.on_error(lambda error, call: heard.append((call.route, call.interaction, call.connection)))
    responder.request_response("async")(boom_later)
    responder.request_response("plain")(boom)
    responder.request_channel("channel")(boom_later)
    responder.fire_and_forget("note")(boom_later)

    @responder.request_stream("generator")
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        boom()
        yield b""

    async with connected_pair(responder) as pair:
        for route, _, request_one in FORMS * 3:
            try:
                await request_one(pair.client, route)
            except ApplicationError as told:
                assert told.text == "internal error"  # noqa: PT017
            await settle()
        assert pair.server.faults.handler_errors == 3 * len(FORMS)
        assert heard == [(route, interaction, pair.server) for route, interaction, _ in FORMS] * 3
    heard.clear()
    assert [str(error) for error in logged.tracebacks] == ["boom"] * len(FORMS)


async def test_a_failure_of_any_other_function_of_the_application_is_reported(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[tuple[str | None, str]] = []
    responder.on_error(lambda error, call: heard.append((call.route, call.interaction)))
    responder.metadata_push(boom)
    responder.extension(7)(boom)

    @responder.lease
    async def permits(setup: Setup) -> AsyncIterator[Lease]:
        yield Lease(1, 10)
        boom()

    async with connected_pair(responder, responder, lease=True) as pair:
        pair.client.on_state(boom)
        await pair.client.metadata_push(b"x")
        await pair.client.send_extension(7, b"x")
        await pair.client.ping()
        assert pair.server.faults.handler_errors == 3
    responder.setup(boom)
    async with connected_pair(responder) as pair:
        with pytest.raises(RejectedSetup, match="internal error"):
            await pair.client.request_response()
    kinds = ["extension", "lease", "lease", "metadata_push", "on_state", "setup"]
    assert sorted(heard, key=lambda one: one[1]) == [(None, kind) for kind in kinds]


async def test_a_failure_of_an_entrys_hook_is_the_hooks(logged: Logged, autojump_clock: MockClock) -> None:
    from rsocket_trio.rsocket.frames import ExtensionEntry

    responder = Responder()
    heard: list[str] = []
    responder.on_error(lambda error, call: heard.append(call.interaction))
    responder.extension_entry("acme")(boom)
    responder.request_response(lambda request: request)
    async with connected_pair(responder, dialect="rsocket/2.0-draft") as pair:
        entries = [ExtensionEntry("acme", ignore=True)]
        with pytest.raises(ApplicationError, match="internal error"):
            await pair.client.request_response(extension_entries=entries)
        await pair.client.send_entries(entries)
        await pair.client.ping()
    assert heard == ["extension_entry"] * 2
    with pytest.raises(RSocketError, match="internal error"):
        async with connected_pair(
            responder, dialect="rsocket/2.0-draft", extension_entries=[ExtensionEntry("acme", ack=True)]
        ):
            raise AssertionError("it was let in")
    assert heard == ["extension_entry"] * 3
    assert len(logged.tracebacks) == 2


# The functions of on_error


async def test_what_on_error_raises_is_logged_and_swallowed_and_others_are_told(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[str] = []

    @responder.on_error
    def fail(error: Exception, call: Call) -> None:
        raise RuntimeError("no network")

    @responder.on_error
    def hear(error: Exception, call: Call) -> None:
        heard.append(str(error))

    responder.request_response(boom)
    async with connected_pair(responder) as pair:
        await ask(pair.client, times=3)
        assert pair.server.faults.handler_errors == 3
    assert heard == ["boom"] * 3
    assert sorted(str(error) for error in logged.tracebacks) == ["boom", "no network"]


@each_row("function", [lambda error: None, lambda: None, boom.__class__, boom_later, 7])
def test_a_function_of_on_error_is_plain_and_takes_the_error_and_the_call(function: object) -> None:
    with pytest.raises(TypeError, match="on_error"):
        Responder().on_error(function)  # type: ignore[type-var]


async def test_a_failure_that_ends_with_the_connection_is_none(logged: Logged, autojump_clock: MockClock) -> None:
    responder = Responder()
    heard: list[Exception] = []
    responder.on_error(lambda error, call: heard.append(error))

    @responder.fire_and_forget
    async def call_back(request: Payload) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.5)
            await current_connection().request_response()

    async with connected_pair(responder) as pair:
        await pair.client.fire_and_forget()
        await pair.client.ping()
    assert (heard, logged.tracebacks) == ([], [])
    assert ConnectionLost.__name__ not in "".join(logged.lines)


# Errors with details


@attrs.frozen
class Shortage:
    symbol: str
    missing: int


@each_row("dialect", DIALECTS)
async def test_details_of_an_error_reach_the_caller_as_a_type(dialect: str, autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    def refuse(request: Payload) -> bytes:
        raise ApplicationError(details=Shortage("ACMË", 3))

    @responder.request_stream
    async def refuse_items(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        raise ApplicationError(details=Shortage("x" * request.data[0] * 1024, 3))

    async with simulated_pair(responder, dialect=dialect) as (client, _):
        with pytest.raises(ApplicationError) as caught:
            await client.request_response()
        assert caught.value.details_as(Shortage) == Shortage("ACMË", 3)
        for kib in (60, 70):
            async with client.request_stream(bytes([kib])) as items:
                await anext(items)
                with pytest.raises(ApplicationError) as caught:
                    await anext(items)
            if kib < 64:
                assert caught.value.details_as(Shortage).missing == 3
            else:
                with pytest.raises(ValueError, match=r"truncated: 655\d\d bytes came"):
                    caught.value.details_as(Shortage)


WHERE = "a connection"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged since the last call; a traceback as the exception's text in brackets."""

    def since() -> list[str]:
        logged = [f"({record.exc_info[1]})" if record.exc_info else record.getMessage() for record in caplog.records]
        caplog.clear()
        return logged

    with caplog.at_level(logging.ERROR):
        yield since


def raised(error: BaseException) -> BaseException:
    """The same, with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def note(log: FailureLog, text: str, *, handler: int = 0) -> None:
    log.note(f"handler {handler}", raised(ValueError(text)), WHERE)


async def test_repeats_are_counted_and_logged_with_one_of_them_once_a_minute(
    lines: Callable[[], list[str]], autojump_clock: MockClock
) -> None:
    log = FailureLog()
    note(log, "first")
    assert lines() == ["(first)"]
    autojump_clock.jump(REPEATS_INTERVAL - 1)
    note(log, "again")
    assert lines() == []
    autojump_clock.jump(1)
    note(log, "again")
    (line,) = lines()
    assert line.startswith("failed again, 2 times: handler 0, ValueError at ")
    note(log, "again")
    assert lines() == []
    log.log_repeats()
    (line,) = lines()
    assert line.startswith("failed again, 1 time: handler 0, ValueError at ")
    log.log_repeats()
    assert lines() == []


async def test_beyond_so_many_kinds_new_ones_are_counted_together(lines: Callable[[], list[str]]) -> None:
    log = FailureLog()
    for handler in range(MAX_KINDS):
        note(log, f"{handler}", handler=handler)
    assert lines() == [f"({handler})" for handler in range(MAX_KINDS)]
    for handler in (MAX_KINDS, MAX_KINDS + 1, 7):
        note(log, "more", handler=handler)
    assert lines() == ["(more)"]
    log.log_repeats()
    known, others = lines()
    assert known.startswith("failed again, 1 time: handler 7, ")
    assert others == f"failed again, 1 time: handlers that failed in more than {MAX_KINDS} ways"


class Odd(Exception):
    """One of our own."""


def test_a_kind_is_the_type_with_its_module_and_the_line_that_raised() -> None:
    line = f"{__file__}:{raised.__code__.co_firstlineno + 3}"
    assert kind_of(raised(Odd())) == (f"{__name__}.Odd", line)
    assert kind_of(raised(ExceptionGroup("x", [raised(ValueError())]))) == ("ValueError", line)  # type: ignore[type-var]
    assert kind_of(ValueError("never raised")) == ("ValueError", "")


LIFETIME = 3


class Broken(trio.abc.Stream):
    """A stream of somebody else's that raises what no stream may, once it is told to."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self._reading = trio.CancelScope()
        self.is_faulty = False

    def fail(self) -> None:
        self.is_faulty = True
        self._reading.cancel()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        with trio.CancelScope() as self._reading:
            return await self._inner.receive_some(max_bytes)
        raise OSError("a fault of the stream")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The servers that the test starts."""
    started: list[Server] = []
    begin = Server.__init__

    def remember(self: Server, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(Server, "__init__", remember)
    return started


async def test_a_deadline_that_fails_ends_its_connection_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    servers: list[Server],
    autojump_clock: MockClock,
) -> None:
    expire = Engine._expire

    def fail(self: Engine, now: float) -> None:
        if not self.session.client and self.connection.setup.payload.data == b"bad":
            raise KeyError("a fault of ours")
        expire(self, now)

    monkeypatch.setattr(Engine, "_expire", fail)
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve(Responder(), [network], grace=0, task_status=task_status))
        beating = Keepalive(interval=1, max_lifetime=LIFETIME)
        mute = silent(LIFETIME)
        async with (
            open_connection_over(await network.connect(), setup=b"good", keepalive=beating) as good,
            open_connection_over(await network.connect(), setup=b"bad", keepalive=mute) as bad,
        ):
            assert isinstance(await bad.wait_closed(), ConnectionLost)
            await trio.sleep(10 * LIFETIME)
            assert good.status == "open"
            (server,) = servers
            assert server.deadlines is not None
            assert (len(server.connections), len(server.deadlines)) == (1, 1)
        nursery.cancel_scope.cancel()
    assert "a connection failed" in caplog.text
    assert "a fault of ours" in caplog.text


@pytest.mark.parametrize("resume", [None, OPTIONS])
async def test_nothing_is_left_of_a_connection_whose_stream_raised_what_it_may_not(
    resume: object, caplog: pytest.LogCaptureFixture, servers: list[Server], autojump_clock: MockClock
) -> None:
    there, here = trio.testing.memory_stream_pair()
    broken = Broken(here)
    network = Network()
    network._send.send_nowait(broken)

    async def connect() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if broken.is_faulty:
            raise OSError("the network is down")
        return there

    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: serve(Responder(), [network], grace=0, resume=resume, task_status=task_status)  # type: ignore[arg-type]
        )
        over = there if resume is None else connect
        async with open_connection_over(
            over,
            keepalive=silent(LIFETIME),
            resume=resume,  # type: ignore[arg-type]
        ):
            await settle()
            (server,) = servers
            assert server.deadlines is not None
            assert (len(server.connections), len(server.deadlines)) == (1, 1)
            broken.fail()
            for seconds in (0.1, 10 * LIFETIME):
                await trio.sleep(seconds)
                assert (len(server.connections), len(server.deadlines)) == (0, 0)
                if server.sessions is not None:
                    assert (server.sessions.waiting, len(server.sessions)) == (0, 0)
        nursery.cancel_scope.cancel()
    assert "a fault of the stream" in caplog.text
