"""Attacks on HTTP/2: streams by the thousand, frames that carry nothing, and nothing that is read."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from qa.attacks.beginnings import closed_between, patience
from qa.attacks.harness import Scene, Size, attack, expect
from qa.attacks.line import Line, joined, repeated
from qa.attacks.payloads import SETUP
from qa.processes import MIB
from tests.conformance import raw
from tests.transports.http2.raw_http2 import (
    BEGIN,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    Frame,
    block,
    data,
    frame,
    reset,
    settings,
    window,
)

SMALL, HASTY, FEW = {"outbox_size": MIB // 4}, {"setup_timeout": 8.0}, {"cancels": 500}
"""Limits of the server. The last of the streams comes before the first one has been given up, on a busy machine too."""
BLOCK = block([
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "a"),
    (":path", "/"),
    ("content-type", "application/rsocket"),
])  # fmt: skip
WIDE = settings((4, 0x7FFFFFFF)) + window(0, 0x7FFFFFFF - 65535)
"""The largest windows that there are."""
STREAMS = 1_000
"""Streams that a client may have open."""


def asked(stream_id: int) -> bytes:
    """A request that begins a connection."""
    return frame(HEADERS, 4, stream_id, BLOCK)


def odd(count: int) -> Iterable[int]:
    """The ids of so many streams."""
    return range(1, 2 * count, 2)


def begun(scene: Scene) -> Line:
    """A connection whose prefaces have crossed."""
    line = scene.line(BEGIN, scheme="h2")
    line.read(scene.patience(2), lambda: any(each.kind == SETTINGS and each.flags for each in answers(line)))
    return line


def answers(line: Line) -> list[Frame]:
    """The whole frames that came."""
    found, at, came = [], 0, bytes(line.came)
    while at + 9 <= len(came) and at + 9 + (size := int.from_bytes(came[at : at + 3], "big")) <= len(came):
        body = came[at + 9 : at + 9 + size]
        found.append(Frame(came[at + 3], came[at + 4], int.from_bytes(came[at + 5 : at + 9], "big"), body))
        at += 9 + size
    return found


def calmed(scene: Scene, line: Line, chunks: Iterable[bytes]) -> str:
    """Send this, and expect to be asked to calm down."""
    began = time.monotonic()
    line.pour(chunks)
    line.read(scene.patience(3))
    expect(line.ended, "not closed")
    codes = [each.code for each in answers(line) if each.kind == GOAWAY]
    expect(codes == [ENHANCE_YOUR_CALM], f"said goodbye with {codes}")
    return f"ENHANCE_YOUR_CALM after {line.sent / 1024:.0f} KiB, {(time.monotonic() - began) * 1000:.0f} ms"


@attack("A14", Size(5_000, growth=8, seconds=8, limits=FEW), Size(100_000, growth=16, seconds=10), scheme="h2")
def http2_resets(scene: Scene) -> str:
    """Streams that are reset at once."""
    return calmed(scene, begun(scene), joined(asked(each) + reset(each) for each in odd(scene.count)))


@attack("A14", Size(100_000, growth=4, seconds=5), Size(10_000_000, growth=4, seconds=5), scheme="h2")
def http2_headers(scene: Scene) -> str:
    """A header block that goes on in ever more CONTINUATION frames."""
    line = begun(scene)
    line.pour([frame(HEADERS, 0, 1, BLOCK)])
    return calmed(scene, line, repeated(frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b"), scene.count))


@attack("A14", Size(100_000, growth=4, seconds=5), Size(10_000_000, growth=4, seconds=5), scheme="h2")
def http2_pings(scene: Scene) -> str:
    """Pings without end."""
    return calmed(scene, begun(scene), repeated(frame(PING, body=bytes(8)), scene.count))


@attack("A14", Size(1, growth=24, seconds=15, limits=HASTY), Size(3, growth=60, seconds=20), scheme="h2")
def http2_streams(scene: Scene) -> str:
    """Connections full of streams on which nothing is said, and one stream more."""
    timeout = patience(scene)
    lines = [begun(scene) for _ in range(scene.count)]
    began = time.monotonic()
    lasted = []
    for line in lines:
        line.pour(joined(asked(each) for each in odd(STREAMS + 1)))
    for line in lines:
        line.read(scene.patience(timeout + 3), partial(all_closed, line))
        lasted.append(time.monotonic() - began)
        expect(len(closed(line)) == STREAMS + 1, f"{len(closed(line))} of {STREAMS + 1} were closed")
        expect([closed(line)[2 * STREAMS + 1]] == [REFUSED_STREAM], "one stream too many was not refused")
    return closed_between(scene, lasted, scene.count, timeout, timeout + 2)


def all_closed(line: Line) -> bool:
    """Return whether every stream was reset."""
    # What is quick to count may be counted too often.
    return line.came.count(bytes((0, 0, 4, RST_STREAM))) > STREAMS and len(closed(line)) > STREAMS


def closed(line: Line) -> dict[int, int]:
    """The streams that were reset, and their codes."""
    return {each.stream_id: each.code for each in answers(line) if each.kind == RST_STREAM}


@attack(
    "A14", Size(50, growth=24, seconds=10, limits=SMALL), Size(200, growth=80, seconds=20, limits=SMALL), scheme="h2"
)
def http2_unread(scene: Scene) -> str:
    """Streams of items on every stream of one connection, behind windows without bounds, of which nothing is read."""
    line = begun(scene)
    items = raw.prefixed(raw.stream(1, 2**31 - 1, b"16384 fresh"))
    line.keeps = False
    line.pour([WIDE, *(asked(each) + data(each, SETUP + items) for each in odd(scene.count))], read=False)
    scene.wait_for("alive", scene.count, 5)
    line.read_bytes(MIB)
    expect(line.received >= MIB, f"{line.received} bytes came once they were read")
    return f"{scene.count} producers wait; what is read then comes"


@attack("A14", Size(20_000, growth=4, seconds=10), Size(1_000_000, growth=20, seconds=30), scheme="h2")
def http2_pieces(scene: Scene) -> str:
    """A request's bytes one by one, each in a DATA frame of its own."""
    line = begun(scene)
    request = raw.prefixed(raw.ask(1, bytes(scene.count)))
    line.pour([asked(1), data(1, SETUP)])
    line.pour(joined(data(1, bytes((byte,))) for byte in request))
    line.read(scene.patience(10), lambda: sum(len(each.body) for each in answers(line) if each.kind == DATA) > 0)
    size = sum(len(each.body) for each in answers(line) if each.kind == DATA)
    expect(size > 0, "no answer came")
    return f"answered, {line.sent / MIB:.1f} MiB for {scene.count} bytes"
