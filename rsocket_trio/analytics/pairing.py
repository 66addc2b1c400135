"""Derives the tables ``interactions`` and ``connections`` from captured frames, for captures without them.

Captures of ``rsocket_trio.capture`` contain ``interactions`` already, recorded by the connection itself: those are
exact and cost nothing here. Other tools write frames only. The rules below are those of ``rsocket/1.0``; frames of
other dialects are not paired.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rsocket_trio.analytics.sql import DEFAULT_DIALECT, NUMBER_OF_TYPE, SPARK_TYPES, Query, ask
from rsocket_trio.capture.schema import RTT_BUCKETS, TABLES
from rsocket_trio.errors import Rejected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLLOWS, COMPLETE, NEXT = 0x080, 0x040, 0x020
REQUESTS: Final = {
    NUMBER_OF_TYPE["REQUEST_RESPONSE"]: "request_response",
    NUMBER_OF_TYPE["REQUEST_FNF"]: "fire_and_forget",
    NUMBER_OF_TYPE["REQUEST_STREAM"]: "request_stream",
    NUMBER_OF_TYPE["REQUEST_CHANNEL"]: "request_channel",
}
RESPONSE, FNF, STREAM, CHANNEL = REQUESTS
PAYLOAD: Final = NUMBER_OF_TYPE["PAYLOAD"]
REQUEST_N: Final = NUMBER_OF_TYPE["REQUEST_N"]
CANCEL: Final = NUMBER_OF_TYPE["CANCEL"]
ERROR: Final = NUMBER_OF_TYPE["ERROR"]

STREAM_KEY: Final = "capture_id, host, conn_id, session_id, side, stream_id"


# The frames of all streams, each with its role. The clients' streams are the odd ones, so the side and the direction
# give its sender. A payload counts on its last fragment.
def marked(key: str, source: str = "{frames}") -> str:
    """Return SQL for the frames of all streams in ``source``, with the columns of ``key``."""
    return f"""
    SELECT {key}, seq, ts, mono_ns, frame_bytes, route_id, frame_type, request_n, asks, inward, is_whole,
           asks AND frame_type BETWEEN {RESPONSE} AND {CHANNEL} AS opens,
           is_whole AND (frame_type <> {PAYLOAD} OR (flags & {NEXT}) <> 0 OR coalesce(fragments, 0) > 1) AS is_item,
           is_whole AND frame_type IN ({PAYLOAD}, {CHANNEL}) AND (flags & {COMPLETE}) <> 0 AS completes,
           CASE WHEN frame_type = {ERROR} THEN error_code END AS error_code,
           CASE WHEN frame_type = {ERROR} AND error_code = {Rejected.default_code}
                     AND lower(error_text) LIKE '%lease%' THEN 1 ELSE 0 END AS speaks_of_lease
    FROM (
        SELECT *, dir = 'in' AS inward,
               (stream_id % 2 = 1) = ((side = 'client') = (dir = 'out')) AS asks,
               frame_type IN ({", ".join(map(str, REQUESTS))}, {PAYLOAD}) AND (flags & {FOLLOWS}) = 0 AS is_whole
        FROM {source} WHERE stream_id > 0
    ) AS told
"""


# The columns that name a connection are long: in their place comes its number, and at the end they come back.
CONNECTION_KEY: Final = ("capture_id", "host", "conn_id", "session_id", "side")
NUMBERED: Final = f"""
    SELECT {", ".join(CONNECTION_KEY)}, row_number() OVER (ORDER BY {", ".join(CONNECTION_KEY)}) AS conn
    FROM (SELECT DISTINCT {", ".join(CONNECTION_KEY)} FROM {{frames}}) AS seen
