"""Attacks on what puts payloads together and takes them apart: fragments, metadata, texts."""

from __future__ import annotations

import time

from qa.attacks.harness import Scene, Size, attack, expect
from qa.attacks.line import Line, joined, repeated
from qa.processes import MIB
from tests.conformance import draft_frames, raw
from tests.conformance.raw import F, M, N

SETUP = raw.prefixed(raw.setup())
COMPOSITE = b"message/x.rsocket.composite-metadata.v0"
ROUTING = b"message/x.rsocket.routing.v0"
UGLY = bytes(range(32)) + b"\x7f\x9b[31m" + b"\xff\xfe" + "\u202e\u2066".encode()
"""Control characters, escapes of terminals, bytes that are no UTF-8, and characters that turn the line around."""


def framed(size: int) -> bytes:
    """The length before a frame."""
    return size.to_bytes(3, "big")


def alive(line: Line) -> None:
    """A KEEPALIVE is answered, after all that came before it."""
    wanted = raw.prefixed(raw.keepalive(b"alive?", respond=False))
    line.pour([raw.prefixed(raw.keepalive(b"alive?"))])
    at = 0

    def answered() -> bool:
        nonlocal at
        found = line.came.find(wanted, at) >= 0
        at = max(0, len(line.came) - len(wanted))
        return found

    expect(line.read(30, answered), "a KEEPALIVE was not answered")
    line.read(0.1)  # answers of handlers, which it may have overtaken


ASKED_IN = 30.0
"""Seconds in which a client of ours makes its request, on a machine that has much else to do."""


def asked(line: Line) -> bool:
    """Wait for the first request of a client of ours."""
    return line.read(ASKED_IN, lambda: any(frame.stream_id == 1 for frame in line.frames))


def errors(line: Line) -> dict[int, int]:
    """Code of the ERROR of each stream."""
    return {frame.stream_id: frame.error_code for frame in line.frames if frame.type == raw.ERROR}


