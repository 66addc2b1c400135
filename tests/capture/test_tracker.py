"""What a tracker makes of frames: halves, fragments, credit, leases, drops, sessions; and a plain reference for all."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.capture.rows import trace_of
from rsocket_trio.metadata import Trace, encode_composite, trace_entries
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, TRACING_ZIPKIN
from tests.capture import golden
from tests.capture.reading import Script

# Types and flags of 1.0, shifted to where they stand.
FNF, RESPONSE, STREAM, CHANNEL = 0x1400, 0x1000, 0x1800, 0x1C00
REQUEST_N, CANCEL, PAYLOAD, ERROR = 0x2000, 0x2400, 0x2800, 0x2C00
FOLLOWS, COMPLETE, NEXT = 0x80, 0x40, 0x20


def frame(stream: int, bits: int, body: bytes = b"") -> bytes:
    """A frame without metadata."""
    return stream.to_bytes(4, "big") + bits.to_bytes(2, "big") + body


def n(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.fixture
def script() -> Script:
    """A client of 1.0 that has sent its SETUP."""
    made = Script()
    made.sent(golden.SETUP, at=0)
    return made


def test_a_lease_counts_what_was_used_and_what_expired(script: Script) -> None:
    script.received(golden.LEASE[:6] + n(1) + n(3), at=1000)
    script.sent(frame(1, FNF, b"in time"), at=1500)
    script.sent(frame(3, FNF, b"too late"), at=3000)
    script.received(golden.LEASE[:6] + n(1000) + n(5), at=4000)
    script.received(golden.LEASE[:6] + n(1000) + n(7), at=5000)
    script.closed()
    [connection] = script.rows()[2]

    assert [connection[f"lease_{what}"] for what in ("grants", "granted", "used", "expired")] == [3, 15, 1, 7]


def test_what_was_dropped_leaves_the_ends_of_streams_unknown(script: Script) -> None:
    script.sent(frame(1, STREAM, n(1)))
    script.received(frame(99, PAYLOAD | NEXT), dropped=4)
    script.sent(frame(3, STREAM, n(1)))
    script.closed()
    frames, streams, [connection] = script.rows()

    assert [(stream["stream_id"], stream["outcome"]) for stream in streams] == [(1, "unknown"), (3, "conn_lost")]
    assert [row["drop_count"] for row in frames] == [0, 0, 4, 0]
    assert connection["drop_count"] == 4


def test_what_cannot_be_read_is_counted_and_has_its_header(script: Script) -> None:
    script.received(b"\0\0", frame(1, 0xF800), frame(1, REQUEST_N, b"\0"))
    frames, _, _ = script.rows()

    assert [(row["frame_type"], row["stream_id"], row["frame_bytes"]) for row in frames[1:]] == [
        (None, None, 2),
        (0x3E, 1, 6),
        (8, 1, 7),
    ]


def test_a_try_to_resume_that_is_refused_leaves_its_session_alone(script: Script) -> None:
    script = Script()
    script.sent(golden.SETUP_RESUME, golden.FEED_1)
    script.closed("lost", over=False)
    refused = script.open()
    script.sent(golden.RESUME, source=refused)
    script.received(frame(0, ERROR, n(4) + b"unknown"), source=refused)
    script.closed("refused", over=False, source=refused)
    _, streams, [row] = script.rows()

    assert (streams, row["close_reason"], row["resume_count"]) == ([], "refused", 0)
    assert len(script.tracker) == 1

    script.closed("given up")

    assert [(stream["outcome"], stream["conn_id"]) for stream in script.rows()[1]] == [("conn_lost", "conn-0")]
    assert len(script.tracker) == 0


def test_a_short_trace_id_is_filled_up() -> None:
    short = b"\x80" + bytes(range(1, 17))

    assert trace_of(short, TRACING_ZIPKIN) == bytes(8) + bytes(range(1, 9))
    assert trace_of(b"\x00", TRACING_ZIPKIN) is None, "a trace without ids"
    assert trace_of(b"\x88\x01", TRACING_ZIPKIN) is None, "cut short"
    assert trace_of(b"\xfd\x00", COMPOSITE_METADATA) is None, "malformed"


def test_the_trace_id_of_w3c_is_recorded_as_well() -> None:
    trace = Trace(traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", baggage="a=1")
    alone = Trace(baggage="a=1")

    assert trace_of(encode_composite(trace_entries(trace)), COMPOSITE_METADATA) == bytes.fromhex(trace.trace_id or "")
    assert trace_of(encode_composite(trace_entries(alone)), COMPOSITE_METADATA) is None


# The reference: a capture paired by streams, each looked at by itself


class Told(NamedTuple):
    """One frame of a random trace: when, whether it came in, and what it is."""

    inward: bool
    stream: int
    bits: int
    credit: int


REQUESTS = (FNF, RESPONSE, STREAM, CHANNEL)
KINDS = (
    *REQUESTS,
    *(REQUEST_N, CANCEL, ERROR, PAYLOAD | NEXT, PAYLOAD | COMPLETE, PAYLOAD | NEXT | COMPLETE),
    *(PAYLOAD | NEXT | FOLLOWS, PAYLOAD),
)
TRACES = st.lists(
    st.builds(Told, st.booleans(), st.sampled_from([1, 2, 3]), st.sampled_from(KINDS), st.integers(1, 3)), max_size=60
)


@given(TRACES)
def test_rows_are_those_of_a_plain_pairing(trace: list[Told]) -> None:
    script = Script()
    script.sent(golden.SETUP, at=0)
    for at, told in enumerate(trace, 1):
        body = n(told.credit) if told.bits in (STREAM, CHANNEL, REQUEST_N) else n(0x201) if told.bits == ERROR else b""
        (script.received if told.inward else script.sent)(frame(told.stream, told.bits, body), at=at)
    script.closed()
    frames, streams, [connection] = script.rows()

    expected = sorted(itertools.chain(*(reference(trace, stream) for stream in (1, 2, 3))))
    keys = ("t_start", "stream_id", "outcome", "t_end", "n_in", "n_out")
    seen = sorted((*(row[key] for key in keys), row["requested_n"] or 0) for row in streams)
    assert seen == expected
    assert [row["seq"] for row in frames] == list(range(len(trace) + 1))
    assert connection["streams"] == len(streams)
    assert connection["frames_in"] + connection["frames_out"] == len(frames)


def reference(trace: list[Told], stream: int) -> list[tuple[int, int, str, int, int, int, int]]:
    """The streams of one id, from each request to what ends it, frame by frame and without any state but their own."""
    own = [(at, told) for at, told in enumerate(trace, 1) if told.stream == stream]
    found = []
    while own:
        begun, request = own.pop(0)
        if request.bits not in REQUESTS:
            continue
        counts = {True: 0, False: 0}
        counts[request.inward] = 1
        asked = request.credit if request.bits in (STREAM, CHANNEL) else 0
        pending = {True: False, False: False}
        closed: set[bool] = set()
        outcome, ended = ("complete", begun) if request.bits == FNF else ("conn_lost", len(trace) + 1)
        while own and request.bits != FNF:
            at, told = own[0]
            if told.bits in REQUESTS:
                outcome, ended = "unknown", at
                break
            own.pop(0)
            answers = told.inward != request.inward
            if told.bits == ERROR:
                outcome, ended = "error", at
                break
            if told.bits == CANCEL and not answers:
                outcome, ended = "cancel", at
                break
            if told.bits == CANCEL:
                closed.add(False)
            elif told.bits == REQUEST_N:
                asked += told.credit if not answers and request.bits in (STREAM, CHANNEL) else 0
                continue
            else:
                pending[answers] |= bool(told.bits & NEXT)
                if told.bits & FOLLOWS:
                    continue
                was_item, pending[answers] = pending[answers], False
                counts[told.inward] += was_item
                if answers and ((request.bits == RESPONSE and was_item) or told.bits & COMPLETE):
                    closed |= {True} if request.bits == CHANNEL else {True, False}
                elif told.bits & COMPLETE:
                    closed.add(False)
            if closed == {True, False}:
                outcome, ended = "complete", at
                break
        found.append((begun, stream, outcome, ended, counts[True], counts[False], asked))
    return found
