"""Attacks before there is a session, and on its framing: silence, slowness, noise, and lengths that are announced."""

from __future__ import annotations

import random
import time
from functools import partial

from qa.attacks.harness import Scene, Size, attack, expect
from qa.attacks.line import Line, lifetimes, repeated
from qa.processes import MIB
from tests.conformance import old_frames, raw
from tests.conformance.raw_streamux import WIDE

LARGEST = 2**24 - 1
LIFETIME = 1500
"""Milliseconds that a SETUP here allows its sender to be silent."""
SETUP = raw.prefixed(raw.setup(lifetime=LIFETIME))
PATIENT = raw.prefixed(raw.setup())
QUICK = {"setup_timeout": 0.6}
EARLY = 0.1
"""Seconds by which the clocks of both ends may begin apart."""


def patience(scene: Scene) -> float:
    """Seconds that this server waits for a SETUP."""
    timeout = scene.size.limits.get("setup_timeout", 10.0)
    assert isinstance(timeout, float)
    return timeout


def closed_between(scene: Scene, lasted: list[float], count: int, least: float, most: float) -> str:
    """Return when the lines were closed: all of them, and none before it was due."""
    expect(len(lasted) == count, f"{len(lasted)} of {count} were closed")
    expect(min(lasted) >= least - EARLY, f"one was closed after {min(lasted):.2f} s, before {least:g} s")
    scene.expect_in_time(max(lasted) <= most, f"one was closed after {max(lasted):.2f} s, and not within {most:g} s")
    return f"all closed after {min(lasted):.1f} to {max(lasted):.1f} s"


@attack("A1", Size(200, growth=8, seconds=3.5, cpu=1, limits=QUICK), Size(1000, growth=20, seconds=13, cpu=3))
def silence(scene: Scene) -> str:
    """Connections that never say a word."""
    timeout = patience(scene)
    lines = scene.open(scene.count)
    return closed_between(scene, lifetimes(lines, scene.patience(timeout + 3)), scene.count, timeout, timeout + 2)


@attack("A1", Size(50, growth=4, seconds=3.5, cpu=1, limits=QUICK), Size(200, growth=4, seconds=13, cpu=3))
def slow_setup(scene: Scene) -> str:
    """SETUPs that come a byte at a time: the deadline is absolute."""
    timeout = patience(scene)
    lines = scene.open(scene.count)
    lasted = lifetimes(
        lines, scene.patience(timeout + 3), drip=lambda turn: PATIENT[turn : turn + 1], every=timeout / 20
    )
    return closed_between(scene, lasted, scene.count, timeout, timeout + 2)


