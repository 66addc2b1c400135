"""Tables about frames: counts by connection and second, sizes, fragmentation, errors, health of the capture."""

from __future__ import annotations

from typing import Final

from rsocket_trio.analytics.sql import ERROR_LEVEL, SIZE_BUCKET, error_names

RTT_BUCKETS: Final = ", ".join(f"({n})" for n in range(32))

QUERIES: Final = {
    # Queries about a connection read its seconds: one connection may hold most frames, but no second does.
    "connection_seconds": """
    SELECT capture_id, conn_id, time_bucket(INTERVAL '1 second', ts) AS second, route_id, count(*) AS frames,
           sum(frame_bytes)::BIGINT AS bytes, count(CASE WHEN frame_name = 'KEEPALIVE' THEN 1 END) AS keepalives,
           sum(drop_count)::BIGINT AS drops, max(CASE side WHEN 'client' THEN 1 ELSE 0 END) AS of_client,
           max(seq) AS last_seq, count(interaction) AS requests,
           count(CASE WHEN stream_id IS NULL THEN 1 END) AS unreadable,
           min(epoch_us(ts) - mono_ns // 1000) AS least_ahead_us,
           max(epoch_us(ts) - mono_ns // 1000) AS most_ahead_us
    FROM frames
    GROUP BY capture_id, conn_id, time_bucket(INTERVAL '1 second', ts), route_id
    """,
    # The longest silence is right within a second; a round trip is the upper end of its bucket.
    "connection_timeline": f"""
    WITH quiet AS (
        SELECT capture_id, conn_id, max(gap) AS longest_gap_s, sum(keepalives)::BIGINT AS keepalives
        FROM (
            SELECT capture_id, conn_id, sum(keepalives) AS keepalives,
                   (epoch_us(second) - lag(epoch_us(second)) OVER (
                       PARTITION BY capture_id, conn_id ORDER BY second
                   )) // 1000000 AS gap
            FROM connection_seconds GROUP BY capture_id, conn_id, second
        ) AS gaps
        GROUP BY capture_id, conn_id
    ), beats AS (
        SELECT capture_id, conn_id, bucket, list_extract(keepalive_rtt, bucket + 1) AS n
        FROM connections CROSS JOIN (VALUES {RTT_BUCKETS}) AS buckets(bucket)
    ), ranked AS (
        SELECT *, sum(n) OVER (PARTITION BY capture_id, conn_id ORDER BY bucket) AS upto,
               sum(n) OVER (PARTITION BY capture_id, conn_id) AS total
        FROM beats
    ), rtts AS (
        SELECT capture_id, conn_id, max(total)::BIGINT AS pongs,
               pow(2, min(CASE WHEN total > 0 AND upto * 2 >= total THEN bucket END))::BIGINT AS rtt_p50_us,
               pow(2, min(CASE WHEN total > 0 AND upto * 100 >= total * 99 THEN bucket END))::BIGINT AS rtt_p99_us
        FROM ranked GROUP BY capture_id, conn_id
    )
    SELECT connections.capture_id, connections.conn_id, session_id, side, dialect, transport, peer, t_start, t_end,
           resume_count, close_reason, streams, frames_in, frames_out, bytes_in, bytes_out, drop_count,
           keepalive_interval_ms, max_lifetime_ms, keepalives, longest_gap_s, pongs, rtt_p50_us, rtt_p99_us
    FROM connections
    LEFT JOIN quiet ON connections.capture_id = quiet.capture_id AND connections.conn_id = quiet.conn_id
    LEFT JOIN rtts ON connections.capture_id = rtts.capture_id AND connections.conn_id = rtts.conn_id
    """,
    # One number replaces the three columns that name a stream: a third as much is sent between tasks.
    "cancelled_streams": """
    SELECT hash(capture_id, conn_id, stream_id) AS stream, min(seq) AS cancel_seq, min(mono_ns) AS cancel_ns,
           max(CASE WHEN dir = 'out' THEN 1 ELSE 0 END) AS went_out, max(route_id) AS route_id
    FROM frames WHERE frame_name = 'CANCEL' AND stream_id <> 0 GROUP BY ALL
    """,
    # Of the payloads and errors that the other side of a stream sent after the first CANCEL.
    "bytes_after_cancel": """
    WITH late AS (
        SELECT sent.stream, count(*) AS frames, sum(frame_bytes)::BIGINT AS bytes, max(mono_ns - cancel_ns) AS ns
        FROM (
            SELECT hash(capture_id, conn_id, stream_id) AS stream, seq, mono_ns, frame_bytes,
                   CASE WHEN dir = 'in' THEN 1 ELSE 0 END AS came_in
            FROM frames WHERE stream_id <> 0 AND interaction IS NULL AND frame_name NOT IN ('CANCEL', 'REQUEST_N')
        ) AS sent JOIN cancelled_streams AS cancelled
          ON sent.stream = cancelled.stream AND sent.seq > cancel_seq AND came_in = went_out
        GROUP BY sent.stream
    ), counted AS (
        SELECT went_out, cancelled.route_id, count(*) AS cancels, count(late.frames) AS cancels_with_more,
               sum(coalesce(late.frames, 0))::BIGINT AS frames, sum(coalesce(late.bytes, 0))::BIGINT AS bytes,
               max(late.ns) // 1000 AS longest_us
        FROM cancelled_streams AS cancelled LEFT JOIN late ON cancelled.stream = late.stream
        GROUP BY went_out, cancelled.route_id
    )
    SELECT CASE WHEN went_out = 1 THEN 'out' ELSE 'in' END AS cancel_dir, route, cancels, cancels_with_more, frames,
           bytes, longest_us
    FROM counted LEFT JOIN routes ON counted.route_id = routes.route_id
    """,
    "error_minutes": f"""
    SELECT time_bucket(INTERVAL '1 minute', ts) AS minute, side, dir, {ERROR_LEVEL} AS level,
           error_code, route_id, count(*) AS n, min(ts) AS first_seen, min(error_text) AS example
    FROM frames
    WHERE error_code IS NOT NULL
    GROUP BY time_bucket(INTERVAL '1 minute', ts), side, dir, {ERROR_LEVEL}, error_code, route_id
    """,
    "errors": f"""
    SELECT minute, side, dir, level, error_code, {error_names()} AS error_name, route, n,
           min(first_seen) OVER (PARTITION BY level, error_code) AS first_seen, example
    FROM error_minutes AS counted LEFT JOIN routes ON counted.route_id = routes.route_id
    """,
    "frame_sizes": f"""
    SELECT time_bucket(INTERVAL '1 minute', ts) AS minute, side, dir, frame_name,
           {SIZE_BUCKET} AS bucket, count(*) AS n, sum(frame_bytes)::BIGINT AS bytes,
           sum(coalesce(data_bytes, 0))::BIGINT AS data_bytes,
           sum(coalesce(metadata_bytes, 0))::BIGINT AS metadata_bytes,
           count(CASE WHEN fragments > 0 THEN 1 END) AS payloads,
           count(CASE WHEN fragments > 1 THEN 1 END) AS fragmented,
           sum(CASE WHEN fragments > 1 THEN fragments ELSE 0 END)::BIGINT AS pieces
    FROM frames
    GROUP BY time_bucket(INTERVAL '1 minute', ts), side, dir, frame_name, {SIZE_BUCKET}
    """,
    # Overhead is neither data nor metadata.
    "fragmentation": """
    SELECT side, dir, frame_name, frames, bytes, bytes / frames AS mean_bytes, overhead_bytes,
           100 * overhead_bytes / bytes AS overhead_percent, 100 * metadata_bytes / bytes AS metadata_percent,
           payloads, fragmented, pieces
    FROM (
        SELECT side, dir, frame_name, sum(n)::BIGINT AS frames, sum(bytes)::BIGINT AS bytes,
               sum(bytes - data_bytes - metadata_bytes)::BIGINT AS overhead_bytes,
               sum(metadata_bytes)::BIGINT AS metadata_bytes, sum(payloads)::BIGINT AS payloads,
               sum(fragmented)::BIGINT AS fragmented, sum(pieces)::BIGINT AS pieces
        FROM frame_sizes GROUP BY side, dir, frame_name
    ) AS summed
    """,
    # Missing rows are values of ``seq`` that no row has; drift is that of the time of day against the monotonic clock.
    "capture_health": """
    WITH seen AS (
        SELECT capture_id, conn_id, max(of_client) AS of_client, sum(frames) AS frames,
               max(last_seq) + 1 - sum(frames) AS missing, sum(drops) AS drops, sum(requests) AS requests,
               sum(unreadable) AS unreadable, min(least_ahead_us) AS least, max(most_ahead_us) AS most
        FROM connection_seconds GROUP BY capture_id, conn_id
    ), ended AS (
        SELECT capture_id, conn_id, count(*) AS interactions, count(CASE WHEN outcome = 'unknown' THEN 1 END) AS unknown
        FROM interactions GROUP BY capture_id, conn_id
    )
    SELECT seen.capture_id, CASE of_client WHEN 1 THEN 'client' ELSE 'server' END AS side, count(*) AS connections,
           sum(frames)::BIGINT AS frames, sum(drops)::BIGINT AS drops, sum(missing)::BIGINT AS missing_rows,
           sum(unreadable)::BIGINT AS unreadable, sum(requests)::BIGINT AS requests,
           sum(coalesce(interactions, 0))::BIGINT AS interactions,
           sum(abs(requests - coalesce(interactions, 0)))::BIGINT AS unpaired,
           sum(coalesce(unknown, 0))::BIGINT AS unknown_outcomes, max(most) - min(least) AS clock_drift_us
    FROM seen LEFT JOIN ended ON seen.capture_id = ended.capture_id AND seen.conn_id = ended.conn_id
    GROUP BY seen.capture_id, of_client
    """,
}
"""The query of each table, by its name."""
