"""Declares the columns of the three tables of a capture, with their types and meanings."""

from __future__ import annotations

from typing import Final

import attrs

STRING: Final = "string"
INT8: Final = "int8"
INT16: Final = "int16"
INT32: Final = "int32"
INT64: Final = "int64"
BOOL: Final = "bool"
BINARY: Final = "binary"
TIMESTAMP: Final = "timestamp"
"""UTC. In a row: whole microseconds since 1970."""
COUNTS: Final = "list<int64>"

ERROR_TEXT: Final = 256
"""Characters of an error's text that are kept."""
RTT_BUCKETS: Final = 32
"""Buckets of a keepalive histogram: bucket n counts round trips of less than 2**n microseconds, not below 2**(n-1)."""

COMPLETE: Final = "complete"
ERROR: Final = "error"
CANCEL: Final = "cancel"
CONN_LOST: Final = "conn_lost"
REJECTED: Final = "rejected"
LEASE_DENIED: Final = "lease_denied"
UNKNOWN: Final = "unknown"
"""The end of the stream may be among frames that were dropped."""
OUTCOMES: Final = (COMPLETE, ERROR, CANCEL, CONN_LOST, REJECTED, LEASE_DENIED, UNKNOWN)


@attrs.frozen
class Column:
    """One column. Every column may be null, unless ``required``."""

    name: str
    type: str
    meaning: str
    required: bool = False


# fmt: off
FRAMES: Final = (
    Column("capture_id",     STRING,    "one for each run of a capture", required=True),
    Column("host",           STRING,    "where it ran", required=True),
    Column("conn_id",        STRING,    "one for each transport connection, 128 bits in hex", required=True),
    Column("session_id",     STRING,    "the same before and after a resumption, and on both sides of one that can be "
                                        "resumed; else as conn_id", required=True),
    Column("seq",            INT64,     "order of observation in this connection, from 0: the sort key", required=True),
    Column("ts",             TIMESTAMP, "when it was seen", required=True),
    Column("mono_ns",        INT64,     "the same on a clock that never jumps, ns: for durations in one capture",
                                        required=True),
    Column("side",           STRING,    "client or server: the side that captures", required=True),
    Column("dir",            STRING,    "in or out, as that side sees it", required=True),
    Column("transport",      STRING,    "tcp, tls, unix, ws, wss, h2, h2s, memory, aeron, stream", required=True),
    Column("peer",           STRING,    "remote address", required=True),
    Column("stream_id",      INT32,     "0 is the connection; null where the header is unreadable"),
    Column("frame_type",     INT8,      "the number on the wire, by dialect"),
    Column("flags",          INT16,     "the bits on the wire, by dialect"),
    Column("interaction",    STRING,    "on request frames"),
    Column("route",          STRING,    "on the frame that completes a request's payload"),
    Column("route_id",       INT64,     "a stable hash of the route, on that and every later frame of the stream"),
    Column("request_n",      INT64,     "credit that this frame grants: initial, or REQUEST_N"),
    Column("frame_bytes",    INT32,     "size of the frame, without length prefix", required=True),
    Column("data_bytes",     INT32,     "of which payload data"),
    Column("metadata_bytes", INT32,     "of which metadata"),
    Column("fragments",      INT16,     "on the last frame of a payload: how many it came in; 0 on those before it"),
    Column("credit_after",   INT64,     "items that may still be sent after this frame, by its sender, or, where the "
                                        "frame grants credit, by its receiver"),
    Column("error_code",     INT32,     "on ERROR frames"),
    Column("error_text",     STRING,    "their text, 256 characters at most"),
    Column("lease_ttl_ms",   INT32,     "on leases: time to live"),
    Column("lease_n",        INT32,     "on leases: requests"),
    Column("keepalive_pos",  INT64,     "on KEEPALIVE: last received position"),
    Column("resume_pos",     INT64,     "on RESUME and its answer: last received position"),
    Column("trace_id",       BINARY,    "16 bytes, on requests with tracing metadata of W3C or Zipkin"),
    Column("drop_count",     INT64,     "frames of this connection that were dropped since its last row",
                                        required=True),
)

