"""Load that is held, and load that comes and goes: many connections, channels, requests, bytes."""

from __future__ import annotations

import math
import selectors
import subprocess
import sys
import time
from collections.abc import Callable

import attrs
import trio

from qa.attacks.bulk import bulk
from qa.attacks.crowd import crowd
from qa.attacks.harness import Missed, Victim, expect
from qa.attacks.leftovers import leftovers
from qa.attacks.line import Line
from qa.attacks.mtu import mtu
from qa.attacks.small import abandoned, long_tokens
from qa.attacks.tokens import tokens
from qa.processes import MIB, ROOT, descriptors, resident
from rsocket_trio import Connection, open_connection
from tests.conformance import raw

KEEPALIVE = 10.0
"""Seconds between the keepalives of a connection that is held."""
SETUP = raw.prefixed(raw.setup(keepalive=int(KEEPALIVE * 1000), lifetime=60_000))
BEAT, BEATEN = raw.prefixed(raw.keepalive()), raw.prefixed(raw.keepalive(respond=False))
ASK, ANSWER = raw.prefixed(raw.ask(1, bytes(64))), raw.prefixed(raw.payload(1, bytes(64), raw.N | raw.C))
IN_FLIGHT = 64
ANSWERED_IN = 60.0
"""Seconds after which an answer does not come any more."""
LAST_ID = 2**31 - 1
UNCOLLECTED = 4.0
"""MiB by which requests may grow a process in full size."""


@attrs.frozen(kw_only=True)
class Load:
    """The size of a load, and its bars."""

    connections: int = 5000
    seconds: float = 60.0
    opened: int = 10_000
    requests: int = 1_000_000
    warm: float = 0.1
    """The part after which memory counts."""
    per_connection: float = 18.0
    """KiB."""
    growth: float = 2.0
    """MiB."""
    crowd: int = 500
    """Connections of ``channels`` each, with ``items`` both ways on each."""
    channels: int = 20
    items: int = 50
    peak: float = 512.0
    """MiB of the server with all of them."""
    bulk: float = 1024.0
    """MiB each way."""
    small: int = 100
    """Small things that must at least have been done beside them."""
    slack: float = 1.0
    """Factor by which anything may take longer; without end where the machine is not ours alone."""
    tokens: int = 5_000
    """Tries with tokens that were, and as many with tokens that never were."""
    uncollected: int = 100_000
    """Requests without the collector of cycles."""
    payload: float = 20.0
    """MB of one payload in the smallest fragments that peers send."""
    abandoned: int = 8
    """Sessions whose clients leave without a word."""
    store: int = 4 * MIB
    """Bytes of frames that each of them keeps."""
    long_tokens: int = 2_000
    """Sessions with the longest tokens, one after another."""
    ended: int = 10_000
    """Connections of ten streams each, ended in five ways."""


QUICK = Load(
    connections=200,
    seconds=0.5,
    opened=200,
    requests=5_000,
    warm=0.5,
    per_connection=40,
    crowd=20,
    channels=5,
    items=10,
    bulk=48,
    small=5,
    slack=math.inf,
    tokens=100,
    uncollected=20_000,
    payload=0.25,
    abandoned=2,
    store=256 * 1024,
    long_tokens=500,
    ended=40,
)


def answered(lines: list[Line], said: bytes, wanted: bytes, seconds: float) -> int:
    """Say this on all connections; how many got the right answer in time."""
    waiting = selectors.DefaultSelector()
    for line in lines:
        line.came.clear()
        waiting.register(line.socket, selectors.EVENT_READ, line)
        line.send(said)
    right, until = 0, time.monotonic() + seconds
    while right < len(lines) and time.monotonic() < until:
        for key, _ in waiting.select(0.1):
            line = key.data
            line.take()
            if line.ended or len(line.came) >= len(wanted):
                waiting.unregister(line.socket)
                right += line.came == wanted
    waiting.close()
    return right


def load(size: Load) -> str:
    """Many connections at once, all of them alive, and then one request on each."""
    lines: list[Line] = []
    with Victim() as victim:
        warm = Line(victim.ports["tcp"])
        expect(answered([warm], SETUP + ASK, ANSWER, ANSWERED_IN) == 1, "the first request was not answered")
        idle, count = victim.resident(), size.connections
        try:
            began = time.monotonic()
            for _ in range(count):
                lines.append(Line(victim.ports["tcp"]))
                lines[-1].send(SETUP)
            expect(answered(lines, BEAT, BEATEN, ANSWERED_IN) == count, "a keepalive was not answered")
            opened = time.monotonic() - began
            expect(opened <= 15 * size.slack, f"opened in {opened:.1f} s")
            each = (victim.resident() - idle) / count / 1024
            until = time.monotonic() + size.seconds
            beats = 1
            while time.monotonic() < until:
                time.sleep(max(0.0, min(KEEPALIVE, until - time.monotonic())))
                alive = answered(lines, BEAT, BEATEN, min(KEEPALIVE * size.slack, ANSWERED_IN))
                expect(alive == count, f"{alive} of {count} keepalives were answered")
                beats += 1
            began = time.monotonic()
            right = answered(lines, ASK, ANSWER, ANSWERED_IN)
            asked = time.monotonic() - began
            expect(right == count, f"{right} of {count} requests were answered")
            expect(asked <= 10 * size.slack, f"{count} requests were answered after {asked:.1f} s only")
            expect(each <= size.per_connection, f"{each:.1f} KiB for each connection")
        finally:
            for line in [*lines, warm]:
                line.close()
    return (
        f"{count} connections opened in {opened:.1f} s, {beats} keepalives of each answered, {each:.1f} KiB each, "
        f"then {right} requests in {asked:.1f} s"
    )


