"""A connected pair: both connections, over any simulated network, with the user's own responders untouched."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from qa.simulation.plans import DIALECTS
from rsocket_trio import (
    ApplicationError,
    Connection,
    ConnectionLost,
    Keepalive,
    Lease,
    Limits,
    Payload,
    RejectedSetup,
    Responder,
    Setup,
    current_connection,
)
from rsocket_trio.testing import Faults, SimulatedNetwork, connected_pair
from tests.connection.pairs import echo_responder


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_both_sides_can_ask(dialect: str, autojump_clock: MockClock) -> None:
    network = SimulatedNetwork(1, Faults(split=(1, 100), delay=(0, 1)))
    echo = echo_responder()
    async with connected_pair(echo, client_responder=echo, network=network, dialect=dialect) as (client, server):
        assert client.dialect == server.dialect == dialect
        assert (await client.request_response(b"up")).data == b"up"
        assert (await server.request_response(b"down")).data == b"down"
    assert server.status == client.status == "closed"


async def test_the_server_is_the_one_that_handlers_know(autojump_clock: MockClock) -> None:
    responder, known = Responder(), []

    @responder.setup
    async def let_in(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        known.append((setup.payload.text, connection))

    @responder.request_response
    async def whoami(request: Payload) -> bytes:
        known.append(("", current_connection()))
        return b""

    async with connected_pair(responder, setup="hello") as (client, server):
        assert known == [("hello", server)]
        await client.request_response()
        assert known[1] == ("", server)
    known.clear()


async def test_a_responder_can_serve_pair_after_pair(autojump_clock: MockClock) -> None:
    responder, network = echo_responder(), SimulatedNetwork()
    for _ in range(2):
        async with connected_pair(responder, network=network) as (client, _):
            await client.request_response(b"x")
    assert responder._setup_handler is None


async def test_a_refusal_is_raised_at_once(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.setup
    def refuse(setup: Setup, connection: Connection) -> None:
        raise RejectedSetup("not you")

    with pytest.raises(RejectedSetup, match="not you"):
        async with connected_pair(responder):
            raise AssertionError


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (Faults(refuse=1.0), ConnectionRefusedError),
        (Faults(cut_after=(20, 20), cut_from=("client",)), ConnectionLost),
        (Faults(vanish_after=(20, 20), vanish_from=("client",)), ConnectionLost),
    ],
)
async def test_a_network_that_lets_nobody_through_is_raised_at_once(
    faults: Faults, error: type[Exception], autojump_clock: MockClock
) -> None:
    with pytest.raises(error):
        async with connected_pair(echo_responder(), network=SimulatedNetwork(0, faults)):
            raise AssertionError


async def test_a_connect_that_the_server_sees_twice_gives_the_right_server(autojump_clock: MockClock) -> None:
    for seed in range(10):
        network = SimulatedNetwork(seed, Faults(duplicate=1.0, duplicate_bytes=(0, 40)))
        echo = echo_responder()
        async with connected_pair(echo, client_responder=echo, network=network) as (client, server):
            await client.request_response(b"x")
            await server.request_response(b"x")


async def test_the_error_of_the_block_leaves_it_alone(autojump_clock: MockClock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connected_pair():
            raise ZeroDivisionError


async def test_options_reach_their_side(autojump_clock: MockClock) -> None:
    network = SimulatedNetwork()
    options = {"keepalive": Keepalive(1, 3), "limits": Limits(streams=1), "server_limits": Limits(streams=2)}
    async with connected_pair(network=network, **options) as (client, server):  # type: ignore[arg-type]
        assert server.setup.max_lifetime == 3
        limits = [one._engine.session.limits.streams for one in (client, server)]
        assert limits == [1, 2]
        network.vanish()
        await trio.sleep(4)
        assert client.status == server.status == "closed"


async def test_a_responders_lease_policy_and_what_it_has_for_failures_are_its_own(autojump_clock: MockClock) -> None:
    responder, heard = Responder(), []

    @responder.lease
    async def policy(setup: Setup) -> AsyncIterator[Lease]:
        yield Lease(1, 1000)

    @responder.request_response
    async def fail(request: Payload) -> bytes:
        raise KeyError("told")

    @responder.on_error
    def hear(error: BaseException, call: object) -> None:
        heard.append(error)

    async with connected_pair(responder, lease=True) as (client, _):
        with pytest.raises(ApplicationError, match="internal error"):
            await client.request_response()
    assert [type(error) for error in heard] == [KeyError]
