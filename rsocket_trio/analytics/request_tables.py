"""Tables about requests: latency, cancellation, credit stalls, leases, client against server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rsocket_trio.analytics.sql import (
    ROUTES,
    SHOWN,
    SHOWN_ROUTE,
    TOP,
    Query,
    bucket_of,
    cell_of,
    percentile,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOW: Final = 400
"""Slow requests that are listed at most: the slowest of each route, interaction and peer, then those of each time."""
SLOW_AT_A_TIME: Final = 2
"""Slow requests of each route and interaction that are listed of each cell of time."""
SLOW_FRAMES: Final = 60
"""Frames of each of them that are listed, and its last one."""
NEAR: Final = 20_000
"""Frames of a connection, from the beginning of a stream, that are searched for these: a stream may have millions."""
SALTS: Final = 16
"""Parts in which the streams of one route are ranked first, so that a hot route does not fill a single task."""

LATENCY_HISTOGRAM: Final = Query(
    "latency_histogram",
    ("interactions",),
    f"""
    SELECT $minute_of_t_end AS minute, role, route_id, interaction, metric, {bucket_of("us")} AS bucket,
           count(*) AS n,
           count(CASE WHEN outcome NOT IN ('complete', 'cancel') THEN 1 END) AS errors,
           count(CASE WHEN outcome = 'cancel' THEN 1 END) AS cancels
    FROM (
        SELECT t_end, role, route_id, interaction, outcome, metric,
               CASE metric WHEN 'first' THEN first_us ELSE total_us END AS us
        FROM {{interactions}} CROSS JOIN (VALUES ('first'), ('total')) AS metrics(metric)
    ) AS measured
    WHERE us IS NOT NULL
    GROUP BY $by_minute_of_t_end, role, route_id, interaction, metric, {bucket_of("us")}
    """,
    streams=True,
)

ROUTE_LATENCY: Final = Query(
    "route_latency",
    ("latency_histogram", "routes"),
    f"""
    WITH merged AS (
        SELECT role, route_id, interaction, metric, bucket,
               CAST(sum(n) AS BIGINT) AS n, CAST(sum(errors) AS BIGINT) AS errors,
               CAST(sum(cancels) AS BIGINT) AS cancels
        FROM {{latency_histogram}} GROUP BY role, route_id, interaction, metric, bucket
    ), ranked AS (
        SELECT *,
               sum(n) OVER (PARTITION BY role, route_id, interaction, metric ORDER BY bucket) AS upto,
               sum(n) OVER (PARTITION BY role, route_id, interaction, metric) AS total
        FROM merged
    ), counted AS (
        SELECT role, route_id, interaction, metric, CAST(sum(n) AS BIGINT) AS n, CAST(sum(errors) AS BIGINT) AS errors,
               CAST(sum(cancels) AS BIGINT) AS cancels,
               {percentile(500, where="true")} AS p50_us,
               {percentile(950, where="true")} AS p95_us,
               {percentile(990, where="true")} AS p99_us,
               {percentile(999, where="true")} AS p999_us
        FROM ranked GROUP BY role, route_id, interaction, metric
    )
    SELECT role, route, interaction, metric, n, errors, cancels, p50_us, p95_us, p99_us, p999_us
    FROM counted LEFT JOIN {{routes}} AS routes ON counted.route_id = routes.route_id
    """,
)

CREDIT_STALLS: Final = Query(
    "credit_stalls",
    ("interactions", "routes"),
    """
    SELECT role, route, interaction, requests, stalled, stalls, stall_us, total_us,
           stall_us / nullif(CAST(total_us AS DOUBLE), 0) AS stall_share, longest_us
    FROM (
        SELECT role, route_id, interaction, count(*) AS requests, count(CASE WHEN stalls > 0 THEN 1 END) AS stalled,
               CAST(sum(stalls) AS BIGINT) AS stalls, CAST(sum(stall_us) AS BIGINT) AS stall_us,
               CAST(sum(total_us) AS BIGINT) AS total_us, max(stall_us) AS longest_us
        FROM {interactions}
        WHERE requested_n IS NOT NULL
        GROUP BY role, route_id, interaction
    ) AS counted LEFT JOIN {routes} AS routes ON counted.route_id = routes.route_id
    """,
)

STALLED_STREAMS: Final = Query(
    "stalled_streams",
    ("interactions",),
    f"""
    WITH salted AS (
        SELECT *, row_number() OVER (
            PARTITION BY role, route_id, stream_id % {2 * SALTS}
            ORDER BY stall_us DESC, capture_id, conn_id, stream_id
        ) AS part_rank
        FROM (
            SELECT capture_id, conn_id, stream_id, role, route_id, route, t_start, t_end, total_us, stall_us, stalls,
                   n_in, n_out
            FROM {{interactions}} WHERE stall_us > 0
        ) AS stalled
    ), ranked AS (
        SELECT *, row_number() OVER (
            PARTITION BY role, route_id ORDER BY stall_us DESC, capture_id, conn_id, stream_id
        ) AS route_rank
        FROM salted WHERE part_rank <= {TOP}
    )
    SELECT capture_id, conn_id, stream_id, role, route_id, route, route_rank, t_start, t_end, total_us, stall_us,
           stalls, stall_us / nullif(CAST(total_us AS DOUBLE), 0) AS stall_share, n_in, n_out
    FROM ranked WHERE route_rank <= {TOP}
    """,
)

STARVED: Final = Query(
    "starved",
    ("stalled_streams", "connection_seconds", "routes"),
    """
    WITH meanwhile AS (
        SELECT stalled.capture_id, stalled.conn_id, stalled.stream_id, stalled.role, stalled.route, stalled.stall_us,
               seconds.route_id AS by_id, CAST(sum(seconds.bytes) AS BIGINT) AS bytes
        FROM {stalled_streams} AS stalled JOIN {connection_seconds} AS seconds
          ON seconds.capture_id = stalled.capture_id AND seconds.conn_id = stalled.conn_id
         AND unix_seconds(seconds.second) >= unix_seconds(stalled.t_start) AND seconds.second <= stalled.t_end
        WHERE seconds.route_id IS NOT NULL
        GROUP BY stalled.capture_id, stalled.conn_id, stalled.stream_id, stalled.role, stalled.route, stalled.stall_us,
                 seconds.route_id
    )
    SELECT capture_id, conn_id, stream_id, role, meanwhile.route, stall_us, routes.route AS by_route, bytes,
           bytes / CAST(sum(bytes) OVER (PARTITION BY capture_id, conn_id, stream_id) AS DOUBLE) AS share
    FROM meanwhile LEFT JOIN {routes} AS routes ON meanwhile.by_id = routes.route_id
    """,
)

# A page that is filtered by route, peer or time needs the slowest of these. The tenth slowest lies in the bucket where
# the sum from above reaches ten: only what is not below that is put in order.
SLOW_STREAMS: Final = Query(
    "slow_streams",
    ("interactions", "latency_cells", "capture_span", "shown_routes", "shown_peers"),
    f"""
    WITH counted AS (
        SELECT t_from, role, coalesce(route, '') AS route, interaction, coalesce(peer, '') AS peer, bucket, n
        FROM {{latency_cells}} WHERE metric = 'total'
    ), of_peers AS (
        SELECT role, route, interaction, peer, min(bucket) AS least FROM (
            SELECT role, route, interaction, peer, bucket, sum(sum(n)) OVER (
                PARTITION BY role, route, interaction, peer ORDER BY bucket DESC
            ) - sum(n) AS above
            FROM counted GROUP BY role, route, interaction, peer, bucket
        ) AS downwards WHERE above < {TOP} GROUP BY role, route, interaction, peer
    ), of_times AS (
        SELECT t_from, role, route, interaction, min(bucket) AS least FROM (
            SELECT t_from, role, route, interaction, bucket, sum(sum(n)) OVER (
                PARTITION BY t_from, role, route, interaction ORDER BY bucket DESC
            ) - sum(n) AS above
            FROM counted GROUP BY t_from, role, route, interaction, bucket
        ) AS downwards WHERE above < {SLOW_AT_A_TIME} GROUP BY t_from, role, route, interaction
    ), bounds AS (
        SELECT unix_micros(joined.t_from) AS cell, role, route, interaction, peer,
               CAST(floor(pow(2, least / CAST(per_octave AS DOUBLE))) AS BIGINT) - 1 AS us, latency_s
        FROM (
            SELECT of_times.t_from, of_peers.role, of_peers.route, of_peers.interaction, peer,
                   least(of_peers.least, of_times.least) AS least
            FROM of_peers JOIN of_times ON of_peers.role = of_times.role AND of_peers.route = of_times.route
             AND of_peers.interaction = of_times.interaction
        ) AS joined CROSS JOIN {{capture_span}} AS span
    ), slow AS (
        SELECT these.*, shown_peers.peer, {SHOWN_ROUTE} AS shown_route, {cell_of("these.t_start", "latency_s")} AS cell
        FROM {{interactions}} AS these CROSS JOIN {{capture_span}} AS span {SHOWN}
        WHERE total_us >= (SELECT min(us) FROM bounds)
    ), ranked AS (
        SELECT slow.*, row_number() OVER (
                   PARTITION BY slow.role, slow.shown_route, slow.interaction, slow.peer
                   ORDER BY total_us DESC, t_start, capture_id, conn_id, stream_id
               ) AS of_peer, row_number() OVER (
                   PARTITION BY slow.cell, slow.role, slow.shown_route, slow.interaction
                   ORDER BY total_us DESC, t_start, capture_id, conn_id, stream_id
               ) AS of_time
        FROM slow JOIN bounds ON slow.cell = bounds.cell AND slow.role = bounds.role
         AND coalesce(slow.shown_route, '') = bounds.route AND slow.interaction = bounds.interaction
         AND coalesce(slow.peer, '') = bounds.peer
        WHERE total_us >= us
    ), chosen AS (
        SELECT *, row_number() OVER (
                   ORDER BY CASE WHEN of_peer <= {TOP} THEN of_peer ELSE {TOP} + of_time END, total_us DESC, t_start,
                            capture_id, conn_id, stream_id, role
               ) AS turn
        FROM ranked WHERE of_peer <= {TOP} OR of_time <= {SLOW_AT_A_TIME}
    )
    SELECT row_number() OVER (ORDER BY total_us DESC, t_start, capture_id, conn_id, stream_id, role) AS place,
           capture_id, conn_id, stream_id, role, route, shown_route, interaction, peer, t_start, total_us, first_us,
           stall_us, stalls, outcome, error_code, n_in, n_out, bytes_in, bytes_out
    FROM chosen WHERE turn <= {SLOW}
    """,
)

THEIR_FRAMES: Final = """
    {slow_streams} AS slow
      ON frames.capture_id = slow.capture_id AND frames.conn_id = slow.conn_id AND frames.stream_id = slow.stream_id
