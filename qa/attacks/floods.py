"""Floods of frames that are no streams: keepalives, pings, pushes, leases, and requests that want no answer."""

from __future__ import annotations

from qa.attacks.harness import Scene, Size, attack, expect
from qa.attacks.line import Line, repeated
from qa.attacks.payloads import SETUP, alive, errors
from qa.processes import MIB
from tests.conformance import raw
from tests.conformance.raw_streamux import WIDE

KERNEL = 24 * MIB
"""Bytes that the buffers of the system may hold in both directions, beside the 16 MiB that are ours to allow."""
ONE_READ = 65536 // 9
"""Requests of one read: those that it counts only once it has acted on the read may be above the limit."""


def unread(line: Line, one: bytes, count: int) -> str:
    """Send this so often, and read nothing: it must end in a standstill, or in the connection's end."""
    how = line.pour(repeated(one, count), read=False, patience=1.0)
    expect(how != "sent", f"all {line.sent / MIB:.0f} MiB were taken")
    expect(line.sent <= 16 * MIB + KERNEL, f"{line.sent / MIB:.0f} MiB were taken")
    word = "closed" if how == "closed" else "reading stops"
    return f"{word} after {line.sent / MIB:.1f} MiB, buffers of the system included"


@attack("A7", Size(64, growth=8, seconds=6), Size(256, growth=8, seconds=10))
def keepalive_unread(scene: Scene) -> str:
    """KEEPALIVEs of 1,000 bytes that want an answer, which is not read."""
    line = scene.line(SETUP)
    return unread(line, raw.prefixed(raw.keepalive(bytes(1000))), scene.count * MIB // 1017)


@attack("A7", Size(20_000, growth=4, seconds=5), Size(500_000, growth=8, seconds=20))
def keepalive_flood(scene: Scene) -> str:
    """Small KEEPALIVEs without end, all of whose answers are read."""
    line = scene.line(SETUP)
    line.keeps = False
    size = 17
    line.pour(repeated(raw.prefixed(raw.keepalive()), scene.count))
    expect(line.read_bytes(scene.count * size, 60), f"{line.received // size} were answered")
    return f"{scene.count} answered"


@attack("A7", Size(64, growth=8, seconds=15), Size(256, growth=8, seconds=20))
def streamux_ping_unread(scene: Scene) -> str:
    """Streamux: pings whose acks are not read."""
    line = scene.line(WIDE.says)
    return unread(line, b"".join(WIDE.ping(one) for one in range(1000)), scene.count * MIB // 4000)


@attack("A7", Size(20_000, growth=4, seconds=5), Size(500_000, growth=8, seconds=20))
def streamux_ping_flood(scene: Scene) -> str:
    """Streamux: pings without end, all of whose acks are read."""
    line = scene.line(WIDE.says)
    line.keeps = False
    line.pour(repeated(b"".join(WIDE.ping(one) for one in range(1000)), scene.count // 1000))
    expect(line.read_bytes(5 + 4 * scene.count, 60), f"{line.received // 4} were answered")
    return f"{scene.count} answered"


@attack("A7", Size(64, growth=8, seconds=15), Size(256, growth=8, seconds=20))
def streamux_cancel_unread(scene: Scene) -> str:
    """Streamux: cancels of ids that are not in use, whose acks are not read."""
    line = scene.line(WIDE.says)
    return unread(line, b"".join(WIDE.cancel(one) for one in range(1000)), scene.count * MIB // 4000)


@attack("A7", Size(10_000, growth=8, seconds=5), Size(200_000, growth=16, seconds=20))
def streamux_cancel_flood(scene: Scene) -> str:
    """Streamux: requests that are cancelled at once; each cancel is acked, and no handler stays."""
    line = scene.line(WIDE.says)
    line.keeps = False
    block = b"".join(WIDE.request(one, b"sleep") + WIDE.cancel(one) for one in range(1000))
    line.pour(repeated(block, scene.count // 1000))
    expect(line.read_bytes(5 + 4 * scene.count, 60), f"{line.received // 4} were acked")
    expect(line.received == 5 + 4 * scene.count, f"{line.received} bytes came")
    scene.wait_for("alive", 0, 1)
    return f"{scene.count} acked, at most {scene.work('most')} handlers at once"


@attack("A8", Size(32, growth=8, seconds=5), Size(256, growth=8, seconds=10))
def push_flood(scene: Scene) -> str:
    """METADATA_PUSH without end."""
    line = scene.line(SETUP)
    before = scene.work("pushes")
    one = raw.prefixed(raw.RS10.push(bytes(65536)))
    count = scene.count * MIB // 65536
    line.pour(repeated(one, count))
    alive(line)
    taken = scene.work("pushes") - before
    expect(taken == count, f"{taken} were taken")
    return f"{count} taken by the handler, keepalive answered"


@attack("A8", Size(20_000, growth=70, seconds=10), Size(200_000, growth=70, seconds=15))
def forgotten(scene: Scene) -> str:
    """Fire-and-forget requests whose handlers never return."""
    line = scene.line(SETUP)
    block = raw.prefixed(*[raw.forget(2 * number + 1) for number in range(1000)])
    line.pour(repeated(block, scene.count // 1000))
    alive(line)
    most = scene.work("most")
    expect(most <= 10_000 + ONE_READ, f"{most} handlers at once")
    expect(not errors(line), f"answered {errors(line)}")
    return f"{scene.work('alive')} handlers, the others dropped, keepalive answered"


@attack("A8", Size(20_000, growth=4, seconds=5), Size(500_000, growth=2, seconds=15))
def lease_flood(scene: Scene) -> str:
    """A server that floods a client of ours with LEASE."""
    line = scene.called("lease")
    expect(line.read(scene.patience(5), lambda: bool(line.frames)), "no SETUP came")
    line.pour(repeated(raw.prefixed(raw.lease(1000, 1)), scene.count))
    alive(line)
    expect(not any(scene.victim.order("calls")), "the client is gone")
    return "each replaces the one before, keepalive answered"
