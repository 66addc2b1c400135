"""Items and rows of no size by the million, which nobody answers for: what a process keeps of them is bounded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from qa.attacks.harness import Victim, expect
from qa.attacks.line import Line, warmed
from qa.processes import MIB
from rsocket_trio import Limits
from tests.conformance import raw

if TYPE_CHECKING:
    from qa.attacks.held import Load

ENDLESS = 2**31 - 1
TWICE = 2
"""Multiple of ``sessions_bytes`` by which a server may grow."""
LEFT = 12.0
"""MiB for sessions that ended: the collector of cycles takes them later, without their tokens."""
QUIET, LONGEST = 1.0, 300.0
"""Seconds without a byte after which a stream has stopped, and after which it should have."""


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
