"""Attacks by opening, cancelling and crediting streams, and on handlers."""

from __future__ import annotations

import time

from qa.attacks.harness import Scene, Size, attack, expect
from qa.attacks.line import joined, repeated
from qa.attacks.payloads import SETUP, alive, asked, errors
from qa.processes import MIB
from tests.conformance import raw

MOST_CREDIT = 2**31 - 1
PER_FRAME = 64
"""Bytes that may be said about each offending frame."""


@attack("A5", Size(20_000, growth=8, seconds=5), Size(200_000, growth=8, seconds=5))
def rapid_reset(scene: Scene) -> str:
    """Requests that are cancelled at once, against the limit of their rate."""
    line = scene.line(SETUP)
    began = time.monotonic()
    pairs = (
        raw.prefixed(raw.ask(2 * number + 1, b"sleep"), raw.cancel(2 * number + 1)) for number in range(scene.count)
    )
    line.pour(joined(pairs))
    line.read(scene.patience(2))
    expect(line.ended, "not closed")
    expect(errors(line) == {0: raw.CONNECTION_ERROR}, f"answered {errors(line)}")
    took = line.first_at - began
    scene.expect_in_time(took <= 1, f"closed after {took:.1f} s only")
    return f"CONNECTION_ERROR after {took * 1000:.0f} ms"


@attack(
    "A5",
    Size(20_000, growth=16, seconds=5, bar=4, limits={"cancels": 10**9}),
    Size(200_000, growth=16, seconds=10, bar=5, limits={"cancels": 10**9}),
)
def rapid_reset_unlimited(scene: Scene) -> str:
    """The same where the rate has no limit: the work goes on, and none of it stays."""
    line = scene.line(SETUP)
    began = time.monotonic()
    pairs = (
        raw.prefixed(raw.ask(2 * number + 1, b"sleep"), raw.cancel(2 * number + 1)) for number in range(scene.count)
    )
    line.pour(joined(pairs))
    alive(line)
    took = time.monotonic() - began
    refused = sum(code == raw.REJECTED for code in errors(line).values())
    most = scene.work("most")
    expect(most <= 10_000, f"{most} handlers at once")
    scene.wait_for("alive", 0, 1)
    scene.expect_in_time(took <= scene.size.bar, f"took {took:.1f} s")
    return f"all done in {took:.1f} s, at most {most} handlers at once, {refused} REJECTED"


@attack("A6", Size(15_000, growth=70, seconds=10), Size(100_000, growth=70, seconds=15))
def kept_streams(scene: Scene) -> str:
    """Streams that are opened and kept."""
    limit = 10_000
    line = scene.line(SETUP)
    line.pour(joined(raw.prefixed(raw.ask(2 * number + 1, b"sleep")) for number in range(scene.count)))
    alive(line)
    refused = errors(line)
    expect(set(refused.values()) == {raw.REJECTED}, f"answered {set(refused.values())}")
    expect(len(refused) == scene.count - limit, f"{len(refused)} were refused")
    per = line.received / len(refused)
    expect(per <= PER_FRAME, f"{per:.0f} bytes were said about each")
    scene.wait_for("alive", limit, 5)
    return f"{limit} accepted, {len(refused)} REJECTED with {per:.0f} bytes each"


