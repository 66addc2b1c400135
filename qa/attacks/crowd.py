"""Many channels on many connections at once, with items of all sizes both ways, each of which is looked at."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import AsyncIterable
from functools import cache
from typing import TYPE_CHECKING, Protocol

import trio

from qa.attacks.harness import MIB, Sampler, Victim, expect
from rsocket_trio import Channel, Connection, Payload, PayloadLike, Responder, RSocketError, open_connection

if TYPE_CHECKING:
    from qa.attacks.held import Load
    from qa.attacks.server import Work

LARGEST = 70_000
NUMBER = struct.Struct(">II")
UP, DOWN = 0, 1
CREDIT = 2
"""Items under way on a channel: what waits is so many, times their size, times the channels. With the default of 256
each connection may use the whole of its outbox and inbox."""


class Sends(Protocol):
    """An object that items can be sent on."""

    async def send(self, payload: PayloadLike, /) -> None:
        """Send one."""


@cache
def pool() -> bytes:
    """Return the bytes of which items are cut."""
    return random.Random(1).randbytes(2 * LARGEST)


@cache
def sizes() -> list[int]:
    """From 0 to 70 KB: each order of magnitude is as likely."""
    steps = 1000
    return [0, *(int(LARGEST ** (step / steps)) for step in range(1, steps + 1))]


def item(number: int, index: int, way: int) -> bytes:
    """The item of a channel: both ends know it."""
    mixed = (number * 2_654_435_761 + index * 40_503 + way * 97) % 2**32
    size = sizes()[mixed % len(sizes())]
    begin = mixed % LARGEST
    return (NUMBER.pack(number, index) + pool()[begin : begin + size])[:size]


async def send_all(channel: Sends, number: int, count: int, way: int) -> None:
    for index in range(count):
        await channel.send(item(number, index, way))


async def differing(items: AsyncIterable[Payload], number: int, count: int, way: int) -> int:
    """Return the number of items that are not due: lost, repeated, out of order, damaged, or too many."""
    wrong = index = 0
    async for got in items:
        wrong += index >= count or got.data != item(number, index, way)
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
                await channel.send(item(number, index, DOWN))
                got = await anext(channel, None)
                wrong += got is None or got.data != item(number, index, UP)
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
                    await send_all(channel, number, size.items, UP)
                    await channel.send_eof()

                nursery.start_soon(send)
                found = await differing(channel, number, size.items, DOWN)
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
