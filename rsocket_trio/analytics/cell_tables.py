"""Tables by cell of time, route and peer, from which a page draws what is left after filters.

A cell of time is [``t_from``, ``t_from`` + length), counted from 1970. Its length follows from that of the capture:
``capture_span``. Requests belong to the cell in which they begin. Routes and peers beyond the busiest share one name.
"""

from __future__ import annotations

from typing import Final

from rsocket_trio.analytics.sql import (
    ERROR_LEVEL,
    METRICS,
    OTHER_PEERS,
    OTHER_ROUTES,
    PER_OCTAVE,
    PER_OCTAVE_SHOWN,
    SHOWN,
    SHOWN_ROUTE,
    SIZE_BUCKET,
    bucket_of,
    cell_of,
    error_names,
    percentiles,
    ranked,
)

NO_ROUTE: Final = "(no route)"
"""The text that a page shows in place of a missing route."""
SHOWN_ROUTES: Final = 24
SHOWN_PEERS: Final = 12
SHOWN_CONNECTIONS: Final = 20
LENGTHS_S: Final = ((300, 1), (3600, 10), (86_400, 60), (864_000, 600), (8_640_000, 3600))
"""Seconds of a capture below which a cell has so many seconds; longer ones have cells of ``MAX_CELL_SECONDS``."""
MAX_CELL_SECONDS: Final = 86_400
MAX_FINE_REQUESTS: Final = 50_000
"""Requests up to which ``latency_cells`` keep the fine buckets: there are then no more rows than twice as many."""


def shorter_than(lengths: tuple[tuple[int, int], ...], longest: int) -> str:
    """Return SQL for the seconds of a cell, by ``us``, the microseconds of the capture."""
    cases = " ".join(f"WHEN us < {below}000000 THEN {seconds}" for below, seconds in lengths)
    return f"CAST(CASE {cases} ELSE {longest} END AS BIGINT)"


def at_most(cells: int) -> str:
    """Return SQL for the seconds of a cell such that a capture has about so many, or fewer."""
    return shorter_than(tuple((cells * seconds, seconds) for seconds in (1, 10, 60, 600, 3600)), 86_400)


RED_COUNTS: Final = """
    count(*) AS requests, count(CASE WHEN outcome NOT IN ('complete', 'cancel') THEN 1 END) AS errors,
    count(CASE WHEN outcome = 'cancel' THEN 1 END) AS cancels
"""
CELL_END: Final = "(epoch_us(counted.t_from) + bucket_s * 1000000)"
COVERED_US: Final = f"""(least({CELL_END}, epoch_us(capture_span.t_to) + 1)
                         - greatest(epoch_us(counted.t_from), epoch_us(capture_span.t_from)))"""
"""SQL for how much of a cell the capture covers: it does so from its first row to its last one, which it includes."""
COVERED: Final = f"{COVERED_US} / 1000000 AS covered_s, {COVERED_US} < bucket_s * 1000000 AS cut"
PER_SECOND: Final = f"requests * 1000000 / {COVERED_US} AS per_second"
DURATION: Final = "CASE metric WHEN 'first' THEN first_us ELSE total_us END"