def reconnect(size: Load) -> str:
    """Connect, SETUP, one request, close; many times."""
    marks: list[tuple[int, int, int]] = []

    async def run(victim: Victim) -> None:
        uri = f"tcp://127.0.0.1:{victim.ports['tcp']}"
        for number in range(size.opened + 1):
            if number in (size.opened // 5, size.opened):
                await trio.sleep(0.3)
                opened = descriptors(victim.process.pid) + descriptors()
                marks.append((victim.resident(), resident(), opened))
            async with open_connection(uri) as connection:
                answer = await connection.request_response(b"%d" % number)
                expect(answer.data == b"%d" % number, f"request {number} was answered {answer.data!r}")

    with Victim() as victim:
        trio.run(run, victim)
    (server, client, opened), (server_then, client_then, opened_then) = marks
    grown = (server_then - server) / MIB, (client_then - client) / MIB
    expect(max(grown) <= size.growth, f"server and client grew by {grown[0]:.1f} and {grown[1]:.1f} MiB")
    expect(opened == opened_then, f"{opened_then} descriptors, and before {opened}")
    return (
        f"{size.opened} connections one after another; server and client grew by {grown[0]:.1f} and {grown[1]:.1f} MiB"
    )


def requests(size: Load) -> str:
    """Many requests over 64 in flight, with ids that run past the last one."""
    slowest = 0.0
    done = 0
    marks: list[tuple[int, int]] = []

    async def ask(connection: Connection, victim: Victim) -> None:
        nonlocal slowest, done
        while done < size.requests:
            done += 1
            number = done
            if number == int(size.requests * size.warm):
                marks.append((victim.resident(), resident()))
            began = time.monotonic()
            answer = await connection.request_response(b"%d" % number)
            slowest = max(slowest, time.monotonic() - began)
            expect(answer.data == b"%d" % number, f"request {number} was answered {answer.data!r}")

    async def run(victim: Victim) -> None:
        async with open_connection(f"tcp://127.0.0.1:{victim.ports['tcp']}") as connection:
            connection._engine.session.table.ids.start_at(LAST_ID - size.requests)  # type: ignore[attr-defined]
            async with trio.open_nursery() as nursery:
                for _ in range(IN_FLIGHT):
                    nursery.start_soon(ask, connection, victim)
            marks.append((victim.resident(), resident()))

    with Victim() as victim:
        began = time.monotonic()
        try:
            trio.run(run, victim)
        except BaseExceptionGroup as group:
            raise Missed(f"{group.exceptions[0]!r}") from group
        took = time.monotonic() - began
    (server, client), (server_then, client_then) = marks
    grown = (server_then - server) / MIB, (client_then - client) / MIB
    expect(slowest <= size.slack, f"the slowest took {slowest:.1f} s")
    expect(max(grown) <= size.growth, f"server and client grew by {grown[0]:.1f} and {grown[1]:.1f} MiB")
    return (
        f"{done} requests in {took:.0f} s, ids past 2^31-1, the slowest {slowest * 1000:.0f} ms; server and client "
        f"grew by {grown[0]:.1f} and {grown[1]:.1f} MiB"
    )


def uncollected(size: Load) -> str:
    """Many requests while cycles stay: there must be none on the hot path."""
    script = ROOT / "tests" / "reliability" / "many_requests.py"
    command = [sys.executable, str(script), str(size.uncollected)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    grown = int(run.stdout) / MIB
    # A part of the requests may grow by its part.
    most = UNCOLLECTED * size.uncollected / Load().uncollected
    expect(grown <= most, f"grew by {grown:.2f} MiB, and not at most {most:g}")
    return f"{size.uncollected} requests with the collector off, grown by {grown:.2f} MiB"


LOADS: dict[str, Callable[[Load], str]] = {
    "load": load,
    "reconnect": reconnect,
    "requests": requests,
    "crowd": crowd,
    "bulk": bulk,
    "tokens": tokens,
    "uncollected": uncollected,
    "leftovers": leftovers,
    "mtu": mtu,
    "abandoned": abandoned,
    "long-tokens": long_tokens,
}


TIMES = ("tokens",)
"""Those that judge nothing but times: their quick sizes would say nothing."""


def play(name: str) -> bool:
    """Play one of ``LOADS`` in the size of the gate, and print what came of it. Return whether every bar was met."""
    try:
        print(f"{name}: pass: {LOADS[name](Load())}", flush=True)
    except Missed as miss:
        print(f"{name}: FAIL: {miss}", flush=True)
        return False
    return True
