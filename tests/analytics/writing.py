"""Captures for tests: rows as dictionaries, and files of them as the capture writes its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rsocket_trio.capture.rows import route_id
from rsocket_trio.capture.schema import TABLES
from rsocket_trio.capture.writers import JsonPart, ParquetPart

Cells: TypeAlias = Mapping[str, Any]

START = 1_767_225_600_000_000
"""Midnight of 2026-01-01, in microseconds."""
COMMON = {"capture_id": "capture", "host": "host", "conn_id": "c1", "session_id": "s1", "side": "client"}


def frame(us: int, seq: int, dir: str, stream_id: int, frame_type: int, flags: int = 0, **more: Any) -> Cells:
    """A row of ``frames``, so many microseconds after midnight."""
    row = {
        **COMMON,
        "seq": seq,
        "ts": START + us,
        "mono_ns": us * 1000,
        "dir": dir,
        "transport": "tcp",
        "peer": "192.0.2.1:7",
        "stream_id": stream_id,
        "frame_type": frame_type,
        "flags": flags,
        "frame_bytes": 6,
        "drop_count": 0,
        **more,
    }
    return _with_route_id(row)


def interaction(stream_id: int, kind: str, route: str | None, start: int, total: int, **more: Any) -> Cells:
    """A row of ``interactions`` that began so many microseconds after midnight, and took so many."""
    first = more.pop("first", None)
    row = {
        **COMMON,
        "stream_id": stream_id,
        "role": "requester",
        "route": route,
        "interaction": kind,
        "t_start": START + start,
        "t_first": None if first is None else START + start + first,
        "t_end": START + start + total,
        "first_us": first,
        "total_us": total,
        "n_in": 1,
        "n_out": 1,
        "bytes_in": 10,
        "bytes_out": 10,
        "stall_us": 0,
        "stalls": 0,
        "outcome": "complete",
        "retries": 0,
        **more,
    }
    return _with_route_id(row)


def connection(**more: Any) -> Cells:
    """A row of ``connections``."""
    rtts = more.pop("rtts", {})
    return {
        **COMMON,
        "dialect": "rsocket/1.0",
        "transport": "tcp",
        "peer": "192.0.2.1:7",
        "t_start": START,
        "t_end": START + 120_000_000,
        "resume_count": 0,
        "frames_in": 5,
        "frames_out": 6,
        "bytes_in": 50,
        "bytes_out": 60,
        "streams": 7,
        "lease": False,
        "lease_grants": 0,
        "lease_granted": 0,
        "lease_used": 0,
        "lease_expired": 0,
        "drop_count": 0,
        "close_reason": "closed",
        "keepalive_rtt": [rtts.get(bucket, 0) for bucket in range(32)],
        **more,
    }


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


def _with_route_id(row: dict[str, Any]) -> Cells:
    if row.get("route") is not None:
        row.setdefault("route_id", route_id(row["route"]))
    elif "of" in row:
        # A later frame of a stream has its route's number alone.
        row["route_id"] = route_id(row.pop("of"))
    return row
