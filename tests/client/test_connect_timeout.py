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
    Payload,
    Responder,
    connect_forever,
    open_connection,
    open_connection_over,
    open_shared,
    serve,
    services,
)
from rsocket_trio.transports.memory import BACKLOG, connect_memory, listen_memory
from tests.client.reconnecting import URI, Told, service
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


@contextmanager
def full_port() -> Iterator[int]:
    """Listen with a queue that is full: the system answers no further attempt to connect."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(listening.getsockname())
            yield listening.getsockname()[1]
        finally:
            for each in waiting:
                each.close()


class Resolver(trio.abc.HostnameResolver):
    """Finds the loopback address for every name; or nothing, for ever."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    async def getaddrinfo(self, host: Any, port: Any, *_: Any) -> Any:
        if not self._answers:
            await trio.sleep_forever()
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


@contextmanager
def lookups(*, answer: bool) -> Iterator[None]:
    """Names are looked up like this meanwhile."""
    before = trio.socket.set_custom_hostname_resolver(Resolver(answers=answer))
    try:
        yield
    finally:
        trio.socket.set_custom_hostname_resolver(before)


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


async def test_a_shared_connection_is_given_up_likewise() -> None:
    with silent_port() as port, Rows() as row:
        for scheme, step in (("h2", "no SETTINGS of HTTP/2"), ("h2s", "no TLS handshake")):
            uri = f"{scheme}://127.0.0.1:{port}"
            with row(scheme):
                assert await failure(open_shared(uri, connect_timeout=SHORT)) == f"{uri}: {step} within 0.05 s"


async def test_a_port_that_answers_no_attempt_to_connect_is_not_connected() -> None:
    with full_port() as port, lookups(answer=True), Rows() as row:
        for scheme in ("tcp", "tls", "ws", "h2"):
            for host in ("127.0.0.1", "server.example"):
                uri = f"{scheme}://{host}:{port}"
                with row(uri):
                    text = await failure(open_connection(uri, connect_timeout=SHORT))
                    assert text == f"{uri}: not connected within 0.05 s"


async def test_a_name_that_is_not_looked_up_is_not_connected() -> None:
    with lookups(answer=False), Rows() as row:
        for scheme in ("tcp", "tls", "ws", "wss", "h2", "h2s"):
            uri = f"{scheme}://server.example:7878"
            with row(scheme):
                text = await failure(open_connection(uri, connect_timeout=SHORT))
                assert text == f"{uri}: not connected within 0.05 s"


async def test_a_name_of_memory_whose_queue_is_full_is_not_connected(autojump_clock: MockClock) -> None:
    listener = listen_memory("full")
    waiting = [await connect_memory("full") for _ in range(BACKLOG)]
    assert await failure(open_connection("memory://full")) == "memory://full: not connected within 10 s"
    assert trio.current_time() == pytest.approx(10)
    for each in waiting:
        each.close()
    await listener.aclose()


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


async def test_what_a_server_did_not_answer_in_time_is_closed() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    uri = f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    async with listeners[0]:
        await failure(open_connection(uri, connect_timeout=SHORT))
        with trio.fail_after(PATIENCE):
            async with await listeners[0].accept() as stream:
                while await stream.receive_some():
                    pass


async def test_the_function_of_auth_has_its_part_of_the_time(autojump_clock: MockClock) -> None:
    async def credentials() -> services.Bearer:
        await trio.sleep(100)
        return services.Bearer("token")

    assert (
        await failure(open_connection(URI, auth=credentials, connect_timeout=2))
        == f"{URI}: no credentials from auth within 2 s"
    )
    assert trio.current_time() == pytest.approx(2)


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


async def test_a_stream_whose_block_opens_in_time_stays(autojump_clock: MockClock) -> None:
    """A context manager with a nursery of its own is entered in the scope that is limited, and outlives the limit."""
    ours, _theirs = memory_stream_pair()

    @asynccontextmanager
    async def opened() -> AsyncIterator[trio.abc.Stream]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep(1)
            yield ours
            nursery.cancel_scope.cancel()

    async with open_connection_over(opened, connect_timeout=2) as connection:
        await trio.sleep(60)
        assert connection.status == "open"


# What shares a connection


