"""Many channels on many connections at once, with items of all sizes both ways, each of which is looked at."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING

import trio

from qa.attacks.harness import Sampler, Victim, expect
from qa.items import ASKED, ASKING, item
from qa.processes import MIB
from rsocket_trio import Channel, Connection, Payload, Responder, RSocketError, open_connection

if TYPE_CHECKING:
    from qa.attacks.held import Load
    from qa.attacks.server import Work

NUMBER = struct.Struct(">II")
CREDIT = 2
"""Items under way on a channel: what waits is so many, times their size, times the channels. With the default of 256
each connection may use the whole of its outbox and inbox."""


async def differing(items: AsyncIterable[Payload], number: int, count: int) -> int:
    """Return the number of items that are not due: lost, repeated, out of order, damaged, or too many."""
    wrong = index = 0
    async for got in items:
        wrong += index >= count or got != item(number, ASKED, index)
        index += 1
    return wrong + max(0, count - index)


def serve_ledgers(responder: Responder, work: Work) -> None:
    """Have a responder talk on channels of this kind."""

    @responder.request_channel("ledger", initial_request_n=CREDIT)
    async def ledger(channel: Channel) -> None:
        number, count = NUMBER.unpack(channel.request.data)

        wrong = 0
        with work.counted():
            for index in range(count):
                await channel.send(item(number, ASKED, index))
                got = await anext(channel, None)
                wrong += got != item(number, ASKING, index)
            wrong += await anext(channel, None) is not None
            work.wrong += wrong
            work.ledgers += 1


def crowd(size: Load) -> str:
    """Raise ``Missed`` if an item is wrong, or if it costs too much."""
    wrong = items = most = 0
    failures: list[str] = []

    async def talk(connection: Connection, number: int) -> None:
        nonlocal wrong, items
        request = NUMBER.pack(number, size.items)
        try:
            opening = connection.request_channel(request, route="ledger", initial_request_n=CREDIT)
            async with opening as channel, trio.open_nursery() as nursery:

                async def send() -> None:
                    for index in range(size.items):
                        await channel.send(item(number, ASKING, index))
                    await channel.send_eof()

                nursery.start_soon(send)
                found = await differing(channel, number, size.items)
                wrong += found
                items += size.items
        except* RSocketError as group:
            failures.extend(repr(error) for error in group.exceptions)

    async def connect(uri: str, number: int, opened: trio.Event) -> None:
        nonlocal most
        async with open_connection(uri) as connection:
            most += 1
            if most == size.crowd:
                opened.set()
            await opened.wait()
            async with trio.open_nursery() as nursery:
                for channel in range(size.channels):
                    nursery.start_soon(talk, connection, number * size.channels + channel)

    async def run(uri: str) -> None:
        opened = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(size.crowd):
                nursery.start_soon(connect, uri, number, opened)

    with Victim() as victim:
        began = time.monotonic()
        with Sampler(victim) as sampler:
            trio.run(run, f"tcp://127.0.0.1:{victim.ports['tcp']}")
        took = time.monotonic() - began
        work = victim.order("work")
    channels = size.crowd * size.channels
    expect(not failures, f"{len(failures)} channels failed: {failures[:3]}")
    expect(wrong == work["wrong"] == 0, f"{wrong} items were wrong at the client and {work['wrong']} at the server")
    expect(items == channels * size.items, f"{items} items came")
    expect(work["ledgers"] == channels, f"the server ended {work['ledgers']} of {channels} channels")
    expect(sampler.peak <= size.peak * MIB, f"the server had {sampler.peak / MIB:.0f} MiB at most")
    return (
        f"{size.crowd} connections of {size.channels} channels, {2 * items} items of 0 to 70 KB, each as it was sent, "
        f"in {took:.0f} s; the server had {sampler.peak / MIB:.0f} MiB at most"
    )
