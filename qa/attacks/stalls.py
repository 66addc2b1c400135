"""A server that stalls must not take clients for dead that showed in time that they live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from qa.attacks.harness import Victim, expect
from qa.attacks.line import Line
from tests.conformance import raw

if TYPE_CHECKING:
    from qa.attacks.held import Load

CLIENTS = 40
LIFETIME, BEATS = 1.5, 0.5
STALL = 2.5
SOON = 3.0
"""Seconds after a stall in which a silent client is gone, on a machine that has much else to do."""
LONGER = 1.0
"""Seconds for which the others are looked at after that."""
SETUP = raw.prefixed(raw.setup(keepalive=int(BEATS * 1000), lifetime=int(LIFETIME * 1000)))
BEAT, BEATEN = raw.prefixed(raw.keepalive()), raw.prefixed(raw.keepalive(respond=False))


def once(port: int, seconds: float) -> tuple[int, float]:
    """Stall a server that has 40 live clients and a dead one.

    Return the number of live clients that were given up, and when the dead one was, in seconds after the stall.
    """
    lines = [Line(port) for _ in range(CLIENTS + 1)]
    dead = lines.pop()
    try:
        for line in (*lines, dead):
            line.send(SETUP + BEAT)
        for line in (*lines, dead):
            expect(line.read_bytes(len(BEATEN)), "a client was not let in")
        lines[0].send(raw.prefixed(raw.ask(1, b"stall %g" % seconds)))
        ends = time.monotonic() + seconds
        while time.monotonic() < (max(ends, dead.ended_at) + LONGER if dead.ended else ends + SOON):
            for line in lines:
                line.send(BEAT)
                line.take()
            # Either one waits for its end, which the live one must not see.
            (lines[0] if dead.ended else dead).read(BEATS / 2)
        return sum(line.ended for line in lines), dead.ended_at - ends
    finally:
        for line in (*lines, dead):
            line.close()


def stalls(size: Load) -> str:
    """Raise ``Missed`` if a live client was given up in any of the stalls, or a dead one was not."""
    latest = 0.0
    with Victim() as victim:
        for turn in range(1, size.stalls + 1):
            lost, after = once(victim.ports["tcp"], STALL)
            expect(lost == 0, f"{lost} of {CLIENTS} live clients were given up after stall {turn}")
            expect(-STALL < after < SOON, "a client that was dead was not given up")
            latest = max(latest, after)
    return (
        f"{size.stalls} stalls of {STALL:g} s, each of {CLIENTS} live clients with {LIFETIME:g} s to live: none was "
        f"given up; a dead one was at most {latest * 1000:.0f} ms after the stall"
    )
