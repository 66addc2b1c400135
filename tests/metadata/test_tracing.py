"""Tracing: entries of W3C and of Zipkin are read, passed on, and left out where they are malformed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import (
    APPLICATION_JSON,
    BAGGAGE,
    TRACEPARENT,
    TRACESTATE,
    TRACING_ZIPKIN,
    Entry,
    Trace,
    ZipkinTrace,
    decode_baggage,
    decode_composite,
    decode_trace,
    decode_zipkin,
    encode_baggage,
    encode_composite,
    encode_zipkin,
    trace_entries,
)

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
SHORT_ID = "0102030405060708"

# fmt: off
ZIPKIN = [
    (ZipkinTrace(),                                                        "00"),
    (ZipkinTrace(sampled=False),                                           "10"),
    (ZipkinTrace(sampled=True),                                            "20"),
    (ZipkinTrace(sampled=True, debug=True),                                "40"),
    (ZipkinTrace(trace_id=SHORT_ID, span_id=SPAN_ID),                      f"80 {SHORT_ID} {SPAN_ID}"),
    (ZipkinTrace(trace_id=TRACE_ID, span_id=SPAN_ID, sampled=True),        f"A8 {TRACE_ID} {SPAN_ID}"),
    (ZipkinTrace(trace_id=TRACE_ID, span_id=SPAN_ID, parent_id=SHORT_ID, sampled=False),
                                                                           f"9C {TRACE_ID} {SPAN_ID} {SHORT_ID}"),
    (ZipkinTrace(trace_id=SHORT_ID, span_id=SPAN_ID, parent_id=SHORT_ID, sampled=True, debug=True),
                                                                           f"C4 {SHORT_ID} {SPAN_ID} {SHORT_ID}"),
]
# fmt: on


@pytest.mark.parametrize(("trace", "data"), ZIPKIN)
def test_zipkin_ids_encode_to_the_published_bytes_and_back(trace: ZipkinTrace, data: str) -> None:
    assert encode_zipkin(trace) == bytes.fromhex(data)
    assert decode_zipkin(bytes.fromhex(data)) == trace


def test_debugging_decides_over_the_other_flags_and_sampling_over_not_sampling() -> None:
    assert decode_zipkin(b"\x70") == ZipkinTrace(sampled=True, debug=True)
    assert decode_zipkin(b"\x30") == ZipkinTrace(sampled=True)


@pytest.mark.parametrize(("flags", "size"), [(0x80, 17), (0x88, 25), (0x84, 25), (0x8C, 33)])
def test_zipkin_ids_that_are_cut_short_are_the_peers_fault(flags: int, size: int) -> None:
    whole = bytes((flags,)) + bytes(range(1, size))

    assert decode_zipkin(whole) == decode_zipkin(whole + b"more")
    with pytest.raises(RemoteProtocolError, match=f"Zipkin trace of {size - 1} bytes, {size} needed"):
        decode_zipkin(whole[:-1])


@pytest.mark.parametrize(
    "ids",
    [
        {"trace_id": TRACE_ID},
        {"span_id": SPAN_ID},
        {"parent_id": SPAN_ID},
        {"trace_id": "12", "span_id": SPAN_ID},
        {"trace_id": TRACE_ID, "span_id": TRACE_ID},
        {"trace_id": TRACE_ID.upper(), "span_id": SPAN_ID},
    ],
)
def test_zipkin_ids_that_cannot_be_written_are_refused(ids: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="_id"):
        ZipkinTrace(**ids)  # type: ignore[arg-type]


def test_each_header_of_w3c_is_one_entry_by_its_name() -> None:
    trace = Trace(traceparent=PARENT, tracestate="congo=t61rcWkgMzE", baggage="user=alice")
    written = encode_composite(trace_entries(trace))

    assert written.startswith(b"\x0atraceparent\x00\x00\x37" + PARENT.encode())
    assert b"\x09tracestate\x00\x00\x11congo=t61rcWkgMzE" in written
    assert written.endswith(b"\x06baggage\x00\x00\x0auser=alice")
    assert decode_trace(decode_composite(written)) == trace


@pytest.mark.parametrize(("zipkin", "data"), ZIPKIN)
def test_a_trace_passes_on_what_it_was_read_from(zipkin: ZipkinTrace, data: str) -> None:
    entries = (Entry(BAGGAGE, b"a=1;p,b=%C3%BC"), Entry(TRACING_ZIPKIN, bytes.fromhex(data)))
    trace = decode_trace((Entry(APPLICATION_JSON, b"{}"), *entries))

    assert trace is not None
    assert trace.zipkin == zipkin
    assert trace_entries(trace) == entries


def test_entries_without_tracing_are_no_trace() -> None:
    assert decode_trace([]) is None
    assert decode_trace([Entry(APPLICATION_JSON, b"{}")]) is None


def test_ids_and_the_decision_come_from_whichever_entry_is_there() -> None:
    zipkin = ZipkinTrace(trace_id=SHORT_ID, span_id=SHORT_ID, sampled=False)

    both = Trace(traceparent=PARENT, zipkin=zipkin)
    assert (both.trace_id, both.span_id, both.sampled) == (TRACE_ID, SPAN_ID, True)
    assert Trace(traceparent=f"00-{TRACE_ID}-{SPAN_ID}-00").sampled is False
    assert (Trace(zipkin=zipkin).trace_id, Trace(zipkin=zipkin).span_id) == (SHORT_ID, SHORT_ID)
    assert Trace(zipkin=zipkin).sampled is False
    nothing = Trace(baggage="a=1")
    assert (nothing.trace_id, nothing.span_id, nothing.sampled) == (None, None, None)


BAD_PARENTS = [
    "",
    "00",
    f"ff-{TRACE_ID}-{SPAN_ID}-01",
    f"00-{'0' * 32}-{SPAN_ID}-01",
    f"00-{TRACE_ID}-{'0' * 16}-01",
    f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
    f"00-{TRACE_ID}-{SPAN_ID}-1",
    f"00-{TRACE_ID}-{SPAN_ID}-01-more",
    f"01-{TRACE_ID}-{SPAN_ID}-01more",
    f"01-{TRACE_ID}-{SPAN_ID}-01-\n",
    f"01-{TRACE_ID}-{SPAN_ID}-01-{'x' * 512}",
    f" {PARENT}",
    f"{PARENT}\n",
    f"{PARENT},{PARENT}",
]
BAD_STATES = [
    "",
    ",",
    "novalue",
    "Upper=1",
    "a=",
    "a=b=c",
    "a=\x00",
    "a=ü",
    f"{'k' * 257}=v",
    f"k={'v' * 257}",
    ",".join(f"k{number}=v" for number in range(33)),
    ",".join(f"k{number}={'v' * 200}" for number in range(6)),
]
BAD_BAGGAGE = ["", "novalue", "a b=1", "a=\x00", "a=1\r\nb=2", f"a={'x' * 8191}"]


@pytest.mark.parametrize("text", BAD_PARENTS)
def test_a_malformed_traceparent_is_ignored_and_its_tracestate_with_it(text: str) -> None:
    entries = [Entry(TRACEPARENT, text.encode()), Entry(TRACESTATE, b"a=1"), Entry(BAGGAGE, b"a=1")]

    assert decode_trace(entries) == Trace(baggage="a=1")
    with pytest.raises(ValueError, match="traceparent"):
        Trace(traceparent=text)


@pytest.mark.parametrize("text", BAD_STATES)
def test_a_malformed_tracestate_is_ignored(text: str) -> None:
    entries = [Entry(TRACEPARENT, PARENT.encode()), Entry(TRACESTATE, text.encode())]

    assert decode_trace(entries) == Trace(traceparent=PARENT)
    with pytest.raises(ValueError, match="tracestate"):
        Trace(traceparent=PARENT, tracestate=text)


@pytest.mark.parametrize("text", BAD_BAGGAGE)
def test_malformed_baggage_is_ignored(text: str) -> None:
    assert decode_trace([Entry(BAGGAGE, text.encode())]) is None
    with pytest.raises(ValueError, match="baggage"):
        Trace(baggage=text)


@pytest.mark.parametrize("mime", [TRACEPARENT, TRACESTATE, BAGGAGE, TRACING_ZIPKIN])
@pytest.mark.parametrize("content", [b"", b"\xff", b"\x88\x01", b"x" * 1_000_000])
def test_content_that_is_no_text_is_ignored(mime: str, content: bytes) -> None:
    trace = decode_trace([Entry(mime, content)])

    # A flags byte alone is a trace of Zipkin: these bits decide, or carry nothing.
    assert trace is None or trace.zipkin is not None


@pytest.mark.parametrize(
    ("headers", "values"),
    [
        ({"traceparent": f"01-{TRACE_ID}-{SPAN_ID}-01"}, {}),
        ({"traceparent": f"cc-{TRACE_ID}-{SPAN_ID}-01-what=ever"}, {}),
        ({"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-ff"}, {}),
        ({"traceparent": PARENT, "tracestate": "a=1, b@sys=2 ,,c/d=x y,0z=!"}, {}),
        ({"traceparent": PARENT, "tracestate": ",".join(f"k{number}=v" for number in range(32))}, {}),
        ({"baggage": f"a={'x' * 8190}"}, {"a": "x" * 8190}),
        ({"baggage": "a=1;p=2;q, b = %20x ,junk,a=3"}, {"a": "3", "b": " x"}),
        ({"baggage": "name=Zoë"}, {"name": "Zoë"}),
    ],
)
def test_headers_that_w3c_allows_are_kept_as_they_are(headers: dict[str, Any], values: dict[str, str]) -> None:
    trace = Trace(**headers)

    assert decode_trace(trace_entries(trace)) == trace
    assert trace.baggage_items == values


def test_the_first_entry_of_a_type_counts() -> None:
    entries = [Entry(BAGGAGE, b"a=1"), Entry(BAGGAGE, b"a=2")]

    assert decode_trace(entries) == Trace(baggage="a=1")


@given(st.dictionaries(st.from_regex(r"[a-z][a-zA-Z0-9_.-]{0,20}", fullmatch=True), st.text(max_size=40), max_size=20))
def test_baggage_that_was_encoded_decodes_to_the_same(items: dict[str, str]) -> None:
    text = encode_baggage(items)

    assert text.isascii()
    assert decode_baggage(text) == items


def test_baggage_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="baggage key 'a b'"):
        encode_baggage({"a b": "1"})
    with pytest.raises(ValueError, match="limit 8192"):
        encode_baggage({"a": "x" * 8192})


@given(st.lists(st.builds(Entry, st.sampled_from([TRACEPARENT, TRACESTATE, BAGGAGE, TRACING_ZIPKIN]), st.binary())))
def test_any_content_gives_a_trace_that_can_be_passed_on(entries: list[Entry]) -> None:
    trace = decode_trace(entries)

    if trace is not None:
        assert decode_trace(trace_entries(trace)) == trace
