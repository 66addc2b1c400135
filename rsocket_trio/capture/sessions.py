"""Tracks captured sessions and their streams across the transports of a resumption."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from rsocket_trio.capture.rows import REMEMBERED, Origin, Rows
from rsocket_trio.capture.schema import CONN_LOST, UNKNOWN
from rsocket_trio.capture.streams import StreamTrack
from rsocket_trio.mux.stream_state import BOTH
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.rsocket.extensions.payloads import AT_STREAM, Resumable
from rsocket_trio.rsocket.extensions.terms import content_at
from rsocket_trio.rsocket.resume_positions import is_tracked

if TYPE_CHECKING:
    from rsocket_trio.capture.connections import Track

MOST_STREAMS = 1_000_000
"""Open streams of a session that are followed; beyond it the oldest end as ``unknown``."""


class SessionTrack:
    """The streams of one session, over one or several transports.

    ``founder`` is the connection on which it began, ``current`` its present connection, ``drops`` the number of its
    frames that were dropped so far, ``resumes`` the number of its resumptions. ``sent`` is its position in bytes, as
    resumption counts it.
    """

    def __init__(self, origin: Origin, rows: Rows, founder: Track) -> None:
        self.id = founder.conn_id
        self.founder = founder
        self.current = founder
        self.side = founder.facts.side
        self.streams: dict[int, StreamTrack] = {}
        self.drops = 0
        self.resumes = 0
        self.sent = 0
        self.to_repeat = 0
        self.is_over = False
        self._origin = origin
        self._rows = rows
        self._ended: dict[int, int] = {}
        self._unmarked: dict[int, None] = {}

    # Streams

    def begin(self, stream: StreamTrack, now: int) -> None:
        """Add a stream. An open stream with the same id ends as ``unknown``: its end was not seen."""
        former = self.streams.get(stream.id)
        if former is not None:
            self.end(former, now, UNKNOWN)
        elif len(self.streams) >= MOST_STREAMS:
            self.end(next(iter(self.streams.values())), now, UNKNOWN)
        self._ended.pop(stream.id, None)
        self.streams[stream.id] = stream

    def end(self, stream: StreamTrack, now: int, outcome: str, code: int | None = None) -> None:
        """End a stream and append its row. Its route is remembered for late frames."""
        stream.close(now, BOTH)
        self.streams.pop(stream.id, None)
        if stream.route_id is not None:
            if len(self._ended) >= REMEMBERED:
                del self._ended[next(iter(self._ended))]
            self._ended[stream.id] = stream.route_id
        self._rows.interactions.append(stream.row(self._origin, self.id, self.side, now, outcome, code))

    def late_route(self, stream_id: int) -> int | None:
        """Return the route id of a stream that has ended, or ``None``."""
        return self._ended.get(stream_id)

    # Transports

    def go_on(self, track: Track, position: int | None, now: int) -> None:
        """Continue on another transport; frames from ``position`` on, which the peer lacks, are sent again."""
        self.current = track
        self.resumes += 1
        self.to_repeat = max(0, self.sent - position) if position is not None and not self.drops else 0
        if track.dialect is not None and track.dialect.entries:
            for stream in [stream for stream in self._open() if stream.id in self._unmarked]:
                self.end(stream, now, CONN_LOST)

    def repeats(self, data: bytes, size: int) -> bool:
        """Count a sent frame. Return whether it was sent before, on a transport that was lost."""
        if not is_tracked(data) or int.from_bytes(data[:4], "big") in self._unmarked:
            return False
        if self.to_repeat > 0:
            self.to_repeat -= size
            return True
        self.sent += size
        return False

    def mark(self, dialect: Dialect, stream_id: int, entries: tuple[Entry, ...]) -> None:
        """Record whether a request marks its stream as resumable, in the extension draft."""
        if not dialect.entries:
            return
        self._unmarked.pop(stream_id, None)
        mark = content_at(AT_STREAM, entries, Resumable)
        if not (isinstance(mark, Resumable) and mark.resumable):
            if len(self._unmarked) >= REMEMBERED:
                del self._unmarked[next(iter(self._unmarked))]
            self._unmarked[stream_id] = None

    def finish(self, now: int) -> None:
        """End the session: open streams end as ``conn_lost``, or as ``unknown`` if frames were dropped meanwhile."""
        self.is_over = True
        for stream in self._open():
            self.end(stream, now, UNKNOWN if self.drops > stream.drops else CONN_LOST)

    def _open(self) -> Iterator[StreamTrack]:
        return iter(list(self.streams.values()))


Sessions: TypeAlias = dict[tuple[str, str], SessionTrack]
"""Sessions that may be resumed, by side and id: one capture may see both ends of a session."""
