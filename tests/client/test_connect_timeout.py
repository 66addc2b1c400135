"""``connect_timeout`` bounds connecting up to the start of the block, and the error names what did not come."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from rsocket_trio import (
    ConnectionLost,
    connect_forever,
    open_connection,
    open_connection_over,
    open_shared,
)
from rsocket_trio.transports.memory import listen_memory
from tests.client.reconnecting import URI, Told
from tests.rows import Rows

SHORT = 0.05
PATIENCE = 60.0
"""Seconds after which a test that hangs fails."""
DRAFT = "rsocket/2.0-draft"


@contextmanager
def silent_port(port: int = 0) -> Iterator[int]:
    """Listen without ever accepting: the system completes connections, and nobody says anything on them."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        yield listening.getsockname()[1]


async def failure(opening: AbstractAsyncContextManager[object]) -> str:
    """Return the text of the error with which connecting ends: a ``ConnectionLost`` alone, in no group."""
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        async with opening:
            pytest.fail("the block began")
    assert type(caught.value) is ConnectionLost
    return str(caught.value)


# fmt: off
STEPS = (
    # scheme   the step that is not done
    ("tls",    "no TLS handshake"),
    ("ws",     "the WebSocket upgrade was not answered"),
    ("wss",    "no TLS handshake"),
    ("h2",     "no SETTINGS of HTTP/2"),
    ("h2s",    "no TLS handshake"),
)
# fmt: on


async def test_a_server_that_says_nothing_is_given_up_with_the_step() -> None:
    with silent_port() as port, Rows() as row:
        for scheme, step in STEPS:
            uri = f"{scheme}://127.0.0.1:{port}"
            with row(scheme):
                assert await failure(open_connection(uri, connect_timeout=SHORT)) == f"{uri}: {step} within 0.05 s"


async def test_a_setup_that_asks_for_an_answer_and_gets_none_is_given_up_at_once(autojump_clock: MockClock) -> None:
    mute = listen_memory("mute")
    uri = "memory://mute"
    started = trio.current_time()
    assert (
        await failure(open_connection(uri, dialect=DRAFT, lease=True, connect_timeout=3))
        == f"{uri}: the SETUP was not answered within 3 s"
    )
    assert (
        await failure(open_connection(uri, dialect="streamux/1", connect_timeout=3))
        == f"{uri}: the initialize message was not answered within 3 s"
    )
    # A peer that said nothing is not waited for at the end.
    assert trio.current_time() - started == pytest.approx(6)
    for _ in range(2):
        peer = await mute.accept()
        while await peer.receive():
            pass
    await mute.aclose()


async def test_a_function_that_opens_streams_has_the_time_as_well(autojump_clock: MockClock) -> None:
    closed = 0

    async def connect() -> trio.abc.Stream:
        await trio.sleep(100)
        return memory_stream_pair()[0]

    @asynccontextmanager
    async def opened() -> AsyncIterator[trio.abc.Stream]:
        nonlocal closed
        async with trio.open_nursery():
            try:
                yield await connect()
            finally:
                closed += 1

    for function in (connect, opened):
        assert await failure(open_connection_over(function, connect_timeout=2)) == "no new stream within 2 s"
    assert trio.current_time() == pytest.approx(4)
    ours, _theirs = memory_stream_pair()
    unanswered = open_connection_over(ours, dialect=DRAFT, lease=True, connect_timeout=2)
    assert await failure(unanswered) == "the SETUP was not answered within 2 s"
    assert closed == 1


# What else may end it


async def test_a_cancel_from_outside_stays_one_and_so_does_a_timeout_of_the_callers_own() -> None:
    with silent_port() as port, Rows() as row:
        for scheme, _ in STEPS:
            opening = partial(open_connection, f"{scheme}://127.0.0.1:{port}")
            with row(scheme):
                with trio.move_on_after(SHORT) as scope:
                    async with opening():
                        pytest.fail("the block began")
                assert scope.cancelled_caught
                with pytest.raises(trio.TooSlowError), trio.fail_after(SHORT):
                    async with opening(connect_timeout=math.inf):
                        pytest.fail("the block began")


# fmt: off
WRONG: tuple[tuple[Any, type[Exception], str], ...] = (
    (0,            ValueError, "connect_timeout of 0: must be above 0"),
    (-1,           ValueError, "connect_timeout of -1: must be above 0"),
    (-math.inf,    ValueError, "connect_timeout of -inf: must be above 0"),
    (math.nan,     ValueError, "connect_timeout of nan: must be above 0"),
    (10**400,      ValueError, "connect_timeout of 10000000000000000000: must be above 0, below 1e308"),
    (True,         TypeError,  "connect_timeout is a number of seconds, not bool"),
    ("10",         TypeError,  "connect_timeout is a number of seconds, not str"),
    (None,         TypeError,  "connect_timeout is a number of seconds, not NoneType"),
)
# fmt: on
OPENINGS: dict[str, Callable[[Any], AbstractAsyncContextManager[object]]] = {
    "open_connection": lambda seconds: open_connection(URI, connect_timeout=seconds),
    "open_connection_over": lambda seconds: open_connection_over(memory_stream_pair()[0], connect_timeout=seconds),
    "open_shared": lambda seconds: open_shared("h2://127.0.0.1:1", connect_timeout=seconds),
    "connect_forever": lambda seconds: connect_forever(URI, connect_timeout=seconds),
}


async def test_a_time_that_is_none_is_refused_before_anything_is_dialled(autojump_clock: MockClock) -> None:
    with Rows() as row:
        for name, opening in OPENINGS.items():
            for seconds, error, text in WRONG:
                with row(f"{name}, {seconds!r}"), pytest.raises(error, match=f"^{text}"):
                    async with opening(seconds):
                        pytest.fail("the block began")


# A client that connects again


@pytest.mark.parametrize("name", ["setup", "headers", "auth"])
async def test_a_function_of_a_reconnecting_client_takes_its_time_from_the_try(
    name: str, autojump_clock: MockClock
) -> None:
    told = Told()

    async def forever() -> Any:
        await trio.sleep_forever()

    options: Any = {name: forever}
    async with connect_forever(URI, wait=False, connect_timeout=3, on_state=told, **options) as reconnecting:
        await trio.sleep(3.05)
        with pytest.raises(ConnectionLost, match=f"{URI}: no {name} for a new connection within 3 s"):
            await reconnecting.request_response(b"hi")
        await trio.sleep(1)
    assert told.states[:2] == ["connecting", "connecting"]
    assert told.pauses[0] <= 3.1
