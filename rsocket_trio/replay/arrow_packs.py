"""The rows of packs as Arrow record batches, as records and as elements.

A pack is an Arrow IPC stream of one record batch. Its columns are those of ``PACK_SCHEMA``, in any order; ``data`` must
be there, and a column that is left out is null in all rows. Rows without a ``position`` follow each other, and without
a ``count`` each takes one position.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio.replay.elements import (
    LARGEST_COUNT,
    LONGEST_ENTRY,
    LONGEST_NAME,
    Element,
    Record,
    headers_size,
)
from rsocket_trio.replay.packs import FOREVER, LONGEST_PACK, PACK_BYTES, PACK_ROWS, SMALL_PACK, Pack

TIME: Final = pa.timestamp("us", tz="UTC")
HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("name", pa.string(), nullable=False), ("value", pa.binary())]))
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
CONTENTS: Final = ("data", "metadata", "key", "headers")
"""The columns of what a writer sends; ``count`` is one more."""
LARGEST_TAKEN = 2 * PACK_BYTES
"""Bytes of a pack above which a log divides it, so that no reader gets much more at a time than it has room for."""
_POSITIONS: list[pa.Array] = [pa.array([], pa.int64())]


def fixed(kind: pa.DataType, numbers: array[int]) -> pa.Array:
    """Return numbers of the native byte order as an Arrow array, not copied."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def constant(kind: pa.DataType, number: int, rows: int) -> pa.Array:
    """Return an Arrow array of 64 bits a value that repeats one number."""
    return fixed(kind, array("q", [number]) * rows)


def ascending(rows: int) -> pa.Array:
    """Return the first numbers from 0 on, kept for the next time."""
    if len(_POSITIONS[0]) < rows:
        _POSITIONS[0] = fixed(pa.int64(), array("q", range(max(rows, PACK_ROWS))))
    return _POSITIONS[0][:rows]


# To packs


def encoded(batch: pa.RecordBatch) -> bytes:
    """Return a record batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def pack_of(columns: dict[str, pa.Array], **place: Any) -> Pack:
    """Return a pack of columns, all but those that are ``None`` or null in all rows; ``place`` is the pack's."""
    kept = {
        name: columns[name]
        for name in PACK_SCHEMA.names
        if (found := columns.get(name)) is not None and (name == "data" or found.null_count < len(found))
    }
    schema = pa.schema([PACK_SCHEMA.field(name) for name in kept])
    return Pack(encoded(pa.RecordBatch.from_arrays(list(kept.values()), schema=schema)), **place)


def _contents(rows: Sequence[Element] | Sequence[Record]) -> dict[str, pa.Array]:
    counts = [row.count for row in rows]
    columns = {"data": pa.array([row.data for row in rows], pa.binary())}
    if counts.count(1) < len(rows):
        columns["count"] = pa.array(counts, pa.int32())
    for name in CONTENTS[1:]:
        contents = [getattr(row, name) for row in rows]
        if contents.count(None) < len(rows):
            columns[name] = pa.array(contents, PACK_SCHEMA.field(name).type)
    return columns


def pack_elements(elements: Sequence[Element]) -> Pack:
    """Return one pack of elements in a row, without times of their own."""
    return pack_of(_contents(elements), count=sum([element.count for element in elements]))


def pack_records(records: Sequence[Record], start: int) -> Pack:
    """Return one pack of records in order that spans all positions from ``start`` to the end of the last.

    Records of 0 rows only lengthen it.
    """
    end = records[-1].end if records else start
    rows = [record for record in records if record.count]
    columns = _contents(rows)
    has_gaps = sum([record.count for record in rows]) != end - start
    if has_gaps:
        columns["position"] = pa.array([record.position for record in rows], pa.int64())
    times = {record.timestamp for record in rows}
    timestamp = times.pop() if len(times) == 1 else None
    if times:
        columns["timestamp"] = pa.array([record.timestamp for record in rows], TIME)
    return pack_of(columns, count=end - start, position=start, timestamp=timestamp, has_gaps=has_gaps)


