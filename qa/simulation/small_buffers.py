"""Both sides send in bulk, on streams and channels in both directions, through sockets that hold 4 KiB: who reads late
must never make the other wait for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from rsocket_trio import Channel, Connection, Limits, Payload, Responder
from rsocket_trio.testing import Faults, SimulatedNetwork, connected_pair, simulate

BUFFER = 4096
LONGEST = 600.0
"""Virtual seconds for a run: those that end take a few."""
ITEM = 16 * 1024
FAULTS = Faults(split=(500, BUFFER), delay=(0.0, 0.002), buffer=(BUFFER, BUFFER))


def responder(count: int) -> Responder:
    """Streams of so many items, and channels that give back what they get."""
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    @responder.request_stream
    async def items(request: Payload) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield bytes(ITEM)

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    return responder


async def run(seed: int, mebibytes: float) -> float:
    """Bulk on four streams each way; the virtual seconds that it took."""
    network = SimulatedNetwork(seed, FAULTS)
    chance = network.random
    count = max(2, int(mebibytes * 2**20 / ITEM / 2))
    outbox = chance.choice([1, 20_000, 4 * 2**20])
    limits = Limits(outbox_size=outbox, inbox_size=chance.choice([1, 100_000, 8 * 2**20]))
    done: list[int] = []

    async def take(connection: Connection) -> None:
        async with connection.request_stream(initial_request_n=chance.choice([1, 8, 256])) as items:
            done.append(len([None async for _ in items]))

    async def talk(connection: Connection) -> None:
        async def send(channel: Channel) -> None:
            for _ in range(count):
                await channel.send(bytes(ITEM))
            await channel.send_eof()

        async with connection.request_channel() as channel, trio.open_nursery() as nursery:
            nursery.start_soon(send, channel)
            done.append(len([None async for _ in channel]))

    async def ask(connection: Connection) -> None:
        for number in range(count):
            assert (await connection.request_response(b"%d" % number)).data == b"%d" % number

    pair = connected_pair(responder(count), client_responder=responder(count), network=network, limits=limits)
    async with pair as connections, trio.open_nursery() as nursery:
        for connection in connections:
            for work in (take, talk, ask):
                nursery.start_soon(work, connection)
    assert done == [count] * 4
    return trio.current_time()


def play(seed: int, mebibytes: float = 0.25) -> float:
    """One seed. Raise ``TooSlowError`` where both sides wait for each other."""
    return simulate(run, seed, mebibytes, seed=seed, longest=LONGEST)
