"""Items and rows of no size by the million, which nobody answers for: what a process keeps of them is bounded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from qa.attacks.harness import Missed, Victim, expect
from qa.attacks.line import Line, warmed
from qa.processes import MIB
from rsocket_trio import Channel, Limits, open_connection
from tests.conformance import raw

if TYPE_CHECKING:
    from qa.attacks.held import Load

ENDLESS = 2**31 - 1
TWICE = 2
"""Multiple of ``sessions_bytes`` by which a server may grow."""
LEFT = 12.0
"""MiB for sessions that ended: the collector of cycles takes them later, without their tokens."""
ROWS = 16.0
"""MiB that rows may take which are not acknowledged."""
QUIET, LONGEST = 1.0, 300.0
"""Seconds without a byte after which a stream has stopped, and after which it should have."""
STUCK = 1.5
"""Seconds without a row that is taken."""
BATCH = 1000


def setup_of(token: bytes) -> bytes:
    """A SETUP of a session that can be resumed, whose client shows no sign of life for long."""
    return raw.prefixed(raw.setup(token=token, keepalive=600_000, lifetime=3_600_000))


def abandon(port: int, token: bytes, most: int) -> int:
    """Read items of one byte until no more come, and leave without a word. Return the number of bytes."""
    line = Line(port)
    line.keeps = False
    try:
        line.send(setup_of(token) + raw.prefixed(raw.stream(1, ENDLESS, b"1")))
        until = time.monotonic() + LONGEST
        seen = -1
        while line.received != seen:
            seen = line.received
            expect(not line.ended and time.monotonic() < until and seen < 3 * most, f"{seen} bytes came")
            line.read(QUIET, lambda before=seen: line.received >= before + MIB)  # type: ignore[misc]
        return seen
    finally:
        line.close()


def abandoned(size: Load) -> str:
    """Sessions of endless items of one byte, whose clients read all and never say a position, and then go."""
    bound = size.abandoned * (size.store + Limits().outbox_size)  # in full size the default of both
    with Victim({"resume": {"store_bytes": size.store, "sessions_bytes": bound, "session_seconds": 3600}}) as victim:
        warm = warmed(victim.ports["tcp"])
        before, came = victim.resident(), 0
        for number in range(size.abandoned):
            came += abandon(victim.ports["tcp"], b"%d" % number, size.store)
        time.sleep(QUIET)
        grown = victim.resident() - before
        waiting = victim.order("glance")["handlers"]
        warm.close()
    text = (
        f"{size.abandoned} sessions of {came / size.abandoned / MIB:.1f} MiB in frames with an item of one byte, "
        f"grown by {grown / MIB:.1f} MiB, of which {bound / MIB:g} are theirs"
    )
    # With their streams they count a little more than that, and the oldest may have ended for it.
    expect(waiting >= size.abandoned - 1, f"{waiting} of {size.abandoned} sessions wait: {text}")
    expect(grown <= TWICE * bound, text)
    return text


def long_tokens(size: Load) -> str:
    """Sessions with the longest tokens, whose clients leave without a word."""
    bound, token_size = 2 * MIB, 65_000
    with Victim({"resume": {"sessions_bytes": bound, "session_seconds": 3600}}) as victim:
        warm = warmed(victim.ports["tcp"])
        before = victim.resident()
        for number in range(size.long_tokens):
            line = Line(victim.ports["tcp"])
            line.keeps = False
            line.send(setup_of(number.to_bytes(token_size, "big")) + raw.prefixed(raw.ask(1, b"here")))
            expect(line.read_bytes(13), f"the request of session {number} was not answered")
            line.close()
        time.sleep(QUIET)
        grown = victim.resident() - before
        warm.close()
    text = f"{size.long_tokens} sessions with tokens of {token_size} bytes, limit {bound / MIB:g} MiB for all"
    expect(grown <= TWICE * bound + LEFT * MIB, f"{text}: grown by {grown / MIB:.1f} MiB")
    return f"{text}, grown by {grown / MIB:.1f} MiB"


def rows(size: Load) -> str:
    """Empty and one-byte rows for a sink whose acknowledgements get no credit; then they get it."""
    said = []
    for row in (b"", b"x"):
        with Victim() as victim:
            try:
                said.append(trio.run(_write, victim, row, size.rows))
            except BaseExceptionGroup as group:
                raise Missed(f"{group.exceptions[0]!r}") from group
    return "; ".join(said)


async def _write(victim: Victim, row: bytes, count: int) -> str:
    sent = 0

    async def send(channel: Channel) -> None:
        nonlocal sent
        while sent < count:
            await channel.send_many([row] * BATCH)
            sent += BATCH

    async with open_connection(f"tcp://127.0.0.1:{victim.ports['tcp']}") as connection:
        await connection.request_response(row, route="rows")
        async with connection.request_channel(row, route="rows") as warm:
            # Rows that come together load Arrow.
            await warm.send_many([row] * 2)
            await warm.send_eof()
            async for _ in warm:
                pass
        before = victim.resident()
        async with (
            connection.request_channel(row, route="rows", initial_request_n=1, refill=False) as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(send, channel)
            seen = -1
            while sent != seen and sent < count:
                seen = sent
                await trio.sleep(STUCK)
            grown = (victim.resident() - before) / MIB
            text = f"{sent} of {count} rows of {len(row)} bytes were taken unacknowledged, {grown:.1f} MiB"
            expect(grown < ROWS, text)
            expect(await _told(channel, seen) == seen, "rows were not acknowledged")
            nursery.cancel_scope.cancel()
    return text


async def _told(channel: Channel, count: int) -> int:
    """Take so many acknowledgements."""
    taken = 1
    await anext(channel)
    while taken < count:
        channel.request_n(min(BATCH, count - taken))
        for _ in range(min(BATCH, count - taken)):
            await anext(channel)
            taken += 1
    return taken