async def test_connections_over_a_shared_one_have_their_own_time_to_open_it_again() -> None:
    async with trio.open_nursery() as nursery:
        serving = trio.CancelScope()

        async def serve_for_a_while(task_status: trio.TaskStatus[list[str]]) -> None:
            with serving:
                await serve(Responder(), ["h2://127.0.0.1:0"], grace=0, task_status=task_status)

        [uri] = await nursery.start(serve_for_a_while)
        async with open_shared(uri, connect_timeout=PATIENCE) as shared:
            async with open_connection(uri, over=shared, connect_timeout=PATIENCE) as connection:
                serving.cancel()
                await connection.wait_closed()
            with silent_port(int(uri.rpartition(":")[2])):
                text = await failure(open_connection(uri, over=shared, connect_timeout=SHORT))
                assert text == f"{uri}: no SETTINGS of HTTP/2 within 0.05 s"

                # One connects for ever; another waits for that one, and not for longer than it is to.
                nursery.start_soon(open_connection(uri, over=shared, connect_timeout=math.inf).__aenter__)
                await trio.testing.wait_all_tasks_blocked()
                text = await failure(open_connection(uri, over=shared, connect_timeout=SHORT))
                assert text == f"{uri}: another task was connecting, and did not finish within 0.05 s"
                nursery.cancel_scope.cancel()


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


async def test_a_block_that_has_begun_goes_on_for_as_long_as_it_likes(autojump_clock: MockClock) -> None:
    async with service():
        for dialect in ("rsocket/1.0", DRAFT, "streamux/1"):
            async with open_connection(URI, dialect=dialect, connect_timeout=1) as connection:
                await trio.sleep(60)
                assert connection.status == "open", dialect


async def test_without_a_limit_connecting_takes_as_long_as_it_takes(autojump_clock: MockClock) -> None:
    mute = listen_memory("mute")
    with trio.move_on_after(100_000) as scope:
        async with open_connection("memory://mute", dialect="streamux/1", connect_timeout=math.inf):
            pytest.fail("the block began")
    assert scope.cancelled_caught
    await mute.aclose()


# fmt: off
WRONG: tuple[tuple[Any, type[Exception], str], ...] = (
    (0,            ValueError, "connect_timeout of 0: must be above 0"),
    (-1,           ValueError, "connect_timeout of -1: must be above 0"),
    (-math.inf,    ValueError, "connect_timeout of -inf: must be above 0"),
    (math.nan,     ValueError, "connect_timeout of nan: must be above 0"),
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


async def test_functions_and_connecting_have_one_time_together(autojump_clock: MockClock) -> None:
    mute = listen_memory("mute")
    told = Told()

    async def setup() -> bytes:
        await trio.sleep(2)
        return b"token"

    opening = connect_forever(
        "memory://mute", dialect=DRAFT, lease=True, setup=setup, wait=False, connect_timeout=3, on_state=told
    )
    async with opening as client:
        await trio.sleep(3.05)
        with pytest.raises(ConnectionLost, match="memory://mute: the SETUP was not answered within 3 s"):
            await client.request_response(b"hi")
    await mute.aclose()


async def test_a_silent_tls_server_is_one_try_of_many() -> None:
    tries: list[str] = []
    again = trio.Event()

    def tell(state: str) -> None:
        tries.append(state)
        if tries.count("connecting") == 2:
            again.set()

    with silent_port() as port:
        uri = f"tls://127.0.0.1:{port}"
        async with connect_forever(uri, wait=False, connect_timeout=SHORT, on_state=tell) as client:
            with trio.fail_after(PATIENCE):
                await again.wait()
            with pytest.raises(ConnectionLost, match=f"{uri}: no TLS handshake within 0.05 s"):
                await client.request_response(b"hi")


async def test_a_time_that_is_long_enough_changes_nothing() -> None:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    async with trio.open_nursery() as nursery:
        uris = await nursery.start(
            serve, responder, ["tcp://127.0.0.1:0", "tcp://localhost:0", "ws://127.0.0.1:0", "h2://127.0.0.1:0"]
        )
        with Rows() as row:
            for uri in uris:
                with row(uri):
                    async with open_connection(uri, connect_timeout=PATIENCE) as connection:
                        assert (await connection.request_response(b"hi")).data == b"hi"
        nursery.cancel_scope.cancel()
