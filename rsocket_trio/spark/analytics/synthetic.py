"""How is a large capture made without a network? Every stream after one of twenty shapes, all rows made by Spark.

Three fifths of all streams are in one connection, and half of them go to one route, as is bad for Spark and normal for
services. The same numbers make the same capture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from rsocket_trio.capture.rows import route_id
from rsocket_trio.capture.schema import TABLES
from rsocket_trio.spark.analytics.dialect import NUMBER_OF_TYPE
from rsocket_trio.spark.analytics.pairing import COMPLETE, FOLLOWS, NEXT, REQUESTS
from rsocket_trio.spark.analytics.reading import SPARK_TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUTES: Final = ("feed", "orders.find", "orders.watch", "users.find", "users.events", "log", "prices", "search")
HOT_CONNECTION, HOT_ROUTE = 60, 50
"""Percent of the streams."""
CONNECTIONS: Final = 200
LASTS_US: Final = 600_000_000
"""Microseconds that every connection's streams are spread over."""
STARTS_US: Final = 1_767_225_600_000_000
"""Midnight of 2026-01-01."""
CAPTURE: Final = "0123456789abcdef0123456789abcdef"
CONN_ID: Final = "md5(CAST({} AS STRING))"


@attrs.frozen
class F:
    """One frame of a shape. ``asks``: the requester sends it."""

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
    """One course of a stream: its frames, a step of time apart, and what a pairing must find, in steps."""

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
# Four items at once, a wait of two steps for credit, four more.
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
"""Frames of twenty streams."""


