"""Captures for tests: rows as dictionaries, and files of them as the capture writes its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rsocket_trio.capture.rows import route_id
from rsocket_trio.capture.schema import TABLES
from rsocket_trio.capture.writers import JsonPart, ParquetPart

Cells: TypeAlias = dict[str, Any]

START = 1_767_225_600_000_000
"""Midnight of 2026-01-01, in microseconds."""
COMMON = {"capture_id": "capture", "host": "host", "conn_id": "c1", "session_id": "s1", "side": "client"}
PEER = {"transport": "tcp", "peer": "192.0.2.1:7"}


def filled(table: str, **cells: Any) -> Cells:
    """A row with these cells; the other required ones are 0."""
    zeros = {column.name: 0 for column in TABLES[table] if column.required}
    return {**zeros, **COMMON, **cells}


def frame(us: int, seq: int, dir: str, stream_id: int, frame_type: int, flags: int = 0, **more: Any) -> Cells:
    """A row of ``frames``, so many microseconds after midnight; ``of`` is the route of its stream."""
    when = {"seq": seq, "ts": START + us, "mono_ns": us * 1000, "dir": dir, "frame_bytes": 6}
    if "of" in more:
        # A later frame of a stream has its route's number alone.
        more["route_id"] = route_id(more.pop("of"))
    return _with_route_id(
        filled("frames", **when, **PEER, stream_id=stream_id, frame_type=frame_type, flags=flags) | more
    )


def interaction(stream_id: int, kind: str, route: str | None, start: int, total: int, **more: Any) -> Cells:
    """A row of ``interactions`` that began so many microseconds after midnight, and took so many."""
    first = more.pop("first", None)
    when = {"t_start": START + start, "t_end": START + start + total, "first_us": first, "total_us": total}
    when["t_first"] = None if first is None else START + start + first
    counts = {"n_in": 1, "n_out": 1, "bytes_in": 10, "bytes_out": 10, "outcome": "complete"}
    row = filled("interactions", stream_id=stream_id, role="requester", route=route, interaction=kind, **when, **counts)
    return _with_route_id(row | more)


def connection(**more: Any) -> Cells:
    """A row of ``connections``."""
    rtts = more.pop("rtts", {})
    when = {"t_start": START, "t_end": START + 120_000_000, "close_reason": "closed", "dialect": "rsocket/1.0"}
    counts = {"frames_in": 5, "frames_out": 6, "bytes_in": 50, "bytes_out": 60, "streams": 7, "lease": False}
    trips = [rtts.get(bucket, 0) for bucket in range(32)]
    return filled("connections", **PEER, **when, **counts, keepalive_rtt=trips) | more


def write_jsonl(directory: Path, tables: Mapping[str, Sequence[Cells]]) -> Path:
    """A capture in JSON lines; each table's rows in one file."""
    return _write(directory, tables, JsonPart)


def write_parquet(directory: Path, tables: Mapping[str, Sequence[Cells]]) -> Path:
    """The same in Parquet."""
    return _write(directory, tables, ParquetPart)


def _write(directory: Path, tables: Mapping[str, Sequence[Cells]], kind: type[JsonPart] | type[ParquetPart]) -> Path:
    for table, rows in tables.items():
        folder = directory / table / "date=2026-01-01"
        folder.mkdir(parents=True)
        part = kind(folder / f"part-test-00000{kind.suffix}", TABLES[table])
        if rows:
            part.write([tuple(row.get(column.name) for column in TABLES[table]) for row in rows])
        part.close()
    return directory


def _with_route_id(row: Cells) -> Cells:
    return row if row.get("route") is None else {"route_id": route_id(row["route"]), **row}
