"""Tables about frames: counts by connection and second, sizes, fragmentation, errors, health of the capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rsocket_trio.analytics.sql import ERROR_LEVEL, SIZE_BUCKET, TOP, Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RTT_BUCKETS: Final = ", ".join(f"({n})" for n in range(32))

# Queries about a connection read its seconds: one connection may hold most frames, but no second does.
CONNECTION_SECONDS: Final = Query(
    "connection_seconds",
    ("frames",),
    """
    SELECT capture_id, conn_id, $second_of_ts AS second, route_id, count(*) AS frames,
           CAST(sum(frame_bytes) AS BIGINT) AS bytes,
           count(CASE WHEN frame_name = 'KEEPALIVE' THEN 1 END) AS keepalives,
           CAST(sum(drop_count) AS BIGINT) AS drops, max(CASE side WHEN 'client' THEN 1 ELSE 0 END) AS of_client,
           max(seq) AS last_seq,
           count(interaction) AS requests, count(CASE WHEN stream_id IS NULL THEN 1 END) AS unreadable,
           min(unix_micros(ts) - mono_ns $div 1000) AS least_ahead_us,
           max(unix_micros(ts) - mono_ns $div 1000) AS most_ahead_us
    FROM {frames}
    GROUP BY capture_id, conn_id, $by_second_of_ts, route_id
    """,
    streams=True,
)

FAN_IN: Final = Query(
    "fan_in",
    ("connection_seconds", "routes"),
    f"""
    WITH counted AS (
        SELECT capture_id, 'connection' AS kind, conn_id AS name, CAST(sum(frames) AS BIGINT) AS frames,
               CAST(sum(bytes) AS BIGINT) AS bytes
        FROM {{connection_seconds}} GROUP BY capture_id, conn_id
        UNION ALL
        SELECT capture_id, 'route' AS kind, route AS name, frames, bytes
        FROM (
            SELECT capture_id, route_id, CAST(sum(frames) AS BIGINT) AS frames, CAST(sum(bytes) AS BIGINT) AS bytes
            FROM {{connection_seconds}} WHERE route_id IS NOT NULL GROUP BY capture_id, route_id
        ) AS by_route LEFT JOIN {{routes}} AS routes ON by_route.route_id = routes.route_id
    ), ranked AS (
        SELECT *, frames / CAST(sum(frames) OVER (PARTITION BY capture_id, kind) AS DOUBLE) AS share,
               row_number() OVER (PARTITION BY capture_id, kind ORDER BY frames DESC, name) AS place
        FROM counted
    )
    SELECT capture_id, kind, place, name, frames, bytes, share FROM ranked WHERE place <= {TOP}
    """,
)

CONNECTION_TIMELINE: Final = Query(
    "connection_timeline",
    ("connections", "connection_seconds"),
    f"""
    WITH quiet AS (
        SELECT capture_id, conn_id, max(gap) AS longest_gap_s, CAST(sum(keepalives) AS BIGINT) AS keepalives
        FROM (
            SELECT capture_id, conn_id, keepalives, unix_seconds(second) - lag(unix_seconds(second)) OVER (
                PARTITION BY capture_id, conn_id ORDER BY second
            ) AS gap
            FROM (
                SELECT capture_id, conn_id, second, sum(keepalives) AS keepalives
                FROM {{connection_seconds}} GROUP BY capture_id, conn_id, second
            ) AS seconds
        ) AS gaps
        GROUP BY capture_id, conn_id
    ), beats AS (
        SELECT capture_id, conn_id, bucket, element_at(keepalive_rtt, bucket + 1) AS n
        FROM {{connections}} CROSS JOIN (VALUES {RTT_BUCKETS}) AS buckets(bucket)
    ), ranked AS (
        SELECT *, sum(n) OVER (PARTITION BY capture_id, conn_id ORDER BY bucket) AS upto,
               sum(n) OVER (PARTITION BY capture_id, conn_id) AS total
        FROM beats
    ), rtts AS (
        SELECT capture_id, conn_id, CAST(max(total) AS BIGINT) AS pongs,
               CAST(pow(2, min(CASE WHEN total > 0 AND upto * 2 >= total THEN bucket END)) AS BIGINT) AS rtt_p50_us,
               CAST(pow(2, min(CASE WHEN total > 0 AND upto * 100 >= total * 99 THEN bucket END)) AS BIGINT)
               AS rtt_p99_us
        FROM ranked GROUP BY capture_id, conn_id
    )
    SELECT connections.capture_id, connections.conn_id, session_id, side, dialect, transport, peer, t_start, t_end,
           resume_count, close_reason, streams, frames_in, frames_out, bytes_in, bytes_out, drop_count,
           keepalive_interval_ms, max_lifetime_ms, keepalives, longest_gap_s, pongs, rtt_p50_us, rtt_p99_us
    FROM {{connections}} AS connections
    LEFT JOIN quiet ON connections.capture_id = quiet.capture_id AND connections.conn_id = quiet.conn_id
    LEFT JOIN rtts ON connections.capture_id = rtts.capture_id AND connections.conn_id = rtts.conn_id
    """,
)

# One number replaces the three columns that name a stream: a third as much is sent between tasks.
CANCELLED_STREAMS: Final = Query(
    "cancelled_streams",
    ("frames",),
    """
    SELECT xxhash64(capture_id, conn_id, stream_id) AS stream, min(seq) AS cancel_seq, min(mono_ns) AS cancel_ns,
           max(CASE WHEN dir = 'out' THEN 1 ELSE 0 END) AS went_out, max(route_id) AS route_id
    FROM {frames} WHERE frame_name = 'CANCEL' AND stream_id <> 0
    GROUP BY xxhash64(capture_id, conn_id, stream_id)
    """,
)

BYTES_AFTER_CANCEL: Final = Query(
    "bytes_after_cancel",
    ("cancelled_streams", "frames", "routes"),
    """
    WITH cancelled AS (
        SELECT * FROM {cancelled_streams}
    ), late AS (
        SELECT sent.stream, count(*) AS frames,
               CAST(sum(frame_bytes) AS BIGINT) AS bytes,
               CAST(max(mono_ns - cancel_ns) AS BIGINT) AS ns
        FROM (
            SELECT xxhash64(capture_id, conn_id, stream_id) AS stream, seq, mono_ns, frame_bytes,
                   CASE WHEN dir = 'in' THEN 1 ELSE 0 END AS came_in
            FROM {frames} WHERE stream_id <> 0 AND interaction IS NULL AND frame_name NOT IN ('CANCEL', 'REQUEST_N')
        ) AS sent JOIN cancelled
          ON sent.stream = cancelled.stream AND sent.seq > cancel_seq AND came_in = went_out
        GROUP BY sent.stream
    ), counted AS (
        SELECT went_out, cancelled.route_id, count(*) AS cancels, count(late.frames) AS cancels_with_more,
               CAST(sum(coalesce(late.frames, 0)) AS BIGINT) AS frames,
               CAST(sum(coalesce(late.bytes, 0)) AS BIGINT) AS bytes, max(late.ns) $div 1000 AS longest_us
        FROM cancelled LEFT JOIN late ON cancelled.stream = late.stream
        GROUP BY went_out, cancelled.route_id
    )
    SELECT CASE WHEN went_out = 1 THEN 'out' ELSE 'in' END AS cancel_dir, route, cancels, cancels_with_more, frames,
           bytes, longest_us
    FROM counted LEFT JOIN {routes} AS routes ON counted.route_id = routes.route_id
    """,
)

ERROR_MINUTES: Final = Query(
    "error_minutes",
    ("frames",),
    f"""
    SELECT $minute_of_ts AS minute, side, dir, {ERROR_LEVEL} AS level,
           error_code, route_id, count(*) AS n, min(ts) AS first_seen, min(error_text) AS example
    FROM {{frames}}
    WHERE error_code IS NOT NULL
    GROUP BY $by_minute_of_ts, side, dir, {ERROR_LEVEL}, error_code, route_id
    """,
    streams=True,
)

ERRORS: Final = Query(
    "errors",
    ("error_minutes", "routes"),
    """
    SELECT minute, side, dir, level, error_code, $errors AS error_name, route, n,
           min(first_seen) OVER (PARTITION BY level, error_code) AS first_seen, example
    FROM {error_minutes} AS counted LEFT JOIN {routes} AS routes ON counted.route_id = routes.route_id
    """,
)

FRAME_SIZES: Final = Query(
    "frame_sizes",
    ("frames",),
    f"""
    SELECT $minute_of_ts AS minute, side, dir, frame_name,
           {SIZE_BUCKET} AS bucket,
           count(*) AS n, CAST(sum(frame_bytes) AS BIGINT) AS bytes,
           CAST(sum(coalesce(data_bytes, 0)) AS BIGINT) AS data_bytes,
           CAST(sum(coalesce(metadata_bytes, 0)) AS BIGINT) AS metadata_bytes,
           count(CASE WHEN fragments > 0 THEN 1 END) AS payloads,
           count(CASE WHEN fragments > 1 THEN 1 END) AS fragmented,
           CAST(sum(CASE WHEN fragments > 1 THEN fragments ELSE 0 END) AS BIGINT) AS pieces
    FROM {{frames}}
    GROUP BY $by_minute_of_ts, side, dir, frame_name, {SIZE_BUCKET}
    """,
    streams=True,
)

FRAGMENTATION: Final = Query(
    "fragmentation",
    ("frame_sizes",),
    """
    SELECT side, dir, frame_name, CAST(sum(n) AS BIGINT) AS frames, CAST(sum(bytes) AS BIGINT) AS bytes,
           sum(bytes) / CAST(sum(n) AS DOUBLE) AS mean_bytes,
           CAST(sum(bytes) - sum(data_bytes) - sum(metadata_bytes) AS BIGINT) AS overhead_bytes,
           100 * (sum(bytes) - sum(data_bytes) - sum(metadata_bytes)) / CAST(sum(bytes) AS DOUBLE) AS overhead_percent,
           100 * sum(metadata_bytes) / CAST(sum(bytes) AS DOUBLE) AS metadata_percent,
           CAST(sum(payloads) AS BIGINT) AS payloads, CAST(sum(fragmented) AS BIGINT) AS fragmented,
           CAST(sum(pieces) AS BIGINT) AS pieces
    FROM {frame_sizes}
    GROUP BY side, dir, frame_name
    """,
)

STREAM_RATE: Final = Query(
    "stream_rate",
    ("frames",),
    """
    SELECT $second_of_ts AS second, side, dir, interaction, count(*) AS streams
    FROM {frames}
    WHERE interaction IS NOT NULL
    GROUP BY $by_second_of_ts, side, dir, interaction
    """,
    streams=True,
)

CAPTURE_HEALTH: Final = Query(
    "capture_health",
    ("connection_seconds", "interactions"),
    """
    WITH seen AS (
        SELECT capture_id, conn_id, max(of_client) AS of_client, sum(frames) AS frames,
               max(last_seq) + 1 - sum(frames) AS missing, sum(drops) AS drops, sum(requests) AS requests,
               sum(unreadable) AS unreadable, min(least_ahead_us) AS least, max(most_ahead_us) AS most
        FROM {connection_seconds} GROUP BY capture_id, conn_id
    ), ended AS (
        SELECT capture_id, conn_id, count(*) AS interactions, count(CASE WHEN outcome = 'unknown' THEN 1 END) AS unknown
        FROM {interactions} GROUP BY capture_id, conn_id
    )
    SELECT seen.capture_id, CASE of_client WHEN 1 THEN 'client' ELSE 'server' END AS side, count(*) AS connections,
           CAST(sum(frames) AS BIGINT) AS frames,
           CAST(sum(drops) AS BIGINT) AS drops, CAST(sum(missing) AS BIGINT) AS missing_rows,
           CAST(sum(unreadable) AS BIGINT) AS unreadable, CAST(sum(requests) AS BIGINT) AS requests,
           CAST(sum(coalesce(interactions, 0)) AS BIGINT) AS interactions,
           CAST(sum(abs(requests - coalesce(interactions, 0))) AS BIGINT) AS unpaired,
           CAST(sum(coalesce(unknown, 0)) AS BIGINT) AS unknown_outcomes, max(most) - min(least) AS clock_drift_us
    FROM seen LEFT JOIN ended ON seen.capture_id = ended.capture_id AND seen.conn_id = ended.conn_id
    GROUP BY seen.capture_id, of_client
    """,
)


def connection_seconds(frames: DataFrame) -> DataFrame:
    """Return frames and bytes in ``frames`` by connection, second and route; such counts can be merged.

    Over a stream, ``ts`` needs a watermark.
    """
    return CONNECTION_SECONDS(frames)


def fan_in(frames: DataFrame, routes: DataFrame) -> DataFrame:
    """Return the ten connections and ten routes with most ``frames``, and their share of all frames of their kind.

    ``routes`` names the routes.
    """
    return FAN_IN(connection_seconds(frames), routes)


def connection_timeline(connections: DataFrame, frames: DataFrame) -> DataFrame:
    """Return each connection from setup to close: resumptions, keepalive round trips, the longest silence.

    ``connections`` and ``frames`` are tables of one capture. ``longest_gap_s`` is right within a second; a round trip
    is given as the upper end of its bucket.
    """
    return CONNECTION_TIMELINE(connections, connection_seconds(frames))


def cancelled_streams(frames: DataFrame) -> DataFrame:
    """Return the first CANCEL of each stream in ``frames``: its ``seq``, its time, and whether the capturing side sent
    it.

    ``stream`` is a hash of the columns that name a stream.
    """
    return CANCELLED_STREAMS(frames)


def bytes_after_cancel(frames: DataFrame, routes: DataFrame) -> DataFrame:
    """Return the payloads and errors in ``frames`` that the other side of a stream sent after the first CANCEL, by
    route.

    ``cancel_dir`` is ``out`` if the capturing side cancelled. ``routes`` names the routes.
    """
    return BYTES_AFTER_CANCEL(cancelled_streams(frames), frames, routes)


def error_minutes(frames: DataFrame) -> DataFrame:
    """Return the ERROR frames in ``frames`` by minute, code and route; such counts can be merged.

    Over a stream, ``ts`` needs a watermark.
    """
    return ERROR_MINUTES(frames)


def errors(frames: DataFrame, routes: DataFrame) -> DataFrame:
    """Return the error codes in ``frames`` over time, by name if the protocol has one, and the first time of each.

    ``routes`` names the routes.
    """
    return ERRORS(error_minutes(frames), routes)


def frame_sizes(frames: DataFrame) -> DataFrame:
    """Return ``frames`` by minute, kind and size; bucket b holds sizes from 2**b bytes.

    Over a stream, ``ts`` needs a watermark.
    """
    return FRAME_SIZES(frames)


def fragmentation(frames: DataFrame) -> DataFrame:
    """Return, for each kind of frame in ``frames``, its bytes, its overhead (neither data nor metadata) and
    fragmented payloads.
    """
    return FRAGMENTATION(frame_sizes(frames))


def stream_rate(frames: DataFrame) -> DataFrame:
    """Return the streams in ``frames`` that began in each second, by interaction. Over a stream, ``ts`` needs a
    watermark.
    """
    return STREAM_RATE(frames)


def capture_health(frames: DataFrame, interactions: DataFrame) -> DataFrame:
    """Return signs of an incomplete capture: dropped frames, missing rows, requests without an end, clock jumps.

    ``frames`` and ``interactions`` are tables of one capture. ``missing_rows`` counts values of ``seq`` that no row
    has; ``clock_drift_us`` is the drift of the time of day against the monotonic clock.
    """
    return CAPTURE_HEALTH(connection_seconds(frames), interactions)


QUERIES: Final = (
    *(CONNECTION_SECONDS, FAN_IN, CONNECTION_TIMELINE, CANCELLED_STREAMS, BYTES_AFTER_CANCEL, ERROR_MINUTES, ERRORS),
    *(FRAME_SIZES, FRAGMENTATION, STREAM_RATE, CAPTURE_HEALTH),
)
