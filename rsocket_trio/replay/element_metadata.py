"""The metadata of elements on the wire: positions, keys, headers and times of records, and the format of packs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from rsocket_trio.errors import Invalid, RemoteProtocolError, readable
from rsocket_trio.metadata.composite import Entry, encode_composite, spans
from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.payload import Payload
from rsocket_trio.replay import elements
from rsocket_trio.replay.elements import ARROW, Element, Pack, Record
from rsocket_trio.replay.requests import WriteEntry, decoded
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

_NUMBER, _LONG = struct.Struct(">I"), struct.Struct(">Q")
# The usual record has the entries of its position and its time: of each the MIME type, 8 as the length, the number.
_POSITION_HEAD = encode_mime(POSITION) + (8).to_bytes(3, "big")
_TIME_HEAD = encode_mime(TIMESTAMP) + (8).to_bytes(3, "big")
_PLACE = struct.Struct(f">{len(_POSITION_HEAD)}sQ{len(_TIME_HEAD)}sQ")


def source_payload(record: Record) -> Payload:
    """Return ``record`` as a source sends it."""
    if record.count == 1 and record.timestamp is not None:
        place = _PLACE.pack(_POSITION_HEAD, record.position, _TIME_HEAD, record.timestamp)
        if record.data is not None and record.metadata is None and record.key is None and record.headers is None:
            return Payload(record.data, place)
    else:
        place = encode_composite(_place(record))
    contents = (
        (NULL, b"" if record.data is None else None),
        (RECORD_METADATA, record.metadata),
        (KEY, record.key),
        (HEADERS, None if record.headers is None else elements.encode_headers(record.headers)),
    )
    entries = [Entry(mime, content) for mime, content in contents if content is not None]
    return Payload(record.data or b"", place + encode_composite(entries))


def behind_gap(payload: Payload, start: int) -> Payload:
    """Return an element with the entry that says that nothing is between the position ``start`` and its own."""
    return Payload(payload.data, (payload.metadata or b"") + encode_composite([Entry(GAP, _LONG.pack(start))]))


def pack_payload(pack: Pack) -> Payload:
    """Return ``pack`` as a source sends it."""
    payload = Payload(pack.data, encode_composite([*_place(pack), Entry(PACK, ARROW.encode())]))
    return behind_gap(payload, pack.position) if pack.has_gaps else payload


def _place(rows: Record | Pack) -> list[Entry]:
    place = _LONG.pack(rows.position) + (b"" if rows.count == 1 else _NUMBER.pack(rows.count))
    time = [] if rows.timestamp is None else [Entry(TIMESTAMP, _LONG.pack(rows.timestamp))]
    return [Entry(POSITION, place), *time]


def _position(content: bytes) -> tuple[int, int]:
    return _LONG.unpack(content[:8])[0], _NUMBER.unpack(content[8:])[0] if len(content) > 8 else 1


def _number(content: bytes) -> int:
    (number,) = _LONG.unpack(content)
    if number >= elements.FOREVER:
        raise ValueError(f"{number}, and the limit is 2^63 - 1")
    return int(number)


DECODERS: Final[Mapping[str | int, Callable[[bytes], object]]] = {
    POSITION: _position,
    TIMESTAMP: _number,
    RECORD_METADATA: bytes,
    KEY: bytes,
    HEADERS: elements.decode_headers,
    GAP: _number,
    PACK: lambda content: content.decode("utf-8", "backslashreplace"),
    ROWS: lambda content: int(_NUMBER.unpack(content)[0]),
    NULL: bytes,
    WRITE: lambda content: decoded(content, WriteEntry).partition,
}
"""The functions that return the content of an entry, by its MIME type, and raise ``ValueError`` or ``struct.error``."""


def read_entries(payload: Payload) -> dict[str | int, Any]:
    """Return the content of the known entries of an element. Raise ``RemoteProtocolError`` for a malformed one."""
    entries: dict[str | int, Any] = {}
    metadata = payload.metadata or b""
    for mime, start, end in spans(metadata):
        if (decode := DECODERS.get(mime)) is not None:
            try:
                entries[mime] = decode(metadata[start:end])
            except (ValueError, struct.error) as error:
                raise RemoteProtocolError(f"the entry {mime}: {error}", offset=start) from None
    return entries


@value
class Placed:
    """A received element of a source: the record, or the data and place of a pack in the format ``form``.

    ``gap`` is the position from which on nothing is before it, ``None`` without such an entry.
    """

    record: Record
    form: str | None = None
    gap: int | None = None


def read_source_payload(payload: Payload) -> Record:
    """Return the record in ``payload``, as a source sent it. Raise ``RemoteProtocolError`` for anything else."""
    placed = read_placed(payload)
    if placed.form is not None:
        raise RemoteProtocolError(f"the element at position {placed.record.position} is a pack: {placed.form}")
    return placed.record


def read_placed(payload: Payload) -> Placed:
    """Return what ``payload`` holds, a record or a pack. Raise ``RemoteProtocolError`` for a malformed element."""
    metadata = payload.metadata or b""
    if len(metadata) == _PLACE.size:
        position_head, position, time_head, time = _PLACE.unpack(metadata)
        if position_head == _POSITION_HEAD and time_head == _TIME_HEAD and time < elements.FOREVER:
            return Placed(Record(position, payload.data, timestamp=time))
    entry = read_entries(payload).get
    if (place := entry(POSITION)) is None:
        raise RemoteProtocolError("the element has no position")
    data = payload.data if entry(NULL) is None else None
    record = Record(place[0], data, entry(RECORD_METADATA), place[1], entry(KEY), entry(HEADERS), entry(TIMESTAMP))
    return Placed(record, entry(PACK), entry(GAP))


@value
class Write:
    """The content of one payload of a writer: one element, or the packs of the rows of one, and its partition."""

    elements: tuple[Element | Pack, ...]
    partition: int


def read_sink_payload(payload: Payload) -> Write:
    """Return the element that a writer sends, single rows as they came: the ledger checks them.

    Raise ``Invalid`` for invalid metadata, and for a pack that is torn, is in an unknown format, or has other rows than
    its metadata says.
    """
    try:
        entry = read_entries(payload).get
        form, rows, partition = entry(PACK), entry(ROWS), entry(WRITE, 0)
        if form is None:
            data = payload.data if entry(NULL) is None else None
            element = Element(data, entry(RECORD_METADATA), 1 if rows is None else rows, entry(KEY), entry(HEADERS))
            return Write((element,), partition)
        if form != ARROW or not elements.has_arrow():
            known = ARROW if elements.has_arrow() else "none, without pyarrow"
            raise Invalid(f"a pack in the format {readable(form[:100])!r}: known is {known}")
        # Of a pack as a source sends it: the position is the log's to give, and only the count matters.
        count = entry(POSITION, (0, None))[1] if rows is None else rows
        return Write(tuple(elements.arrow().checked(payload.data, count)), partition)
    except RemoteProtocolError as error:
        raise Invalid(f"the element's metadata can't be read: {error}") from None
    except ValueError as error:
        raise Invalid(str(error)) from None


def is_pack(payload: Payload) -> bool:
    """Return whether a writer's payload names the format of a pack."""
    return payload.metadata is not None and PACK.encode() in payload.metadata