def write_capture(spark: SparkSession, directory: str | Path, frames: int) -> int:
    """Write a capture of about this many frames, in Parquet; returns how many streams it has.

    The directory must not hold one yet.
    """
    streams = max(CONNECTIONS, frames * len(SHAPES) // PERIOD)
    # As the capture writes them: Spark's own default is a type that Parquet has given up.
    name = "spark.sql.parquet.outputTimestampType"
    former = spark.conf.get(name)
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        for table, rows in make_capture(spark, streams).items():
            path = Path(directory) / table / "date=2026-01-01"
            rows.write.option("compression", "zstd").parquet(str(path))
    finally:
        spark.conf.set(name, former or "INT96")
    return streams


def make_capture(spark: SparkSession, streams: int) -> dict[str, DataFrame]:
    """The three tables of a capture with so many streams; its ``interactions`` are right, not paired."""
    begun = _streams(spark, streams)
    return {
        "frames": _chosen("frames", _frames(spark, begun)),
        "interactions": _chosen("interactions", _interactions(spark, begun)),
        "connections": _chosen("connections", _connections(spark, streams)),
    }


def _streams(spark: SparkSession, streams: int) -> DataFrame:
    hot = streams * HOT_CONNECTION // 100
    chosen = f"IF(luck < {HOT_ROUTE}, 1, 1 + CAST(luck % {len(ROUTES)} AS INT))"
    names = ", ".join(f"'{route}'" for route in ROUTES)
    ids = ", ".join(f"CAST({route_id(route)} AS BIGINT)" for route in ROUTES)
    per_hot, per_cold = LASTS_US // max(hot, 1), LASTS_US * (CONNECTIONS - 1) // max(streams - hot, 1)
    return (
        spark.range(streams)
        .selectExpr(
            f"id < {hot} AS is_hot",
            f"IF(id < {hot}, 0, 1 + (id - {hot}) % {CONNECTIONS - 1}) AS connection",
            f"IF(id < {hot}, id, (id - {hot}) div {CONNECTIONS - 1}) AS number",
            "pmod(xxhash64(id), 100) AS luck",
            "pmod(xxhash64(id, 7), 1000) + 1 AS pace",
        )
        .selectExpr(
            "connection",
            "number",
            f"number % {len(SHAPES)} AS place",
            f"{CONN_ID.format('connection')} AS conn_id",
            f"number * IF(is_hot, {per_hot}, {per_cold}) AS from_us",
            # So that all frames of a stream come before the next one's first, and latencies of a wide range.
            f"1 + CAST(IF(is_hot, {per_hot}, {per_cold}) * pow(pace / 1000D, 3) AS BIGINT) div 12 AS step_us",
            f"element_at(array({names}), {chosen}) AS route_name",
            f"element_at(array({ids}), {chosen}) AS route_hash",
        )
    )


def _frames(spark: SparkSession, streams: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    rows: list[tuple[Any, ...]] = []
    for place, shape in enumerate(SHAPES):
        for step, frame in enumerate(shape.frames):
            interaction = REQUESTS.get(NUMBER_OF_TYPE[frame.type])
            rows.append(
                (
                    *(place, step, len(rows), NUMBER_OF_TYPE[frame.type], frame.flags, interaction, frame.asks),
                    *(frame.n, size_of(frame), frame.data),
                    frame.metadata if frame.flags & 0x100 else None,
                    *(frame.pieces, frame.credit, frame.code, "made up" if frame.code is not None else None),
                )
            )
    templates = spark.createDataFrame(
        rows,
        "place BIGINT, step INT, nth INT, frame_type TINYINT, flags SMALLINT, interaction STRING, asks BOOLEAN, "
        "request_n BIGINT, frame_bytes INT, data_bytes INT, metadata_bytes INT, fragments SMALLINT, "
        "credit_after BIGINT, error_code INT, error_text STRING",
    )
    is_control = f"frame_type = {NUMBER_OF_TYPE['KEEPALIVE']}"
    is_named = f"interaction IS NOT NULL AND (flags & {FOLLOWS}) = 0"
    return streams.join(sf.broadcast(templates), "place").selectExpr(
        *(f"'{CAPTURE}' AS capture_id", "'synthetic' AS host", "conn_id", "conn_id AS session_id"),
        f"number div {len(SHAPES)} * {PERIOD} + nth AS seq",
        f"timestamp_micros({STARTS_US} + from_us + step * step_us) AS ts",
        "(from_us + step * step_us) * 1000 AS mono_ns",
        *("'server' AS side", "IF(asks, 'in', 'out') AS dir", "'tcp' AS transport"),
        "concat('192.0.2.1:', 20000 + connection) AS peer",
        f"CAST(IF({is_control}, 0, 2 * number + 1) AS INT) AS stream_id",
        *("frame_type", "flags", "interaction", f"IF({is_named}, route_name, NULL) AS route"),
        f"IF({is_control}, NULL, route_hash) AS route_id",
        *("request_n", "frame_bytes", "data_bytes", "metadata_bytes", "fragments", "credit_after"),
        *("error_code", "error_text", "CAST(0 AS BIGINT) AS drop_count"),
    )


def _interactions(spark: SparkSession, streams: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    rows: list[tuple[Any, ...]] = []
    for place, shape in enumerate(SHAPES):
        counted = shape.frames[: shape.last + 1]
        asked = [frame for frame in counted if frame.asks and frame.type != "KEEPALIVE"]
        answered = [frame for frame in counted if not frame.asks]
        kind = REQUESTS[NUMBER_OF_TYPE[shape.frames[0].type]]
        granted = sum(frame.n or 0 for frame in asked) if kind in ("request_stream", "request_channel") else None
        rows.append(
            (
                *(place, kind, sum(map(_is_item, asked))),
                sum(map(_is_item, answered)),
                *(sum(map(size_of, asked)), sum(map(size_of, answered)), granted),
                *(shape.first, shape.last, shape.stall, shape.gap, shape.outcome),
                next((frame.code for frame in counted if frame.code is not None), None),
            )
        )
    shapes = spark.createDataFrame(
        rows,
        "place BIGINT, interaction STRING, n_in BIGINT, n_out BIGINT, bytes_in BIGINT, bytes_out BIGINT, "
        "requested_n BIGINT, first BIGINT, last BIGINT, stall BIGINT, gap BIGINT, outcome STRING, error_code INT",
    )
    return streams.join(sf.broadcast(shapes), "place").selectExpr(
        *(f"'{CAPTURE}' AS capture_id", "'synthetic' AS host", "conn_id", "conn_id AS session_id"),
        *("CAST(2 * number + 1 AS INT) AS stream_id", "'server' AS side", "'responder' AS role"),
        *("route_name AS route", "route_hash AS route_id", "interaction"),
        f"timestamp_micros({STARTS_US} + from_us) AS t_start",
        f"timestamp_micros({STARTS_US} + from_us + first * step_us) AS t_first",
        f"timestamp_micros({STARTS_US} + from_us + last * step_us) AS t_end",
        *("first * step_us AS first_us", "last * step_us AS total_us", "n_in", "n_out", "bytes_in", "bytes_out"),
        *("requested_n", "stall * step_us AS stall_us", "IF(stall > 0, 1, 0) AS stalls", "gap * step_us AS max_gap_us"),
        *("outcome", "error_code", "0 AS retries"),
    )


def size_of(frame: F) -> int:
    """Bytes of a frame: the header, where there is metadata its length, a number, and what it carries."""
    number = frame.n is not None or frame.code is not None
    return 6 + 3 * bool(frame.flags & 0x100) + 4 * number + frame.data + frame.metadata


def _is_item(frame: F) -> bool:
    """Whether a payload is whole with this frame."""
    whole = not frame.flags & FOLLOWS
    return whole and ((frame.type.startswith("REQUEST_") and frame.type != "REQUEST_N") or bool(frame.flags & NEXT))


def _connections(spark: SparkSession, streams: int) -> DataFrame:
    hot = streams * HOT_CONNECTION // 100
    each = (streams - hot) // (CONNECTIONS - 1)
    counts = ", ".join("CAST(100 AS BIGINT)" if bucket in (8, 9) else "CAST(0 AS BIGINT)" for bucket in range(32))
    return spark.range(CONNECTIONS).selectExpr(
        *(f"'{CAPTURE}' AS capture_id", "'synthetic' AS host", f"{CONN_ID.format('id')} AS conn_id"),
        *(f"{CONN_ID.format('id')} AS session_id", "'server' AS side", "'rsocket/1.0' AS dialect"),
        *("'tcp' AS transport", "concat('192.0.2.1:', 20000 + id) AS peer"),
        f"timestamp_micros({STARTS_US}) AS t_start",
        f"timestamp_micros({STARTS_US + LASTS_US}) AS t_end",
        *("CAST(20000 AS BIGINT) AS keepalive_interval_ms", "CAST(90000 AS BIGINT) AS max_lifetime_ms"),
        *("false AS lease", "false AS resume", "0 AS resume_count"),
        f"IF(id = 0, {hot}, {each}) AS streams",
        f"array({counts}) AS keepalive_rtt",
        *(f"CAST(0 AS BIGINT) AS {name}" for name in ("lease_grants", "lease_granted", "lease_used", "lease_expired")),
        *(f"CAST(0 AS BIGINT) AS {name}" for name in ("frames_in", "frames_out", "bytes_in", "bytes_out")),
        *("CAST(0 AS BIGINT) AS drop_count", "'closed' AS close_reason"),
    )


def _chosen(table: str, rows: DataFrame) -> DataFrame:
    """The columns of the table in their order, each of its type; null where the rows have none."""
    known = set(rows.columns)
    types = {column.name: SPARK_TYPES[column.type] for column in TABLES[table]}
    return rows.selectExpr(
        *(f"CAST({name if name in known else 'NULL'} AS {kind}) AS {name}" for name, kind in types.items())
    )
