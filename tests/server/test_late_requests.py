"""Requests that cross the end of a drain: what a peer asked before it heard is refused, and never cut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Canceled, Connection, ConnectionClosed, Rejected, Responder, open_connection
from rsocket_trio.connection.connection import PEER_CLOSE_TIMEOUT
from rsocket_trio.server.options import serve_options
from rsocket_trio.server.processes.messages import RETIRE_DELAY
from rsocket_trio.server.serve import serve_here
from rsocket_trio.transports.listen import BoundListener, open_listeners
from tests.conformance import raw
from tests.connection.pairs import connected_pair, echo_responder, settle
from tests.connection.resuming import each
from tests.connection.resuming import pair as resumable_pair


async def outcome(connection: Connection, route: str | None = None) -> str:
    """Return what a request comes to."""
    try:
        return (await connection.request_response(b"answer", route=route)).text
    except (Rejected, Canceled, ConnectionClosed) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("announce", [False, True], ids=["announced last", "announced first"])
async def test_a_request_that_crosses_the_end_of_a_drain_is_rejected(announce: bool, autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair, trio.open_nursery() as nursery:
        heard: list[str] = []

        async def ask() -> None:
            heard.append(await outcome(pair.client))

        pair.client_wire.hold()
        nursery.start_soon(ask)
        await settle()
        nursery.start_soon(partial(pair.server.drain, announce=announce))
        await settle()
        assert pair.server_said.names == ["ERROR"]
        assert (pair.client.status, pair.server.status, heard) == ("draining", "draining", [])
        pair.client_wire.release()
        await settle()

        assert heard == ["Drained: no new requests: the connection is closing"]
        assert "the peer closed" in str(await pair.client.wait_closed())
        assert "drained by this side" in str(await pair.server.wait_closed())
        assert pair.server.faults.peer_faults == pair.client.faults.peer_faults == 0
        assert trio.current_time() == 0


async def test_a_request_that_crosses_the_end_of_the_grace_period_is_rejected(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair, trio.open_nursery() as nursery:
        heard: list[str] = []

        async def ask(route: str | None = None) -> None:
            heard.append(await outcome(pair.client, route))

        nursery.start_soon(ask, "never")
        await settle()
        pair.client_wire.hold()
        nursery.start_soon(ask)
        nursery.start_soon(partial(pair.server.drain, grace=3))
        await trio.sleep(3.1)
        assert heard == ["Canceled: the connection is closing"]
        pair.client_wire.release()
        await settle()

        assert heard[1:] == ["Drained: no new requests: the connection is closing"]
        assert isinstance(await pair.server.wait_closed(), ConnectionClosed)


async def test_a_peer_that_does_not_close_is_refused_for_a_second(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        pair.client_wire.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome, pair.client)
            await settle()
            await pair.server.drain()
            assert trio.current_time() == pytest.approx(PEER_CLOSE_TIMEOUT)
            assert pair.server.status == "closed"


@each
async def test_a_session_that_drained_does_not_wait_for_its_client_to_come_back(
    dialect: str, autojump_clock: MockClock
) -> None:
    async with resumable_pair(echo_responder(), dialect) as both:
        await both.client.request_response(b"x")
        await both.server.drain()

        assert both.server.status == "closed"
        assert trio.current_time() < PEER_CLOSE_TIMEOUT


async def test_what_is_asked_when_a_worker_has_lingered_is_answered_or_rejected(autojump_clock: MockClock) -> None:
    async def listeners() -> Sequence[BoundListener]:
        return await open_listeners(["memory://late"])

    responder = Responder()
    responder.request_response(lambda request: request.data)
    retiring = trio.Event()
    outcomes: list[str] = []

    async def ask_late(uri: str, ready: trio.Event, turns: int) -> None:
        async with open_connection(uri) as connection:
            assert await outcome(connection) == "answer"
            ready.set()
            await retiring.wait()
            await trio.sleep(RETIRE_DELAY)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            if connection.status == "open":
                outcomes.append((await outcome(connection)).partition(":")[0])

    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve_here, retiring=retiring), responder, listeners, serve_options())
        for number in range(40):
            ready = trio.Event()
            nursery.start_soon(ask_late, uri, ready, number % 8)
            await ready.wait()
        retiring.set()

    # Whatever was asked while the client knew of nothing; which of it came in time is a matter of turns.
    assert outcomes
    assert set(outcomes) <= {"answer", "Drained"}


async def test_a_request_behind_connection_close_was_never_sent_and_says_so(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair, trio.open_nursery() as nursery:
        async with pair.client.request_stream(initial_request_n=1, refill=False) as items:
            await anext(items)
            nursery.start_soon(partial(pair.server.drain, announce=True))
            await settle()
            for _ in range(2):
                with pytest.raises(Rejected, match="closing: no new requests") as refused:
                    await pair.client.request_response(b"late")
                assert isinstance(refused.value, ConnectionClosed)
        await pair.client.wait_closed()
        with pytest.raises(Rejected, match="the peer closed the connection"):
            await pair.client.fire_and_forget(b"later still")

    assert pair.client_said.names[:2] == ["REQUEST_STREAM", "CANCEL"]


async def test_a_request_behind_a_drain_of_this_side_is_closed(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        await pair.client.drain()
        with pytest.raises(ConnectionClosed) as closed:
            await pair.client.request_response()

    assert not isinstance(closed.value, Rejected)


@raw.both
async def test_requests_behind_connection_close_are_refused_until_the_peer_closes(
    wire: raw.Wire, autojump_clock: MockClock
) -> None:
    served: list[Connection] = []
    log = raw.Log()

    @log.responder.setup
    def meet(_: object, connection: Connection) -> None:
        served.append(connection)

    async with raw.server(wire, log.responder) as peer, trio.open_nursery() as nursery:
        await peer.expect_alive()
        nursery.start_soon(served[0].drain)
        await peer.expect_error(0, raw.CONNECTION_CLOSE)
        for stream_id in (1, 3):
            await peer.send(raw.ask(stream_id))
            await peer.expect_error(stream_id, raw.REJECTED)
        await peer.expect_end()