"""
SHORT_KEY: Final = "conn, stream_id"
SHORTENED: Final = f"""(
    SELECT frames.*, numbered.conn FROM {{frames}} AS frames JOIN numbered
      ON {" AND ".join(f"frames.{name} = numbered.{name}" for name in CONNECTION_KEY)}
) AS shortened"""

ENDS: Final = {
    "start": "opens",
    "error": f"frame_type = {ERROR}",
    "cancel": f"frame_type = {CANCEL} AND asks",
    "asked": "asks AND is_whole",
    "left": f"(asks AND completes) OR (frame_type = {CANCEL} AND NOT asks)",
    "complete": "NOT asks AND completes",
    "item": "NOT asks AND is_item",
}
"""Conditions of the frames that begin or end a stream or a half of it: the first frame of each kind counts."""


def ends(what: str, over: str = "") -> str:
    """Return SQL for ``seq`` or ``mono_ns`` of the first frame of each kind."""
    return ", ".join(f"min(CASE WHEN {when} THEN {what} END) {over} AS {name}_{what}" for name, when in ENDS.items())


def done(what: str) -> str:
    """Return SQL for the position at which the stream completed, unless something else ended it; null if it did not."""
    return f"""CASE kind
        WHEN {FNF} THEN asked_{what}
        WHEN {RESPONSE} THEN least(item_{what}, complete_{what})
        WHEN {STREAM} THEN complete_{what}
        ELSE CASE WHEN left_{what} IS NOT NULL AND complete_{what} IS NOT NULL
                  THEN greatest(left_{what}, complete_{what}) END
    END"""


def ended(what: str) -> str:
    """Return SQL for the position at which the stream ended; null if it did not end."""
    return f"least(error_{what}, cancel_{what}, {done(what)})"


OUTCOME: Final = f"""CASE
        WHEN end_seq IS NULL THEN 'unknown'
        WHEN end_seq = error_seq THEN CASE WHEN error_code <> {Rejected.default_code} OR error_code IS NULL THEN 'error'
                                           WHEN speaks_of_lease = 1 THEN 'lease_denied' ELSE 'rejected' END
        WHEN end_seq = cancel_seq THEN 'cancel'
        ELSE 'complete'
    END"""
KIND: Final = " ".join(f"WHEN {number} THEN '{name}'" for number, name in REQUESTS.items())


def us(ns: str) -> str:
    """Return SQL for nanoseconds as whole microseconds."""
    return f"(({ns}) $div 1000)"


def after(ns: str) -> str:
    """Return SQL for the time of day at a reading of the monotonic clock in this stream."""
    return f"timestamp_micros(unix_micros(t_start) + {us(f'{ns} - start_ns')})"


ROUTE_NAMES: Final = """
    SELECT route_id, min(route) AS route FROM (
        SELECT DISTINCT route_id, route FROM {frames} WHERE route IS NOT NULL AND route_id IS NOT NULL
    ) AS named GROUP BY route_id
"""


def rows_of(source: str, *, named: bool = True) -> str:
    """Return SQL for the rows of ``interactions``, from a source with one row of counts for each stream."""
    route = "routes.route" if named else "CAST(NULL AS STRING) AS route"
    routes = f"LEFT JOIN ({ROUTE_NAMES}) AS routes ON counted.route_id = routes.route_id" if named else ""
    return f"""
    SELECT capture_id, host, conn_id, session_id, stream_id, side,
           CASE WHEN (stream_id % 2 = 1) = (side = 'client') THEN 'requester' ELSE 'responder' END AS role,
           {route}, counted.route_id, CASE kind {KIND} END AS interaction, t_start,
           CASE WHEN first_ns IS NOT NULL THEN {after("first_ns")} END AS t_first, {after("end_ns")} AS t_end,
           {us("first_ns - start_ns")} AS first_us, {us("end_ns - start_ns")} AS total_us,
           n_in, n_out, bytes_in, bytes_out, requested_n, stall_us, CAST(stalls AS INT) AS stalls, max_gap_us,
           {OUTCOME} AS outcome, CASE WHEN end_seq = error_seq THEN error_code END AS error_code,
           CAST(0 AS INT) AS retries
    FROM {source} AS counted {routes}
    """


COUNTS: Final = """
    min(ts) AS t_start, max(route_id) AS route_id,
    CAST(sum(CASE WHEN is_item AND inward THEN 1 ELSE 0 END) AS BIGINT) AS n_in,
    CAST(sum(CASE WHEN is_item AND NOT inward THEN 1 ELSE 0 END) AS BIGINT) AS n_out,
    CAST(sum(CASE WHEN inward THEN frame_bytes ELSE 0 END) AS BIGINT) AS bytes_in,
    CAST(sum(CASE WHEN NOT inward THEN frame_bytes ELSE 0 END) AS BIGINT) AS bytes_out,
    max(error_code) AS error_code, max(speaks_of_lease) AS speaks_of_lease
"""
GRANTED: Final = f"""
    CAST(sum(CASE WHEN opens THEN coalesce(request_n, 0)
                  WHEN asks AND frame_type = {REQUEST_N} THEN coalesce(request_n, 0) END) AS BIGINT)
