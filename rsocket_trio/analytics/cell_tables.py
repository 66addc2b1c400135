"""Tables by cell of time, route and peer, from which a page draws what is left after filters.

A cell of time is [``t_from``, ``t_from`` + length), counted from 1970. Its length follows from that of the capture:
``capture_span``. Requests belong to the cell in which they begin. Routes and peers beyond the busiest share one name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rsocket_trio.analytics.sql import (
    ERROR_LEVEL,
    OTHER_PEERS,
    OTHER_ROUTES,
    PER_OCTAVE,
    PER_OCTAVE_SHOWN,
    ROUTES,
    SHOWN,
    SHOWN_ROUTE,
    SIZE_BUCKET,
    Query,
    cell_of,
    percentile,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_ROUTE: Final = "(no route)"
"""The text that a page shows in place of a missing route."""
SHOWN_ROUTES: Final = 24
SHOWN_PEERS: Final = 12
SHOWN_CONNECTIONS: Final = 20
LENGTHS_S: Final = ((300, 1), (3600, 10), (86_400, 60), (864_000, 600), (8_640_000, 3600))
"""Seconds of a capture below which a cell has so many seconds; longer ones have cells of ``LONGEST_S``."""
LONGEST_S: Final = 86_400
TRIALS: Final = 32
"""Requests at the beginning of a capture, at most, that may be trials of clients before their load."""
TRIAL_GAP_US: Final = 100_000
"""Microseconds of the pause behind them, at least."""
FEW: Final = 50_000
"""Requests up to which ``latency_cells`` keep the fine buckets: there are then no more rows than twice as many."""


def shorter_than(lengths: tuple[tuple[int, int], ...], longest: int) -> str:
    """Return SQL for the seconds of a cell, by ``us``, the microseconds of the capture."""
    cases = " ".join(f"WHEN us < {below}000000 THEN {seconds}" for below, seconds in lengths)
    return f"CAST(CASE {cases} ELSE {longest} END AS BIGINT)"


def at_most(cells: int) -> str:
    """Return SQL for the seconds of a cell such that a capture has about so many, or fewer."""
    return shorter_than(tuple((cells * seconds, seconds) for seconds in (1, 10, 60, 600, 3600)), 86_400)


SPAN: Final = Query(
    "capture_span",
    ("frames", "interactions", "connections"),
    f"""
    WITH seen AS (
        SELECT min(ts) AS since, max(ts) AS until, CAST(0 AS BIGINT) AS n FROM {{frames}}
        UNION ALL SELECT min(t_start), max(t_end), count(*) FROM {{interactions}}
        UNION ALL SELECT min(t_start), max(t_end), CAST(0 AS BIGINT) FROM {{connections}}
    ), whole AS (
        SELECT min(since) AS t_from, max(until) AS t_to, unix_micros(max(until)) - unix_micros(min(since)) AS us,
               sum(n) AS n
        FROM seen
    )
    SELECT t_from, t_to, {shorter_than(LENGTHS_S, LONGEST_S)} AS bucket_s,
           CASE WHEN n <= {FEW} THEN {at_most(300)} ELSE {at_most(60)} END AS latency_s,
           CAST(CASE WHEN n <= {FEW} THEN {PER_OCTAVE} ELSE {PER_OCTAVE_SHOWN} END AS INT) AS per_octave,
           CASE WHEN n <= {FEW} THEN {at_most(300)} ELSE {at_most(60)} END AS size_s
    FROM whole
    """,
)

SHOWN_ROUTES_QUERY: Final = Query(
    "shown_routes",
    ("interactions", "routes"),
    f"""
    SELECT route_id, route, CASE WHEN place <= {SHOWN_ROUTES} THEN route ELSE '{OTHER_ROUTES}' END AS shown
    FROM (
        SELECT counted.route_id, route, row_number() OVER (ORDER BY n DESC, route, counted.route_id) AS place
        FROM (
            SELECT route_id, count(*) AS n FROM {{interactions}} WHERE route_id IS NOT NULL GROUP BY route_id
        ) AS counted JOIN {{routes}} AS routes ON counted.route_id = routes.route_id
    ) AS ranked
    """,
)

# A client's port says nothing, unless there are few of them: of many peers only the host is kept.
SHOWN_PEERS_QUERY: Final = Query(
    "shown_peers",
    ("connections", "frames", "interactions"),
    f"""
    WITH known AS (
        SELECT capture_id, conn_id, max(peer) AS peer FROM (
            SELECT capture_id, conn_id, peer FROM {{connections}}
            UNION ALL SELECT capture_id, conn_id, peer FROM {{frames}} WHERE seq = 0
        ) AS said GROUP BY capture_id, conn_id
    ), counted AS (
        SELECT known.capture_id, known.conn_id, coalesce(n, 0) AS n,
               CASE WHEN (SELECT count(DISTINCT peer) FROM known) <= {SHOWN_PEERS} THEN peer
                    ELSE regexp_replace(peer, ':[0-9]+$$', '') END AS address
        FROM known LEFT JOIN (
            SELECT capture_id, conn_id, count(*) AS n FROM {{interactions}} GROUP BY capture_id, conn_id
        ) AS begun ON begun.capture_id = known.capture_id AND begun.conn_id = known.conn_id
    ), ranked AS (
        SELECT address, row_number() OVER (ORDER BY sum(n) DESC, address) AS place FROM counted GROUP BY address
    )
    SELECT capture_id, conn_id, CASE WHEN place <= {SHOWN_PEERS} THEN counted.address ELSE '{OTHER_PEERS}' END AS peer
    FROM counted JOIN ranked ON counted.address = ranked.address
    """,
)

# A load is steady if it lasts some cells, or for most of the capture: its first and its last cell then cover the time
# that belongs to its own requests, each up to the next one. Otherwise they cover what the capture covers. It begins
# behind the pause that follows the first requests of clients that try the server before.
CELLS: Final = Query(
    "cells",
    ("interactions", "capture_span"),
    f"""
    WITH placed AS (
        SELECT role, cell, count(*) AS n, min(begun) AS since, max(begun) AS until
        FROM (
            SELECT role, unix_micros(t_start) AS begun, {cell_of("t_start")} AS cell
            FROM {{interactions}} CROSS JOIN {{capture_span}} AS span
        ) AS all_of_them GROUP BY role, cell
    ), whole AS (
        SELECT role, min(since) AS first_us,
               (max(until) - min(since)) / CAST(nullif(sum(n) - 1, 0) AS DOUBLE) AS gap
        FROM placed GROUP BY role
    ), early AS (
        SELECT role, begun, cell, gap, row_number() OVER in_order AS place, lead(begun) OVER in_order AS next_us
        FROM (
            SELECT these.role, unix_micros(t_start) AS begun, {cell_of("t_start")} AS cell, gap
            FROM {{interactions}} AS these CROSS JOIN {{capture_span}} AS span JOIN whole ON these.role = whole.role
            WHERE unix_micros(t_start) < whole.first_us + bucket_s * 2000000
        ) AS of_two_cells WINDOW in_order AS (PARTITION BY role ORDER BY begun)
    ), begins AS (
        SELECT role, max(next_us) AS begin_us
        FROM early WHERE place <= {TRIALS} AND next_us - begun > greatest(5 * gap, {TRIAL_GAP_US}) GROUP BY role
    ), trials AS (
        SELECT early.role, cell, max(begin_us) AS begin_us, count(*) AS tries
        FROM early JOIN begins ON early.role = begins.role WHERE begun < begin_us GROUP BY early.role, cell
    ), counted AS (
        SELECT placed.role, placed.cell, n, n - coalesce(tries, 0) AS own,
               CASE WHEN tries = n THEN NULL ELSE coalesce(begin_us, since) END AS since, until
        FROM placed LEFT JOIN trials ON placed.role = trials.role AND placed.cell = trials.cell
    ), spread AS (
        SELECT *, min(since) OVER (PARTITION BY role) AS first_us, max(until) OVER (PARTITION BY role) AS last_us,
               CAST(sum(own) OVER (PARTITION BY role) AS BIGINT) AS total,
               lead(since) OVER (PARTITION BY role ORDER BY cell) AS next_us
        FROM counted
    ), timed AS (
        SELECT *, cell + bucket_s * 1000000 AS until_cell, unix_micros(t_from) AS from_us, unix_micros(t_to) AS to_us,
               coalesce((last_us - first_us) / CAST(nullif(total - 1, 0) AS DOUBLE), 0) AS gap,
               coalesce((until - since) / CAST(nullif(own - 1, 0) AS DOUBLE), 0) AS own_gap,
               total > 1 AND ((last_us - first_us) * CAST(total AS DOUBLE)
                              >= (bucket_s * 2000000 - 1000) * CAST(total - 1 AS DOUBLE)
                              OR (last_us - first_us) * 2 >= unix_micros(t_to) - unix_micros(t_from)) AS steady
        FROM spread CROSS JOIN {{capture_span}} AS span
    ), covered AS (
        SELECT role, cell, until_cell, n,
               CASE WHEN NOT steady OR since IS NULL THEN greatest(cell, from_us)
                    WHEN since = first_us OR (until = last_us AND since - cell <= 2 * gap) THEN since - (n - own) * gap
                    ELSE cell END AS covered_from,
               CASE WHEN NOT steady OR since IS NULL THEN least(until_cell, to_us)
                    WHEN until = last_us
                    THEN least(until + greatest(gap, own_gap), greatest(until_cell, until + gap))
                    WHEN since = first_us AND next_us - until_cell <= 2 * gap THEN next_us
                    ELSE until_cell END AS covered_to
        FROM timed
    )
    SELECT role, timestamp_micros(cell) AS t_from, timestamp_micros(until_cell) AS t_to,
           greatest(covered_to - covered_from, 1) / CAST(1000000 AS DOUBLE) AS covered_s, n AS requests
    FROM covered
    """,
)

RED_COUNTS: Final = """
    count(*) AS requests, count(CASE WHEN outcome NOT IN ('complete', 'cancel') THEN 1 END) AS errors,
    count(CASE WHEN outcome = 'cancel' THEN 1 END) AS cancels