def split_into_packs(records: Iterable[Record], start: int) -> Iterator[Pack]:
    """Yield packs of records in order, the first from the position ``start`` on, or where the first record begins."""
    gathered: list[Record] = []
    size = 0
    for record in records:
        if record.position < start and record.count:
            start = record.position  # of several rows, and the range begins within it
        grown = size + record_size(record)
        if gathered and (grown > PACK_BYTES or len(gathered) >= PACK_ROWS or record.end - start > LARGEST_COUNT):
            pack = pack_records(gathered, start)
            yield pack
            grown, start, gathered = grown - size, pack.end, []
        gathered.append(record)
        size = grown
    if gathered:
        yield pack_records(gathered, start)


def record_size(record: Record | Element) -> int:
    """Return the bytes of its content."""
    size = len(record.data or b"") + len(record.metadata or b"") + len(record.key or b"")
    return size if record.headers is None else size + headers_size(record.headers)


def is_placed(pack: Pack) -> bool:
    """Return whether rows of a pack have places or times of their own. Raise ``ValueError`` if it is no stream."""
    try:
        with pa.ipc.open_stream(pack.data) as stream:
            return pack.has_gaps or not {"position", "timestamp"}.isdisjoint(stream.schema.names)
    except pa.ArrowException as error:
        raise ValueError(f"a pack of {pack.size} bytes is not in arrow/1: {error}") from None


def divided(pack: Pack) -> Iterator[Pack]:
    """Yield the rows of a pack of a writer in packs of a size that a log takes: mostly the pack itself."""
    if pack.size <= LARGEST_TAKEN and pack.count <= PACK_ROWS:
        yield pack
        return
    batch = _batch(pack.data)
    rows = max(min(PACK_ROWS, batch.num_rows * PACK_BYTES // max(batch.nbytes, 1)), 1)
    if rows >= batch.num_rows:
        yield pack
        return
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        count = part.num_rows if "count" not in part.schema.names else pc.sum(part.column("count")).as_py()
        yield from divided(Pack(encoded(part), count))


# From packs


def _batch(data: bytes) -> pa.RecordBatch:
    """Return the record batch of a pack that was checked."""
    with pa.ipc.open_stream(data) as stream:
        for batch in stream:
            if batch.num_rows:
                return batch
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in stream.schema], schema=stream.schema)


def read_batch(data: bytes) -> pa.RecordBatch:
    """Return the record batch of a pack that a peer sent, with all columns of ``PACK_SCHEMA``.

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
                if not _is_like(found.field(name).type, PACK_SCHEMA.field(name).type):
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
        return pa.RecordBatch.from_arrays(
            [
                batch.column(field.name).cast(field.type)
                if field.name in found.names
                else pa.nulls(batch.num_rows, field.type)
                for field in PACK_SCHEMA
            ],
            schema=PACK_SCHEMA,
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"a pack in arrow/1 is damaged: {error}") from None


def _is_like(came: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column is of the type wanted; names of headers may be declared as nullable."""
    if came == wanted:
        return True
    return (
        wanted == HEADERS_TYPE
        and pa.types.is_list(came)
        and pa.types.is_struct(came.value_type)
        and [(field.name, field.type) for field in came.value_type] == [("name", pa.string()), ("value", pa.binary())]
    )