@attack("A9", Size(50_000, growth=2, seconds=3, bar=20_000), Size(500_000, growth=1, seconds=5, bar=200_000))
def unknown_streams(scene: Scene) -> str:
    """Frames for streams that never were, and for one that is over."""
    line = scene.line(SETUP + raw.prefixed(raw.ask(1, b"x")))
    expect(line.read_bytes(10, scene.patience(10)), "no answer")
    before = line.received
    frames = [
        frame
        for one in (1, 2, 4, 77, 1_000_001)
        for frame in (raw.payload(one), raw.cancel(one), raw.request_n(one, 9), raw.error(one, raw.INVALID))
    ]
    block = raw.prefixed(*frames)
    began = time.monotonic()
    line.pour(repeated(block, scene.count // 20))
    alive(line)
    rate = scene.count / (time.monotonic() - began)
    said = line.received - before - 23
    expect(said == 0, f"{said} bytes were said about them")
    scene.expect_in_time(rate >= scene.size.bar, f"{rate:,.0f} frames a second")
    return f"ignored, 0 bytes back, {rate:,.0f} frames/s"


@attack("A10", Size(10_000, growth=4, seconds=5), Size(100_000, growth=4, seconds=10))
def credit_overflow(scene: Scene) -> str:
    """REQUEST_N of the largest number, three times over the largest initial one: items flow."""
    line = scene.line(SETUP)
    line.keeps = False
    line.pour([raw.prefixed(raw.stream(1, MOST_CREDIT, b"16"), *[raw.request_n(1, MOST_CREDIT) for _ in range(3)])])
    expect(line.read_bytes(scene.count * 25, 30), f"{line.received // 25} items came")
    line.send(raw.prefixed(raw.cancel(1)))
    return f"{scene.count} items came"


@attack("A10", Size(500, growth=8, seconds=5), Size(10_000, growth=70, seconds=20))
def credit_trickle(scene: Scene) -> str:
    """REQUEST_N of 1 on many streams in turn: each gets its one."""
    line = scene.line(SETUP)
    line.pour(joined(raw.prefixed(raw.stream(2 * number + 1, 1, b"4")) for number in range(scene.count)))
    rounds, item = 5, 13
    expect(line.read_bytes(scene.count * item, scene.patience(20)), f"{line.received // item} items came")
    for number in range(rounds):
        line.pour(joined(raw.prefixed(raw.request_n(2 * number + 1, 1)) for number in range(scene.count)))
        expect(
            line.read_bytes(scene.count * item * (number + 2), scene.patience(20)),
            f"{line.received // item} items came",
        )
    got: dict[int, int] = {}
    for frame in line.frames:
        got[frame.stream_id] = got.get(frame.stream_id, 0) + 1
    expect(set(got.values()) == {rounds + 1}, f"streams got {min(got.values())} to {max(got.values())} items")
    return f"each of {scene.count} streams got its {rounds + 1} items"


@attack("A10", Size(2000, growth=24, seconds=5), Size(10_000, growth=70, seconds=15))
def credit_never_given(scene: Scene) -> str:
    """Streams of large items that were given credit for one, and never more."""
    line = scene.line(SETUP)
    line.keeps = False
    size = 16384
    line.pour(joined(raw.prefixed(raw.stream(2 * number + 1, 1, b"%d" % size)) for number in range(scene.count)))
    expected = scene.count * (size + 9)
    expect(line.read_bytes(expected, scene.patience(20)), f"{line.received} bytes came")
    began, cpu = time.monotonic(), scene.victim.cpu()
    line.read(1)
    expect(line.received == expected, f"{line.received - expected} bytes came beyond the credit")
    used = (scene.victim.cpu() - cpu) / (time.monotonic() - began)
    scene.expect_in_time(used < 0.2, f"{used:.0%} of a core used while nothing may be sent")
    return f"one item on each of {scene.count} streams, then nothing"


@attack("A10", Size(5_000, growth=4, seconds=5), Size(100_000, growth=4, seconds=10))
def credit_ignored_client(scene: Scene) -> str:
    """A server that sends a client of ours a stream beyond its credit."""
    line = scene.called("stream")
    expect(asked(line), "no request came")
    line.came.clear()
    line.pour(repeated(raw.prefixed(raw.payload(1, bytes(1000))), scene.count))
    outcome = scene.outcome()
    line.read(1)
    kinds = [frame.type for frame in line.frames if frame.stream_id == 1]
    expect(kinds.count(raw.CANCEL) == 1, f"it said {kinds[:5]}")
    expect("more items than were granted" in outcome, f"its caller heard {outcome}")
    return "CANCEL at the second surplus item, the rest skipped; the caller is told"


@attack("A10", Size(5_000, growth=4, seconds=5), Size(100_000, growth=4, seconds=10))
def credit_ignored_server(scene: Scene) -> str:
    """A client that sends a channel beyond its credit, to a handler that never reads."""
    line = scene.line(SETUP + raw.prefixed(raw.channel(1, 1, b"sleep")))
    line.pour(repeated(raw.prefixed(raw.payload(1, bytes(1000))), scene.count))
    alive(line)
    expect(set(errors(line)) == {1}, f"answered {errors(line)}")
    # Its handler hears of it when it reads, and counts as a stream until then.
    expect(scene.work("alive") <= 1, "more than one handler is alive")
    return f"ERROR {errors(line)[1]:#x} at the second surplus item, the rest skipped"


@attack("A10", Size(5_000, growth=4, seconds=5), Size(100_000, growth=4, seconds=10), options={"permits": 10})
def beyond_lease(scene: Scene) -> str:
    """Requests beyond what the lease allows."""
    line = scene.line(raw.prefixed(raw.setup(flags=raw.L)))
    expect(line.read(scene.patience(5), lambda: line.received > 0), "no LEASE came")
    permits = 10
    line.pour(joined(raw.prefixed(raw.ask(2 * number + 1, b"x")) for number in range(scene.count)))
    alive(line)
    answers = sum(frame.type == raw.PAYLOAD for frame in line.frames)
    refused = errors(line)
    expect(answers == permits, f"{answers} were answered")
    expect(len(refused) == scene.count - permits, f"{len(refused)} were refused")
    expect(set(refused.values()) == {raw.REJECTED}, f"with {set(refused.values())}")
    return f"{permits} answered, {len(refused)} REJECTED"


@attack("A13", Size(1000, growth=12, seconds=5), Size(10_000, growth=70, seconds=10))
def sleepers_cut(scene: Scene) -> str:
    """Requests whose handlers sleep, then the connection is cut."""
    line = scene.line(SETUP)
    line.pour(joined(raw.prefixed(raw.ask(2 * number + 1, b"sleep")) for number in range(scene.count)))
    alive(line)
    scene.wait_for("alive", scene.count, 10)
    line.close()
    took = scene.wait_for("alive", 0, 5)
    scene.expect_in_time(took <= 1, f"gone after {took:.1f} s")
    return f"{scene.count} handlers gone after {took:.2f} s"


@attack("A11", Size(1, growth=8, seconds=5), Size(10, growth=8, seconds=15))
def unread_stream(scene: Scene) -> str:
    """An endless stream of 16 KiB items with all the credit there is, which is not read."""
    line = scene.line(SETUP)
    line.pour([raw.prefixed(raw.stream(1, MOST_CREDIT, b"16384 fresh"))])
    time.sleep(scene.count)
    line.keeps = False
    expect(line.read_bytes(64 * MIB, scene.patience(20)), "it does not go on when it is read again")
    return f"the producer waits; after {scene.count} s it goes on"


@attack("A11", Size(1, growth=8, seconds=5), Size(10, growth=8, seconds=15))
def sleeping_reader(scene: Scene) -> str:
    """A server that would send 1 GiB to a client of ours whose reader sleeps."""
    line = scene.called("sleepy")
    expect(asked(line), "no request came")
    credit, sent = int.from_bytes(line.frames[-1].body[:4], "big"), 0
    line.came.clear()
    until = time.monotonic() + scene.count
    while sent < 65536 and time.monotonic() < until:
        if credit:
            line.pour(repeated(raw.prefixed(raw.payload(1, bytes(16384))), credit))
            sent, credit = sent + credit, 0
        line.read(0.1)
        credit = sum(int.from_bytes(frame.body[:4], "big") for frame in line.frames if frame.type == raw.REQUEST_N)
        line.came.clear()
    expect(sent <= 512, f"credit for {sent} items was given")
    return f"credit for {sent} items of 16 KiB, then none"
