"""The parts of capture rows: origin, cells of one frame, derived ids, and the rows that wait to be written."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeAlias

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.routes import read_request, route_of
from rsocket_trio.metadata.tracing import decode_trace

Row: TypeAlias = tuple[Any, ...]
"""Cells in the order of a table's columns."""

REMEMBERED = 4096
"""Routes whose hash is remembered, and ended streams of a session whose route is remembered."""


@attrs.define(eq=False)
class Origin:
    """The run and host of a capture, and the offset of its clock from the time of day."""

    capture_id: str
    host: str
    wall_us: int
    """The time of day, in microseconds since 1970, at the clock reading ``mono_ns``."""
    mono_ns: int

    def micros(self, ns: int) -> int:
        """Return the time of day, in microseconds since 1970, at a reading of the clock."""
        return self.wall_us + (ns - self.mono_ns) // 1000


class Rows:
    """Rows that wait to be written, one list for each table."""

    def __init__(self) -> None:
        self.frames: list[Row] = []
        self.interactions: list[Row] = []
        self.connections: list[Row] = []

    def take(self) -> dict[str, list[Row]]:
        """Remove and return all rows, by table."""
        taken = {"frames": self.frames, "interactions": self.interactions, "connections": self.connections}
        self.frames, self.interactions, self.connections = [], [], []
        return taken


class FrameCells:
    """The content of one frame, by column name; an attribute that is not set is null."""

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
        """Return the cells from ``stream_id`` to ``trace_id``."""
        return (
            *(self.stream_id, self.frame_type, self.flags, self.interaction, self.route, self.route_id),
            *(self.request_n, size, self.data_bytes, self.metadata_bytes, self.fragments, self.credit_after),
            *(self.error_code, self.error_text, self.lease_ttl_ms, self.lease_n),
            *(self.keepalive_pos, self.resume_pos, self.trace_id),
        )


_route_ids: dict[str, int] = {}


def route_id(route: str) -> int:
    """Return a stable 64-bit number for a route: the first 8 bytes of its BLAKE2b hash, signed."""
    known = _route_ids.get(route)
    if known is None:
        if len(_route_ids) >= REMEMBERED:
            _route_ids.clear()
        known = int.from_bytes(blake2b(route.encode(), digest_size=8).digest(), "big", signed=True)
        _route_ids[route] = known
    return known


def session_id(token: bytes) -> str:
    """Return the id of a session, equal on both sides, that hides its resume token: 128 bits of a hash, in hex."""
    return blake2b(token, digest_size=16).hexdigest()


def readable_route(metadata: bytes | None, mime: str | int) -> str | None:
    """Return the route of a request, or ``None`` if it has none or none that can be read."""
    try:
        return route_of(metadata, mime)
    except RemoteProtocolError:
        return None


def trace_of(metadata: bytes, mime: str | int) -> bytes | None:
    """Return the 16 bytes of the trace id in tracing metadata, or ``None``; 8 bytes are padded with 0 on the left."""
    try:
        trace = decode_trace(read_request(metadata, mime).travelling)
    except RemoteProtocolError:
        return None
    if trace is None or trace.trace_id is None:
        return None
    return bytes.fromhex(trace.trace_id).rjust(16, b"\0")