def placed_batch(pack: Pack) -> pa.RecordBatch:
    """Return the rows of a pack that a peer sent, each with its position and its count.

    Raise ``ValueError`` if it is damaged, its rows overlap, or they are not within the span of the pack.
    """
    batch = read_batch(pack.data)
    rows = batch.num_rows
    columns = {name: batch.column(name) for name in PACK_SCHEMA.names}
    counts, taken = checked_counts(columns["count"], rows)
    positions = columns["position"]
    if positions.null_count == rows:
        if taken != pack.count and not pack.has_gaps:
            raise ValueError(f"it has {taken} rows, its metadata says {pack.count}")
        offsets = ascending(rows) if taken == rows else pc.subtract(pc.cumulative_sum(counts.cast(pa.int64())), counts)
        # Arrow looks for pandas with each Python number that it gets: where it is missing that takes the longest.
        positions = pc.add(offsets, constant(pa.int64(), pack.position, rows))
    else:
        check_places(positions, counts)
        if taken != pack.count and not pack.has_gaps:
            raise ValueError(f"it has {taken} rows, its metadata says {pack.count}")
    if rows:
        first, end = positions[0].as_py(), positions[-1].as_py() + counts[-1].as_py()
        if first < pack.position or end > pack.end:
            raise ValueError(
                f"it spans {pack.count} positions, and its {rows} rows are those from {first} to {end - 1}"
            )
    times = columns["timestamp"]
    if times.null_count == rows and pack.timestamp is not None:
        times = constant(TIME, pack.timestamp, rows)
    columns |= {"position": positions, "count": counts, "timestamp": times}
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=PACK_SCHEMA)


def checked_counts(counts: pa.Array, rows: int) -> tuple[pa.Array, int]:
    """Return how many positions each row takes, and all. Raise ``ValueError`` for less than one, and for too many."""
    if counts.null_count == rows:
        counts = fixed(pa.int32(), array("i", [1]) * rows)
    elif counts.null_count or pc.min(counts).as_py() < 1:
        raise ValueError("it has a row without a number of positions, or with less than 1")
    taken = pc.sum(counts).as_py() or 0
    if taken > LARGEST_COUNT:
        raise ValueError(f"a pack of {taken} rows: the limit is {LARGEST_COUNT}")
    return counts, taken


def check_places(positions: pa.Array, counts: pa.Array) -> None:
    """Raise ``ValueError`` for rows that have no position, are not in order, or overlap."""
    if positions.null_count:
        raise ValueError("it has rows without a position")
    if pc.any(pc.less(positions[1:], pc.add(positions[:-1], counts[:-1]))).as_py():
        raise ValueError("its rows are not in order, or overlap")


def checked(data: bytes, count: int | None) -> Pack:
    """Return the pack that a writer sent, without places and times of its own, as a log takes it.

    ``count`` is how many rows it is said to have, if it is. Raise ``ValueError``.
    """
    batch = read_batch(data)
    rows = batch.num_rows
    if not rows:
        raise ValueError("a pack without rows")
    counts, taken = checked_counts(batch.column("count"), rows)
    if batch.column("position").null_count < rows:
        check_places(batch.column("position"), counts)
    if count is not None and taken != count:
        raise ValueError(f"a pack of {taken} rows, its metadata says {count}")
    for name in ("metadata", "key"):
        if (longest := pc.max(pc.binary_length(batch.column(name))).as_py() or 0) > LONGEST_ENTRY:
            raise ValueError(f"a pack with {name} of {longest} bytes: the limit is {LONGEST_ENTRY}")
    check_headers(batch.column("headers"))
    with pa.ipc.open_stream(data) as stream:
        is_bare = not {"position", "timestamp"} & set(stream.schema.names)
        is_bare = is_bare and not decompressed_size(data)
        is_bare = is_bare and all(stream.schema.field(name) == PACK_SCHEMA.field(name) for name in stream.schema.names)
    if is_bare:
        return Pack(data, taken)
    columns = {name: batch.column(name) for name in CONTENTS}
    return pack_of(columns | ({} if taken == rows else {"count": counts}), count=taken)


