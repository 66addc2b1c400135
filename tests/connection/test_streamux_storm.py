"""Both sides ask, stream, ping and give up at random: everybody gets what was asked, and nothing is left."""

from __future__ import annotations

import random
from typing import Any

import trio
from trio.testing import MockClock

from rsocket_trio import Canceled, Channel, Connection, Limits, Payload, Responder, StreamuxOptions
from tests.connection.pairs import settle
from tests.connection.streamux_pairs import streamux_pair, widths
from tests.each_row import ALL_CASES, each_row

TASKS, ROUNDS = 12, 12


def slow_echo(rng: random.Random) -> Responder:
    """Answers with what it was asked, after a while, and a channel's chunks one by one."""
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> bytes:
        await trio.sleep(rng.choice([0, 0, 0.1, 1]))
        return request.data

    @responder.request_channel
    async def echo_all(channel: Channel) -> None:
        async for item in channel:
            await trio.sleep(rng.choice([0, 0, 0.01]))
            await channel.send(item)
            if rng.random() < 0.05:
                return

    return responder


async def be_a_user(connection: Connection, rng: random.Random, done: dict[str, int]) -> None:
    for _ in range(ROUNDS):
        kind = rng.choice(["whole", "channel", "ping", "given up", "left"])
        data = rng.randbytes(rng.choice([1, 10, 300, 5000]))
        if kind == "whole":
            assert (await connection.request_response(data)).data == data
        elif kind == "ping":
            await connection.ping()
        elif kind == "given up":
            with trio.move_on_after(rng.choice([0, 0.05, 0.5])):
                assert (await connection.request_response(data)).data == data
        else:
            await use_channel(connection, rng, data, read_all=kind == "channel")
        done[kind] = done.get(kind, 0) + 1


async def use_channel(connection: Connection, rng: random.Random, data: bytes, *, read_all: bool) -> None:
    # The first chunk is a small one, so that it begins no whole request.
    sent = [b"first", *[data[:at] for at in (1, 3, 7)]]
    async with connection.request_channel(sent[0]) as channel:
        for item in sent[1:]:
            if channel.room:
                await trio.sleep(rng.choice([0, 0.01]))
            if not channel.room:
                break  # the handler has returned
            try:
                await channel.send(item)
            except Canceled:
                break  # it returned while this chunk waited for room in the outbox
        if not read_all:
            return
        if channel.room:
            await channel.send_eof()
        got = b"".join([item.data async for item in channel])
        assert b"".join(sent).startswith(got)
        assert got


OPTIONS: list[dict[str, Any]] = [
    {"client": widths(0, 8), "server": widths(0, 8, qa=True)},
    {"client": widths(1, 10, qr=True), "server": widths(4, 10, qa=True)},
    {"client": widths(3, 4), "server": StreamuxOptions(qa=True)},
    {"client": StreamuxOptions(in_flight=5), "server": StreamuxOptions(qa=True, in_flight=3)},
]


CASES = [
    (options, bounded, pausing)
    for number, options in enumerate(OPTIONS)
    for bounded in (False, True)
    for turn, pausing in enumerate(("client", "server"))
    if ALL_CASES or (number + bounded + turn) % 2  # each pair of values
]
ROOMY = Limits(outbox_size=3000)
TIGHT = Limits(inbox_size=3000, outbox_size=3000, reassembly_size=20_000)


@each_row(("options", "bounded", "pausing"), CASES)
async def test_nobody_is_left_waiting_and_nothing_is_left_over(
    options: dict[str, Any], bounded: bool, pausing: str, autojump_clock: MockClock
) -> None:
    """One side alone may pause reading.

    Two sides that both pause, with outboxes that are full, stop each other: the protocol has no credit, and handlers
    that wait to answer take nothing. A side that always reads empties the outbox of the other, whose pauses then end.
    """
    rng = random.Random(len(OPTIONS) + bounded)
    done: dict[str, int] = {}
    limits, server_limits = (TIGHT, ROOMY) if pausing == "client" else (ROOMY, TIGHT)
    responders = slow_echo(rng), slow_echo(rng)
    with trio.fail_after(3600):
        async with streamux_pair(
            *responders, limits=limits, server_limits=server_limits, bounded=bounded, **options
        ) as pair:
            async with trio.open_nursery() as nursery:
                for _ in range(TASKS):
                    nursery.start_soon(be_a_user, pair.client, rng, done)
                    nursery.start_soon(be_a_user, pair.server, rng, done)
            await settle()
            for connection in (pair.client, pair.server):
                session: Any = connection._engine.session
                table, outbox = session.table, session.outbox
                assert (table.mine, table.theirs, table.reassembling, table.buffered) == ({}, {}, 0, 0)
                assert (outbox.size, outbox.reply_size, bool(outbox)) == (0, 0, False)
                assert (connection._engine.receive_budget.size, session.receiver.detached) == (0, 0)
                assert (connection.faults.peer_faults, connection.faults.handler_errors) == (0, 0)
                assert connection.status == "open"

    assert sum(done.values()) == 2 * TASKS * ROUNDS
    assert len(done) == 5
