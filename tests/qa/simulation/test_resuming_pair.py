"""A pair that resumes, over a network that cuts it again and again: what was sent comes, once and in order."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest
import trio

from rsocket_trio import Channel, Connection, Payload, Responder, ResumeOptions
from rsocket_trio.testing import Faults, SimulatedNetwork, connected_pair, simulate

RESUME = ResumeOptions(first_delay=0.01, longest_delay=0.1, session_seconds=60)
FIRST = Faults(split=(1, 2000), delay=(0.0, 0.05), cut_after=(300, 5000))
LATER = attrs.evolve(FIRST, refuse=0.2)
ITEMS = [b"%d" % number * 50 for number in range(60)]


def responder() -> Responder:
    responder = Responder()

    @responder.request_stream
    async def items(request: Payload) -> AsyncIterator[bytes]:
        for item in ITEMS:
            yield item

    @responder.request_channel
    async def echo(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    return responder


async def received(connection: Connection) -> list[bytes]:
    async with connection.request_stream(initial_request_n=4) as items:
        return [item.data async for item in items]


async def echoed(connection: Connection) -> list[bytes]:
    async def send(channel: Channel) -> None:
        for item in ITEMS:
            await channel.send(item)
        await channel.send_eof()

    async with connection.request_channel(initial_request_n=4) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(send, channel)
        return [item.data async for item in channel]


async def run(seed: int) -> int:
    """Both kinds of work in both directions; how often the connection was cut meanwhile."""
    network = SimulatedNetwork(seed, (FIRST, LATER))
    results: list[list[bytes]] = []

    async def work(connection: Connection) -> None:
        results.append(await received(connection))
        results.append(await echoed(connection))

    pair = connected_pair(responder(), client_responder=responder(), network=network, resume=RESUME)
    async with pair as connections, trio.open_nursery() as nursery:
        for connection in connections:
            nursery.start_soon(work, connection)
    assert results == [ITEMS] * 4
    return network.cuts


@pytest.mark.parametrize("seed", range(3))
def test_no_cut_costs_a_pair_that_resumes_an_item(seed: int) -> None:
    assert simulate(run, seed, seed=seed) > 2
