"""The rows of packs as Arrow record batches, as records and as elements.

A pack is an Arrow IPC stream of one record batch. Its columns are those of ``PACK_SCHEMA``, in any order; ``data`` must
be there, and a column that is left out is null in all rows. Rows without a ``position`` follow each other from that of
the pack on; with it, positions of the pack between them have no row. Without a ``count`` each takes one position.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, repeat
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio.replay import elements
from rsocket_trio.replay.elements import FOREVER, PACK_BYTES, PACK_ROWS, Element, Pack, Record

TIME: Final = pa.timestamp("us", tz="UTC")
HEADER_TYPES: Final = [
    pa.struct([pa.field("name", pa.string(), nullable=nullable), ("value", pa.binary())]) for nullable in (True, False)
]
"""The type of a header, and that in which no name may be null, as some peers declare it."""
HEADERS_TYPE: Final = pa.list_(HEADER_TYPES[0])
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


def pack_of(batch: pa.RecordBatch, count: int | None = None, position: int = 0) -> Pack:
    """Return a pack of all columns of a batch but those that say nothing; ``data`` is always there.

    Without ``count`` its rows follow each other. Without rows it has no data.
    """
    names, rows = batch.schema.names, batch.num_rows
    total = (pc.sum(batch["count"]).as_py() or 0) if "count" in names else rows
    count = total if count is None else count
    useless = {"count": total == rows, "position": total == count}
    used = [
        name
        for name, column in zip(names, batch.columns, strict=True)
        if name == "data" or (column.null_count < rows and not useless.get(name))
    ]
    return Pack(encoded(batch.select(used)) if rows else b"", count, position)


def batch_of(rows: Sequence[Element] | Sequence[Record], *places: str) -> pa.RecordBatch:
    """Return the content of rows, and the columns of their places and times that are named."""
    columns = {name: list(map(attrgetter(name), rows)) for name in (*CONTENTS, *places)}
    usual = {"data": -1, "count": 1}
    used = {name: values for name, values in columns.items() if values.count(usual.get(name)) < len(values)}
    return pa.RecordBatch.from_pydict(used, pa.schema([PACK_SCHEMA.field(name) for name in used]))


def packs_of(rows: Sequence[Element]) -> Iterator[Pack]:
    """Return rows in packs of a size that a log takes."""
    return map(pack_of, divided(batch_of(rows)))


def divided(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in parts of the size of a pack."""
    if batch.num_rows <= PACK_ROWS and (batch.nbytes <= 2 * PACK_BYTES or batch.num_rows <= 1):
        yield batch
        return
    rows = max(min(PACK_ROWS, batch.num_rows * PACK_BYTES // batch.nbytes), 1)
    for start in range(0, batch.num_rows, rows):
        yield from divided(batch.slice(start, rows))


def spanning(batch: pa.RecordBatch, start: int, end: int) -> Iterator[Pack]:
    """Yield the rows of a batch, which have positions, in packs that span all from ``start`` to below ``end``."""
    parts = list(divided(batch))
    for part, stop in zip(parts, [*[part["position"][0].as_py() for part in parts[1:]], end], strict=True):
        yield pack_of(part, stop - start, start)
        start = stop


def packed(stored: Iterable[Record | Pack], start: int) -> Iterator[Pack]:
    """Yield packs of all rows from ``start`` on, or from where the first of them begins: packs stay as they are."""
    for kind, run in groupby(stored, attrgetter("__class__")):
        together: list[Any] = list(run)
        begin, end = min(start, together[0].position), together[-1].end
        rows = [item for item in together if item.count]
        yield from together if kind is Pack else spanning(batch_of(rows, "position", "timestamp"), begin, end)
        start = end


def is_placed(pack: Pack) -> bool:
    """Return whether rows of a pack have places or times of their own. Raise ``ValueError`` if it is no stream."""
    try:
        return not {"position", "timestamp"}.isdisjoint(_batch(pack.data).schema.names)
    except (pa.ArrowException, StopIteration) as error:
        raise ValueError(f"a pack of {pack.size} bytes is not in arrow/1: {error}") from None


# From packs


def _batch(data: bytes) -> pa.RecordBatch:
    if not data:
        return pa.RecordBatch.from_pylist([], PACK_SCHEMA)
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()


def _columns(data: bytes) -> dict[str, pa.Array]:
    """Return all columns of a pack that a peer sent, null where it has none. Raise ``ValueError`` for anything else."""
    if len(data) > elements.MAX_RECORD_BYTES:
        raise ValueError(f"a pack of {len(data)} bytes: the limit is {elements.MAX_RECORD_BYTES}")
    try:
        with pa.ipc.open_stream(data) as stream:
            names = stream.schema.names
            for name, kind in zip(names, stream.schema.types, strict=True):
                if name not in PACK_SCHEMA.names or names.count(name) > 1:
                    raise ValueError(f"a pack in arrow/1 with the column {name[:100]!r}")
                if kind != PACK_SCHEMA.field(name).type and getattr(kind, "value_type", None) not in HEADER_TYPES:
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


def placed(pack: Pack) -> pa.RecordBatch:
    """Return the rows of a pack that a peer sent, each with its position and its count.

    Raise ``ValueError`` if it is damaged, its rows overlap, or they are not those of its positions.
    """
    columns = _columns(pack.data)
    counts, positions, rows = columns["count"], columns["position"], len(columns["data"])
    if counts.null_count == rows:
        counts = pa.repeat(pa.scalar(1, pa.int32()), rows)
    elif counts.null_count or pc.min(counts).as_py() < 1:
        raise ValueError("it has a row without a number of positions, or with less than 1")
    ends = pc.cumulative_sum(counts.cast(pa.int64()))
    if positions.null_count == rows:
        if (total := ends[-1].as_py() if rows else 0) != pack.count:
            raise ValueError(f"a pack of {total} rows, its metadata says {pack.count}")
        positions = pc.add_checked(pc.subtract(ends, counts), pa.scalar(pack.position, pa.int64()))
    elif positions.null_count:
        raise ValueError("it has rows without a position")
    elif pc.any(pc.less(positions[1:], pc.add_checked(positions[:-1], counts[:-1]))).as_py():
        raise ValueError("its rows are not in order, or overlap")
    elif (first := positions[0].as_py()) < pack.position or positions[-1].as_py() + counts[-1].as_py() > pack.end:
        last = positions[-1].as_py() + counts[-1].as_py() - 1
        raise ValueError(f"it spans {pack.count} positions, and its {rows} rows are those from {first} to {last}")
    if columns["timestamp"].null_count == rows and pack.timestamp is not None:
        columns["timestamp"] = pa.repeat(pa.scalar(pack.timestamp, TIME), rows)
    columns |= {"count": counts, "position": positions}
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=PACK_SCHEMA)


def checked(pack: Pack) -> list[Pack]:
    """Return the rows that a writer sent as packs without places and times of their own, as a log takes them.

    Raise ``ValueError``.
    """
    batch = placed(pack).select(CONTENTS)
    headers = batch["headers"].flatten()
    if pc.struct_field(headers, "name").null_count:
        raise ValueError("a pack with a header that has no name")
    lengths = [pc.sum(pc.binary_length(batch[name])).as_py() or 0 for name in ("metadata", "key")]
    if (size := sum(lengths) + headers.nbytes) > elements.MAX_ENTRY_BYTES:
        limit = elements.MAX_ENTRY_BYTES
        raise ValueError(f"a pack with metadata, keys and headers of {size} bytes: the limit is {limit}")
    return list(map(pack_of, divided(batch)))


def rows_of(pack: Pack, start: int = 0, end: int = FOREVER) -> Iterator[Record]:
    """Yield the records of a pack that was checked, those that have rows from ``start`` to below ``end``, and a record
    of 0 rows for positions at its end without any.
    """
    batch, position, last = _batch(pack.data), pack.position, max(start, pack.position)
    names = batch.schema.names
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
        if place < end and place + count > start:
            headers = None if lists is None else [(header["name"], header["value"]) for header in lists]
            yield Record(place, data, metadata, count, key, headers, time)
            last = place + count
    if last < (high := min(pack.end, end)):
        yield Record(high, b"", count=0)


def elements_of(pack: Pack) -> Iterator[Element]:
    """Return the content of a pack, row by row."""
    return (record.element for record in rows_of(pack) if record.count)