INTERACTIONS: Final = (
    Column("capture_id",     STRING,    "as in frames", required=True),
    Column("host",           STRING,    "as in frames", required=True),
    Column("conn_id",        STRING,    "where the stream began", required=True),
    Column("session_id",     STRING,    "as in frames", required=True),
    Column("stream_id",      INT32,     "as in frames", required=True),
    Column("side",           STRING,    "the side that captures", required=True),
    Column("role",           STRING,    "requester or responder: what that side is in this stream", required=True),
    Column("route",          STRING,    "null where there is none"),
    Column("route_id",       INT64,     "as in frames"),
    Column("interaction",    STRING,    "request_response, fire_and_forget, request_stream, request_subscription or "
                                        "request_channel", required=True),
    Column("t_start",        TIMESTAMP, "the first frame", required=True),
    Column("t_first",        TIMESTAMP, "the first payload of the responder; null if none came"),
    Column("t_end",          TIMESTAMP, "the last frame, or the end of the connection", required=True),
    Column("first_us",       INT64,     "from t_start to t_first"),
    Column("total_us",       INT64,     "from t_start to t_end", required=True),
    Column("n_in",           INT64,     "payloads received, the request's among them", required=True),
    Column("n_out",          INT64,     "payloads sent, the request's among them", required=True),
    Column("bytes_in",       INT64,     "bytes of all frames received", required=True),
    Column("bytes_out",      INT64,     "bytes of all frames sent", required=True),
    Column("requested_n",    INT64,     "credit that the requester granted; null where there is none"),
    Column("stall_us",       INT64,     "how long the responder had no credit", required=True),
    Column("stalls",         INT32,     "how often that happened", required=True),
    Column("max_gap_us",     INT64,     "the longest time between two payloads of the responder; null below two"),
    Column("outcome",        STRING,    "complete, error, cancel, conn_lost, rejected, lease_denied; unknown where "
                                        "frames were dropped", required=True),
    Column("error_code",     INT32,     "of the ERROR that ended it"),
    Column("retries",        INT32,     "frames that were sent again after a resumption", required=True),
)

CONNECTIONS: Final = (
    Column("capture_id",     STRING,    "as in frames", required=True),
    Column("host",           STRING,    "as in frames", required=True),
    Column("conn_id",        STRING,    "as in frames", required=True),
    Column("session_id",     STRING,    "as in frames", required=True),
    Column("side",           STRING,    "the side that captures", required=True),
    Column("dialect",        STRING,    "as in rsocket/1.0", required=True),
    Column("transport",      STRING,    "as in frames", required=True),
    Column("peer",           STRING,    "as in frames", required=True),
    Column("t_start",        TIMESTAMP, "when frames could pass", required=True),
    Column("t_end",          TIMESTAMP, "when the transport was closed", required=True),
    Column("metadata_mime",  STRING,    "of the SETUP"),
    Column("data_mime",      STRING,    "of the SETUP"),
    Column("keepalive_interval_ms", INT64, "of the SETUP"),
    Column("max_lifetime_ms", INT64,    "of the SETUP"),
    Column("lease",          BOOL,      "whether the SETUP asks for leases"),
    Column("resume",         BOOL,      "whether the SETUP asks for resumption"),
    Column("resume_count",   INT32,     "how often its session had been resumed, this time included", required=True),
    Column("frames_in",      INT64,     "frames received", required=True),
    Column("frames_out",     INT64,     "frames sent", required=True),
    Column("bytes_in",       INT64,     "their bytes", required=True),
    Column("bytes_out",      INT64,     "their bytes", required=True),
    Column("streams",        INT64,     "streams that began here", required=True),
    Column("keepalive_rtt",  COUNTS,    "32 counts: entry n those below 2**n us and not below 2**(n-1)", required=True),
    Column("lease_grants",   INT64,     "LEASE frames, of both directions", required=True),
    Column("lease_granted",  INT64,     "requests that they allowed", required=True),
    Column("lease_used",     INT64,     "of which were made", required=True),
    Column("lease_expired",  INT64,     "of which were not made in time, or before the next lease", required=True),
    Column("drop_count",     INT64,     "frames that were dropped", required=True),
    Column("close_reason",   STRING,    "why it ended", required=True),
)
# fmt: on

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "frames": FRAMES,
    "interactions": INTERACTIONS,
    "connections": CONNECTIONS,
}


def type_names(dialect: str) -> dict[int, str]:
    """Return the name of each ``frame_type`` of a dialect. Raise ``KeyError`` for an unknown dialect."""
    # Imported here: the columns alone need no codec.
    from rsocket_trio.rsocket.dialect import DIALECTS

    if dialect == "streamux/1":
        # Its chunks are not read, and have no type.
        return {0: "UNKNOWN"}
    return {as_int8(row.number): row.name for row in DIALECTS[dialect].codec.rows}


def as_int8(number: int) -> int:
    """Return a type number as the column holds it: EXT of the oldest drafts, 0xFFFF, is -1."""
    return ((number & 0xFF) ^ 0x80) - 0x80


def as_int16(bits: int) -> int:
    """Return flags as the column holds them: the highest of 16 bits is the sign."""
    return ((bits & 0xFFFF) ^ 0x8000) - 0x8000


def as_int32(code: int) -> int:
    """Return an error code as the column holds it: from 0x80000000 on it is negative."""
    return ((code & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