"""
HAS_CREDIT: Final = f"kind IN ({STREAM}, {CHANNEL})"

# A running sum that may not fall below 0 is the plain sum minus its lowest value so far, if that is negative.
PAIR: Final = Query(
    "interactions",
    ("frames",),
    f"""
    WITH numbered AS ({NUMBERED}), marked AS ({marked(SHORT_KEY, SHORTENED)}), first_look AS (
        SELECT *, max(CASE WHEN opens THEN frame_type END) OVER whole AS kind,
               {ends("seq", "OVER whole")}
        FROM marked WINDOW whole AS (PARTITION BY {SHORT_KEY})
    ), bounded AS (
        SELECT *, {ended("seq")} AS end_seq,
               least({ended("seq")}, CASE WHEN {HAS_CREDIT} THEN complete_seq END) AS quiet
        FROM first_look WHERE kind IS NOT NULL AND seq >= start_seq
    ), summed AS (
        SELECT *,
               sum(CASE WHEN asks THEN coalesce(request_n, 0) WHEN is_item THEN -1 ELSE 0 END) OVER so_far AS sum_n,
               CASE WHEN is_item AND NOT asks THEN max(CASE WHEN is_item AND NOT asks THEN mono_ns END) OVER earlier END
               AS former_ns
        FROM bounded WHERE seq <= coalesce(end_seq, seq)
        WINDOW so_far AS (PARTITION BY {SHORT_KEY} ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
               earlier AS (PARTITION BY {SHORT_KEY} ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), balanced AS (
        SELECT *, CASE WHEN {HAS_CREDIT} THEN sum_n - least(0, min(sum_n) OVER so_far) END AS credit
        FROM summed
        WINDOW so_far AS (PARTITION BY {SHORT_KEY} ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    ), waiting AS (
        SELECT *, lag(credit) OVER in_order AS former_credit, lead(seq) OVER in_order AS next_seq,
               max(CASE WHEN credit = 0 AND (opens OR (is_item AND NOT asks)) THEN mono_ns END) OVER earlier
               AS stalled_ns
        FROM balanced
        WINDOW in_order AS (PARTITION BY {SHORT_KEY} ORDER BY seq),
               earlier AS (PARTITION BY {SHORT_KEY} ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), told AS (
        SELECT *, CASE WHEN former_credit = 0 AND (quiet IS NULL OR seq <= quiet)
                            AND (credit > 0 OR ((seq = quiet OR next_seq IS NULL) AND NOT (is_item AND NOT asks)))
                       THEN mono_ns - stalled_ns END AS stall_ns
        FROM waiting
    ), summed_up AS (
        SELECT {SHORT_KEY}, max(kind) AS kind, {COUNTS}, min(mono_ns) AS start_ns,
               min(CASE WHEN is_item AND NOT asks THEN mono_ns END) AS first_ns,
               max(mono_ns) AS end_ns, max(end_seq) AS end_seq, max(error_seq) AS error_seq,
               max(cancel_seq) AS cancel_seq,
               CASE WHEN max(kind) IN ({STREAM}, {CHANNEL}) THEN {GRANTED} END AS requested_n,
               CAST({us("coalesce(sum(CASE WHEN stall_ns > 0 THEN stall_ns END), 0)")} AS BIGINT) AS stall_us,
               count(CASE WHEN stall_ns > 0 THEN 1 END) AS stalls, {us("max(mono_ns - former_ns)")} AS max_gap_us
        FROM told GROUP BY {SHORT_KEY}
    ), counted AS (
        SELECT {", ".join(CONNECTION_KEY)}, summed_up.*
        FROM summed_up JOIN numbered ON summed_up.conn = numbered.conn
    ) {rows_of("counted")}
    """,
)

QUICK_COUNTS: Final = f"""
    max(CASE WHEN opens THEN frame_type END) AS kind, {COUNTS}, max(mono_ns) AS last_ns,
    {GRANTED} AS granted, {ends("seq")}, {ends("mono_ns")}
"""


def quick_rows(counts: str, *, named: bool = True) -> str:
    """Return SQL for the rows of ``interactions``, without the columns that need the frames in order."""
    return rows_of(
        f"""(
        SELECT *, start_mono_ns AS start_ns,
               CASE WHEN {ended("seq")} IS NULL OR item_seq <= {ended("seq")} THEN item_mono_ns END AS first_ns,
               {ended("seq")} AS end_seq,
               coalesce({ended("mono_ns")}, last_ns) AS end_ns,
               CASE WHEN {HAS_CREDIT} THEN granted END AS requested_n,
               CAST(NULL AS BIGINT) AS stall_us, CAST(NULL AS INT) AS stalls, CAST(NULL AS BIGINT) AS max_gap_us
        FROM ({counts}) AS streams WHERE kind IS NOT NULL
    )""",
        named=named,
    )


PAIR_QUICKLY: Final = Query(
    "interactions",
    ("frames",),
    quick_rows(f"SELECT {STREAM_KEY}, {QUICK_COUNTS} FROM ({marked(STREAM_KEY)}) AS marked GROUP BY {STREAM_KEY}"),
)


def pair(frames: DataFrame, *, quickly: bool = False) -> DataFrame:
    """Return the table ``interactions``, derived from ``frames`` of ``rsocket/1.0``.

    A stream without its request frame has no row; a stream without its end has the outcome ``unknown`` and ends with
    its last frame. A connection that uses a stream id twice is not supported, nor is resumption: ``retries`` is 0.
    ``quickly`` leaves out the columns that need the frames in order (``stall_us``, ``stalls`` and ``max_gap_us`` are
    null) and counts frames after the end of a stream with the others; of two errors of a stream it may name the later
    one. It takes a fifth of the time.
    """
    return (PAIR_QUICKLY if quickly else PAIR)(frames)


def pair_stream(frames: DataFrame, *, silence: str = "30 seconds") -> DataFrame:
    """Return ``interactions`` as ``pair`` with ``quickly`` does, over ``frames``, a streaming table whose ``ts`` has a
    watermark.

    A row is emitted, in append mode, when its stream had no frame for ``silence`` (as in ``30 seconds`` or ``5
    minutes``) and the watermark has passed. A stream that pauses for longer ends there, as ``unknown``. ``route`` is
    null, as its name would be kept in the state of every stream: join ``route_names``. Raise ``ValueError`` if
    ``silence`` has another form.
    """
    if re.fullmatch(r"\d+ [a-z]+", silence) is None:
        raise ValueError(f"silence of {silence!r}: it is given as in '30 seconds'")
    keys = f"{STREAM_KEY}, session_window(ts, '{silence}')"
    counts = f"SELECT {STREAM_KEY}, {QUICK_COUNTS} FROM ({marked(STREAM_KEY)}) AS marked GROUP BY {keys}"
    return ask(quick_rows(counts, named=False), frames=frames)


def route_names(frames: DataFrame) -> DataFrame:
    """Return the name of each ``route_id``, from the request frames in ``frames``."""
    return ask(ROUTE_NAMES, frames=frames)


def _told_by_frames() -> str:
    """Return SQL for the rows of ``connections``, as far as frames show them."""
    known = {
        **dict.fromkeys(("capture_id", "host", "conn_id", "session_id", "side", "transport", "peer")),
        "dialect": f"'{DEFAULT_DIALECT}'",
        "t_start": "min(ts)",
        "t_end": "max(ts)",
        "resume_count": "CAST(0 AS INT)",
        "frames_in": "count(CASE WHEN dir = 'in' THEN 1 END)",
        "frames_out": "count(CASE WHEN dir = 'out' THEN 1 END)",
        "bytes_in": "CAST(sum(CASE WHEN dir = 'in' THEN frame_bytes ELSE 0 END) AS BIGINT)",
        "bytes_out": "CAST(sum(CASE WHEN dir = 'out' THEN frame_bytes ELSE 0 END) AS BIGINT)",
        "streams": "count(interaction)",
        "keepalive_rtt": f"array_repeat(CAST(0 AS BIGINT), {RTT_BUCKETS})",
        "lease_grants": "count(lease_n)",
        "lease_granted": "CAST(coalesce(sum(lease_n), 0) AS BIGINT)",
        "lease_used": "CAST(0 AS BIGINT)",
        "lease_expired": "CAST(0 AS BIGINT)",
        "drop_count": "CAST(sum(drop_count) AS BIGINT)",
        "close_reason": "'unknown'",
    }
    chosen = [
        f"{known.get(column.name, f'CAST(NULL AS {SPARK_TYPES[column.type]})') or column.name} AS {column.name}"
        for column in TABLES["connections"]
    ]
    keys = "capture_id, host, conn_id, session_id, side, transport, peer"
    return f"SELECT {', '.join(chosen)} FROM {{frames}} GROUP BY {keys}"


CONNECTIONS_OF_FRAMES: Final = Query("connections", ("frames",), _told_by_frames())


def connections_of(frames: DataFrame) -> DataFrame:
    """Return ``connections`` as far as ``frames`` show it, first frame to last; the close reason is ``unknown``."""
    return CONNECTIONS_OF_FRAMES(frames)
