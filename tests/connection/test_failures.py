"""Failures of handlers are heard: a traceback for each new one, a line a minute for repeats, ``on_error`` for all."""

from __future__ import annotations

import functools
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Call,
    Canceled,
    Channel,
    Connection,
    ConnectionLost,
    Invalid,
    Lease,
    Outgoing,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    StreamuxOptions,
    current_connection,
    open_connection,
    serve,
)
from rsocket_trio.rsocket.dialects import DIALECTS
from rsocket_trio.testing import connected_pair as simulated_pair
from tests.connection.pairs import Pair, connected_pair, settle
from tests.each_row import each_row

MINUTE = 60


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


async def test_the_same_line_reached_from_another_handler_is_a_failure_of_that(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()

    def look_up(request: Payload) -> bytes:
        raise KeyError("nowhere")

    @responder.request_response("first")
    def first(request: Payload) -> bytes:
        return look_up(request)

    @responder.request_response("second")
    def second(request: Payload) -> bytes:
        return look_up(request)

    async with connected_pair(responder) as pair:
        for route in ("first", "second"):
            await ask(pair.client, route=route, times=2)

    assert len(logged.tracebacks) == 2


async def test_one_function_that_fails_in_another_is_told_by_both_lines(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()

    def parse(data: bytes) -> bytes:
        if data == b"x":
            raise ValueError("x")
        raise ValueError("no x")

    @responder.request_response
    def look(request: Payload) -> bytes:
        return parse(request.data)

    async with connected_pair(responder) as pair:
        await ask(pair.client, b"x", times=2)
        await ask(pair.client, b"y", times=2)

    assert [str(error) for error in logged.tracebacks] == ["x", "no x"]


async def test_repeats_are_one_line_a_minute_with_their_number(logged: Logged, autojump_clock: MockClock) -> None:
    async with connected_pair(failing()) as pair:
        await ask(pair.client, b"key", times=100)
        await trio.sleep(MINUTE)
        assert (len(logged.tracebacks), logged.lines) == (1, [])
        await ask(pair.client, b"key", times=100)
        (line,) = logged.lines
        assert line.startswith("failed again, 100 times: handler failing.<locals>.either of request_response, KeyError")
    assert len(logged.tracebacks) == 1


async def test_the_connections_of_a_server_share_their_log_and_its_end_tells_the_rest(
    logged: Logged, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, failing(), "memory://shared")
        for _ in range(5):
            async with open_connection("memory://shared") as connection:
                await ask(connection, b"key", times=2)
        assert len(logged.tracebacks) == 1
        assert logged.lines == []
        nursery.cancel_scope.cancel()
    (line,) = logged.lines
    assert line.startswith("failed again, 9 times: ")


async def test_a_clients_own_handlers_are_heard_and_its_end_tells_the_rest(
    logged: Logged, autojump_clock: MockClock
) -> None:
    for _ in range(2):
        async with connected_pair(client_responder=failing()) as pair:
            await ask(pair.server, b"key", times=4)
            assert pair.client.faults.handler_errors == 4
    assert len(logged.tracebacks) == 2
    assert [line.partition(":")[0] for line in logged.lines] == ["failed again, 3 times"] * 2


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


def every_kind() -> Responder:
    """Handlers of every kind, all of which fail."""
    responder = Responder()

    @responder.request_response("async")
    async def respond(request: Payload) -> bytes:
        boom()
        return b""

    @responder.request_response("plain")
    def respond_at_once(request: Payload) -> bytes:
        boom()
        return b""

    @responder.request_response("no payload")
    def respond_with_nothing(request: Payload) -> bytes:
        return object()  # type: ignore[return-value]

    @responder.request_stream("generator")
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        boom()
        yield b""

    @responder.request_stream("push")
    async def push(request: Payload, out: Outgoing) -> None:
        boom()

    @responder.request_channel("channel")
    async def converse(channel: Channel) -> None:
        boom()

    @responder.fire_and_forget("async")
    async def forget(request: Payload) -> None:
        boom()

    @responder.fire_and_forget("plain")
    def forget_at_once(request: Payload) -> None:
        boom()

    return responder


Ask = Callable[[Connection], Awaitable[object]]


async def first_of(connection: Connection, route: str) -> object:
    async with connection.request_stream(route=route) as items:
        return await anext(items)


async def first_said(connection: Connection, route: str) -> object:
    async with connection.request_channel(route=route) as channel:
        return await anext(channel)


@pytest.mark.parametrize(
    ("request_one", "route", "interaction", "kind"),
    [
        (lambda one: one.request_response(route="async"), "async", "request_response", ValueError),
        (lambda one: one.request_response(route="plain"), "plain", "request_response", ValueError),
        (lambda one: one.request_response(route="no payload"), "no payload", "request_response", TypeError),
        (lambda one: first_of(one, "generator"), "generator", "request_stream", ValueError),
        (lambda one: first_of(one, "push"), "push", "request_stream", ValueError),
        (lambda one: first_said(one, "channel"), "channel", "request_channel", ValueError),
        (lambda one: one.fire_and_forget(route="async"), "async", "fire_and_forget", ValueError),
        (lambda one: one.fire_and_forget(route="plain"), "plain", "fire_and_forget", ValueError),
    ],
)
async def test_a_failure_of_any_request_handler_is_logged_counted_and_reported(
    request_one: Ask, route: str, interaction: str, kind: type, logged: Logged, autojump_clock: MockClock
) -> None:
    responder = every_kind()
    heard: list[tuple[Exception, Call]] = []
    responder.on_error(lambda error, call: heard.append((error, call)))
    async with connected_pair(responder) as pair:
        for _ in range(3):
            try:
                await request_one(pair.client)
            except ApplicationError as told:
                assert told.text == "internal error"  # noqa: PT017
            await settle()
        assert pair.server.faults.handler_errors == 3

        assert len(heard) == 3
        for error, call in heard:
            assert type(error) is kind
            assert error.__traceback__ is not None
            assert (call.route, call.interaction, call.connection) == (route, interaction, pair.server)
    assert [type(error) for error in logged.tracebacks] == [kind]


async def test_a_failure_of_a_subscription_is_reported(autojump_clock: MockClock) -> None:
    responder = Responder()
    heard: list[tuple[str | None, str]] = []
    responder.on_error(lambda error, call: heard.append((call.route, call.interaction)))

    @responder.request_subscription
    async def prices(request: Payload) -> AsyncIterator[bytes]:
        yield b"1"
        boom()

    async with (
        connected_pair(responder, dialect="reactivesocket/0.1") as pair,
        pair.client.request_subscription() as items,
    ):
        await anext(items)
        with pytest.raises(ApplicationError):
            await anext(items)
    assert heard == [(None, "request_subscription")]


@pytest.mark.parametrize("decorated", [boom, functools.partial(trio.sleep, -1)])
async def test_a_failure_of_pushed_metadata_is_reported(
    decorated: Callable[..., object], logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[Call] = []
    responder.on_error(lambda error, call: heard.append(call))
    if decorated is boom:
        responder.metadata_push(boom)
    else:

        @responder.metadata_push
        async def take(metadata: bytes) -> None:
            boom()

    async with connected_pair(responder) as pair:
        await pair.client.metadata_push(b"x")
        await pair.client.ping()
        await settle()
        assert [(call.route, call.interaction) for call in heard] == [(None, "metadata_push")]
        assert pair.server.faults.handler_errors == 1
    assert len(logged.tracebacks) == 1


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failure_of_the_setup_handler_is_reported(
    is_async: bool, logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[Call] = []
    responder.on_error(lambda error, call: heard.append(call))

    async def meet(setup: Setup, connection: Connection) -> None:
        boom()

    responder.setup(meet if is_async else boom)
    async with connected_pair(responder) as pair:
        with pytest.raises(RejectedSetup, match="internal error"):
            await pair.client.request_response()
    assert [(call.route, call.interaction) for call in heard] == [(None, "setup")]
    assert len(logged.tracebacks) == 1


async def test_a_refusal_by_the_setup_handler_is_no_failure(logged: Logged, autojump_clock: MockClock) -> None:
    responder = Responder()
    heard: list[Call] = []
    responder.on_error(lambda error, call: heard.append(call))

    @responder.setup
    async def refuse(setup: Setup, connection: Connection) -> None:
        raise RejectedSetup("not you")

    async with connected_pair(responder) as pair:
        with pytest.raises(RejectedSetup, match="not you"):
            await pair.client.request_response()
    assert (heard, logged.tracebacks) == ([], [])


async def test_a_failure_of_a_lease_policy_is_reported(logged: Logged, autojump_clock: MockClock) -> None:
    responder = failing()
    heard: list[Call] = []
    responder.on_error(lambda error, call: heard.append(call))

    @responder.lease
    async def permits(setup: Setup) -> AsyncIterator[Lease]:
        yield Lease(1, 10)
        boom()

    async with connected_pair(responder, lease=True) as pair:
        await settle()
        assert pair.server.faults.handler_errors == 1
    assert [(call.route, call.interaction) for call in heard] == [(None, "lease")]
    assert len(logged.tracebacks) == 1


async def test_failures_of_extensions_are_reported(logged: Logged, autojump_clock: MockClock) -> None:
    responder = Responder()
    heard: list[str] = []
    responder.on_error(lambda error, call: heard.append(call.interaction))
    responder.extension(7)(boom)
    responder.extension(8)(lambda stream_id, body: trio.sleep(1))  # type: ignore[type-var]  # noqa: ASYNC105
    async with connected_pair(responder) as pair:
        await pair.client.send_extension(7, b"x")
        await pair.client.send_extension(8, b"x")
        await pair.client.ping()
    assert heard == ["extension", "extension"]
    assert "returned coroutine, not nothing: it is a plain function" in str(logged.tracebacks[1])


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


async def test_a_failure_of_a_function_that_is_told_of_states_is_reported(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[str] = []
    responder.on_error(lambda error, call: heard.append(call.interaction))
    for _ in range(2):
        async with connected_pair(client_responder=responder) as pair:
            pair.client.on_state(boom)
    assert heard == ["on_state"] * 2


async def test_a_failing_handler_of_streamux_is_heard_before_the_session_ends(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[tuple[str | None, str]] = []
    responder.on_error(lambda error, call: heard.append((call.route, call.interaction)))
    responder.request_response(boom)
    streamux = StreamuxOptions(requests="whole", encode_error=lambda error: b"sorry")
    async with trio.open_nursery() as nursery:
        serving = partial(serve, responder, "memory://mux", streamux=streamux)
        await nursery.start(lambda task_status: serving(task_status=task_status))
        async with open_connection("memory://mux", dialect="streamux/1") as connection:
            assert (await connection.request_response(b"x")).data == b"sorry"
        nursery.cancel_scope.cancel()
    assert heard == [(None, "request_response")]
    assert len(logged.tracebacks) == 1


async def test_a_failing_encoder_of_streamux_is_heard_once_with_its_traceback(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[tuple[str, str]] = []
    responder.on_error(lambda error, call: heard.append((str(error), call.interaction)))
    responder.request_response(boom)

    def encode(error: Exception) -> bytes:
        raise KeyError("no word")

    streamux = StreamuxOptions(requests="whole", encode_error=encode)
    async with trio.open_nursery() as nursery:
        serving = partial(serve, responder, "memory://mux", streamux=streamux)
        await nursery.start(lambda task_status: serving(task_status=task_status))
        for _ in range(3):
            async with open_connection("memory://mux", dialect="streamux/1") as connection:
                with pytest.raises(ConnectionLost):
                    await connection.request_response(b"x")
        nursery.cancel_scope.cancel()
    assert heard == [("boom", "request_response"), ("'no word'", "encode_error")] * 3
    assert [str(error) for error in logged.tracebacks] == ["boom", "'no word'"]


async def test_what_fails_beside_a_cancel_is_reported_and_a_chosen_error_is_not(
    logged: Logged, autojump_clock: MockClock
) -> None:
    responder = Responder()
    heard: list[Exception] = []
    responder.on_error(lambda error, call: heard.append(error))

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise Rejected("no") if request.data else ValueError("while dying")

    async with connected_pair(responder) as pair:
        for data in (b"", b"x"):
            with trio.move_on_after(1):
                await pair.client.request_response(data)
        await settle()
    assert [type(error) for error in heard] == [ExceptionGroup]
    assert len(logged.tracebacks) == 1


async def die_badly() -> None:
    """Fail while being cancelled, beside another task that is."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while dying")


def dying() -> Responder:
    """Handlers that fail when they are cancelled."""
    responder = Responder()

    @responder.request_response
    @responder.fire_and_forget
    async def answer(request: Payload) -> Any:
        await die_badly()

    @responder.request_stream
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        yield b"first"
        await die_badly()

    @responder.metadata_push
    async def take(metadata: bytes) -> None:
        await die_badly()

    return responder


async def quietly(request_one: Ask, connection: Connection) -> None:
    try:
        await request_one(connection)
    except RSocketError:
        return


async def all_of(connection: Connection) -> None:
    async with connection.request_stream() as items:
        async for _ in items:
            pass


@pytest.mark.parametrize("asks", ["client", "server"])
@pytest.mark.parametrize(
    "request_one",
    [
        lambda one: one.request_response(),
        all_of,
        lambda one: one.fire_and_forget(),
        lambda one: one.metadata_push(b"x"),
    ],
    ids=["request", "stream", "forgotten", "pushed"],
)
async def test_what_fails_beside_the_end_of_the_connection_is_reported_and_leaves_no_other_way(
    request_one: Ask, asks: str, logged: Logged, autojump_clock: MockClock
) -> None:
    responder = dying()
    heard: list[Exception] = []
    responder.on_error(lambda error, call: heard.append(error))
    served = {"responder": responder} if asks == "client" else {"client_responder": responder}
    async with connected_pair(**served) as pair, trio.open_nursery() as nursery:  # type: ignore[arg-type]
        nursery.start_soon(quietly, request_one, pair.client if asks == "client" else pair.server)
        await settle()
        pair.client._leave()
    assert [type(error) for error in heard] == [ExceptionGroup]
    assert len(logged.tracebacks) == 1


async def test_a_setup_handler_and_a_lease_policy_that_fail_beside_the_end_are_reported(
    logged: Logged, autojump_clock: MockClock
) -> None:
    heard: list[str] = []
    for name in ("setup", "lease"):
        responder = Responder()
        responder.on_error(lambda error, call: heard.append(call.interaction))
        if name == "setup":

            @responder.setup
            async def meet(setup: Setup, connection: Connection) -> None:
                await die_badly()
        else:

            @responder.lease
            async def permits(setup: Setup) -> AsyncIterator[Lease]:
                yield Lease(1, 10)
                await die_badly()

        async with connected_pair(responder, lease=name == "lease"):
            await settle()
    assert heard == ["setup", "lease"]


# The functions of on_error


async def failing_pair_asks(responder: Responder, times: int = 1) -> Pair:
    responder.request_response(boom)
    async with connected_pair(responder) as pair:
        await ask(pair.client, times=times)
        await settle()
        return pair


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


async def test_what_fails_when_the_connection_ends_is_reported_as_well(autojump_clock: MockClock) -> None:
    responder = Responder()
    heard: list[str] = []

    responder.on_error(lambda error, call: heard.append(str(error)))

    @responder.request_response
    async def clean_up_badly(request: Payload) -> bytes:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise ValueError("bad day") from None

    async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.request_response)
        await settle()
        nursery.cancel_scope.cancel()
    assert heard == ["bad day"]


async def test_what_a_function_of_on_error_returns_is_not_awaited(logged: Logged, autojump_clock: MockClock) -> None:
    responder = Responder()

    async def send(error: Exception) -> None:
        raise AssertionError

    responder.on_error(lambda error, call: send(error))
    await failing_pair_asks(responder)
    (_, error) = logged.tracebacks
    assert str(error).endswith("returned coroutine, not nothing: it is a plain function")


async def report_later(error: Exception, call: Call) -> None:
    """Is async, which functions of ``on_error`` must not be."""


@each_row("function", [lambda error: None, lambda: None, boom.__class__, report_later, 7])
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
