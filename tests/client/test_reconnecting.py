"""A client that outlives its connections: its states, and everything that connections can do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import rsocket_trio
from rsocket_trio import (
    Backoff,
    Connection,
    Payload,
    Responder,
    ResumeOptions,
    RSocketError,
    Setup,
    connect_forever,
    current_connection,
    open_connection,
    serve,
)
from rsocket_trio.client.options import ConnectionOptions
from rsocket_trio.connection.connection import Requester
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.rsocket.frames import ExtensionEntry
from rsocket_trio.transports.memory import listen_memory
from tests.client.reconnecting import EXACT, URI, Told, busy_responder, service
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle

# What the state is


async def test_the_states_are_told_in_their_order(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, backoff=EXACT, on_state=told) as client:
        assert repr(client) == f"<ReconnectingClient {URI}, connecting>"
        await client.connected()
        running.crash()
        await trio.sleep(0.15)
        assert repr(client) == f"<ReconnectingClient {URI}, connecting>"
        await running.start()
        await client.connected()
        assert repr(client) == f"<ReconnectingClient {URI}, connected>"

    assert told.states == ["connecting", "connected", "lost", "connecting", "connecting", "connected", "closed"]


async def test_a_server_that_closes_in_good_order_is_reconnected_to(autojump_clock: MockClock) -> None:
    told = Told()
    async with connect_forever(URI, backoff=EXACT, on_state=told) as client, trio.open_nursery() as nursery:
        for number in range(2):
            async with trio.open_nursery() as servers:
                await servers.start(serve, busy_responder([]), [URI])
                assert (await client.request_response(b"%d" % number)).data == b"done %d" % number
                servers.cancel_scope.cancel()
        nursery.cancel_scope.cancel()

    assert [state for state in told.states if state != "connecting"] == ["connected", "lost"] * 2 + ["closed"]


# With everything else


@pytest.mark.parametrize("dialect", ALL)
async def test_every_dialect_comes_back(dialect: str, autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    async with service(busy_responder(asked)) as running, connect_forever(URI, dialect=dialect) as client:
        for number in range(3):
            assert (await client.request_response(b"%d" % number)).data == b"done %d" % number
            assert (await client.connected()).dialect == dialect
            running.cut()
            await settle()

    assert asked == [b"0", b"1", b"2"]


async def test_a_session_is_resumed_first_and_a_new_one_begun_when_that_fails(autojump_clock: MockClock) -> None:
    asked: list[bytes] = []
    told = Told()
    resume = ResumeOptions()
    async with (
        service(busy_responder(asked), resume=resume) as running,
        connect_forever(URI, backoff=EXACT, resume=resume, on_state=told) as client,
    ):
        first = await client.connected()
        async with client.request_stream(initial_request_n=8) as items:
            await anext(items)
            running.cut()
            assert (await client.request_response(b"resumed")).data == b"done resumed"
            assert (await anext(items)).data == b"2"
            assert client.connection is first
            assert told.states == ["connecting", "connected"]

            running.crash()
            await trio.sleep(1)
            await running.start(resume=resume)  # a server that has forgotten the session
            with pytest.raises(RSocketError):
                await anext(items)
        assert (await client.request_response(b"anew")).data == b"done anew"
        assert client.connection is not first

    assert asked == [b"", b"resumed", b"anew"]
    assert told.states == ["connecting", "connected", "lost", "connecting", "connected", "closed"]


async def test_what_a_session_hears_that_would_go_on_is_no_refusal_of_a_new_one(autojump_clock: MockClock) -> None:
    told = Told()
    resume = ResumeOptions()
    async with (
        service(resume=resume) as running,
        connect_forever(URI, backoff=EXACT, resume=resume, on_state=told) as client,
    ):
        await client.ping()
        running.crash()
        await settle()
        listener = listen_memory("service")
        transport = await listener.accept()
        assert raw.parsed((await transport.receive())[0]).type == raw.RESUME
        await transport.send([raw.error(0, raw.REJECTED_SETUP, b"not you")])
        await listener.aclose()
        await running.start(resume=resume)
        await settle()
        assert (await client.request_response(b"x")).data == b"done x"
        transport.close()

    assert told.states == ["connecting", "connected", "lost", "connecting", "connected", "closed"]


async def test_the_server_asks_the_client_over_each_connection(autojump_clock: MockClock) -> None:
    near, far = Responder(), Responder()

    @near.request_response
    def name(request: Payload) -> str:
        return "client"

    @far.request_response
    async def greet(request: Payload) -> str:
        return f"hello {(await current_connection().request_response()).text}"

    async with service(far) as running, connect_forever(URI, responder=near) as client:
        for _ in range(2):
            assert (await client.request_response()).text == "hello client"
            running.cut()
            await settle()


async def test_terms_that_can_be_read_once_only_serve_every_connection(autojump_clock: MockClock) -> None:
    seen: list[tuple[Any, ...]] = []
    responder = busy_responder([])

    @responder.setup
    def remember(setup: Setup, connection: Connection) -> None:
        seen.append(setup.extension_entries)

    entries = iter([ExtensionEntry("org.example/hello", True, False, 0, b"hi")])
    async with (
        service(responder) as running,
        connect_forever(URI, dialect="rsocket/2.0-draft", extension_entries=entries) as client,
    ):
        await client.request_response()
        running.cut()
        await settle()
        await client.request_response()

    assert len(seen) == 2
    assert seen[0] == seen[1] != ()


async def test_over_tcp_a_server_is_found_again_where_it_was() -> None:
    states: list[str] = []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            servers = await nursery.start(run_server, "tcp://127.0.0.1:0")
            uri = servers.uri
            async with connect_forever(
                uri, backoff=Backoff(first_delay=0.01, longest_delay=0.02), on_state=states.append
            ) as client:
                connection = await client.connected()
                assert (await client.request_response(b"1")).data == b"done 1"
                servers.scope.cancel()
                await servers.gone.wait()
                await connection.wait_closed()
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(client.request_response, b"2")
                    await nursery.start(run_server, uri)
            nursery.cancel_scope.cancel()

    assert [state for state in states if state != "connecting"] == ["connected", "lost", "connected", "closed"]


class Running:
    """A server in a scope of its own."""

    def __init__(self) -> None:
        self.uri = ""
        self.scope = trio.CancelScope()
        self.gone = trio.Event()


async def run_server(uri: str, *, task_status: trio.TaskStatus[Running]) -> None:
    running = Running()
    with running.scope:
        async with trio.open_nursery() as nursery:
            [running.uri] = await nursery.start(serve, busy_responder([]), [uri])
            task_status.started(running)
    running.gone.set()


# What the types say, and what a connection says of its end


def test_the_named_arguments_are_those_of_a_connection() -> None:
    def keywords(function: object) -> set[str]:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
        return {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}

    assert set(ConnectionOptions.__annotations__) == keywords(open_connection)
    assert keywords(Connection.request_response) == {"route", "extension_entries", "reply", "auth", "metadata"}
    assert keywords(Connection.request_stream) - keywords(Connection.request_channel) == {"pushes"}


def test_every_request_of_a_connection_is_one_of_the_client() -> None:
    requests = {name for name in vars(Requester) if name.startswith("request_")}
    requests |= {"fire_and_forget", "metadata_push", "ping"}

    # Declared once: both have the very same functions.
    for name in requests:
        assert getattr(Connection, name) is getattr(rsocket_trio.ReconnectingClient, name) is vars(Requester)[name]


async def test_a_connection_says_why_it_is_over(autojump_clock: MockClock) -> None:
    reasons: list[RSocketError] = []

    async def wait(connection: Connection) -> None:
        reasons.append(await connection.wait_closed())

    async with connected_pair() as pair, trio.open_nursery() as nursery:
        nursery.start_soon(wait, pair.client)
        nursery.start_soon(wait, pair.client)
        await settle()
        with trio.move_on_after(1) as given_up:
            await wait(pair.client)
        assert given_up.cancelled_caught
        assert reasons == []
        await pair.server_wire.aclose()
    await wait(pair.client)

    assert [str(reason) for reason in reasons] == ["the peer closed the transport, and no frame ever came"] * 3
    assert len({id(reason) for reason in reasons}) == 3
