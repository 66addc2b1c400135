"""What ends a client that outlives its connections, and how does it leave its block?"""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Connection,
    ConnectionClosed,
    ConnectionLost,
    InvalidSetup,
    ReconnectingClient,
    RejectedSetup,
    Responder,
    ResumeOptions,
    RSocketError,
    Setup,
    UnsupportedSetup,
    connect_forever,
    serve,
)
from rsocket_trio.connection.protocols import STREAMUX
from rsocket_trio.transports.memory import listen_memory
from tests.client.reconnecting import CALLS, EXACT, URI, Service, Told, busy_responder, next_item, request, service
from tests.connection.pairs import settle

# What ends it


@pytest.mark.parametrize("kind", [RejectedSetup, InvalidSetup, UnsupportedSetup])
async def test_a_refusal_ends_it(
    kind: type[RejectedSetup], caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caught: list[RSocketError] = []
    responder = Responder()
    told = Told()

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        raise kind("not you")

    async def ask() -> None:
        try:
            await client.request_response()
        except RSocketError as error:
            caught.append(error)

    async with service(responder) as running, connect_forever(URI, backoff=EXACT, on_state=told) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        for call in CALLS.values():
            with pytest.raises(kind, match="not you"):
                await call(client)
        with pytest.raises(kind, match="not you"):
            await client.connected()
        await trio.sleep(60)

    assert [type(error) for error in caught] == [kind] * 2
    assert caught[0] is not caught[1]
    assert running.served == 1
    assert told.states == ["connecting", "connected", "closed"]
    assert [record.levelno for record in caplog.records if "not tried again" in record.message] == [logging.WARNING]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"uri": "nowhere"}, ValueError, "nowhere"),
        ({"dialekt": "rsocket/1.0"}, TypeError, "dialekt"),
        ({"backoff": 5}, TypeError, "backoff is a Backoff, not int"),
        ({"on_state": 5}, TypeError, "on_state is a function, not int"),
        ({"quirks": 5}, TypeError, "iterable"),
    ],
    ids=repr,
)
async def test_what_can_be_told_at_once_is_told_at_once(arguments: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        async with connect_forever(**{"uri": URI} | arguments):
            raise AssertionError("the block has begun")


# The block


async def test_after_the_block_everybody_hears_that_it_is_closed(autojump_clock: MockClock) -> None:
    caught: list[RSocketError] = []

    async def ask(client: ReconnectingClient, call: Callable[[ReconnectingClient], Awaitable[None]]) -> None:
        try:
            await call(client)
        except RSocketError as error:
            caught.append(error)

    async with trio.open_nursery() as nursery:
        async with connect_forever(URI) as waiting:
            nursery.start_soon(ask, waiting, request)
            await settle()
        async with service(), connect_forever(URI) as busy:
            nursery.start_soon(ask, busy, request)
            nursery.start_soon(ask, busy, next_item)
            await busy.connected()
            await settle()
    for client in (waiting, busy):
        await ask(client, request)
        assert client.connection is None

    assert [type(error) for error in caught] == [ConnectionClosed] * 5


@pytest.mark.parametrize("moment", ["dialling", "pausing", "waiting for an answer", "connected", "suspended"])
async def test_leaving_takes_no_time_whatever_it_is_doing(moment: str, autojump_clock: MockClock) -> None:
    told = Told()
    resume = ResumeOptions() if moment == "suspended" else None
    terms: dict[str, Any] = {"dialect": STREAMUX if moment == "waiting for an answer" else "rsocket/1.0"}
    async with trio.open_nursery() as nursery:
        running = Service(nursery, busy_responder([]))
        if moment in ("connected", "suspended"):
            await running.start(resume=resume)
        elif moment == "waiting for an answer":
            nursery.start_soon(listen_and_say_nothing)
            await settle()
        async with connect_forever(URI, on_state=told, resume=resume, **terms) as client:
            if moment != "dialling":
                await settle()
            if moment == "suspended":
                connection = await client.connected()
                running.crash()
                await settle()
                assert connection.status == "suspended"
            began = trio.current_time()
        assert trio.current_time() - began <= (1 if moment == "waiting for an answer" else 0)
        nursery.cancel_scope.cancel()

    assert told.states[-1] == "closed"


async def listen_and_say_nothing() -> None:
    listener = listen_memory("service")
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()


@pytest.mark.parametrize("error", [KeyError("own"), ExceptionGroup("own", [KeyError("one")]), ConnectionLost("own")])
@pytest.mark.parametrize("connected", [True, False])
async def test_the_users_own_error_leaves_the_block_alone(
    connected: bool, error: Exception, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        running = Service(nursery, Responder())
        if connected:
            await running.start()
        with pytest.raises(type(error)) as caught:  # noqa: PT012
            async with connect_forever(URI):
                await settle()
                raise error
        nursery.cancel_scope.cancel()

    assert caught.value is error


@pytest.mark.parametrize(
    ("state", "kind"),
    [("connecting", KeyError), ("connected", ConnectionLost), ("lost", KeyboardInterrupt), ("closed", ValueError)],
)
async def test_what_the_listener_raises_ends_the_block_and_leaves_it_alone(
    kind: type[BaseException], state: str, autojump_clock: MockClock
) -> None:
    error = kind("own")

    def fail(now: str) -> None:
        if now == state:
            raise error

    async with service() as running:
        with pytest.raises(kind) as caught:  # noqa: PT012
            async with connect_forever(URI, on_state=fail) as client:
                await client.connected()
                running.cut()
                if state != "closed":
                    await trio.sleep_forever()
        assert caught.value is error


@pytest.mark.parametrize("listening", [True, False])
def test_ctrl_c_ends_the_block_and_leaves_it_alone(listening: bool) -> None:
    states: list[str] = []
    left: list[BaseException] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            if listening:
                await nursery.start(serve, busy_responder([]), [URI])
            try:
                async with connect_forever(URI, on_state=states.append) as client:
                    if listening:
                        await client.connected()
                    await settle()
                    signal.raise_signal(signal.SIGINT)
                    await client.request_response(b"long")
            except BaseException as exc:
                left.append(exc)
                raise
            finally:
                nursery.cancel_scope.cancel()

    with pytest.raises(BaseException) as caught:  # noqa: PT011  # what Trio makes of it outside is Trio's
        trio.run(main, clock=MockClock(autojump_threshold=0))

    assert [type(error) for error in left] == [KeyboardInterrupt]
    assert caught.group_contains(KeyboardInterrupt) or isinstance(caught.value, KeyboardInterrupt)
    assert states[-1] == "closed"
    left.clear()
