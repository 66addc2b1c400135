"""Tables about requests: latency, cancellation, credit stalls, leases, client against server."""

from __future__ import annotations

from typing import Final

from rsocket_trio.analytics.sql import METRICS, SHOWN, SHOWN_ROUTE, TOP, bucket_of, cell_of, percentiles, ranked

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
COUNTS: Final = "sum(n)::BIGINT AS n, sum(errors)::BIGINT AS errors, sum(cancels)::BIGINT AS cancels"

THEIR_FRAMES: Final = """
    slow_streams AS slow
      ON frames.capture_id = slow.capture_id AND frames.conn_id = slow.conn_id AND frames.stream_id = slow.stream_id
"""

QUERIES: Final = {
    # Counts by the minute of the end. A metric is the time to the first payload of the answer, or the total.
    "latency_histogram": f"""
    SELECT time_bucket(INTERVAL '1 minute', t_end) AS minute, role, route_id, interaction, metric,
           {bucket_of("us")} AS bucket, count(*) AS n,
           count(CASE WHEN outcome NOT IN ('complete', 'cancel') THEN 1 END) AS errors,
           count(CASE WHEN outcome = 'cancel' THEN 1 END) AS cancels
    FROM (
        SELECT t_end, role, route_id, interaction, outcome, metric,
               CASE metric WHEN 'first' THEN first_us ELSE total_us END AS us
        FROM interactions CROSS JOIN {METRICS}
    ) AS measured
    WHERE us IS NOT NULL
    GROUP BY time_bucket(INTERVAL '1 minute', t_end), role, route_id, interaction, metric, {bucket_of("us")}
    """,
    "route_latency": f"""
    WITH merged AS (
        SELECT role, route_id, interaction, metric, bucket, {COUNTS} FROM latency_histogram GROUP BY ALL
    ), ranked AS ({ranked("merged", "role, route_id, interaction, metric")}), counted AS (
        SELECT role, route_id, interaction, metric, {COUNTS}, {percentiles("", "50", "95", "99", "999")}
        FROM ranked GROUP BY role, route_id, interaction, metric
    )
    SELECT role, route, interaction, metric, n, errors, cancels, p50_us, p95_us, p99_us, p999_us
    FROM counted LEFT JOIN routes ON counted.route_id = routes.route_id
    """,
    # Of those that have credit.
    "credit_stalls": """
    SELECT role, route, interaction, requests, stalled, stalls, stall_us, total_us,
           stall_us / nullif(total_us, 0) AS stall_share, longest_us
    FROM (
        SELECT role, route_id, interaction, count(*) AS requests, count(CASE WHEN stalls > 0 THEN 1 END) AS stalled,
               sum(stalls)::BIGINT AS stalls, sum(stall_us)::BIGINT AS stall_us,
               sum(total_us)::BIGINT AS total_us, max(stall_us) AS longest_us
        FROM interactions WHERE requested_n IS NOT NULL GROUP BY role, route_id, interaction
    ) AS counted LEFT JOIN routes ON counted.route_id = routes.route_id
    """,
    "stalled_streams": f"""
    WITH longest AS (
        SELECT * FROM interactions WHERE stall_us > 0 QUALIFY row_number() OVER (
            PARTITION BY role, route_id, stream_id % {2 * SALTS}
            ORDER BY stall_us DESC, capture_id, conn_id, stream_id
        ) <= {TOP}
    )
    SELECT capture_id, conn_id, stream_id, role, route_id, route, row_number() OVER (
               PARTITION BY role, route_id ORDER BY stall_us DESC, capture_id, conn_id, stream_id
           ) AS route_rank, t_start, t_end, total_us, stall_us, stalls,
           stall_us / nullif(total_us, 0) AS stall_share, n_in, n_out
    FROM longest QUALIFY route_rank <= {TOP}
    """,
    # The traffic of the connection of each stalled stream while it waited, its own route included. Traffic is counted
    # by whole seconds, so the first and the last second of the stream count fully.
    "starved": f"""
    WITH meanwhile AS (
        SELECT stalled.capture_id, stalled.conn_id, stalled.stream_id, role, stalled.route_id, route, t_start, t_end,
               total_us, stall_us, seconds.route_id AS by_id, sum(bytes)::BIGINT AS bytes
        FROM stalled_streams AS stalled JOIN connection_seconds AS seconds
          ON seconds.capture_id = stalled.capture_id AND seconds.conn_id = stalled.conn_id
         AND epoch_us(second) + 1000000 > epoch_us(t_start) AND second <= t_end
        WHERE seconds.route_id IS NOT NULL
        GROUP BY ALL
    )
    SELECT these.capture_id, these.conn_id, stream_id, role, these.route, {SHOWN_ROUTE} AS shown_route,
           shown_peers.peer, t_start, t_end, total_us, stall_us, routes.route AS by_route, bytes,
           bytes / sum(bytes) OVER (PARTITION BY these.capture_id, these.conn_id, stream_id, role) AS share
    FROM meanwhile AS these LEFT JOIN routes ON these.by_id = routes.route_id {SHOWN}
    """,
    # A page that is filtered by route, peer or time needs the slowest of these. The tenth slowest lies in the bucket
    # where the sum from above reaches ten: only what is not below that is put in order.
    "slow_streams": f"""
    WITH counted AS (
        SELECT t_from, role, coalesce(route, '') AS route, interaction, coalesce(peer, '') AS peer, bucket, n
        FROM latency_cells WHERE metric = 'total'
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
        SELECT epoch_us(joined.t_from) AS cell, role, route, interaction, peer,
               floor(pow(2, least / per_octave))::BIGINT - 1 AS us, latency_s
        FROM (
            SELECT of_times.t_from, of_peers.role, of_peers.route, of_peers.interaction, peer,
                   least(of_peers.least, of_times.least) AS least
            FROM of_peers JOIN of_times ON of_peers.role = of_times.role AND of_peers.route = of_times.route
             AND of_peers.interaction = of_times.interaction
        ) AS joined CROSS JOIN capture_span
    ), slow AS (
        SELECT these.*, shown_peers.peer, {SHOWN_ROUTE} AS shown_route, {cell_of("these.t_start", "latency_s")} AS cell
        FROM interactions AS these CROSS JOIN capture_span {SHOWN}
        WHERE total_us >= (SELECT min(us) FROM bounds)
    ), chosen AS (
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
        WHERE total_us >= us QUALIFY of_peer <= {TOP} OR of_time <= {SLOW_AT_A_TIME}
    ), listed AS (
        SELECT * FROM chosen QUALIFY row_number() OVER (
            ORDER BY CASE WHEN of_peer <= {TOP} THEN of_peer ELSE {TOP} + of_time END, total_us DESC, t_start,
                     capture_id, conn_id, stream_id, role
        ) <= {SLOW}
    )
    SELECT row_number() OVER (ORDER BY total_us DESC, t_start, capture_id, conn_id, stream_id, role) AS place,
           capture_id, conn_id, stream_id, role, route, shown_route, interaction, peer, t_start, total_us, first_us,
           stall_us, stalls, outcome, error_code, n_in, n_out, bytes_in, bytes_out
    FROM listed
    """,
    "slow_marks": f"""
    SELECT place, min(seq) AS first_seq, max(seq) AS last_seq, min(mono_ns) AS first_ns,
           min(CASE WHEN asks AND fragments > 0 THEN mono_ns END) AS sent_ns,
           max(CASE WHEN NOT asks AND fragments > 0 THEN mono_ns END) AS item_ns,
           max(CASE WHEN asks AND fragments > 0 THEN seq ELSE -1 END) AS asked_seq
    FROM (
        SELECT place, seq, mono_ns, fragments, (dir = 'out') = (role = 'requester') AS asks
        FROM frames JOIN {THEIR_FRAMES} WHERE frames.stream_id > 0
    ) AS their_frames GROUP BY place
    """,
    "slow_frames": f"""
    SELECT slow.place, frames.capture_id, frames.conn_id, frames.stream_id, seq,
           (mono_ns - first_ns) // 1000 AS at_us, dir, frame_name, frame_bytes, request_n, credit_after,
           coalesce(fragments, 0) > 0 AS is_item, lower(hex(trace_id)) AS trace_id
    FROM frames JOIN {THEIR_FRAMES} JOIN slow_marks AS marks ON slow.place = marks.place
    WHERE frames.stream_id > 0 AND (seq < first_seq + {NEAR} OR seq = last_seq)
    QUALIFY row_number() OVER (PARTITION BY slow.place ORDER BY seq) <= {SLOW_FRAMES} OR seq = last_seq
    """,
    "slow_requests": """
    SELECT slow.place, slow.capture_id, slow.conn_id, slow.stream_id, role, route, shown_route, interaction, peer,
           t_start, total_us, (sent_ns - first_ns) // 1000 AS sent_us, first_us,
           (item_ns - first_ns) // 1000 AS last_item_us, stall_us, stalls, outcome, error_code, trace_id, n_in,
           n_out, bytes_in, bytes_out
    FROM slow_streams AS slow LEFT JOIN slow_marks AS marks ON slow.place = marks.place
    LEFT JOIN (
        SELECT place, max(trace_id) AS trace_id FROM slow_frames WHERE trace_id IS NOT NULL GROUP BY place
    ) AS traced ON slow.place = traced.place
    """,
    "cancellations": f"""
    WITH merged AS (
        SELECT role, route_id, interaction, bucket, sum(cancels)::BIGINT AS n, sum(n)::BIGINT AS requests
        FROM latency_histogram WHERE metric = 'total' GROUP BY role, route_id, interaction, bucket
    ), ranked AS ({ranked("merged", "role, route_id, interaction")}), counted AS (
        SELECT role, route_id, interaction, sum(requests)::BIGINT AS requests, sum(n)::BIGINT AS cancels,
               {percentiles("cancel_", "50", "99", where="total > 0")}
        FROM ranked GROUP BY role, route_id, interaction
    )
    SELECT role, route, interaction, requests, cancels, cancels / requests AS cancel_share, cancel_p50_us,
           cancel_p99_us
    FROM counted LEFT JOIN routes ON counted.route_id = routes.route_id
    """,
    "leases": """
    SELECT connections.capture_id, connections.conn_id, side, peer, lease_grants, lease_granted, lease_used,
           lease_expired, coalesce(denied, 0) AS lease_denied, lease_used / nullif(lease_granted, 0) AS used_share
    FROM connections LEFT JOIN (
        SELECT capture_id, conn_id, count(*) AS denied FROM interactions WHERE outcome = 'lease_denied'
        GROUP BY capture_id, conn_id
    ) AS denials ON connections.capture_id = denials.capture_id AND connections.conn_id = denials.conn_id
    WHERE lease OR lease_grants > 0 OR denied > 0
    """,
    # Streams that both sides captured; durations need no common clock. The lead of the responder's clock is told on the
    # assumption that both directions take equally long.
    "client_server_streams": """
    SELECT ours.session_id, ours.stream_id, ours.route_id, ours.interaction, ours.t_start,
           ours.total_us AS client_us, theirs.total_us AS service_us,
           ours.total_us - theirs.total_us AS network_us,
           ours.first_us - theirs.first_us AS network_first_us,
           (epoch_us(theirs.t_start) - epoch_us(ours.t_start)
            + epoch_us(theirs.t_end) - epoch_us(ours.t_end)) // 2 AS skew_us,
           ours.outcome AS client_outcome, theirs.outcome AS server_outcome
    FROM requesters AS ours JOIN responders AS theirs
      ON ours.session_id = theirs.session_id AND ours.stream_id = theirs.stream_id
    WHERE ours.role = 'requester' AND theirs.role = 'responder'
    """,
    "client_server": f"""
    WITH merged AS (
        SELECT route_id, interaction, metric, {bucket_of("us")} AS bucket, count(*) AS n,
               count(CASE WHEN client_outcome <> server_outcome THEN 1 END) AS disagree,
               sum(skew_us)::BIGINT AS skew_us
        FROM (
            SELECT route_id, interaction, metric, client_outcome, server_outcome, skew_us,
                   CASE metric WHEN 'client' THEN client_us WHEN 'service' THEN service_us ELSE network_us END AS us
            FROM client_server_streams CROSS JOIN (VALUES ('client'), ('service'), ('network')) AS metrics(metric)
        ) AS measured
        GROUP BY ALL
    ), ranked AS ({ranked("merged", "route_id, interaction, metric")}), counted AS (
        SELECT route_id, interaction, sum(CASE WHEN metric = 'client' THEN n ELSE 0 END)::BIGINT AS streams,
               sum(CASE WHEN metric = 'client' THEN disagree ELSE 0 END)::BIGINT AS outcomes_differ,
               sum(CASE WHEN metric = 'client' THEN skew_us ELSE 0 END)::DOUBLE AS skew_sum,
               {percentiles("client_", "50", "99", where="metric = 'client'")},
               {percentiles("service_", "50", "99", where="metric = 'service'")},
               {percentiles("network_", "50", "99", where="metric = 'network'")}
        FROM ranked GROUP BY route_id, interaction
    )
    SELECT route, interaction, streams, outcomes_differ, floor(skew_sum / streams)::BIGINT AS clock_skew_us,
           client_p50_us, client_p99_us, service_p50_us, service_p99_us, network_p50_us, network_p99_us
    FROM counted LEFT JOIN routes ON counted.route_id = routes.route_id
    """,
}
"""The query of each table, by its name."""
