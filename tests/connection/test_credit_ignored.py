"""Peers that pay no heed to credit, by name: what is beyond it waits for its reader, within bounds, in both roles."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
import trio

from rsocket_trio import Channel, Connection, ConnectionLost, Incoming, Keepalive, Limits, Responder, current_connection
from tests.conformance.raw import (
    KEEPALIVE,
    RS10,
    C,
    N,
    RawPeer,
    bare_server,
    channel,
    client,
    complete,
    keepalive,
    payload,
    prefixed,
    request_n,
    server,
    settle,
    setup,
    stream,
)
from tests.each_row import ALL_CASES, each_row

KIB = 1024
QUIRK = ["ignores_credit"]
ITEM = 1 + 256
"""Bytes that an item of one byte counts."""
READ = 64 * KIB
READS = 100 if ALL_CASES else 30
"""Reads of 6,000 items of one byte each, many times what the inbox holds."""
"""Bytes that one read may bring above a limit."""


class End(NamedTuple):
    """A stream that a peer sends on beyond its credit of 2, as its reader holds it."""

    peer: RawPeer
    items: Incoming
    connection: Connection


@asynccontextmanager
async def at_a_client(**options: Any) -> AsyncIterator[End]:
    async with (
        client(RS10, quirks=QUIRK, **options) as (connection, peer),
        connection.request_stream(b"s", initial_request_n=2) as items,
    ):
        await peer.expect(stream(1, 2, b"s"))
        yield End(peer, items, connection)


@asynccontextmanager
async def at_a_server(**options: Any) -> AsyncIterator[End]:
    responder = Responder()
    held: list[tuple[Channel, Connection]] = []
    left = trio.Event()

    @responder.request_channel(initial_request_n=2)
    async def hold(channel: Channel) -> None:
        held.append((channel, current_connection()))
        await left.wait()

    times = options.pop("keepalive", Keepalive())
    async with bare_server(RS10, responder, quirks=QUIRK, **options) as peer:
        interval, lifetime = int(times.interval * 1000), int(times.max_lifetime * 1000)
        await peer.send(setup(keepalive=interval, lifetime=lifetime), channel(1, 9))
        await peer.expect(request_n(1, 2))
        yield End(peer, *held[0])
        left.set()


either = each_row("role", [at_a_client, at_a_server], ids=["client", "server"])


async def expect_answer(peer: RawPeer) -> None:
    """A KEEPALIVE was answered, whatever credit was granted before."""
    while (await peer.receive()).type != KEEPALIVE:
        pass


@either
async def test_items_beyond_the_credit_wait_for_their_reader(autojump_clock: object, role: Any) -> None:
    async with role() as end:
        for number in range(20):
            await end.peer.send(payload(1, b"%d" % number))
        await end.peer.send(*(payload(1, b"%d" % number) for number in range(20, 99)), payload(1, b"99", N | C))
        await settle()
        assert [item.data async for item in end.items] == [b"%d" % number for number in range(100)]
        assert end.connection.faults.peer_faults == 0


@either
async def test_above_the_inbox_reading_pauses_and_nothing_is_lost(autojump_clock: object, role: Any) -> None:
    async with role(limits=Limits(inbox_size=100 * KIB)) as end:
        stock = end.connection._engine.receive_budget
        for number in range(1000):
            await end.peer.send(payload(1, b"%d" % (number % 10)))
            await settle()
        await end.peer.send(complete(1), keepalive(b"alive?"))
        await settle()
        # Each counts its byte and the constant: one more than fits is taken, and no further read made.
        assert stock.size == (100 * KIB // ITEM + 1) * ITEM
        await end.peer.expect_silence(1)
        got = [item.data async for item in end.items]
        assert got == [b"%d" % (number % 10) for number in range(1000)]
        await expect_answer(end.peer)
        assert stock.size == 0


@either
async def test_a_pause_in_which_nothing_is_taken_ends_the_connection(
    autojump_clock: object, role: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with role(limits=Limits(inbox_size=10 * KIB, silence=30)) as end:
        start = trio.current_time()
        await end.peer.send(*[payload(1, bytes(1000))] * 20)
        error = await end.connection.wait_closed()
        assert isinstance(error, ConnectionLost)
        assert 30 <= trio.current_time() - start <= 40
        assert end.connection.faults.peer_faults == 0
    assert "reading was paused for 30 s, because nobody here took what had come" in caplog.text


@either
async def test_items_of_one_byte_are_bounded_in_memory(autojump_clock: object, role: Any) -> None:
    one = prefixed(payload(1, b"x"))
    async with role(limits=Limits(inbox_size=1024 * KIB)) as end:
        tracemalloc.start()
        try:
            for _ in range(READS):
                await end.peer.send_bytes(one * 6_000)
                await settle()
            in_the_pipe = READS * 6_000 * len(one)
            allocated = tracemalloc.get_traced_memory()[0] - in_the_pipe
        finally:
            tracemalloc.stop()
        assert end.connection._engine.receive_budget.size <= 1024 * KIB + READ // len(one) * ITEM
        assert allocated < 4 * 1024 * KIB


async def test_without_the_name_the_second_early_item_ends_the_stream(autojump_clock: object) -> None:
    responder = Responder()

    @responder.request_channel(initial_request_n=2)
    async def hold(channel: Channel) -> None:
        async for _ in channel:
            pass

    async with server(RS10, responder) as peer:
        await peer.send(channel(1, 9), *[payload(1, b"x")] * 2)
        await peer.expect_error(1, 0x204)
