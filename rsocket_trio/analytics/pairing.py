"""Derives the tables ``interactions`` and ``connections`` from captured frames, for captures without them.

Captures of ``rsocket_trio.capture`` contain ``interactions`` already, recorded by the connection itself: those are
exact and cost nothing here. Other tools write frames only. The rules below are those of ``rsocket/1.0``; frames of
other dialects are not paired.
"""

from __future__ import annotations

from typing import Final

from rsocket_trio.analytics.sql import DEFAULT_DIALECT, NUMBER_OF_TYPE, TYPES
from rsocket_trio.capture.schema import RTT_BUCKETS, TABLES
from rsocket_trio.errors import Rejected

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

CONNECTION_KEY: Final = ("capture_id", "host", "conn_id", "session_id", "side")
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
FIRSTS: Final = ", ".join(
    f"min(CASE WHEN {when} THEN seq END) OVER (PARTITION BY conn, stream_id) AS {name}_seq"
    for name, when in ENDS.items()
)
ENDED: Final = f"""least(error_seq, cancel_seq, CASE kind
        WHEN {FNF} THEN asked_seq
        WHEN {RESPONSE} THEN least(item_seq, complete_seq)
        WHEN {STREAM} THEN complete_seq
        ELSE CASE WHEN left_seq IS NOT NULL AND complete_seq IS NOT NULL THEN greatest(left_seq, complete_seq) END
    END)"""
"""SQL for the ``seq`` at which a stream ended; null if it did not end."""
OUTCOME: Final = f"""CASE
        WHEN end_seq IS NULL THEN 'unknown'
        WHEN end_seq = error_seq THEN CASE WHEN error_code <> {Rejected.default_code} OR error_code IS NULL THEN 'error'
                                           WHEN speaks_of_lease = 1 THEN 'lease_denied' ELSE 'rejected' END
        WHEN end_seq = cancel_seq THEN 'cancel'
        ELSE 'complete'
    END"""
KIND: Final = " ".join(f"WHEN {number} THEN '{name}'" for number, name in REQUESTS.items())
HAS_CREDIT: Final = f"kind IN ({STREAM}, {CHANNEL})"
IN_ORDER: Final = "PARTITION BY conn, stream_id ORDER BY seq"
SO_FAR: Final = f"({IN_ORDER} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
EARLIER: Final = f"({IN_ORDER} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"


def after(ns: str) -> str:
    """Return SQL for the time of day at a reading of the monotonic clock in this stream."""
    return f"make_timestamptz(epoch_us(t_start) + ({ns} - start_ns) // 1000)"