@attack("A1", Size(64, growth=2, seconds=3, cpu=1), Size(64, growth=1, seconds=3, cpu=1))
def before_setup(scene: Scene) -> str:
    """Requests without a SETUP."""
    line = scene.line()
    one = raw.prefixed(raw.ask(1, bytes(1000)))
    line.pour(repeated(one, scene.count * MIB // len(one)))
    line.read(scene.patience(1.5))
    expect(line.ended, "not closed")
    expect([frame.error_code for frame in line.frames] == [raw.INVALID_SETUP], f"answered {line.frames[:3]}")
    expect(line.sent <= 20 * MIB, f"{line.sent / MIB:.0f} MiB were taken, buffers of the system included")
    return f"INVALID_SETUP and closed, {line.sent / MIB:.1f} MiB taken by both and the system"


@attack("A1", Size(100, growth=4, seconds=3.5, cpu=1, limits=QUICK), Size(500, growth=4, seconds=13, cpu=3))
def noise(scene: Scene) -> str:
    """Connections that send random bytes."""
    rng = random.Random(1)
    lines = scene.open(scene.count)
    for line in lines:
        line.send(rng.randbytes(rng.randrange(1, 2000)))
    timeout = patience(scene)
    lasted = lifetimes(lines, scene.patience(timeout + 3))
    return closed_between(scene, lasted, scene.count, 0, timeout + 2)


@attack("A1", Size(300, growth=12, seconds=5, cpu=2), Size(2000, growth=36, seconds=8, cpu=5))
def half_open(scene: Scene) -> str:
    """Connections that were accepted and of which nothing is heard any more."""
    lines = scene.open(scene.count, SETUP)
    lasted = lifetimes(lines, scene.patience(8))
    return closed_between(scene, lasted, scene.count, LIFETIME / 1000, LIFETIME / 1000 + 3)


@attack("A2", Size(100, growth=4, seconds=5, cpu=1), Size(500, growth=9, seconds=5, cpu=2))
def announced(scene: Scene) -> str:
    """Frames of the largest length, of which only the beginning comes."""
    lines = scene.open(scene.count, SETUP + LARGEST.to_bytes(3, "big") + bytes(100))
    lasted = lifetimes(lines, scene.patience(6))
    return closed_between(scene, lasted, scene.count, LIFETIME / 1000, LIFETIME / 1000 + 1.5)


@attack("A2", Size(60, growth=4, seconds=4, cpu=1), Size(600, growth=9, seconds=4, cpu=2))
def announced_gigabytes(scene: Scene) -> str:
    """Lengths of 2 GiB in the old dialects, of 1 GiB in Streamux."""
    each = scene.count // 3
    lines: list[Line] = []
    for old in old_frames.OLD:
        lines += scene.open(each, old.prefixed(old.setup()) + (2**31 - 1).to_bytes(4, "big") + bytes(8))
    wide = WIDE._replace(id_bits=0, length_bits=30)
    lines += scene.open(each, wide.says + wide.header(0, 2**30 - 1, 0, 1) + bytes(8))
    lasted = lifetimes(lines, scene.patience(4))
    return closed_between(scene, lasted, 3 * each, 0, 3)


@attack("A2", Size(8, growth=36, seconds=5, cpu=1), Size(20, growth=320, seconds=8, cpu=4))
def held_frames(scene: Scene) -> str:
    """Large frames that come all but their end: they die with their senders' lifetime."""
    size = 15 * MIB if scene.full else 4 * MIB
    lines: list[Line] = []
    for _ in range(scene.count):
        line = scene.line(SETUP + LARGEST.to_bytes(3, "big"))
        line.pour(repeated(bytes(65536), size // 65536))
        lines.append(line)
    lasted = lifetimes(lines, scene.patience(8))
    return closed_between(scene, lasted, scene.count, LIFETIME / 1000, LIFETIME / 1000 + 2)


@attack("A2", Size(10, growth=4, seconds=5, cpu=1), Size(50, growth=16, seconds=10, cpu=5))
def large_setup(scene: Scene) -> str:
    """SETUPs of 16 MiB."""
    whole = raw.prefixed(raw.setup(data=bytes(LARGEST - 100)))
    for _ in range(scene.count):
        line = scene.line()
        line.pour([whole])
        line.read(scene.patience(1.5))
        expect(line.ended, "not closed")
        expect([frame.error_code for frame in line.frames] == [raw.INVALID_SETUP], f"answered {line.frames[:3]}")
        line.close()
    return "each is INVALID_SETUP and closed"


@attack("H3", Size(50, growth=4, seconds=4, cpu=1), Size(100, growth=4, seconds=4, cpu=2))
def slow_frames(scene: Scene) -> str:
    """A byte of a frame per 0.2 s: bytes are no life."""
    lines = scene.open(scene.count, SETUP)
    whole = raw.prefixed(raw.ask(1, bytes(1000)))
    lasted = lifetimes(lines, scene.patience(6), drip=lambda turn: whole[turn : turn + 1])
    return closed_between(scene, lasted, scene.count, LIFETIME / 1000, LIFETIME / 1000 + 0.7)


def never_ending(scene: Scene, scheme: str, first: bytes, drip: bytes) -> str:
    """Begin handshakes and go on a byte at a time: the deadline is absolute."""
    timeout = patience(scene)
    lines = scene.open(scene.count, first, scheme=scheme)
    lasted = lifetimes(lines, scene.patience(timeout + 3), drip=lambda turn: drip, every=timeout / 10)
    return closed_between(scene, lasted, scene.count, timeout, timeout + 2)


@attack(
    "H5", Size(50, growth=10, seconds=3.5, cpu=1, limits=QUICK), Size(200, growth=32, seconds=13, cpu=3), scheme="tls"
)
def tls_handshakes(scene: Scene) -> str:
    """TLS handshakes that begin and never end."""
    # A record of 16 KiB that comes byte by byte.
    return never_ending(scene, "tls", b"\x16\x03\x01\x40\x00\x01", b"\x00")


@attack(
    "H5", Size(50, growth=6, seconds=3.5, cpu=1, limits=QUICK), Size(200, growth=16, seconds=13, cpu=3), scheme="ws"
)
def ws_handshakes(scene: Scene) -> str:
    """WebSocket handshakes that begin and never end."""
    return never_ending(scene, "ws", b"GET / HTTP/1.1\r\nHost: here\r\nX-More: ", b"x")


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
MASK = bytes(4)


def websockets(scene: Scene) -> list[Line]:
    """Connections that are WebSockets by now."""
    lines = scene.open(scene.count, UPGRADE, scheme="ws")
    for line in lines:
        came = line.came
        expect(line.read(scene.patience(5), partial(came.endswith, b"\r\n\r\n")), "no WebSocket")
        came.clear()
    return lines


def closed_with(scene: Scene, lines: list[Line], code: int) -> str:
    """All of them heard this code, and were closed."""
    began = time.monotonic()
    for line in lines:
        expect(line.read(scene.patience(5)), "a WebSocket stayed open")
        expect(line.came[:1] == b"\x88" and line.came[2:4] == code.to_bytes(2, "big"), f"{bytes(line.came)!r} came")
    return f"all closed with {code} within {time.monotonic() - began:.1f} s"


@attack("A2", Size(20, growth=6, seconds=5, cpu=2), Size(200, growth=16, seconds=10, cpu=5), scheme="ws")
def ws_announced(scene: Scene) -> str:
    """WebSocket messages of a terabyte that are announced, and half of them as the rest of one that began."""
    lines = websockets(scene)
    for number, line in enumerate(lines):
        begun = b"\x02\x81" + MASK + b"x" if number % 2 else b""
        first = b"\x80" if number % 2 else b"\x82"
        line.send(begun + first + b"\xff" + (1 << 40).to_bytes(8, "big") + MASK)
    return closed_with(scene, lines, 1009)


@attack("A3", Size(5, growth=6, seconds=5, cpu=2), scheme="ws")
def ws_frames(scene: Scene) -> str:
    """WebSocket messages in frames without end that hold nothing."""
    lines = websockets(scene)
    for line in lines:
        line.pour([b"\x02\x80" + MASK, *repeated(b"\x00\x80" + MASK, 1024)])
    return closed_with(scene, lines, 1008)
