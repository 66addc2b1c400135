"""What do rows consist of? The facts that they share, the rows that wait to be written, and what a frame shows."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeAlias

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.composite import iterate_composite
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, TRACING_ZIPKIN
from rsocket_trio.metadata.routes import route_of

Row: TypeAlias = tuple[Any, ...]
"""Cells in the order of a table's columns."""

REMEMBERED = 4096
"""Routes whose hash is remembered, and ended streams of a connection whose route is."""
IDS_SET = 0x80
EXTENDED = 0x08
"""Bits of Zipkin tracing metadata: there are ids; that of the trace has 16 bytes."""


@attrs.define(eq=False)
class Origin:
    """Which run of a capture on which host, and how its clock relates to the time of day."""

    capture_id: str
    host: str
    wall_us: int
    """The time of day, in microseconds since 1970, when the clock said ``mono_ns``."""
    mono_ns: int

    def micros(self, ns: int) -> int:
        """The time of day at a reading of the clock."""
        return self.wall_us + (ns - self.mono_ns) // 1000


class Rows:
    """What is to be written, a list for each table."""

    def __init__(self) -> None:
        self.frames: list[Row] = []
        self.interactions: list[Row] = []
        self.connections: list[Row] = []

    def take(self) -> dict[str, list[Row]]:
        """All rows by table; none is kept."""
        taken = {"frames": self.frames, "interactions": self.interactions, "connections": self.connections}
        self.frames, self.interactions, self.connections = [], [], []
        return taken


class Seen:
    """What one frame shows, by the names of the columns; whatever is not said is null."""

    stream_id: int | None = None
    frame_type: int | None = None
    flags: int | None = None
    interaction: str | None = None
    route: str | None = None
    route_id: int | None = None
    request_n: int | None = None
    data_bytes: int | None = None
    metadata_bytes: int | None = None
    fragments: int | None = None
    credit_after: int | None = None
    error_code: int | None = None
    error_text: str | None = None
    lease_ttl_ms: int | None = None
    lease_n: int | None = None
    keepalive_pos: int | None = None
    resume_pos: int | None = None
    trace_id: bytes | None = None

    def cells(self, size: int) -> Row:
        """The cells from ``stream_id`` to ``trace_id``."""
        return (
            *(self.stream_id, self.frame_type, self.flags, self.interaction, self.route, self.route_id),
            *(self.request_n, size, self.data_bytes, self.metadata_bytes, self.fragments, self.credit_after),
            *(self.error_code, self.error_text, self.lease_ttl_ms, self.lease_n),
            *(self.keepalive_pos, self.resume_pos, self.trace_id),
        )


_route_ids: dict[str, int] = {}


def route_id(route: str) -> int:
    """A number of 64 bits that is the same for this route everywhere: the first 8 bytes of its BLAKE2b, signed."""
    known = _route_ids.get(route)
    if known is None:
        if len(_route_ids) >= REMEMBERED:
            _route_ids.clear()
        known = int.from_bytes(blake2b(route.encode(), digest_size=8).digest(), "big", signed=True)
        _route_ids[route] = known
    return known


def session_id(token: bytes) -> str:
    """What names a session on both of its sides without giving its resume token away: 128 bits of a hash, in hex."""
    return blake2b(token, digest_size=16).hexdigest()


def readable_route(metadata: bytes | None, mime: str | int) -> str | None:
    """The route of a request; ``None`` where there is none, or none that can be read."""
    try:
        return route_of(metadata, mime)
    except RemoteProtocolError:
        return None


def trace_of(metadata: bytes, mime: str | int) -> bytes | None:
    """The 16 bytes of the trace id in Zipkin tracing metadata; shorter ones are filled up with 0 from the left."""
    try:
        if mime == TRACING_ZIPKIN:
            return _trace_id(metadata)
        if mime == COMPOSITE_METADATA:
            for entry in iterate_composite(metadata):
                if entry.mime == TRACING_ZIPKIN:
                    return _trace_id(entry.content)
    except RemoteProtocolError:
        return None
    return None


def _trace_id(content: bytes) -> bytes | None:
    if not content or not content[0] & IDS_SET:
        return None
    size = 16 if content[0] & EXTENDED else 8
    trace = content[1 : 1 + size]
    return trace.rjust(16, b"\0") if len(trace) == size else None
