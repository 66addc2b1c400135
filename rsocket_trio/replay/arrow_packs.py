"""Packs and Arrow record batches, each made from the other without a look at single rows.

A pack in the format ``arrow/1`` is an Arrow IPC stream of one record batch. Its columns are those of ``PACK_SCHEMA``,
in any order; ``data`` must be there, and a column that is left out is null in all rows.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio.replay.elements import LARGEST_COUNT
from rsocket_trio.replay.packs import (
    COUNTS,
    HEADERS,
    KEY,
    LONGEST_PACK,
    METADATA,
    NO_TIME,
    NONE,
    PACK_BYTES,
    PACK_HEAD,
    PACK_ROWS,
    Column,
    Pack,
    check_entries,
    check_pack,
    checked_span,
    decode_headers,
    encode_headers,
    number_bytes,
    read_columns,
    sealed,
)

TIME: Final = pa.timestamp("us", tz="UTC")
HEADERS_TYPE: Final = pa.map_(pa.string(), pa.binary())
PACK_SCHEMA: Final = pa.schema(
    [
        ("position", pa.int64()),
        ("count", pa.int32()),
        ("data", pa.binary()),
        ("metadata", pa.binary()),
        ("key", pa.binary()),
        ("timestamp", TIME),
        ("headers", HEADERS_TYPE),
    ]
)
_NONE = pa.scalar(NONE, pa.uint32())
_ZERO = pa.scalar(0, pa.uint32())


class Ascending:
    """The numbers from 0 on as an Arrow array, kept for the next time."""

    def __init__(self) -> None:
        self._known = pa.array([], pa.int64())

    def __call__(self, count: int) -> pa.Array:
        """Return the first ``count`` numbers."""
        if len(self._known) < count:
            self._known = fixed(pa.int64(), array("q", range(max(count, PACK_ROWS))))
        return self._known[:count]


def fixed(kind: pa.DataType, numbers: array[int], rows: int | None = None) -> pa.Array:
    """Return numbers of the native byte order as an Arrow array, not copied."""
    return pa.Array.from_buffers(kind, len(numbers) if rows is None else rows, [None, pa.py_buffer(numbers)])


def constant(kind: pa.DataType, number: int, rows: int) -> pa.Array:
    """Return an Arrow array of 64 bits a value that repeats one number."""
    return fixed(kind, array("q", [number]) * rows)


ascending = Ascending()


# From packs


def batch_of(pack: Pack) -> pa.RecordBatch:
    """Return the rows of a pack as a record batch of ``PACK_SCHEMA``. Raise ``ValueError`` for a damaged pack."""
    columns = check_pack(pack.data, pack.count)
    rows, data = columns.rows, pa.py_buffer(pack.data)
    if columns.offsets is not None:
        offsets = fixed(pa.uint32(), columns.offsets).cast(pa.int64())
    elif columns.counts is not None:
        offsets = fixed(pa.int64(), array("q", columns.starts()))
    else:
        offsets = ascending(rows)
    counts = fixed(pa.int32(), array("i", [1]) * rows if columns.counts is None else columns.counts)
    if columns.timestamp is not None:
        times = fixed(pa.int64(), columns.timestamp)
        known = pc.not_equal(times, NO_TIME)
        own = pa.scalar(pack.timestamp, pa.int64())
        times = pc.if_else(known, times, own).cast(TIME)
    elif pack.timestamp is None:
        times = pa.nulls(rows, TIME)
    else:
        times = constant(TIME, pack.timestamp, rows)
    headers = pa.nulls(rows, HEADERS_TYPE)
    if columns.headers is not None:
        headers = pa.array(
            [None if said is None else decode_headers(said) for said in columns.headers.contents(pack.data)],
            HEADERS_TYPE,
        )
    return pa.RecordBatch.from_arrays(
        [
            pc.add(offsets, pack.position),
            counts,
            _binary(columns.data, data, nullable=False),
            pa.nulls(rows, pa.binary()) if columns.metadata is None else _binary(columns.metadata, data),
            pa.nulls(rows, pa.binary()) if columns.key is None else _binary(columns.key, data),
            times,
            headers,
        ],
        schema=PACK_SCHEMA,
    )


def _binary(column: Column, data: pa.Buffer, *, nullable: bool = True) -> pa.Array:
    rows = len(column.lengths)
    lengths = fixed(pa.uint32(), column.lengths)
    validity = None
    if nullable:
        present = pc.not_equal(lengths, _NONE)
        validity = present.buffers()[1]
        lengths = pc.if_else(present, lengths, _ZERO)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = array("i", [0])
    offsets.frombytes(memoryview(ends.buffers()[1])[: 4 * rows])
    contents = data.slice(column.start, column.stop - column.start)
    return pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(offsets), contents])


def to_arrow(pack: Pack) -> pa.Buffer:
    """Return a pack in the format ``arrow/1``."""
    batch = batch_of(pack)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


# To packs


def read_batch(data: bytes) -> pa.RecordBatch:
    """Return the record batch of a pack in the format ``arrow/1``, with all columns of ``PACK_SCHEMA``.

    Raise ``ValueError`` for anything else.
    """
    if len(data) > LONGEST_PACK:
        raise ValueError(f"a pack of {len(data)} bytes: the limit is {LONGEST_PACK}")
    try:
        with pa.ipc.open_stream(data) as stream:
            found = stream.schema
            for name in found.names:
                if name not in PACK_SCHEMA.names or found.names.count(name) > 1:
                    raise ValueError(f"a pack in arrow/1 with the column {name[:100]!r}")
                if found.field(name).type != PACK_SCHEMA.field(name).type:
                    raise ValueError(f"column {name!r} of a pack in arrow/1 is {found.field(name).type}")
            if (size := decompressed_size(data)) > LONGEST_PACK:
                raise ValueError(f"a pack of {size} bytes, compressed: the limit is {LONGEST_PACK}")
            batches = list(stream)
    except (pa.ArrowException, OSError, struct.error) as error:
        raise ValueError(f"a pack of {len(data)} bytes is not in arrow/1: {error}") from None
    if "data" not in found.names:
        raise ValueError("a pack in arrow/1 without the column 'data'")
    if len(batches) > 1:
        batches = [batch for batch in batches if batch.num_rows]
    if len(batches) != 1:
        raise ValueError(f"a pack in arrow/1 with {len(batches)} record batches that have rows: it has one")
    [batch] = batches
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"a pack in arrow/1 is damaged: {error}") from None
    columns = [
        batch.column(field.name) if field.name in found.names else pa.nulls(batch.num_rows, field.type)
        for field in PACK_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PACK_SCHEMA)


def decompressed_size(data: bytes) -> int:
    """Return the bytes of all compressed buffers in an Arrow IPC stream, as they say themselves, decompressed.

    Raise ``pa.ArrowException`` and ``struct.error`` for anything else.
    """
    size = 0
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.type == "record batch":
            # Messages are in FlatBuffers: field 2 of a message is its content, those of a batch are its buffers, each
            # an offset and a length, and the compression. A buffer that is compressed begins with its size, or -1.
            said, body = message.metadata.to_pybytes(), message.body
            batch = _pointed(said, _field(said, _pointed(said, 0), 2))
            if not _field(said, batch, 3):
                continue
            buffers = _pointed(said, _field(said, batch, 2))
            (count,) = struct.unpack_from("<I", said, buffers)
            for index in range(count):
                offset, length = struct.unpack_from("<qq", said, buffers + 4 + 16 * index)
                if length:
                    (whole,) = struct.unpack_from("<q", body, offset)
                    size += length if whole < 0 else whole
    return size


def _field(said: bytes, table: int, index: int) -> int:
    """Return where a field of a table is, 0 where it is not there."""
    entries = table - struct.unpack_from("<i", said, table)[0]
    place = entries + 4 + 2 * index
    if place >= entries + struct.unpack_from("<H", said, entries)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", said, place)
    return table + offset if offset else 0


def _pointed(said: bytes, place: int) -> int:
    return int(place + struct.unpack_from("<I", said, place)[0])


def from_arrow(data: bytes, rows: int | None) -> Pack:
    """Return the pack that a writer sent in ``arrow/1``, with so many ``rows`` if it says so. Raise ``ValueError``."""
    batch = read_batch(data)
    if not batch.num_rows:
        raise ValueError("a pack in arrow/1 with 0 record batches that have rows: it has one")
    counts = batch.column("count")
    span = batch.num_rows
    if counts.null_count != len(counts):
        if counts.null_count or not 1 <= pc.min(counts).as_py() <= pc.max(counts).as_py() <= LARGEST_COUNT:
            raise ValueError("a pack in arrow/1 with a row that has no number of positions, or less than 1")
        span = checked_span(batch.num_rows, counts.to_pylist())
    else:
        counts = None
    if rows is not None and span != rows:
        raise ValueError(f"a pack of {span} rows, its metadata says {rows}")
    metadata, key, headers = (batch.column(name) for name in ("metadata", "key", "headers"))
    plain = plain_of(batch.column("data"), metadata, key, headers, counts)
    if len(plain) > LONGEST_PACK:
        raise ValueError(f"a pack of {len(plain)} bytes: the limit is {LONGEST_PACK}")
    check_entries(read_columns(plain, check=False))
    return Pack(plain, span)


def plain_of(
    data: pa.Array,
    metadata: pa.Array | None = None,
    key: pa.Array | None = None,
    headers: pa.Array | None = None,
    counts: pa.Array | None = None,
) -> bytes:
    """Return rows in the layout ``plain/1``: ``data`` and the other columns as binary arrays, ``headers`` as maps.

    Raise ``ValueError`` for a row without data, and for headers without a name or a content.
    """
    if data.null_count:
        raise ValueError(f"a pack with {data.null_count} rows without data")
    bits = 0
    parts: list[bytes | memoryview] = [b""]
    if counts is not None and pc.max(counts).as_py() != 1:
        bits |= COUNTS
        parts.append(number_bytes("I", counts.to_pylist()))
    parts += _parts(data)
    for bit, column in ((METADATA, metadata), (KEY, key)):
        if column is not None and column.null_count < len(column):
            bits |= bit
            parts += _parts(column)
    if headers is not None and headers.null_count < len(headers):
        bits |= HEADERS
        said = [None if row is None else encode_headers(_named(row)) for row in headers.to_pylist()]
        parts += _parts(pa.array(said, pa.binary()))
    parts[0] = PACK_HEAD.pack(len(data), bits)
    return sealed(parts)


def arrow_of(
    data: pa.Array, metadata: pa.Array | None = None, key: pa.Array | None = None, headers: pa.Array | None = None
) -> bytes:
    """Return rows in the format ``arrow/1``: ``data`` and the other columns as binary arrays, ``headers`` as maps."""
    columns = {"data": data, "metadata": metadata, "key": key, "headers": headers}
    batch = pa.RecordBatch.from_pydict({name: column for name, column in columns.items() if column is not None})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _named(row: Sequence[tuple[str | None, bytes | None]]) -> dict[str, bytes]:
    """Return headers by name. Raise ``ValueError`` for null."""
    found: dict[str, bytes] = {}
    for name, content in row:
        if name is None or content is None:
            raise ValueError(f"a pack with a header {name!r} that has no name or no content")
        found[name] = content
    return found


def _parts(column: pa.Array) -> list[bytes | memoryview]:
    """Return the lengths and the contents of a binary column."""
    lengths = pc.binary_length(column).cast(pa.uint32())
    if column.null_count:
        lengths, column = lengths.fill_null(_NONE), column.drop_null()
    rows = len(lengths)
    start = 4 * lengths.offset
    made = array("I")
    made.frombytes(memoryview(lengths.buffers()[1])[start : start + 4 * rows])
    encoded = number_bytes("I", made)
    _, offsets, contents = column.buffers()
    if contents is None:
        return [encoded]
    bounds = memoryview(offsets).cast("i")
    begin, end = bounds[column.offset], bounds[column.offset + len(column)]
    return [encoded, memoryview(contents)[begin:end]]


def pack_rows(data: pa.Array, *others: pa.Array | None) -> int:
    """Return how many rows of a binary column, and others beside it, make a pack."""
    size = data.nbytes + sum(column.nbytes for column in others if column is not None)
    average = max(size // max(len(data), 1), 1)
    return int(max(min(PACK_ROWS, PACK_BYTES // average), 1))