QUERIES: Final = {
    "capture_span": f"""
    WITH seen AS (
        SELECT min(ts) AS since, max(ts) AS until, 0::BIGINT AS n FROM frames
        UNION ALL SELECT min(t_start), max(t_end), count(*) FROM interactions
        UNION ALL SELECT min(t_start), max(t_end), 0::BIGINT FROM connections
    ), whole AS (
        SELECT min(since) AS t_from, max(until) AS t_to, epoch_us(max(until)) - epoch_us(min(since)) AS us,
               sum(n) AS n
        FROM seen
    )
    SELECT t_from, t_to, {shorter_than(LENGTHS_S, MAX_CELL_SECONDS)} AS bucket_s,
           CASE WHEN n <= {MAX_FINE_REQUESTS} THEN {at_most(300)} ELSE {at_most(60)} END AS latency_s,
           CASE WHEN n <= {MAX_FINE_REQUESTS} THEN {PER_OCTAVE} ELSE {PER_OCTAVE_SHOWN} END AS per_octave,
           CASE WHEN n <= {MAX_FINE_REQUESTS} THEN {at_most(300)} ELSE {at_most(60)} END AS size_s
    FROM whole
    """,
    "shown_routes": f"""
    SELECT route_id, route, CASE WHEN place <= {SHOWN_ROUTES} THEN route ELSE '{OTHER_ROUTES}' END AS shown
    FROM (
        SELECT counted.route_id, route, row_number() OVER (ORDER BY n DESC, route, counted.route_id) AS place
        FROM (
            SELECT route_id, count(*) AS n FROM interactions WHERE route_id IS NOT NULL GROUP BY route_id
        ) AS counted JOIN routes ON counted.route_id = routes.route_id
    ) AS ranked
    """,
    # A client's port says nothing, unless there are few of them: of many peers only the host is kept.
    "shown_peers": f"""
    WITH known AS (
        SELECT capture_id, conn_id, max(peer) AS peer FROM (
            SELECT capture_id, conn_id, peer FROM connections
            UNION ALL SELECT capture_id, conn_id, peer FROM frames WHERE seq = 0
        ) AS of_both GROUP BY capture_id, conn_id
    ), counted AS (
        SELECT known.capture_id, known.conn_id, coalesce(n, 0) AS n,
               CASE WHEN (SELECT count(DISTINCT peer) FROM known) <= {SHOWN_PEERS} THEN peer
                    ELSE regexp_replace(peer, ':[0-9]+$', '') END AS address
        FROM known LEFT JOIN (
            SELECT capture_id, conn_id, count(*) AS n FROM interactions GROUP BY capture_id, conn_id
        ) AS begun ON begun.capture_id = known.capture_id AND begun.conn_id = known.conn_id
    ), ranked AS (
        SELECT address, row_number() OVER (ORDER BY sum(n) DESC, address) AS place FROM counted GROUP BY address
    )
    SELECT capture_id, conn_id, CASE WHEN place <= {SHOWN_PEERS} THEN counted.address ELSE '{OTHER_PEERS}' END AS peer
    FROM counted JOIN ranked ON counted.address = ranked.address
    """,
    "request_cells": f"""
    SELECT make_timestamptz(cell) AS t_from, role, route_id, interaction, metric, bucket, count(*) AS n,
           count(CASE WHEN outcome NOT IN ('complete', 'cancel') THEN 1 END) AS errors,
           count(CASE WHEN outcome = 'cancel' THEN 1 END) AS cancels
    FROM (
        SELECT {cell_of("t_start")} AS cell, role, route_id, interaction, outcome, metric,
               {bucket_of(DURATION)} AS bucket
        FROM interactions CROSS JOIN capture_span CROSS JOIN {METRICS}
        WHERE metric = 'total' OR first_us IS NOT NULL
    ) AS measured
    GROUP BY cell, role, route_id, interaction, metric, bucket
    """,
    "red": f"""
    WITH ranked AS ({ranked("request_cells", "t_from, role, route_id, interaction, metric")}), counted AS (
        SELECT t_from, role, route_id, interaction,
               sum(CASE WHEN metric = 'total' THEN n ELSE 0 END)::BIGINT AS requests,
               sum(CASE WHEN metric = 'total' THEN errors ELSE 0 END)::BIGINT AS errors,
               sum(CASE WHEN metric = 'total' THEN cancels ELSE 0 END)::BIGINT AS cancels,
               {percentiles("first_", "50", "95", "99", "999", where="metric = 'first'")},
               {percentiles("total_", "50", "95", "99", "999", where="metric = 'total'")}
        FROM ranked
        GROUP BY t_from, role, route_id, interaction
    )
    SELECT counted.t_from, make_timestamptz({CELL_END}) AS t_to, {COVERED}, role, route,
           interaction, requests, {PER_SECOND}, errors, errors / requests AS error_share, cancels,
           first_p50_us, first_p95_us, first_p99_us, first_p999_us,
           total_p50_us, total_p95_us, total_p99_us, total_p999_us
    FROM counted CROSS JOIN capture_span LEFT JOIN routes ON counted.route_id = routes.route_id
    """,
    "rate_cells": f"""
    SELECT counted.t_from, role, route, interaction, peer, requests, errors, cancels, {PER_SECOND}, {COVERED},
           stalled, stalls, stall_us, credit_us
    FROM (
        SELECT make_timestamptz(cell) AS t_from, role, route, interaction, peer, {RED_COUNTS},
               count(CASE WHEN stalls > 0 THEN 1 END) AS stalled, coalesce(sum(stalls), 0)::BIGINT AS stalls,
               coalesce(sum(stall_us), 0)::BIGINT AS stall_us,
               sum(CASE WHEN requested_n IS NOT NULL THEN total_us ELSE 0 END)::BIGINT AS credit_us
        FROM (
            SELECT {cell_of("t_start")} AS cell, role, {SHOWN_ROUTE} AS route, interaction, shown_peers.peer,
                   outcome, stalls, stall_us, requested_n, total_us
            FROM interactions AS these CROSS JOIN capture_span {SHOWN}
        ) AS placed GROUP BY cell, role, route, interaction, peer
    ) AS counted CROSS JOIN capture_span
    """,
    "latency_cells": f"""
    SELECT make_timestamptz(cell) AS t_from, role, route, interaction, peer, metric, bucket, count(*) AS n
    FROM (
        SELECT {cell_of("t_start", "latency_s")} AS cell, role, {SHOWN_ROUTE} AS route, interaction,
               shown_peers.peer, metric, {bucket_of(DURATION, "per_octave")} AS bucket
        FROM interactions AS these CROSS JOIN capture_span CROSS JOIN {METRICS} {SHOWN}
        WHERE metric = 'total' OR first_us IS NOT NULL
    ) AS measured
    GROUP BY cell, role, route, interaction, peer, metric, bucket
    """,
    "error_cells": f"""
    SELECT make_timestamptz(cell) AS t_from, side, dir, level, error_code, {error_names()} AS error_name, route, peer,
           count(*) AS n
    FROM (
        SELECT {cell_of("ts")} AS cell, side, dir, {ERROR_LEVEL} AS level, error_code, {SHOWN_ROUTE} AS route,
               shown_peers.peer
        FROM (
            SELECT capture_id, conn_id, ts, side, dir, stream_id, error_code, route_id
            FROM frames WHERE error_code IS NOT NULL
        ) AS these CROSS JOIN capture_span {SHOWN}
    ) AS placed
    GROUP BY cell, side, dir, level, error_code, route, peer
    """,
    "size_cells": f"""
    SELECT make_timestamptz(cell) AS t_from, dir, frame_name, {SHOWN_ROUTE} AS route, peer, bucket,
           sum(n)::BIGINT AS n, sum(bytes)::BIGINT AS bytes, sum(overhead_bytes)::BIGINT AS overhead_bytes
    FROM (
        SELECT capture_id, conn_id, {cell_of("ts", "size_s")} AS cell, dir, frame_name, route_id,
               {SIZE_BUCKET} AS bucket, count(*) AS n, sum(frame_bytes)::BIGINT AS bytes,
               sum(frame_bytes - coalesce(data_bytes, 0) - coalesce(metadata_bytes, 0))::BIGINT AS overhead_bytes
        FROM frames CROSS JOIN capture_span GROUP BY ALL
    ) AS these {SHOWN}
    GROUP BY ALL
    """,
    "traffic_cells": f"""
    WITH busiest AS (
        SELECT capture_id, conn_id FROM connection_seconds GROUP BY capture_id, conn_id
        ORDER BY sum(frames) DESC, capture_id, conn_id LIMIT {SHOWN_CONNECTIONS}
    )
    SELECT make_timestamptz(cell) AS t_from, route, peer, conn_id, sum(frames)::BIGINT AS frames,
           sum(bytes)::BIGINT AS bytes
    FROM (
        SELECT {cell_of("these.second", "size_s")} AS cell, {SHOWN_ROUTE} AS route, shown_peers.peer,
               busiest.conn_id, frames, bytes
        FROM connection_seconds AS these CROSS JOIN capture_span {SHOWN}
        LEFT JOIN busiest ON these.capture_id = busiest.capture_id AND these.conn_id = busiest.conn_id
    ) AS placed
    GROUP BY cell, route, peer, conn_id
    """,
    "connection_routes": f"""
    SELECT capture_id, conn_id, route, peer, sum(n)::BIGINT AS streams
    FROM (
        SELECT these.capture_id, these.conn_id, {SHOWN_ROUTE} AS route, shown_peers.peer, n
        FROM (
            SELECT capture_id, conn_id, route_id, count(*) AS n FROM interactions
            GROUP BY capture_id, conn_id, route_id
        ) AS these {SHOWN}
    ) AS placed GROUP BY capture_id, conn_id, route, peer
    """,
}
"""The query of each table, by its name."""