# The columns that name a connection are long: in their place comes its number, and at the end they come back.
#
# Each frame has a role in its stream. The clients' streams are the odd ones, so the side and the direction give its
# sender. A payload counts on its last fragment.
#
# A running sum that may not fall below 0 is the plain sum minus its lowest value so far, if that is negative.
PAIR: Final = f"""
    WITH numbered AS (
        SELECT {", ".join(CONNECTION_KEY)}, row_number() OVER (ORDER BY {", ".join(CONNECTION_KEY)}) AS conn
        FROM (SELECT DISTINCT {", ".join(CONNECTION_KEY)} FROM frames) AS seen
    ), directed AS (
        SELECT frames.*, numbered.conn, dir = 'in' AS inward,
               (stream_id % 2 = 1) = ((frames.side = 'client') = (dir = 'out')) AS asks,
               frame_type IN ({", ".join(map(str, REQUESTS))}, {PAYLOAD}) AND (flags & {FOLLOWS}) = 0 AS is_whole
        FROM frames JOIN numbered ON {" AND ".join(f"frames.{name} = numbered.{name}" for name in CONNECTION_KEY)}
        WHERE stream_id > 0
    ), marked AS (
        SELECT conn, stream_id, seq, ts, mono_ns, frame_bytes, route_id, frame_type, request_n, asks, inward, is_whole,
               asks AND frame_type BETWEEN {RESPONSE} AND {CHANNEL} AS opens,
               is_whole AND (frame_type <> {PAYLOAD} OR (flags & {NEXT}) <> 0 OR coalesce(fragments, 0) > 1) AS is_item,
               is_whole AND frame_type IN ({PAYLOAD}, {CHANNEL}) AND (flags & {COMPLETE}) <> 0 AS completes,
               CASE WHEN frame_type = {ERROR} THEN error_code END AS error_code,
               CASE WHEN frame_type = {ERROR} AND error_code = {Rejected.default_code}
                         AND lower(error_text) LIKE '%lease%' THEN 1 ELSE 0 END AS speaks_of_lease
        FROM directed
    ), first_look AS (
        SELECT *, max(CASE WHEN opens THEN frame_type END) OVER (PARTITION BY conn, stream_id) AS kind, {FIRSTS}
        FROM marked
    ), bounded AS (
        SELECT *, {ENDED} AS end_seq, least({ENDED}, CASE WHEN {HAS_CREDIT} THEN complete_seq END) AS quiet
        FROM first_look WHERE kind IS NOT NULL AND seq >= start_seq
    ), summed AS (
        SELECT *,
               sum(CASE WHEN asks THEN coalesce(request_n, 0) WHEN is_item THEN -1 ELSE 0 END) OVER {SO_FAR} AS sum_n,
               CASE WHEN is_item AND NOT asks
                    THEN max(CASE WHEN is_item AND NOT asks THEN mono_ns END) OVER {EARLIER} END AS former_ns
        FROM bounded WHERE seq <= coalesce(end_seq, seq)
    ), balanced AS (
        SELECT *, CASE WHEN {HAS_CREDIT} THEN sum_n - least(0, min(sum_n) OVER {SO_FAR}) END AS credit FROM summed
    ), waiting AS (
        SELECT *, lag(credit) OVER ({IN_ORDER}) AS former_credit, lead(seq) OVER ({IN_ORDER}) AS next_seq,
               max(CASE WHEN credit = 0 AND (opens OR (is_item AND NOT asks)) THEN mono_ns END) OVER {EARLIER}
               AS stalled_ns
        FROM balanced
    ), timed AS (
        SELECT *, CASE WHEN former_credit = 0 AND (quiet IS NULL OR seq <= quiet)
                            AND (credit > 0 OR ((seq = quiet OR next_seq IS NULL) AND NOT (is_item AND NOT asks)))
                       THEN mono_ns - stalled_ns END AS stall_ns
        FROM waiting
    ), counted AS (
        SELECT conn, stream_id, max(kind) AS kind, min(ts) AS t_start, max(route_id) AS route_id,
               min(mono_ns) AS start_ns, min(CASE WHEN is_item AND NOT asks THEN mono_ns END) AS first_ns,
               max(mono_ns) AS end_ns, max(end_seq) AS end_seq, max(error_seq) AS error_seq,
               max(cancel_seq) AS cancel_seq, max(error_code) AS error_code, max(speaks_of_lease) AS speaks_of_lease,
               sum(CASE WHEN is_item AND inward THEN 1 ELSE 0 END)::BIGINT AS n_in,
               sum(CASE WHEN is_item AND NOT inward THEN 1 ELSE 0 END)::BIGINT AS n_out,
               sum(CASE WHEN inward THEN frame_bytes ELSE 0 END)::BIGINT AS bytes_in,
               sum(CASE WHEN NOT inward THEN frame_bytes ELSE 0 END)::BIGINT AS bytes_out,
               sum(CASE WHEN {HAS_CREDIT} AND (opens OR (asks AND frame_type = {REQUEST_N}))
                        THEN coalesce(request_n, 0) END)::BIGINT AS requested_n,
               (coalesce(sum(CASE WHEN stall_ns > 0 THEN stall_ns END), 0) // 1000)::BIGINT AS stall_us,
               count(CASE WHEN stall_ns > 0 THEN 1 END)::INTEGER AS stalls,
               max(mono_ns - former_ns) // 1000 AS max_gap_us
        FROM timed GROUP BY conn, stream_id
    ), named AS (
        SELECT route_id, min(route) AS route FROM frames WHERE route_id IS NOT NULL AND route IS NOT NULL
        GROUP BY route_id
    )
    SELECT capture_id, host, conn_id, session_id, stream_id, side,
           CASE WHEN (stream_id % 2 = 1) = (side = 'client') THEN 'requester' ELSE 'responder' END AS role, route,
           counted.route_id, CASE kind {KIND} END AS interaction, t_start,
           CASE WHEN first_ns IS NOT NULL THEN {after("first_ns")} END AS t_first, {after("end_ns")} AS t_end,
           (first_ns - start_ns) // 1000 AS first_us, (end_ns - start_ns) // 1000 AS total_us, n_in, n_out, bytes_in,
           bytes_out, requested_n, stall_us, stalls, max_gap_us, {OUTCOME} AS outcome,
           CASE WHEN end_seq = error_seq THEN error_code END AS error_code, 0::INTEGER AS retries
    FROM counted JOIN numbered ON counted.conn = numbered.conn
    LEFT JOIN named ON counted.route_id = named.route_id
"""


def _connections() -> str:
    """Return SQL for the rows of ``connections``, as far as frames show them."""
    keys = ("capture_id", "host", "conn_id", "session_id", "side", "transport", "peer")
    known = {
        **{key: key for key in keys},
        "dialect": f"'{DEFAULT_DIALECT}'",
        "t_start": "min(ts)",
        "t_end": "max(ts)",
        "frames_in": "count(CASE WHEN dir = 'in' THEN 1 END)",
        "frames_out": "count(CASE WHEN dir = 'out' THEN 1 END)",
        "bytes_in": "sum(CASE WHEN dir = 'in' THEN frame_bytes ELSE 0 END)",
        "bytes_out": "sum(CASE WHEN dir = 'out' THEN frame_bytes ELSE 0 END)",
        "streams": "count(interaction)",
        "keepalive_rtt": f"[{', '.join('0' * RTT_BUCKETS)}]",
        "lease_grants": "count(lease_n)",
        "lease_granted": "coalesce(sum(lease_n), 0)",
        "drop_count": "sum(drop_count)",
        "close_reason": "'unknown'",
        **dict.fromkeys(("resume_count", "lease_used", "lease_expired"), "0"),
    }
    chosen = [
        f"CAST({known.get(column.name, 'NULL')} AS {TYPES[column.type]}) AS {column.name}"
        for column in TABLES["connections"]
    ]
    return f"SELECT {', '.join(chosen)} FROM frames GROUP BY {', '.join(keys)}"


PAIRED: Final = {"interactions": PAIR, "connections": _connections()}
"""The queries of tables of a capture that are derived from its frames, where it has nothing else."""
