"""The parts of capture rows: origin, cells of one frame, derived ids, and the rows that wait to be written."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from rsocket_trio.capture.schema import FRAMES, TABLES
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.routes import read_request, route_of
from rsocket_trio.metadata.tracing import decode_trace

if TYPE_CHECKING:
    from rsocket_trio.capture.connection_decoder import CapturedStream
    from rsocket_trio.rsocket.frames import Frame

Row: TypeAlias = tuple[Any, ...]
"""Cells in the order of a table's columns."""

REMEMBERED = 4096
"""Routes whose hash is remembered, and ended streams of a session whose route is remembered."""


@attrs.define(eq=False)
class CaptureOrigin:
    """The run and host of a capture, and the offset of its clock from the time of day."""

    capture_id: str
    host: str
    wall_us: int
    """The time of day, in microseconds since 1970, at the clock reading ``mono_ns``."""
    mono_ns: int

    def micros(self, ns: int) -> int:
        """Return the time of day, in microseconds since 1970, at a reading of the clock."""
        return self.wall_us + (ns - self.mono_ns) // 1000


class WaitingRows:
    """Rows that wait to be written, one list for each table, and their origin."""

    def __init__(self, origin: CaptureOrigin) -> None:
        self.origin = origin
        self.tables: dict[str, list[Row]] = {table: [] for table in TABLES}

    def take(self) -> dict[str, list[Row]]:
        """Remove and return all rows, by table."""
        taken, self.tables = self.tables, {table: [] for table in TABLES}
        return taken


class FrameCells:
    """The content of one frame, by column name; an attribute that is not set is null.

    ``now`` is when it passed, and ``beyond`` counts the bytes of its data that were not kept.
    """

    def __init__(self, now: int, inward: bool, frame_bytes: int, beyond: int = 0) -> None:
        self.now = now
        self.inward = inward
        self.frame_bytes = frame_bytes
        self.beyond = beyond

    is_repeated = False
    """True if it was sent before, on a transport that was lost."""
    stream: CapturedStream | None = None
    """Its stream, if that is open, and the frame was not sent before."""
    by_requester = False
    """True if the requester of its stream sent it."""

    stream_id: int | None = None
    frame_type: int | None = None
    flags: int | None = None
    interaction: str | None = None
    route: str | None = None
    route_id: int | None = None
    request_n: int | None = None
    frame_bytes: int = 0
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

    def measure(self, frame: Frame) -> None:
        """Set the sizes of the data and metadata of a frame; what was not kept is at its end."""
        content = getattr(frame, "payload", frame)
        data, metadata = getattr(content, "data", getattr(content, "body", None)), getattr(content, "metadata", None)
        if data is not None:
            self.data_bytes = len(data) + self.beyond
        if metadata is not None:
            self.metadata_bytes = len(metadata) + (self.beyond if data is None else 0)


cells_of: Callable[[FrameCells], Row] = attrgetter(
    *(column.name for column in FRAMES if hasattr(FrameCells, column.name))
)
"""Returns the cells from ``stream_id`` to ``trace_id``."""


@lru_cache(maxsize=REMEMBERED)
def route_id(route: str) -> int:
    """Return a stable 64-bit number for a route: the first 8 bytes of its BLAKE2b hash, signed."""
    return int.from_bytes(blake2b(route.encode(), digest_size=8).digest(), "big", signed=True)


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
