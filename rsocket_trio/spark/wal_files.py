"""Reads elements from the segment files of the log that the driver writes, without changing the log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from rsocket_trio.replay.log import Record
from rsocket_trio.replay.segment_records import SEGMENT_HEADER, Damage, records
from rsocket_trio.replay.segments import SUFFIX
from rsocket_trio.spark.ranges import DataLossError
from rsocket_trio.spark.records import Chunk

RECEIVED_AT = struct.Struct(">Q")
"""Prefix of each element's metadata: the time it came, in microseconds; a zero byte follows if metadata follows."""


def chunks_between(directory: Path, start: int, end: int, rows: int) -> Iterator[Chunk]:
    """Yield the elements between two indexes, in chunks of at most ``rows``.

    Raise ``DataLossError`` if one of them is missing or can't be read.
    """
    chunk: Chunk | None = None
    for record in _records(directory, start, end):
        received_at, metadata = _opened(record)
        if chunk is not None and (len(chunk.datas) >= rows or chunk.received_at != received_at):
            yield chunk
            chunk = None
        if chunk is None:
            chunk = Chunk(record.position, [], [], received_at)
        assert chunk.metadatas is not None
        chunk.datas.append(record.data)
        chunk.metadatas.append(metadata)
    if chunk is not None:
        yield chunk


def _opened(record: Record) -> tuple[int, bytes | None]:
    """Return the time an element came, in microseconds, and its own metadata."""
    packed = record.metadata or b""
    (received_at,) = RECEIVED_AT.unpack_from(packed)
    return received_at, packed[RECEIVED_AT.size + 1 :] if len(packed) > RECEIVED_AT.size else None


def _records(directory: Path, start: int, end: int) -> Iterator[Record]:
    position = start
    while position < end:
        path = _segment_of(directory, position)
        first = int(path.stem)
        try:
            block = path.read_bytes()
        except OSError as error:
            raise DataLossError(f"{path}: {error.strerror}, elements from {position} on can't be read") from error
        try:
            for record in records(block[SEGMENT_HEADER:], SEGMENT_HEADER, len(block), first, position, end):
                yield record
                position = record.end
        except Damage as damage:
            raise DataLossError(
                f"{path} can't be read at offset {damage.offset}, element {damage.position}: {damage.reason}"
            ) from None
        if position < end and _segment_of(directory, position) == path:
            raise DataLossError(f"{path} ends at element {position}, planned was {end}")


def _segment_of(directory: Path, position: int) -> Path:
    """Return the file that holds an index. Raise ``DataLossError`` if no file does."""
    found = [path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdigit() and int(path.stem) <= position]
    if not found:
        raise DataLossError(f"{directory} does not hold element {position} any more")
    return max(found, key=lambda path: int(path.stem))
