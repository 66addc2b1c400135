"""The metadata of elements on the wire: positions, keys, headers and times of records, and the format of packs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Final

from rsocket_trio.errors import Invalid, RemoteProtocolError
from rsocket_trio.metadata.composite import Entry, encode_composite, spans
from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.payload import Payload
from rsocket_trio.replay.elements import (
    LARGEST_COUNT,
    Element,
    Headers,
    Record,
    check_element,
    decode_headers,
    encode_headers,
)
from rsocket_trio.replay.packs import ARROW, Pack, arrow, check_format
from rsocket_trio.values import value

POSITION: Final = "message/x.rsocket-trio.position.v0"
RECORD_METADATA: Final = "message/x.rsocket-trio.record-metadata.v0"
KEY: Final = "message/x.rsocket-trio.key.v0"
HEADERS: Final = "message/x.rsocket-trio.headers.v0"
TIMESTAMP: Final = "message/x.rsocket-trio.timestamp.v0"
GAP: Final = "message/x.rsocket-trio.gap.v0"
PACK: Final = "message/x.rsocket-trio.pack.v0"
ROWS: Final = "message/x.rsocket-trio.rows.v0"
NULL: Final = "message/x.rsocket-trio.null.v0"
WRITE: Final = "message/x.rsocket-trio.write.v0"

_HEAD = encode_mime(POSITION)
_TIME = encode_mime(TIMESTAMP) + (8).to_bytes(3, "big")
# The whole entry: MIME type, length in 24 bits, position, and the count where it is not 1.
_ONE = struct.Struct(f">{len(_HEAD) + 3}sQ")
_MANY = struct.Struct(f">{len(_HEAD) + 3}sQI")
# The usual record: the two entries of its position and its time.
_TIMED = struct.Struct(f">{len(_HEAD) + 3}sQ{len(_TIME)}sQ")
_ONE_HEAD = _HEAD + (8).to_bytes(3, "big")
_MANY_HEAD = _HEAD + (12).to_bytes(3, "big")
_NUMBER = struct.Struct(">I")
_LONG = struct.Struct(">Q")


def source_payload(record: Record, one: Callable[..., bytes] = _TIMED.pack, head: bytes = _ONE_HEAD) -> Payload:
    """Return ``record`` as a source sends it."""
    # The defaults are local names, which are found faster than those of the module: this runs for every row.
    time = record.timestamp
    if record.count == 1 and time is not None:
        entry = one(head, record.position, _TIME, time)
    else:
        entry = _place(record.position, record.count)
        if time is not None:
            entry += _TIME + _LONG.pack(time)
    if record.metadata is None and record.key is None and record.headers is None and record.data is not None:
        return Payload(record.data, entry)
    entries = [] if record.data is not None else [Entry(NULL, b"")]
    if record.metadata is not None:
        entries.append(Entry(RECORD_METADATA, record.metadata))
    if record.key is not None:
        entries.append(Entry(KEY, record.key))
    if record.headers is not None:
        entries.append(Entry(HEADERS, encode_headers(record.headers)))
    return Payload(record.data or b"", entry + encode_composite(entries))


def behind_gap(payload: Payload, start: int) -> Payload:
    """Return an element with the entry that says that nothing is between the position ``start`` and its own."""
    return Payload(payload.data, (payload.metadata or b"") + encode_composite([Entry(GAP, _LONG.pack(start))]))


def pack_payload(pack: Pack) -> Payload:
    """Return ``pack`` as a source sends it."""
    entry = _MANY.pack(_MANY_HEAD, pack.position, pack.count)
    if pack.timestamp is not None:
        entry += _TIME + _LONG.pack(pack.timestamp)
    entries = [Entry(PACK, ARROW.encode())]
    if pack.has_gaps:
        entries.append(Entry(GAP, _LONG.pack(pack.position)))
    return Payload(pack.data, entry + encode_composite(entries))


def _place(position: int, count: int) -> bytes:
    return _ONE.pack(_ONE_HEAD, position) if count == 1 else _MANY.pack(_MANY_HEAD, position, count)


@value
class Placed:
    """A received element of a source: the record, or the data and place of a pack in the format ``form``.

    ``gap`` is the position from which on nothing is before it, ``None`` without such an entry.
    """

    record: Record
    form: str | None = None
    gap: int | None = None


def read_source_payload(payload: Payload) -> Record:
    """Return the record in ``payload``, as a source sent it.

    Raise ``RemoteProtocolError`` if it has no position, or holds a pack that nobody asked for.
    """
    found = read_placed(payload)
    if found.form is not None:
        raise RemoteProtocolError(f"the element at position {found.record.position} is a pack: {found.form}")
    return found.record


def read_placed(payload: Payload) -> Placed:
    """Return what ``payload`` holds, a record or a pack. Raise ``RemoteProtocolError`` for a malformed element."""
    data, position, count = payload.metadata or b"", -1, 1
    content: bytes | None = payload.data
    metadata: bytes | None = None
    key: bytes | None = None
    headers: Headers | None = None
    timestamp: int | None = None
    form: str | None = None
    gap: int | None = None
    for mime, start, end in spans(data):
        if mime == POSITION:
            if end - start not in {8, 12}:
                raise RemoteProtocolError(f"a position has 8 or 12 bytes, not {end - start}", offset=start)
            position = int.from_bytes(data[start : start + 8], "big")
            count = int.from_bytes(data[start + 8 : end], "big") if end - start == 12 else 1
        elif mime == TIMESTAMP:
            timestamp = _long(data, start, end, "a timestamp")
            if timestamp >= 1 << 63:
                raise RemoteProtocolError(f"a timestamp of {timestamp}: the limit is 2^63 - 1", offset=start)
        elif mime == RECORD_METADATA:
            metadata = data[start:end]
        elif mime == KEY:
            key = data[start:end]
        elif mime == HEADERS:
            try:
                headers = decode_headers(data[start:end])
            except ValueError as error:
                raise RemoteProtocolError(str(error), offset=start) from None
        elif mime == NULL:
            content = None
        elif mime == GAP:
            gap = _long(data, start, end, "a gap")
        elif mime == PACK:
            form = data[start:end].decode("utf-8", "backslashreplace")
    if position < 0:
        raise RemoteProtocolError("the element has no position")
    return Placed(Record(position, content, metadata, count, key, headers, timestamp), form, gap)


def _long(data: bytes, start: int, end: int, what: str) -> int:
    if end - start != _LONG.size:
        raise RemoteProtocolError(f"{what} has 8 bytes, not {end - start}", offset=start)
    return int.from_bytes(data[start:end], "big")


@value
class Write:
    """What a writer sends at a time: one element, or a pack, divided if it is large, and its partition."""

    element: Element | Pack
    partition: int = 0
    others: tuple[Pack, ...] = ()

    @property
    def elements(self) -> tuple[Element | Pack, ...]:
        """Return the element, or the pack and the ``others`` that were divided from it."""
        return (self.element, *self.others)

    @property
    def size(self) -> int:
        """Return their bytes."""
        return sum(element.size for element in self.elements)


def read_sink_payload(payload: Payload, *, staged: bool = False) -> Write:
    """Return the element that a writer sends. Raise ``Invalid`` for invalid metadata, and for a pack that is torn, is
    in an unknown format, or has other rows than its metadata says.

    In a stage the partition is that of the attempt, and the payload's is ignored.
    """
    key: bytes | None = None
    metadata: bytes | None = None
    headers: Headers | None = None
    content: bytes | None = payload.data
    form: str | None = None
    rows: int | None = None
    said: int | None = None
    partition = 0
    data = payload.metadata or b""
    try:
        for mime, start, end in spans(data):
            if mime == RECORD_METADATA:
                metadata = data[start:end]
            elif mime == KEY:
                key = data[start:end]
            elif mime == HEADERS:
                headers = decode_headers(data[start:end])
            elif mime == NULL:
                content = None
            elif mime == ROWS:
                rows = _rows(data[start:end])
            elif mime == POSITION and end - start == 12:
                # Of a pack as a source sends it: the position is the log's to give, and only the count matters.
                said = int.from_bytes(data[start + 8 : end], "big")
            elif mime == PACK:
                form = data[start:end].decode("utf-8", "backslashreplace")
            elif mime == WRITE and not staged:
                partition = _partition(data[start:end])
        if form is not None:
            check_format(form)
            first, *others = arrow().divided(arrow().checked(payload.data, said if rows is None else rows))
            return Write(first, partition, tuple(others))
        element = Element(content, metadata, 1 if rows is None else rows, key, headers)
        check_element(element)
    except RemoteProtocolError as error:
        raise Invalid(f"the element's metadata can't be read: {error}") from None
    except ValueError as error:
        raise Invalid(str(error)) from None
    return Write(element, partition)


def is_pack(payload: Payload) -> bool:
    """Return whether a writer's payload names the format of a pack."""
    return payload.metadata is not None and PACK.encode() in payload.metadata