@attack("A3", Size(100_000, growth=4, seconds=5), Size(1_000_000, growth=4, seconds=15))
def tiny_fragments(scene: Scene) -> str:
    """Fragments without end, empty or of one byte."""
    line = scene.line(SETUP + raw.prefixed(raw.ask(1, b"", F)))
    began = time.monotonic()
    for data in (b"", b"x"):
        line.pour(repeated(raw.prefixed(raw.payload(1, data, N | F)), scene.count // 2))
    alive(line)
    expect(errors(line) == {1: raw.INVALID}, f"answered {errors(line)}")
    scene.expect_in_time(line.first_at - began <= 1, f"refused after {line.first_at - began:.1f} s only")
    return f"INVALID after {(line.first_at - began) * 1000:.0f} ms, the rest skipped"


@attack("A3", Size(128, growth=80, seconds=5), Size(512, growth=80, seconds=10))
def endless_payload(scene: Scene) -> str:
    """Fragments of 64 KiB without end."""
    line = scene.line(SETUP + raw.prefixed(raw.ask(1, b"", F)))
    one = raw.prefixed(raw.payload(1, bytes(65536), N | F))
    line.pour(repeated(one, scene.count * MIB // 65536))
    alive(line)
    expect(errors(line) == {1: raw.INVALID}, f"answered {errors(line)}")
    return "INVALID at 64 MiB, the rest skipped"


@attack("A4", Size(3000, growth=144, seconds=5), Size(10_000, growth=144, seconds=10))
def half_payloads(scene: Scene) -> str:
    """Payloads of 64 KiB whose last fragment never comes."""
    line = scene.line(SETUP)
    body = bytes(65536)
    line.pour(joined(raw.prefixed(raw.ask(2 * number + 1, body, F)) for number in range(scene.count)))
    alive(line)
    refused = errors(line)
    expect(set(refused.values()) == {raw.INVALID}, f"answered {set(refused.values())}")
    kept = (scene.count - len(refused)) * 65536
    expect(kept <= 128 * MIB, f"{kept / MIB:.0f} MiB are kept")
    return f"{kept / MIB:.0f} MiB kept, {len(refused)} INVALID"


@attack("A4", Size(4, growth=12, seconds=5, bar=0.5), Size(16, growth=36, seconds=5, bar=0.05))
def metadata_bomb(scene: Scene) -> str:
    """A composite metadata of 16 MiB, all of it entries of 4 bytes."""
    line = scene.line(raw.prefixed(raw.setup(metadata_mime=COMPOSITE)))
    entries = b"\x85\x00\x00\x00" * (scene.count * MIB // 4 - 8)
    return _bomb(scene, line, raw.frame(raw.REQUEST_RESPONSE, M, 1, raw.sized(entries)))


@attack("A4", Size(4, growth=12, seconds=5, bar=0.5), Size(16, growth=32, seconds=5, bar=0.05))
def entries_bomb(scene: Scene) -> str:
    """Extension entries of 5 bytes in a frame of 16 MiB (extension draft)."""
    line = scene.line(raw.prefixed(draft_frames.setup(draft_frames.keepalives())))
    last = draft_frames.entry(0x7F, ignore=True)
    more = draft_frames.block(last, last)[: len(last)]
    entries = more * (scene.count * MIB // len(more) - 8) + last
    return _bomb(scene, line, raw.frame(raw.REQUEST_RESPONSE, draft_frames.X, 1, entries))


def _bomb(scene: Scene, line: Line, frame: bytes) -> str:
    expect(line.read(0.2) is False, "closed at once")
    line.pour([framed(len(frame)), frame])
    poured = time.monotonic()
    expect(line.read(scene.patience(10), lambda: bool(line.frames)), "no answer")
    took = line.first_at - poured
    (got,) = line.frames
    expect(got.type == raw.ERROR, f"answered {got}")
    expect(got.error_code in (raw.INVALID, raw.REJECTED, raw.CONNECTION_ERROR), f"code {got.error_code:#x}")
    scene.expect_in_time(took <= scene.size.bar, f"refused after {took * 1000:.0f} ms")
    return f"ERROR {got.error_code:#x} after {took * 1000:.0f} ms"


@attack("A12", Size(4, growth=20, seconds=10), Size(15, growth=20, seconds=10))
def error_text(scene: Scene) -> str:
    """A server that answers a client of ours with ERRORs of 16 MiB of text, on a stream and for the connection."""
    outcome = ""
    for stream_id, code in ((1, raw.APPLICATION_ERROR), (0, raw.CONNECTION_ERROR)):
        line = scene.called("ask")
        expect(asked(line), "no request came")
        text = UGLY * ((scene.count * MIB - 64) // len(UGLY))
        frame = raw.error(stream_id, code, text)
        line.pour([framed(len(frame)), frame])
        line.read(0.3)
        line.close()
        outcome = scene.outcome()
        expect(len(outcome) <= 1100, f"the error has {len(outcome)} characters")
        expect(outcome.isprintable(), f"the error is not printable: {outcome[:100]!r}")
    return f"an exception of {len(outcome)} printable characters"


@attack("A12", Size(20, growth=4, seconds=5), Size(500, growth=20, seconds=20))
def mime_bomb(scene: Scene) -> str:
    """MIME types of 255 bytes that are no text, and on each connection one fault after the other."""
    mime = (UGLY * 8)[:255]
    asks = raw.prefixed(*[raw.ask(2 * number + 1, b"?") for number in range(10)])
    bad = raw.prefixed(raw.frame(0x2A)) * 100
    lines = scene.open(scene.count, raw.prefixed(raw.setup(metadata_mime=mime, data_mime=mime)) + asks + bad)
    for line in lines:
        expect(line.read(scene.patience(5)), "not closed")
    return "served, then CONNECTION_ERROR for the faults; one line of log each"


@attack("A12", Size(2000, growth=4, seconds=5), Size(50_000, growth=20, seconds=20))
def route_bomb(scene: Scene) -> str:
    """Requests with routes of 255 bytes that are no text, in one and in many entries."""
    route = (UGLY * 8)[:255]
    tags = raw.sized(b"\xff" + route)
    many = raw.sized(b"\x01x" * 5000)
    line = scene.line(raw.prefixed(raw.setup(metadata_mime=ROUTING)))
    asks = (
        raw.prefixed(raw.frame(raw.REQUEST_RESPONSE, M, 2 * number + 1, many if number % 50 == 0 else tags))
        for number in range(scene.count)
    )
    line.pour(joined(asks))
    alive(line)
    longest = max((len(frame.body) for frame in line.frames), default=0)
    expect(longest <= 1100, f"an answer of {longest} bytes")
    codes = {hex(code) for code in errors(line).values()}
    return f"{len(errors(line))} ERRORs {'/'.join(sorted(codes))}, the longest of {longest} bytes"
