"""Targets for the contents of frames: metadata of every kind, and the extension blocks of the draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from qa.fuzz.targets import Target
from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.metadata import (
    COMPOSITE_METADATA,
    ROUTING,
    WELL_KNOWN,
    BearerAuthentication,
    Entry,
    OtherAuthentication,
    SimpleAuthentication,
    Trace,
    ZipkinTrace,
    decode_accepted_mimes,
    decode_authentication,
    decode_composite,
    decode_data_mime,
    decode_deadline,
    decode_route,
    decode_trace,
    decode_zipkin,
    encode_accepted_mimes,
    encode_authentication,
    encode_composite,
    encode_data_mime,
    encode_deadline,
    encode_route,
    encode_zipkin,
    read_request,
    route_of,
    trace_entries,
)
from rsocket_trio.rsocket.extensions.entries import (
    AT_EXT,
    AT_OK,
    AT_SETUP,
    AT_STREAM,
    MalformedExtension,
    Point,
    UnknownExtension,
    decode_block,
    encode_block,
    entry_of,
)
from rsocket_trio.rsocket.frames import ExtensionEntry, ExtFrame, RequestFrame, SetupFrame, SetupOkFrame
from tests.rsocket.test_vectors import WRITABLE

ROUTES: Final = (
    *(encode_route("greet"), encode_route("a", "b", "c" * 255), encode_route(""), encode_route("é€𝄞"), b""),
)
CREDENTIALS: Final = tuple(
    encode_authentication(one)
    for one in (
        *(SimpleAuthentication("user", "secret"), SimpleAuthentication("", ""), BearerAuthentication("token")),
        *(OtherAuthentication("own", b"bytes"), OtherAuthentication(0x55, b"")),
    )
)
NAMES: Final[tuple[str | int, ...]] = (*WELL_KNOWN.values(), 0x55, "x/y", "a" * 128)
MIMES: Final = tuple(map(encode_data_mime, NAMES))
COMPOSITES: Final = tuple(
    encode_composite(entries)
    for entries in (
        [Entry(ROUTING, ROUTES[0])],
        [Entry("own/type", b"data"), Entry(ROUTING, ROUTES[1]), Entry(0x55, b"")],
        [Entry(COMPOSITE_METADATA, encode_composite([Entry(ROUTING, ROUTES[0])])), *[Entry("a", b"")] * 20],
        [Entry(WELL_KNOWN[0x7C], one) for one in CREDENTIALS],
        [],
    )
)
DEADLINES: Final = tuple(map(encode_deadline, (0, 0.001, 1.5, 3600, 1e12)))
IDS: Final[dict[str, Any]] = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}
ZIPKINS: Final = tuple(
    encode_zipkin(one)
    for one in (
        *(ZipkinTrace(sampled=False), ZipkinTrace(**IDS, sampled=True), ZipkinTrace(**IDS, parent_id=IDS["span_id"])),
        *(ZipkinTrace(trace_id=IDS["span_id"], span_id=IDS["span_id"], debug=True), ZipkinTrace(debug=True)),
    )
)
PARENT: Final = f"00-{IDS['trace_id']}-{IDS['span_id']}-01"
TRACES: Final = tuple(
    encode_composite(trace_entries(one))
    for one in (
        Trace(traceparent=PARENT),
        Trace(traceparent=PARENT, tracestate="congo=t61rcWkgMzE,a@b=c"),
        Trace(baggage="user=alice;p=1, b=%20x"),
        Trace(zipkin=decode_zipkin(ZIPKINS[2]), baggage="a=1"),
    )
)


def read_trace(data: bytes) -> Trace | None:
    """The trace in composite metadata: malformed entries are left out, and the others say what they said."""
    trace = decode_trace(read_request(data, COMPOSITE_METADATA).travelling)
    if trace is not None:
        assert trace.trace_id is None or len(bytes.fromhex(trace.trace_id)) in (8, 16)
        assert trace.baggage is None or trace.baggage_items
    return trace


def read_composite(data: bytes) -> list[Entry]:
    """All entries; and the route, which is found whatever else stands there or refused for its own bytes."""
    entries = decode_composite(data)
    try:
        route_of(data, COMPOSITE_METADATA)
    except RemoteProtocolError:
        first = next(entry.content for entry in entries if entry.mime == ROUTING)
        assert is_bad_route(first)
    return entries


def is_bad_route(data: bytes) -> bool:
    """Return whether the first of these tags is none: by its length, or as UTF-8."""
    try:
        data[1 : 1 + data[0]].decode()
    except UnicodeDecodeError:
        return True
    return data[0] >= len(data)


# Blocks: the first byte of the input says at which point they stand

POINTS: Final = (AT_SETUP, AT_OK, AT_EXT, AT_STREAM)
PLACES: Final = (SetupFrame, SetupOkFrame, ExtFrame, RequestFrame)


def block_seeds() -> Sequence[bytes]:
    seeds: list[bytes] = []
    for vector in WRITABLE:
        frame: Any = vector.dialect.codec.decode(vector.data)
        if getattr(frame, "extensions", ()) and len(vector.data) < 1024:
            place = PLACES.index(type(frame))
            seeds.append(bytes([place]) + encode_block(frame.extensions, POINTS[place]) + b"data")
    return tuple(seeds)


def read_block(data: bytes) -> tuple[Point, tuple[ExtensionEntry, ...]]:
    point, start = (POINTS[data[0] % len(POINTS)], 1) if data else (AT_EXT, 0)
    entries, end = decode_block(data, start, point)
    assert end <= len(data)
    for entry in entries:
        reread(point, entry)
    return point, entries


def reread(point: Point, entry: ExtensionEntry) -> None:
    """The content of an entry is written back, but for values that only a receiver may meet."""
    content = point.read(entry)
    if content is None:
        return
    try:
        again = entry_of(content, ignore=entry.ignore)
    except LocalProtocolError:
        return
    assert point.read(again) == content, (content, again)


def write_block(block: tuple[Point, tuple[ExtensionEntry, ...]]) -> bytes:
    point, entries = block
    return bytes([POINTS.index(point)]) + encode_block(entries, point)


def write_trace(trace: Trace | None) -> bytes:
    return b"" if trace is None else encode_composite(trace_entries(trace))


def metadata(name: str, seeds: Sequence[bytes], read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> Target:
    """A piece of metadata, of which every byte counts. Only a well-known name may be written shorter than it came."""
    return Target(name, seeds, read, write, (RemoteProtocolError,), canonical=True)


BLOCKS: Final = {
    target.name: target
    for target in (
        metadata("composite", COMPOSITES, read_composite, encode_composite),
        metadata("routing", ROUTES, decode_route, lambda tags: encode_route(*tags)),
        metadata("authentication", CREDENTIALS, decode_authentication, encode_authentication),
        metadata("data_mime", MIMES, decode_data_mime, encode_data_mime),
        metadata("accepted_mimes", (b"".join(MIMES[:5]), *MIMES[-3:]), decode_accepted_mimes, encode_accepted_mimes),
        metadata("deadline", DEADLINES, decode_deadline, encode_deadline),
        Target("zipkin", ZIPKINS, decode_zipkin, encode_zipkin, (RemoteProtocolError,)),
        Target("trace", TRACES, read_trace, write_trace, (RemoteProtocolError,)),
        Target(
            *("extensions", block_seeds(), read_block, write_block, (MalformedExtension, UnknownExtension)),
            longer=lambda block: (block,),
        ),
    )
}