def sink_payload(element: Element) -> Payload:
    """Return ``element`` as a writer sends it to a stage."""
    entries = [] if element.data is not None else [Entry(NULL, b"")]
    if element.key is not None:
        entries.append(Entry(KEY, element.key))
    if element.headers is not None:
        entries.append(Entry(HEADERS, encode_headers(element.headers)))
    if element.metadata is not None:
        entries.append(Entry(RECORD_METADATA, element.metadata))
    if element.count != 1:
        entries.append(Entry(ROWS, _NUMBER.pack(element.count)))
    return Payload(element.data or b"", encode_composite(entries) or None)


def _rows(content: bytes) -> int:
    if len(content) != _NUMBER.size:
        raise Invalid(f"a number of rows has 4 bytes, not {len(content)}")
    (rows,) = _NUMBER.unpack(content)
    if not 1 <= rows <= LARGEST_COUNT:
        raise Invalid(f"an element of {rows} rows: must be between 1 and {LARGEST_COUNT}")
    return int(rows)


def _partition(content: bytes) -> int:
    try:
        said = json.loads(content)
    except ValueError:
        raise Invalid("the write entry is no JSON") from None
    partition = said.get("partition", 0) if isinstance(said, dict) else None
    if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
        raise Invalid("the write entry names no partition: a whole number from 0 on")
    return partition