"""

SLOW_MARKS: Final = Query(
    "slow_marks",
    ("frames", "slow_streams"),
    f"""
    SELECT place, min(seq) AS first_seq, max(seq) AS last_seq, min(mono_ns) AS first_ns,
           min(CASE WHEN asks AND fragments > 0 THEN mono_ns END) AS sent_ns,
           max(CASE WHEN NOT asks AND fragments > 0 THEN mono_ns END) AS item_ns,
           max(CASE WHEN asks AND fragments > 0 THEN seq ELSE -1 END) AS asked_seq
    FROM (
        SELECT place, seq, mono_ns, fragments, (dir = 'out') = (role = 'requester') AS asks
        FROM {{frames}} AS frames JOIN {THEIR_FRAMES} WHERE frames.stream_id > 0
    ) AS told GROUP BY place
    """,
)

SLOW_FRAMES_QUERY: Final = Query(
    "slow_frames",
    ("frames", "slow_streams", "slow_marks"),
    f"""
    SELECT place, capture_id, conn_id, stream_id, seq, at_us, dir, frame_name, frame_bytes, request_n, credit_after,
           is_item, trace_id
    FROM (
        SELECT slow.place, frames.capture_id, frames.conn_id, frames.stream_id, seq,
               (mono_ns - first_ns) $div 1000 AS at_us, dir, frame_name, frame_bytes, request_n, credit_after,
               coalesce(fragments, 0) > 0 AS is_item, lower(hex(trace_id)) AS trace_id, last_seq,
               row_number() OVER (PARTITION BY slow.place ORDER BY seq) AS nth
        FROM {{frames}} AS frames JOIN {THEIR_FRAMES} JOIN {{slow_marks}} AS marks ON slow.place = marks.place
        WHERE frames.stream_id > 0 AND (seq < first_seq + {NEAR} OR seq = last_seq)
    ) AS told WHERE nth <= {SLOW_FRAMES} OR seq = last_seq
    """,
)

SLOW_REQUESTS: Final = Query(
    "slow_requests",
    ("slow_streams", "slow_marks", "slow_frames"),
    """
    SELECT slow.place, slow.capture_id, slow.conn_id, slow.stream_id, role, route, shown_route, interaction, peer,
           t_start, total_us, (sent_ns - first_ns) $div 1000 AS sent_us, first_us,
           (item_ns - first_ns) $div 1000 AS last_item_us, stall_us, stalls, outcome, error_code, trace_id, n_in,
           n_out, bytes_in, bytes_out
    FROM {slow_streams} AS slow LEFT JOIN {slow_marks} AS marks ON slow.place = marks.place
    LEFT JOIN (
        SELECT place, max(trace_id) AS trace_id FROM {slow_frames} WHERE trace_id IS NOT NULL GROUP BY place
    ) AS traced ON slow.place = traced.place
    """,
)


CANCELLATIONS: Final = Query(
    "cancellations",
    ("latency_histogram", "routes"),
    f"""
    WITH merged AS (
        SELECT role, route_id, interaction, bucket, CAST(sum(n) AS BIGINT) AS n,
               CAST(sum(cancels) AS BIGINT) AS cancels
        FROM {{latency_histogram}} WHERE metric = 'total' GROUP BY role, route_id, interaction, bucket
    ), ranked AS (
        SELECT *,
               sum(cancels) OVER (PARTITION BY role, route_id, interaction ORDER BY bucket) AS upto,
               sum(cancels) OVER (PARTITION BY role, route_id, interaction) AS total
        FROM merged
    ), counted AS (
        SELECT role, route_id, interaction, CAST(sum(n) AS BIGINT) AS requests, CAST(sum(cancels) AS BIGINT) AS cancels,
               {percentile(500, where="total > 0")} AS cancel_p50_us,
               {percentile(990, where="total > 0")} AS cancel_p99_us
        FROM ranked GROUP BY role, route_id, interaction
    )
    SELECT role, route, interaction, requests, cancels, CAST(cancels AS DOUBLE) / requests AS cancel_share,
           cancel_p50_us, cancel_p99_us
    FROM counted LEFT JOIN {{routes}} AS routes ON counted.route_id = routes.route_id
    """,
)

LEASES: Final = Query(
    "leases",
    ("connections", "interactions"),
    """
    SELECT connections.capture_id, connections.conn_id, side, peer, lease_grants, lease_granted, lease_used,
           lease_expired, coalesce(denied, 0) AS lease_denied,
           lease_used / nullif(CAST(lease_granted AS DOUBLE), 0) AS used_share
    FROM {connections} AS connections LEFT JOIN (
        SELECT capture_id, conn_id, count(*) AS denied FROM {interactions} WHERE outcome = 'lease_denied'
        GROUP BY capture_id, conn_id
    ) AS denials ON connections.capture_id = denials.capture_id AND connections.conn_id = denials.conn_id
    WHERE lease OR lease_grants > 0 OR denied > 0
    """,
)

CLIENT_SERVER_STREAMS: Final = Query(
    "client_server_streams",
    ("requesters", "responders"),
    """
    SELECT ours.session_id, ours.stream_id, ours.route_id, ours.interaction, ours.t_start,
           ours.total_us AS client_us, theirs.total_us AS service_us,
           ours.total_us - theirs.total_us AS network_us,
           ours.first_us - theirs.first_us AS network_first_us,
           (unix_micros(theirs.t_start) - unix_micros(ours.t_start)
            + unix_micros(theirs.t_end) - unix_micros(ours.t_end)) $div 2 AS skew_us,
           ours.outcome AS client_outcome, theirs.outcome AS server_outcome
    FROM {requesters} AS ours JOIN {responders} AS theirs
      ON ours.session_id = theirs.session_id AND ours.stream_id = theirs.stream_id
    WHERE ours.role = 'requester' AND theirs.role = 'responder'
    """,
)

CLIENT_SERVER: Final = Query(
    "client_server",
    ("client_server_streams", "routes"),
    f"""
    WITH merged AS (
        SELECT route_id, interaction, metric, {bucket_of("us")} AS bucket, count(*) AS n,
               count(CASE WHEN client_outcome <> server_outcome THEN 1 END) AS disagree,
               CAST(sum(skew_us) AS BIGINT) AS skew_us
        FROM (
            SELECT route_id, interaction, metric, client_outcome, server_outcome, skew_us,
                   CASE metric WHEN 'client' THEN client_us WHEN 'service' THEN service_us ELSE network_us END AS us
            FROM {{client_server_streams}} CROSS JOIN (VALUES ('client'), ('service'), ('network')) AS metrics(metric)
        ) AS measured
        GROUP BY route_id, interaction, metric, {bucket_of("us")}
    ), ranked AS (
        SELECT *, sum(n) OVER (PARTITION BY route_id, interaction, metric ORDER BY bucket) AS upto,
               sum(n) OVER (PARTITION BY route_id, interaction, metric) AS total
        FROM merged
    ), counted AS (
        SELECT route_id, interaction, CAST(sum(CASE WHEN metric = 'client' THEN n ELSE 0 END) AS BIGINT) AS streams,
               CAST(sum(CASE WHEN metric = 'client' THEN disagree ELSE 0 END) AS BIGINT) AS outcomes_differ,
               CAST(sum(CASE WHEN metric = 'client' THEN skew_us ELSE 0 END) AS DOUBLE) AS skew_sum,
               {percentile(500, where="metric = 'client'")} AS client_p50_us,
               {percentile(990, where="metric = 'client'")} AS client_p99_us,
               {percentile(500, where="metric = 'service'")} AS service_p50_us,
               {percentile(990, where="metric = 'service'")} AS service_p99_us,
               {percentile(500, where="metric = 'network'")} AS network_p50_us,
               {percentile(990, where="metric = 'network'")} AS network_p99_us
        FROM ranked GROUP BY route_id, interaction
    )
    SELECT route, interaction, streams, outcomes_differ, CAST(floor(skew_sum / streams) AS BIGINT) AS clock_skew_us,
           client_p50_us, client_p99_us, service_p50_us, service_p99_us, network_p50_us, network_p99_us
    FROM counted LEFT JOIN {{routes}} AS routes ON counted.route_id = routes.route_id
    """,
)


def routes(interactions: DataFrame) -> DataFrame:
    """Return the name of each ``route_id`` in ``interactions``."""
    return ROUTES(interactions)


def latency_histogram(interactions: DataFrame) -> DataFrame:
    """Return the requests in ``interactions`` by the minute of their end, role, route and latency bucket; counts can be
    merged.

    ``metric`` is ``first`` (up to the first payload of the answer) or ``total``. Over a stream, ``t_end`` needs a
    watermark.
    """
    return LATENCY_HISTOGRAM(interactions)


def route_latency(interactions: DataFrame) -> DataFrame:
    """Return latency percentiles over all ``interactions``, one row for each route and metric."""
    return ROUTE_LATENCY(latency_histogram(interactions), routes(interactions))


def credit_stalls(interactions: DataFrame) -> DataFrame:
    """Return the share of time that the responders of each route waited for credit, from those ``interactions`` that
    have credit.
    """
    return CREDIT_STALLS(interactions, routes(interactions))


def stalled_streams(interactions: DataFrame) -> DataFrame:
    """Return the streams of each route in ``interactions`` that waited longest for credit, ten at most."""
    return STALLED_STREAMS(interactions)


def starved(interactions: DataFrame, connection_seconds: DataFrame) -> DataFrame:
    """Return the traffic, by route, of the connection of each stalled stream while that stream waited.

    ``interactions`` is the table; ``connection_seconds`` the result of the function of that name. Traffic is counted by
    whole seconds, so the first and the last second of the stream count fully. The stream's own route is included.
    """
    return STARVED(stalled_streams(interactions), connection_seconds, routes(interactions))


def cancellations(interactions: DataFrame) -> DataFrame:
    """Return, from ``interactions``, the number of cancelled requests of each route, and the time until they were
    cancelled.
    """
    return CANCELLATIONS(latency_histogram(interactions), routes(interactions))


def leases(connections: DataFrame, interactions: DataFrame) -> DataFrame:
    """Return, for each connection with leases, the requests that were granted, used, expired and denied.

    ``connections`` and ``interactions`` are tables of one capture.
    """
    return LEASES(connections, interactions)


def client_server_streams(requesters: DataFrame, responders: DataFrame) -> DataFrame:
    """Return streams that both sides captured, by ``session_id`` and ``stream_id``; durations need no common clock.

    ``requesters`` and ``responders`` are the interactions of the two sides. ``skew_us`` is the lead of the responder's
    clock, on the assumption that both directions take equally long.
    """
    return CLIENT_SERVER_STREAMS(requesters, responders)


def client_server(requesters: DataFrame, responders: DataFrame) -> DataFrame:
    """Return, for each route, the time in the responder and the rest: network, queues, work of the requester.

    ``requesters`` and ``responders`` are the interactions of the two sides.
    """
    return CLIENT_SERVER(client_server_streams(requesters, responders), routes(requesters))


QUERIES: Final = (
    *(ROUTES, LATENCY_HISTOGRAM, ROUTE_LATENCY, CREDIT_STALLS, STALLED_STREAMS),
    *(CANCELLATIONS, LEASES, CLIENT_SERVER_STREAMS, CLIENT_SERVER),
)