"""

REQUEST_CELLS: Final = Query(
    "request_cells",
    ("interactions", "capture_span"),
    f"""
    SELECT timestamp_micros(cell) AS t_from, role, route_id, interaction, metric, bucket, count(*) AS n,
           count(CASE WHEN outcome NOT IN ('complete', 'cancel') THEN 1 END) AS errors,
           count(CASE WHEN outcome = 'cancel' THEN 1 END) AS cancels
    FROM (
        SELECT {cell_of("t_start")} AS cell, role, route_id, interaction, outcome, metric,
               CAST(floor(log2(greatest(CASE metric WHEN 'first' THEN first_us ELSE total_us END, 1)) * {PER_OCTAVE}
                          + 1e-9) AS INT) AS bucket
        FROM {{interactions}} CROSS JOIN {{capture_span}} AS span
        CROSS JOIN (VALUES ('first'), ('total')) AS metrics(metric)
        WHERE metric = 'total' OR first_us IS NOT NULL
    ) AS measured
    GROUP BY cell, role, route_id, interaction, metric, bucket
    """,
)

RED: Final = Query(
    "red",
    ("request_cells", "cells", "routes"),
    f"""
    WITH ranked AS (
        SELECT *,
               sum(n) OVER (PARTITION BY t_from, role, route_id, interaction, metric ORDER BY bucket) AS upto,
               sum(n) OVER (PARTITION BY t_from, role, route_id, interaction, metric) AS total
        FROM {{request_cells}}
    ), counted AS (
        SELECT t_from, role, route_id, interaction,
               CAST(sum(CASE WHEN metric = 'total' THEN n ELSE 0 END) AS BIGINT) AS requests,
               CAST(sum(CASE WHEN metric = 'total' THEN errors ELSE 0 END) AS BIGINT) AS errors,
               CAST(sum(CASE WHEN metric = 'total' THEN cancels ELSE 0 END) AS BIGINT) AS cancels,
               {percentile(500, where="metric = 'first'")} AS first_p50_us,
               {percentile(950, where="metric = 'first'")} AS first_p95_us,
               {percentile(990, where="metric = 'first'")} AS first_p99_us,
               {percentile(999, where="metric = 'first'")} AS first_p999_us,
               {percentile(500, where="metric = 'total'")} AS total_p50_us,
               {percentile(950, where="metric = 'total'")} AS total_p95_us,
               {percentile(990, where="metric = 'total'")} AS total_p99_us,
               {percentile(999, where="metric = 'total'")} AS total_p999_us
        FROM ranked
        GROUP BY t_from, role, route_id, interaction
    )
    SELECT counted.t_from, cells.t_to, covered_s, counted.role, route, interaction, counted.requests,
           counted.requests / covered_s AS per_second,
           errors, CAST(errors AS DOUBLE) / counted.requests AS error_share, cancels,
           first_p50_us, first_p95_us, first_p99_us, first_p999_us,
           total_p50_us, total_p95_us, total_p99_us, total_p999_us
    FROM counted JOIN {{cells}} AS cells ON counted.t_from = cells.t_from AND counted.role = cells.role
    LEFT JOIN {{routes}} AS routes ON counted.route_id = routes.route_id
    """,
)

LATENCY_HEATMAP: Final = Query(
    "latency_heatmap",
    ("request_cells", "cells", "routes"),
    f"""
    SELECT coarse.t_from, cells.t_to, coarse.role, route, metric, bucket,
           pow(2, bucket / CAST({PER_OCTAVE_SHOWN} AS DOUBLE)) AS from_us,
           pow(2, (bucket + 1) / CAST({PER_OCTAVE_SHOWN} AS DOUBLE)) AS to_us, n
    FROM (
        SELECT t_from, role, route_id, metric,
               CAST(floor(bucket / CAST({PER_OCTAVE // PER_OCTAVE_SHOWN} AS DOUBLE)) AS INT) AS bucket,
               CAST(sum(n) AS BIGINT) AS n
        FROM {{request_cells}}
        GROUP BY t_from, role, route_id, metric,
                 CAST(floor(bucket / CAST({PER_OCTAVE // PER_OCTAVE_SHOWN} AS DOUBLE)) AS INT)
    ) AS coarse JOIN {{cells}} AS cells ON coarse.t_from = cells.t_from AND coarse.role = cells.role
    LEFT JOIN {{routes}} AS routes ON coarse.route_id = routes.route_id
    """,
)

RATE_CELLS: Final = Query(
    "rate_cells",
    ("interactions", "capture_span", "cells", "shown_routes", "shown_peers"),
    f"""
    SELECT cells.t_from, counted.role, route, interaction, peer, counted.requests, errors, cancels,
           counted.requests / covered_s AS per_second, stalled, stalls, stall_us, credit_us
    FROM (
        SELECT timestamp_micros(cell) AS t_from, role, route, interaction, peer, {RED_COUNTS},
               count(CASE WHEN stalls > 0 THEN 1 END) AS stalled, CAST(coalesce(sum(stalls), 0) AS BIGINT) AS stalls,
               CAST(coalesce(sum(stall_us), 0) AS BIGINT) AS stall_us,
               CAST(sum(CASE WHEN requested_n IS NOT NULL THEN total_us ELSE 0 END) AS BIGINT) AS credit_us
        FROM (
            SELECT {cell_of("t_start")} AS cell, role, {SHOWN_ROUTE} AS route, interaction, shown_peers.peer,
                   outcome, stalls, stall_us, requested_n, total_us
            FROM {{interactions}} AS these CROSS JOIN {{capture_span}} AS span {SHOWN}
        ) AS placed GROUP BY cell, role, route, interaction, peer
    ) AS counted JOIN {{cells}} AS cells ON counted.t_from = cells.t_from AND counted.role = cells.role
    """,
)

LATENCY_CELLS: Final = Query(
    "latency_cells",
    ("interactions", "capture_span", "shown_routes", "shown_peers"),
    f"""
    SELECT timestamp_micros(cell) AS t_from, role, route, interaction, peer, metric, bucket, count(*) AS n
    FROM (
        SELECT {cell_of("t_start", "latency_s")} AS cell, role, {SHOWN_ROUTE} AS route, interaction,
               shown_peers.peer, metric,
               CAST(floor(log2(greatest(CASE metric WHEN 'first' THEN first_us ELSE total_us END, 1)) * per_octave
                          + 1e-9) AS INT) AS bucket
        FROM {{interactions}} AS these CROSS JOIN {{capture_span}} AS span
        CROSS JOIN (VALUES ('first'), ('total')) AS metrics(metric) {SHOWN}
        WHERE metric = 'total' OR first_us IS NOT NULL
    ) AS measured
    GROUP BY cell, role, route, interaction, peer, metric, bucket
    """,
)

ERROR_CELLS: Final = Query(
    "error_cells",
    ("frames", "capture_span", "shown_routes", "shown_peers"),
    f"""
    SELECT timestamp_micros(cell) AS t_from, side, dir, level, error_code, $errors AS error_name, route, peer,
           count(*) AS n
    FROM (
        SELECT {cell_of("ts")} AS cell, side, dir, {ERROR_LEVEL} AS level, error_code, {SHOWN_ROUTE} AS route,
               shown_peers.peer
        FROM (
            SELECT capture_id, conn_id, ts, side, dir, stream_id, error_code, route_id
            FROM {{frames}} WHERE error_code IS NOT NULL
        ) AS these CROSS JOIN {{capture_span}} AS span {SHOWN}
    ) AS placed
    GROUP BY cell, side, dir, level, error_code, route, peer
    """,
)

SIZE_CELLS: Final = Query(
    "size_cells",
    ("frames", "capture_span", "shown_routes", "shown_peers"),
    f"""
    SELECT timestamp_micros(cell) AS t_from, dir, frame_name, {SHOWN_ROUTE} AS route, peer, bucket,
           CAST(sum(n) AS BIGINT) AS n, CAST(sum(bytes) AS BIGINT) AS bytes,
           CAST(sum(overhead_bytes) AS BIGINT) AS overhead_bytes
    FROM (
        SELECT capture_id, conn_id, {cell_of("ts", "size_s")} AS cell, dir, frame_name, route_id,
               {SIZE_BUCKET} AS bucket, count(*) AS n, CAST(sum(frame_bytes) AS BIGINT) AS bytes,
               CAST(sum(frame_bytes - coalesce(data_bytes, 0) - coalesce(metadata_bytes, 0)) AS BIGINT)
               AS overhead_bytes
        FROM {{frames}} CROSS JOIN {{capture_span}} AS span
        GROUP BY capture_id, conn_id, {cell_of("ts", "size_s")}, dir, frame_name, route_id, {SIZE_BUCKET}
    ) AS these {SHOWN}
    GROUP BY cell, dir, frame_name, {SHOWN_ROUTE}, peer, bucket
    """,
)

TRAFFIC_CELLS: Final = Query(
    "traffic_cells",
    ("connection_seconds", "capture_span", "shown_routes", "shown_peers"),
    f"""
    WITH busiest AS (
        SELECT capture_id, conn_id FROM (
            SELECT capture_id, conn_id, row_number() OVER (ORDER BY sum(frames) DESC, capture_id, conn_id) AS place
            FROM {{connection_seconds}} GROUP BY capture_id, conn_id
        ) AS ranked WHERE place <= {SHOWN_CONNECTIONS}
    )
    SELECT timestamp_micros(cell) AS t_from, route, peer, conn_id, CAST(sum(frames) AS BIGINT) AS frames,
           CAST(sum(bytes) AS BIGINT) AS bytes
    FROM (
        SELECT {cell_of("these.second", "size_s")} AS cell, {SHOWN_ROUTE} AS route, shown_peers.peer,
               busiest.conn_id, frames, bytes
        FROM {{connection_seconds}} AS these CROSS JOIN {{capture_span}} AS span {SHOWN}
        LEFT JOIN busiest ON these.capture_id = busiest.capture_id AND these.conn_id = busiest.conn_id
    ) AS placed
    GROUP BY cell, route, peer, conn_id
    """,
)

STARVED_PAIRS: Final = Query(
    "starved_pairs",
    ("starved", "stalled_streams", "shown_routes", "shown_peers"),
    """
    SELECT starved.capture_id, starved.conn_id, starved.stream_id, starved.role, starved.route,
           CASE WHEN these.route_id IS NOT NULL THEN shown_routes.shown END AS shown_route, shown_peers.peer,
           these.t_start, these.t_end, these.total_us, starved.stall_us, by_route, bytes, share
    FROM {starved} AS starved JOIN {stalled_streams} AS these
      ON starved.capture_id = these.capture_id AND starved.conn_id = these.conn_id
     AND starved.stream_id = these.stream_id AND starved.role = these.role
    LEFT JOIN {shown_routes} AS shown_routes ON these.route_id = shown_routes.route_id
    LEFT JOIN {shown_peers} AS shown_peers
      ON these.capture_id = shown_peers.capture_id AND these.conn_id = shown_peers.conn_id
    """,
)

CONNECTION_ROUTES: Final = Query(
    "connection_routes",
    ("interactions", "shown_routes", "shown_peers"),
    f"""
    SELECT capture_id, conn_id, route, peer, CAST(sum(n) AS BIGINT) AS streams
    FROM (
        SELECT these.capture_id, these.conn_id, {SHOWN_ROUTE} AS route, shown_peers.peer, n
        FROM (
            SELECT capture_id, conn_id, route_id, count(*) AS n FROM {{interactions}}
            GROUP BY capture_id, conn_id, route_id
        ) AS these {SHOWN}
    ) AS placed GROUP BY capture_id, conn_id, route, peer
    """,
)


def capture_span(frames: DataFrame, interactions: DataFrame, connections: DataFrame) -> DataFrame:
    """Return one row: first and last instant of a capture, and the seconds of the cells of time that fit its length.

    ``frames``, ``interactions`` and ``connections`` are the tables of the capture.
    """
    return SPAN(frames, interactions, connections)


def cells(interactions: DataFrame, span: DataFrame | None = None) -> DataFrame:
    """Return each cell of time in which ``interactions`` began, by role, and how many seconds of it are covered.

    ``span`` is the result of ``capture_span``; by default it is that of the interactions alone.
    """
    return CELLS(interactions, _span_of(interactions) if span is None else span)


def red(interactions: DataFrame, span: DataFrame | None = None) -> DataFrame:
    """Return rate, errors and duration in ``interactions`` of each route in each cell of time; percentiles in us, right
    within 2.2 %.

    ``span`` is the result of ``capture_span``; by default it is that of the interactions alone. Rates are those of the
    part of the cell that the capture covers.
    """
    chosen = _span_of(interactions) if span is None else span
    return RED(REQUEST_CELLS(interactions, chosen), CELLS(interactions, chosen), ROUTES(interactions))


def latency_heatmap(interactions: DataFrame, span: DataFrame | None = None) -> DataFrame:
    """Return the requests in ``interactions`` by cell of time, route and latency bucket, four buckets to the octave.

    ``span`` is the result of ``capture_span``; by default it is that of the interactions alone.
    """
    chosen = _span_of(interactions) if span is None else span
    return LATENCY_HEATMAP(REQUEST_CELLS(interactions, chosen), CELLS(interactions, chosen), ROUTES(interactions))


def _span_of(interactions: DataFrame) -> DataFrame:
    return SPAN(interactions.selectExpr("t_start AS ts"), interactions, interactions)


QUERIES: Final = (
    *(SPAN, SHOWN_ROUTES_QUERY, SHOWN_PEERS_QUERY, CELLS, REQUEST_CELLS, RED, LATENCY_HEATMAP),
    *(RATE_CELLS, LATENCY_CELLS, ERROR_CELLS, SIZE_CELLS, TRAFFIC_CELLS, STARVED_PAIRS, CONNECTION_ROUTES),
)