def check_headers(headers: pa.Array) -> None:
    """Raise ``ValueError`` for headers without a name, or that are too long for the entry of a single row."""
    if headers.null_count == len(headers):
        return
    names = pc.struct_field(headers.flatten(), "name")
    if names.null_count:
        raise ValueError("a pack with a header that has no name")
    if (longest := pc.max(pc.binary_length(names)).as_py() or 0) > LONGEST_NAME:
        raise ValueError(f"a header's name of {longest} bytes: the limit is {LONGEST_NAME}")
    # By columns, as ``encode_headers`` has them: single rows would hold up all other threads.
    values = headers.values
    sizes = [pc.binary_length(pc.struct_field(values, name)).cast(pa.int64()) for name in ("name", "value")]
    each = pc.add(pc.add(pc.fill_null(sizes[0], 0), pc.fill_null(sizes[1], 0)), constant(pa.int64(), 6, len(values)))
    sums = pa.concat_arrays([ascending(1), pc.cumulative_sum(each)])
    ends = pc.take(sums, headers.offsets)
    if (longest := pc.max(pc.subtract(ends[1:], ends[:-1])).as_py() or 0) > LONGEST_ENTRY:
        raise ValueError(f"a pack with headers of {longest} bytes: the limit is {LONGEST_ENTRY}")


def pairs(row: Iterable[dict[str, Any]]) -> list[tuple[str, bytes | None]]:
    """Return the headers of a row as pairs."""
    return [(one["name"], one["value"]) for one in row]


def records_of(pack: Pack, start: int = 0, end: int = FOREVER) -> Iterator[Record]:
    """Yield the records of a pack that was checked, those that have rows from ``start`` to below ``end``."""
    batch = _batch(pack.data)
    names = set(batch.schema.names)
    if not names & {"position", "count"}:
        # A reader of a few rows pays for these alone.
        low, high = max(start - pack.position, 0), max(min(end - pack.position, batch.num_rows), 0)
        batch = batch.slice(low, max(high - low, 0))
        places: Iterable[int] = range(pack.position + low, pack.position + high)
        counts: Iterable[int] = repeat(1)
    else:
        taken = batch.column("count").to_pylist() if "count" in names else [1] * batch.num_rows
        counts = taken
        places = accumulate(taken, initial=pack.position)
        if "position" in names:
            places = batch.column("position").to_pylist()
    nothing: Iterable[Any] = repeat(None)
    data, metadata, key, headers = (batch.column(name).to_pylist() if name in names else nothing for name in CONTENTS)
    times: Iterable[int | None] = repeat(pack.timestamp)
    if "timestamp" in names:
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for place, count, content, meta, name, said, time in zip(
        places, counts, data, metadata, key, headers, times, strict=False
    ):
        if place >= end:
            return
        if place + count > start:
            yield Record(place, content, meta, count, name, None if said is None else pairs(said), time)


def elements_of(pack: Pack) -> Iterator[Element]:
    """Yield the content of a pack, row by row."""
    for record in records_of(pack):
        yield record.element


def rows_of(pack: Pack, start: int = 0, end: int = FOREVER) -> Iterator[Record]:
    """Yield the records of a pack, and a record of 0 rows for positions at its end without any."""
    last = max(start, pack.position)
    for record in records_of(pack, start, end):
        yield record
        last = record.end
    high = min(pack.end, end)
    if last < high:
        yield Record(high, b"", count=0)


def packed(stored: Iterable[Record | Pack], start: int, end: int) -> Iterator[Pack]:
    """Yield packs of all rows from ``start`` to below ``end``. Large packs of which all is wanted stay as they are."""
    singles: list[Record] = []
    size = 0
    for one in stored:
        if isinstance(one, Pack) and one.size >= SMALL_PACK and start <= one.position and one.end <= end:
            yield from split_into_packs(singles, start)
            start, singles, size = one.end, [], 0
            yield one
            continue
        if isinstance(one, Pack):
            singles += rows_of(one, start, end)
            size += one.size
        else:
            singles.append(one)
            size += record_size(one)
        if size >= PACK_BYTES or len(singles) >= PACK_ROWS:
            yield from split_into_packs(singles, start)
            start, singles, size = singles[-1].end, [], 0
    yield from split_into_packs(singles, start)


# The size of compressed packs


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
