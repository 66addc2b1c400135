"""Declares the columns of the three tables of a capture, with their types."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

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

Outcome: TypeAlias = Literal["complete", "error", "cancel", "conn_lost", "rejected", "lease_denied", "unknown"]
"""The ways in which a stream ends: ``unknown`` if its end may be among frames that were dropped."""


@attrs.frozen
class Column:
    """One column. Every column may be null, unless ``required``."""

    name: str
    type: str
    required: bool = False


def columns(declared: str) -> tuple[Column, ...]:
    """Return the columns of a declaration: names and types, with ``!`` behind those that are required."""
    pairs = (column.split() for column in declared.split(","))
    return tuple(Column(name, kind.rstrip("!"), kind.endswith("!")) for name, kind in pairs)


# The meaning of each column is in docs/reference/capture.md.
FRAMES: Final = columns(
    """
    capture_id string!, host string!, conn_id string!, session_id string!, seq int64!, ts timestamp!, mono_ns int64!,
    side string!, dir string!, transport string!, peer string!, stream_id int32, frame_type int8, flags int16,
    interaction string, route string, route_id int64, request_n int64, frame_bytes int32!, data_bytes int32,
    metadata_bytes int32, fragments int16, credit_after int64, error_code int32, error_text string,
    lease_ttl_ms int32, lease_n int32, keepalive_pos int64, resume_pos int64, trace_id binary, drop_count int64!
    """
)
INTERACTIONS: Final = columns(
    """
    capture_id string!, host string!, conn_id string!, session_id string!, stream_id int32!, side string!,
    role string!, route string, route_id int64, interaction string!, t_start timestamp!, t_first timestamp,
    t_end timestamp!, first_us int64, total_us int64!, n_in int64!, n_out int64!, bytes_in int64!, bytes_out int64!,
    requested_n int64, stall_us int64!, stalls int32!, max_gap_us int64, outcome string!, error_code int32,
    retries int32!
    """
)
CONNECTIONS: Final = columns(
    """
    capture_id string!, host string!, conn_id string!, session_id string!, side string!, dialect string!,
    transport string!, peer string!, t_start timestamp!, t_end timestamp!, metadata_mime string, data_mime string,
    keepalive_interval_ms int64, max_lifetime_ms int64, lease bool, resume bool, resume_count int32!,
    frames_in int64!, frames_out int64!, bytes_in int64!, bytes_out int64!, streams int64!,
    keepalive_rtt list<int64>!, lease_grants int64!, lease_granted int64!, lease_used int64!, lease_expired int64!,
    drop_count int64!, close_reason string!
    """
)
TABLES: Final = {"frames": FRAMES, "interactions": INTERACTIONS, "connections": CONNECTIONS}


def type_names(dialect: str) -> dict[int, str]:
    """Return the name of each ``frame_type`` of a dialect. Raise ``KeyError`` for an unknown dialect."""
    # Imported here: the columns alone need no codec.
    from rsocket_trio.rsocket.dialect import DIALECTS

    if dialect == "streamux/1":
        # Its chunks are not read, and have no type.
        return {0: "UNKNOWN"}
    return {signed(row.number, 8): row.name for row in DIALECTS[dialect].codec.rows}


def signed(number: int, bits: int) -> int:
    """Return an unsigned number as a column of so many bits holds it: the highest bit is the sign."""
    sign = 1 << (bits - 1)
    return ((number & (2 * sign - 1)) ^ sign) - sign
