"""Writes large captures without a network: every stream has one of twenty shapes, and a known outcome.

Tests and measurements analyse them. Three fifths of all streams are in one connection, and half of them go to one
route: such skew is normal for services and hard for Spark. The same arguments make the same capture.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from pathlib import Path
from typing import Any, Final

import attrs
import duckdb
import pyarrow as pa

from rsocket_trio.analytics.sql import DEFAULT_DIALECT, TYPES
from rsocket_trio.capture.rows import route_id
from rsocket_trio.capture.schema import TABLES, type_names

NUMBER_OF_TYPE: Final = {name: number for number, name in type_names(DEFAULT_DIALECT).items()}
FOLLOWS, COMPLETE, NEXT = 0x080, 0x040, 0x020
REQUESTS: Final = {
    NUMBER_OF_TYPE["REQUEST_RESPONSE"]: "request_response",
    NUMBER_OF_TYPE["REQUEST_FNF"]: "fire_and_forget",
    NUMBER_OF_TYPE["REQUEST_STREAM"]: "request_stream",
    NUMBER_OF_TYPE["REQUEST_CHANNEL"]: "request_channel",
}


@attrs.frozen
class F:
    """One frame of a shape. ``asks``: whether the requester sends it."""

    type: str
    asks: bool
    flags: int = 0
    data: int = 0
    metadata: int = 0
    n: int | None = None
    credit: int | None = None
    pieces: int | None = None
    code: int | None = None


@attrs.frozen
class Shape:
    """The frames of a stream, a step of time apart, and the interaction that they are, in steps."""

    frames: tuple[F, ...]
    outcome: str = "complete"
    first: int | None = None
    last: int = 0
    stall: int = 0
    gap: int | None = None


ITEM, END, LAST = NEXT, COMPLETE, NEXT | COMPLETE
ASK = F("REQUEST_RESPONSE", True, 0x100, 120, 24, pieces=1)
WATCH = F("REQUEST_STREAM", True, 0x100, 40, 24, n=4, credit=4, pieces=1)
ANSWERED = Shape((ASK, F("PAYLOAD", False, LAST, 600, pieces=1)), first=1, last=1)
FAILED = Shape((ASK, F("ERROR", False, data=12, code=0x201)), "error", last=1)
REJECTED = Shape((ASK, F("ERROR", False, data=8, code=0x202)), "rejected", last=1)
GIVEN_UP = Shape((ASK, F("CANCEL", True), F("PAYLOAD", False, LAST, 600)), "cancel", last=1)
FORGOTTEN = Shape((F("REQUEST_FNF", True, 0x100, 200, 24, pieces=1),))
IN_PIECES = Shape(
    (
        F("REQUEST_RESPONSE", True, 0x100 | FOLLOWS, 1000, 24, pieces=0),
        F("PAYLOAD", True, ITEM, 700, pieces=2),
        F("PAYLOAD", False, ITEM | FOLLOWS, 1000, pieces=0),
        F("PAYLOAD", False, LAST, 300, pieces=2),
    ),
    *("complete", 3, 3),
)
# Four items, a stall of two steps, four more items.
WATCHED = Shape(
    (
        WATCH,
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2, 1, 0)),
        F("KEEPALIVE", True),
        F("REQUEST_N", True, n=4, credit=4),
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2, 1)),
        F("PAYLOAD", False, LAST, 300, credit=0, pieces=1),
    ),
    *("complete", 1, 10, 2, 3),
)
LEFT = Shape(
    (
        WATCH,
        *(F("PAYLOAD", False, ITEM, 300, credit=left, pieces=1) for left in (3, 2)),
        F("CANCEL", True),
        F("PAYLOAD", False, ITEM, 300),
    ),
    *("cancel", 1, 3, 0, 1),
)
TALKED = Shape(
    (
        F("REQUEST_CHANNEL", True, 0x100, 40, 24, n=8, credit=8, pieces=1),
        F("REQUEST_N", False, n=8, credit=8),
        F("PAYLOAD", True, ITEM, 150, credit=7, pieces=1),
        F("PAYLOAD", False, ITEM, 300, credit=7, pieces=1),
        F("PAYLOAD", True, END, credit=7, pieces=1),
        F("PAYLOAD", False, LAST, 300, credit=6, pieces=1),
    ),
    *("complete", 3, 5, 0, 2),
)
SHAPES: Final = (
    *(ANSWERED, WATCHED, ANSWERED, FORGOTTEN, ANSWERED, TALKED, ANSWERED, IN_PIECES, ANSWERED, WATCHED),
    *(ANSWERED, LEFT, ANSWERED, FAILED, ANSWERED, WATCHED, GIVEN_UP, TALKED, REJECTED, WATCHED),
)
PERIOD: Final = sum(len(shape.frames) for shape in SHAPES)
"""Number of frames of the twenty streams."""


def size_of(frame: F) -> int:
    """Return the bytes of a frame: header, metadata length if it has metadata, a number, data and metadata."""
    number = frame.n is not None or frame.code is not None
    return 6 + 3 * bool(frame.flags & 0x100) + 4 * number + frame.data + frame.metadata


def is_item(frame: F) -> bool:
    """Return whether this frame completes a payload."""
    whole = not frame.flags & FOLLOWS
    return whole and ((frame.type.startswith("REQUEST_") and frame.type != "REQUEST_N") or bool(frame.flags & NEXT))


ROUTES: Final = ("feed", "orders.find", "orders.watch", "users.find", "users.events", "log", "prices", "search")
HOT_CONNECTION, HOT_ROUTE = 60, 50
"""Percent of the streams."""
CONNECTIONS: Final = 200
LASTS_US: Final = 600_000_000
"""Microseconds over which the streams of every connection are spread."""
STARTS_US: Final = 1_767_225_600_000_000
"""Midnight of 2026-01-01."""
CONSTANTS: Final = {"capture_id": "0123456789abcdef0123456789abcdef", "host": "synthetic", "side": "server"}
"""Columns that are equal in all rows of all tables."""
Row = dict[str, Any]

STREAMS: Final = f"""
CREATE VIEW streams AS
WITH numbered AS (
    SELECT capture_id, host, side, conn_id, session_id, transport, peer, connection, pace,
        unnest(range(streams)) AS number
    FROM connections
),
-- A number that looks like chance, and is the same for all frames of a stream.
mixed AS (SELECT *, hash((connection << 32) + number) % 1000000 AS luck FROM numbered),
-- So that all frames of a stream come before the next one's first, and latencies of a wide range.
paced AS (SELECT *, CAST(luck // 100 % 1000 + 1 AS BIGINT) AS share FROM mixed)
SELECT paced.*, routes.*, number % {len(SHAPES)} AS place, number * pace AS begun,
    share * share * share * pace // 1000000000 // 12 + 1 AS pause
FROM paced
JOIN routes ON routes.nth = CASE WHEN luck % 100 < {HOT_ROUTE} THEN 0 ELSE luck % {len(ROUTES)} END
"""
QUERIES: Final = {
    "frames": f"""
SELECT streams.* EXCLUDE (route, route_id), frames.*, number // {len(SHAPES)} * {PERIOD} + frames.at AS seq,
    begun + step * pause AS after, make_timestamp({STARTS_US} + after) AS ts, after * 1000 AS mono_ns, 0 AS drop_count,
    CASE WHEN is_stream THEN 2 * number + 1 ELSE 0 END AS stream_id, CASE WHEN is_named THEN route END AS route,
    CASE WHEN is_stream THEN route_id END AS route_id
FROM streams JOIN frames USING (place) ORDER BY connection, seq
""",
    "interactions": f"""
SELECT *, 2 * number + 1 AS stream_id, 'responder' AS role, 0 AS retries,
    first * pause AS first_us, last * pause AS total_us, stall * pause AS stall_us, gap * pause AS max_gap_us,
    make_timestamp({STARTS_US} + begun) AS t_start, make_timestamp({STARTS_US} + begun + first_us) AS t_first,
    make_timestamp({STARTS_US} + begun + total_us) AS t_end
FROM streams JOIN shapes USING (place) ORDER BY connection, number
""",
    "connections": "SELECT * FROM connections ORDER BY connection",
}
"""The rows of each table; columns that one lacks are null."""


def write_capture(directory: str | Path, frames: int) -> int:
    """Write a capture of about this many frames, in Parquet. Return its number of streams.

    The directory must not hold a capture yet.
    """
    streams = max(CONNECTIONS, frames * len(SHAPES) // PERIOD)
    hot = streams * HOT_CONNECTION // 100
    # Each connection that is not hot has as many streams as the others, or one less.
    rest = CONNECTIONS - 1
    counts = [hot, *((streams - hot + rest - 1 - number) // rest for number in range(rest))]
    rows = {
        "routes": [{"nth": nth, "route": route, "route_id": route_id(route)} for nth, route in enumerate(ROUTES)],
        "shapes": [shape_row(place, shape) for place, shape in enumerate(SHAPES)],
        "frames": frame_rows(),
        "connections": [connection_row(number, count) for number, count in enumerate(counts)],
    }
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, table in rows.items():
            connection.register(name, pa.Table.from_pylist(table))
        connection.execute(STREAMS)
        for name, query in QUERIES.items():
            folder = Path(directory) / name / "date=2026-01-01"
            folder.parent.mkdir(parents=True)
            there = {column[0] for column in connection.execute(f"DESCRIBE {query}").fetchall()}
            cells = ", ".join(
                f"CAST({column.name if column.name in there else 'NULL'} AS {TYPES[column.type]}) AS {column.name}"
                for column in TABLES[name]
            )
            # Several files for Spark to share out.
            form = "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 250000, FILE_SIZE_BYTES '10MB'"
            connection.execute(f"COPY (SELECT {cells} FROM ({query})) TO '{folder}' ({form})")
    return streams


def frame_rows() -> list[Row]:
    """Return what is equal in the frames of one shape and place."""
    rows: list[Row] = []
    for place, shape in enumerate(SHAPES):
        for step, frame in enumerate(shape.frames):
            kind = REQUESTS.get(NUMBER_OF_TYPE[frame.type])
            row = {
                "place": place,
                "step": step,
                "at": len(rows),
                "is_stream": frame.type != "KEEPALIVE",
                "is_named": kind is not None and not frame.flags & FOLLOWS,
                "dir": "in" if frame.asks else "out",
                "frame_type": NUMBER_OF_TYPE[frame.type],
                "flags": frame.flags,
                "interaction": kind,
                "request_n": frame.n,
                "frame_bytes": size_of(frame),
                "data_bytes": frame.data,
                "metadata_bytes": frame.metadata if frame.flags & 0x100 else None,
                "fragments": frame.pieces,
                "credit_after": frame.credit,
                "error_code": frame.code,
                "error_text": "made up" if frame.code is not None else None,
            }
            rows.append(row)
    return rows


def shape_row(place: int, shape: Shape) -> Row:
    """Return what is equal in the interactions of one shape."""
    counted = shape.frames[: shape.last + 1]
    asked = [frame for frame in counted if frame.asks and frame.type != "KEEPALIVE"]
    answered = [frame for frame in counted if not frame.asks]
    kind = REQUESTS[NUMBER_OF_TYPE[shape.frames[0].type]]
    return {
        "place": place,
        **{name: getattr(shape, name) for name in ("outcome", "first", "last", "stall", "gap")},
        "interaction": kind,
        "n_in": sum(map(is_item, asked)),
        "n_out": sum(map(is_item, answered)),
        "bytes_in": sum(map(size_of, asked)),
        "bytes_out": sum(map(size_of, answered)),
        "requested_n": sum(frame.n or 0 for frame in asked) if kind in ("request_stream", "request_channel") else None,
        "stalls": int(shape.stall > 0),
        "error_code": next((frame.code for frame in counted if frame.code is not None), None),
    }


def connection_row(number: int, streams: int) -> Row:
    """Return a connection with so many streams; of its counts only those that are not 0 are made up."""
    name = hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()
    zeros = ("lease_grants", "lease_granted", "lease_used", "lease_expired", "resume_count", "drop_count")
    return {
        **CONSTANTS,
        **dict.fromkeys((*zeros, "frames_in", "frames_out", "bytes_in", "bytes_out"), 0),
        "connection": number,
        "pace": LASTS_US // max(streams, 1),
        "conn_id": name,
        "session_id": name,
        "peer": f"192.0.2.1:{20000 + number}",
        "streams": streams,
        "dialect": "rsocket/1.0",
        "transport": "tcp",
        "t_start": dt.datetime.fromtimestamp(STARTS_US / 1e6, dt.UTC),
        "t_end": dt.datetime.fromtimestamp((STARTS_US + LASTS_US) / 1e6, dt.UTC),
        "lease": False,
        "resume": False,
        "keepalive_interval_ms": 20000,
        "max_lifetime_ms": 90000,
        "close_reason": "closed",
        "keepalive_rtt": [100 if bucket in (8, 9) else 0 for bucket in range(32)],
    }
