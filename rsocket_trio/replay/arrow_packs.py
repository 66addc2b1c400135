"""The rows of packs as Arrow record batches, as records and as elements.

A pack is an Arrow IPC stream of one record batch. Its columns are those of ``PACK_SCHEMA``, in any order; ``data`` must
be there, and a column that is left out is null in all rows. Rows without a ``position`` follow each other, and without
a ``count`` each takes one position.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio.replay import elements
from rsocket_trio.replay.elements import FOREVER, PACK_BYTES, PACK_ROWS, Element, Pack, Record

TIME: Final = pa.timestamp("us", tz="UTC")
HEADER_TYPE: Final = pa.struct([pa.field("name", pa.string(), nullable=False), ("value", pa.binary())])
LOOSE_HEADER_TYPE: Final = pa.struct([("name", pa.string()), ("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(HEADER_TYPE)
CONTENT_COLUMNS: Final = [(name, pa.binary()) for name in ("data", "metadata", "key")]
PACK_SCHEMA: Final = pa.schema(
    [("position", pa.int64()), ("count", pa.int32()), *CONTENT_COLUMNS, ("timestamp", TIME), ("headers", HEADERS_TYPE)]
)
CONTENTS: Final = ("count", "data", "metadata", "key", "headers")
"""The columns of what a writer sends."""


# To packs


def encoded(batch: pa.RecordBatch) -> bytes:
    """Return a record batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def batch_of(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return the columns of a pack without those that are null in all rows, but with ``data``."""
    kept = {name: column for name, column in columns.items() if name == "data" or column.null_count < len(column)}
    schema = pa.schema([PACK_SCHEMA.field(name) for name in kept])
    return pa.RecordBatch.from_arrays(list(kept.values()), schema=schema)


def pack_of(columns: dict[str, pa.Array], **place: Any) -> Pack:
    """Return a pack of columns, all but those that are null in all rows; ``place`` is the pack's."""
    return Pack(encoded(batch_of(columns)), **place)


def _contents(rows: Sequence[Element] | Sequence[Record]) -> dict[str, pa.Array]:
    contents = {name: list(map(attrgetter(name), rows)) for name in CONTENTS}
    unused = {"data": -1, "count": 1}
    return {
        name: pa.array(values, PACK_SCHEMA.field(name).type)
        for name, values in contents.items()
        if values.count(unused.get(name)) < len(values)
    }


def packs_of(rows: Sequence[Element]) -> Iterator[Pack]:
    """Return rows in packs of a size that a log takes."""
    return divided(batch_of(_contents(rows)))


def pack_elements(rows: Sequence[Element]) -> Pack:
    return pack_of(_contents(rows), count=sum([element.count for element in rows]))


def pack_records(records: Sequence[Record], start: int) -> Pack:
    """Return one pack of records in order that spans all positions from ``start`` to the end of the last.

    Records of 0 rows only lengthen it.
    """
    end = records[-1].end
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


def packed(stored: Iterable[Record | Pack], start: int, end: int = FOREVER) -> Iterator[Pack]:
    """Yield packs of all rows from ``start`` to below ``end``, or from where the first record begins.

    Packs of which all is wanted stay as they are.
    """
    gathered: list[Record] = []
    size = 0
    for item in stored:
        if isinstance(item, Pack) and start <= item.position and item.end <= end:
            if gathered:
                yield pack_records(gathered, start)
            start, size, gathered = item.end, 0, []
            yield item
            continue
        for record in rows_of(item, start, end) if isinstance(item, Pack) else (item,):
            if not gathered and record.count:
                start = min(start, record.position)  # of several rows, and the range begins within it
            size += record.element.size
            if gathered and (
                size > PACK_BYTES or len(gathered) >= PACK_ROWS or record.end - start > elements.MAX_RECORD_ROWS
            ):
                yield pack_records(gathered, start)
                start, size, gathered = gathered[-1].end, record.element.size, []
            gathered.append(record)
    if gathered:
        yield pack_records(gathered, start)


def is_placed(pack: Pack) -> bool:
    """Return whether rows of a pack have places or times of their own. Raise ``ValueError`` if it is no stream."""
    try:
        return pack.has_gaps or not {"position", "timestamp"}.isdisjoint(_batch(pack.data).schema.names)
    except (pa.ArrowException, StopIteration) as error:
        raise ValueError(f"a pack of {pack.size} bytes is not in arrow/1: {error}") from None


def divided(batch: pa.RecordBatch) -> Iterator[Pack]:
    """Yield the rows of a batch in packs of a size that a log takes."""
    if batch.num_rows <= PACK_ROWS and (batch.nbytes <= 2 * PACK_BYTES or batch.num_rows <= 1):
        yield Pack(encoded(batch), pc.sum(batch["count"]).as_py() if "count" in batch.schema.names else batch.num_rows)
        return
    rows = max(min(PACK_ROWS, batch.num_rows * PACK_BYTES // batch.nbytes), 1)
    for start in range(0, batch.num_rows, rows):
        yield from divided(batch.slice(start, rows))


# From packs


def _batch(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()


def read_columns(data: bytes) -> dict[str, pa.Array]:
    """Return all columns of a pack that a peer sent, null where it has none. Raise ``ValueError`` for anything else."""
    if len(data) > elements.MAX_RECORD_BYTES:
        raise ValueError(f"a pack of {len(data)} bytes: the limit is {elements.MAX_RECORD_BYTES}")
    try:
        with pa.ipc.open_stream(data) as stream:
            names = stream.schema.names
            for name, kind in zip(names, stream.schema.types, strict=True):
                if name not in PACK_SCHEMA.names or names.count(name) > 1:
                    raise ValueError(f"a pack in arrow/1 with the column {name[:100]!r}")
                if kind != PACK_SCHEMA.field(name).type and not (name == "headers" and _are_headers(kind)):
                    raise ValueError(f"column {name!r} of a pack in arrow/1 is {kind}")
            if is_compressed(data):
                raise ValueError("a pack in arrow/1 that is compressed: a small one could fill the memory")
            batches = list(stream)
        if "data" not in names or len(batches) != 1:
            raise ValueError(f"a pack in arrow/1 with {len(batches)} record batches: it has one, with a column 'data'")
        [batch] = batches
        batch.validate(full=True)
        columns = {name: batch[name].cast(PACK_SCHEMA.field(name).type) for name in names}
        return {field.name: columns.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in PACK_SCHEMA}
    except (pa.ArrowException, OSError, struct.error) as error:
        raise ValueError(f"a pack of {len(data)} bytes is not in arrow/1: {error}") from None


def _are_headers(kind: pa.DataType) -> bool:
    """Return whether a type is that of headers, but that names or headers may be declared as such that may be null."""
    return pa.types.is_list(kind) and kind.value_type in (HEADER_TYPE, LOOSE_HEADER_TYPE)


def is_compressed(data: bytes) -> bool:
    """Return whether a batch of an Arrow IPC stream is compressed. Raise ``pa.ArrowException`` and ``struct.error``.

    Messages are tables of FlatBuffers: field 2 of a message is its content, and field 3 of a batch its compression.
    """

    def target(place: int) -> int:
        return int(place + struct.unpack_from("<I", table, place)[0])

    def field(of: int, index: int) -> int:
        entries = of - struct.unpack_from("<i", table, of)[0]
        if 4 + 2 * index >= struct.unpack_from("<H", table, entries)[0]:
            return 0
        offset: int = struct.unpack_from("<H", table, entries + 4 + 2 * index)[0]
        return offset and of + offset

    for message in pa.ipc.MessageReader.open_stream(data):
        table = message.metadata.to_pybytes()
        if message.type == "record batch" and field(target(field(target(0), 2)), 3):
            return True
    return False


def _placed(columns: dict[str, pa.Array], start: int) -> dict[str, pa.Array]:
    """Return the columns with a position and a count of each row, from ``start`` on where there are no positions.

    Raise ``ValueError`` for a count below one, for too many, and for rows that are not in order, or overlap.
    """
    counts, positions, rows = columns["count"], columns["position"], len(columns["data"])
    if counts.null_count == rows:
        counts = pa.repeat(pa.scalar(1, pa.int32()), rows)
    elif counts.null_count or pc.min(counts).as_py() < 1:
        raise ValueError("it has a row without a number of positions, or with less than 1")
    if (total := pc.sum(counts).as_py() or 0) > elements.MAX_RECORD_ROWS:
        raise ValueError(f"a pack of {total} rows: the limit is {elements.MAX_RECORD_ROWS}")
    if positions.null_count == rows:
        offsets = pc.subtract(pc.cumulative_sum(counts), counts)
        positions = pc.add(offsets, pa.scalar(start, pa.int64()))
    elif positions.null_count:
        raise ValueError("it has rows without a position")
    elif pc.any(pc.less(positions[1:], pc.add_checked(positions[:-1], counts[:-1]))).as_py():
        raise ValueError("its rows are not in order, or overlap")
    return columns | {"count": counts, "position": positions}


def placed_batch(pack: Pack) -> pa.RecordBatch:
    """Return the rows of a pack that a peer sent, each with its position and its count.

    Raise ``ValueError`` if it is damaged, its rows overlap, or they are not within the span of the pack.
    """
    columns = _placed(read_columns(pack.data), pack.position)
    positions, counts, rows = columns["position"], columns["count"], len(columns["data"])
    if (total := pc.sum(counts).as_py() or 0) != pack.count and not pack.has_gaps:
        raise ValueError(f"it has {total} rows, its metadata says {pack.count}")
    if rows:
        first, end = positions[0].as_py(), positions[-1].as_py() + counts[-1].as_py()
        if first < pack.position or end > pack.end:
            raise ValueError(
                f"it spans {pack.count} positions, and its {rows} rows are those from {first} to {end - 1}"
            )
    if columns["timestamp"].null_count == rows and pack.timestamp is not None:
        columns["timestamp"] = pa.repeat(pa.scalar(pack.timestamp, TIME), rows)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=PACK_SCHEMA)


def checked(data: bytes, count: int | None) -> list[Pack]:
    """Return the rows that a writer sent as packs without places and times of their own, as a log takes them.

    ``count`` is how many rows they are said to be, if it is known. Raise ``ValueError``.
    """
    columns = _placed(read_columns(data), 0)
    if not len(columns["data"]):
        raise ValueError("a pack without rows")
    if (total := pc.sum(columns["count"]).as_py()) != (total if count is None else count):
        raise ValueError(f"a pack of {total} rows, its metadata says {count}")
    if total == len(columns["data"]):
        del columns["count"]
    headers = columns["headers"].flatten()
    names = pc.struct_field(headers, "name")
    if names.null_count:
        raise ValueError("a pack with a header that has no name")
    for what, size, limit in (
        ("metadata", pc.max(pc.binary_length(columns["metadata"])).as_py(), elements.MAX_ENTRY_BYTES),
        ("key", pc.max(pc.binary_length(columns["key"])).as_py(), elements.MAX_ENTRY_BYTES),
        ("a header's name", pc.max(pc.binary_length(names)).as_py(), elements.MAX_NAME_BYTES),
        ("headers", headers.nbytes, elements.MAX_ENTRY_BYTES),
    ):
        if size is not None and size > limit:
            raise ValueError(f"a pack with {what} of {size} bytes: the limit is {limit}")
    del columns["position"], columns["timestamp"]
    return list(divided(batch_of(columns)))


def records_of(pack: Pack, start: int = 0, end: int = FOREVER) -> Iterator[Record]:
    """Yield the records of a pack that was checked, those that have rows from ``start`` to below ``end``."""
    batch = _batch(pack.data)
    names, position = batch.schema.names, pack.position
    if "position" not in names and "count" not in names:
        # A reader of a few rows pays for these alone.
        low = max(start - position, 0)
        batch = batch.slice(low, max(min(end - position, batch.num_rows) - low, 0))
        position += low
    columns: dict[str, list[Any]] = {
        name: (batch[name].cast(pa.int64()) if name == "timestamp" else batch[name]).to_pylist() for name in names
    }
    counts = columns.get("count") or [1] * batch.num_rows
    places = columns.get("position") or accumulate(counts, initial=position)
    times = columns.get("timestamp") or repeat(pack.timestamp)
    contents = (columns.get(name) or repeat(None) for name in CONTENTS[1:])
    for place, count, time, data, metadata, key, lists in zip(places, counts, times, *contents, strict=False):
        if place >= end:
            return
        if place + count > start:
            headers = None if lists is None else [(header["name"], header["value"]) for header in lists]
            yield Record(place, data, metadata, count, key, headers, time)


def elements_of(pack: Pack) -> Iterator[Element]:
    """Return the content of a pack, row by row."""
    return (record.element for record in records_of(pack))


def rows_of(pack: Pack, start: int = 0, end: int = FOREVER) -> Iterator[Record]:
    """Yield the records of a pack, and a record of 0 rows for positions at its end without any."""
    last = max(start, pack.position)
    for record in records_of(pack, start, end):
        yield record
        last = record.end
    high = min(pack.end, end)
    if last < high:
        yield Record(high, b"", count=0)
