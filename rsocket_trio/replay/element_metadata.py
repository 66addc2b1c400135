"""The metadata of elements on the wire: positions and record metadata at a source, keys and counts at a sink."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from rsocket_trio.errors import Invalid, RemoteProtocolError
from rsocket_trio.metadata.composite import Entry, encode_composite, spans
from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.payload import Payload
from rsocket_trio.replay.log import LARGEST_COUNT, Element, Record
from rsocket_trio.values import value

POSITION = "message/x.rsocket-trio.position.v0"
RECORD_METADATA = "message/x.rsocket-trio.record-metadata.v0"
KEY = "message/x.rsocket-trio.key.v0"
ROWS = "message/x.rsocket-trio.rows.v0"
WRITE = "message/x.rsocket-trio.write.v0"

_HEAD = encode_mime(POSITION)
# The whole entry: MIME type, length in 24 bits, position, and the count where it is not 1.
_ONE = struct.Struct(f">{len(_HEAD) + 3}sQ")
_MANY = struct.Struct(f">{len(_HEAD) + 3}sQI")
_ONE_HEAD = _HEAD + (8).to_bytes(3, "big")
_MANY_HEAD = _HEAD + (12).to_bytes(3, "big")
_NUMBER = struct.Struct(">I")


def source_payload(record: Record, one: Callable[..., bytes] = _ONE.pack, head: bytes = _ONE_HEAD) -> Payload:
    """Return ``record`` as a source sends it."""
    # The defaults are local names, which are found faster than those of the module: this runs for every row.
    entry = one(head, record.position) if record.count == 1 else _MANY.pack(_MANY_HEAD, record.position, record.count)
    if record.metadata is not None:
        entry += encode_composite([Entry(RECORD_METADATA, record.metadata)])
    return Payload(record.data, entry)


def read_source_payload(payload: Payload) -> Record:
    """Return the record in ``payload``, as a source sent it. Raise ``RemoteProtocolError`` if it has no position."""
    data, position, count, metadata = payload.metadata or b"", -1, 1, None
    for mime, start, end in spans(data):
        if mime == POSITION:
            if end - start not in {8, 12}:
                raise RemoteProtocolError(f"a position has 8 or 12 bytes, not {end - start}", offset=start)
            position = int.from_bytes(data[start : start + 8], "big")
            count = int.from_bytes(data[start + 8 : end], "big") if end - start == 12 else 1
        elif mime == RECORD_METADATA:
            metadata = data[start:end]
    if position < 0:
        raise RemoteProtocolError("the element has no position")
    return Record(position, payload.data, metadata, count)


@value
class Write:
    """One element that a writer sends, and the partition that its metadata names."""

    element: Element
    partition: int = 0


def read_sink_payload(payload: Payload, *, staged: bool = False) -> Write:
    """Return the element that a writer sends. Raise ``Invalid`` for invalid metadata.

    A key is kept: the record's metadata is then composite, the key's entry in front. In a stage the partition is that
    of the attempt, and the payload's is ignored.
    """
    key: bytes | None = None
    metadata: bytes | None = None
    count, partition = 1, 0
    data = payload.metadata or b""
    try:
        for mime, start, end in spans(data):
            if mime == RECORD_METADATA:
                metadata = data[start:end]
            elif mime == KEY:
                key = data[start:end]
            elif mime == ROWS:
                count = _rows(data[start:end])
            elif mime == WRITE and not staged:
                partition = _partition(data[start:end])
    except RemoteProtocolError as error:
        raise Invalid(f"the element's metadata can't be read: {error}") from None
    if key is not None:
        entries = [Entry(KEY, key)]
        if metadata is not None:
            entries.append(Entry(RECORD_METADATA, metadata))
        metadata = encode_composite(entries)
    return Write(Element(payload.data, metadata, count), partition)


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
