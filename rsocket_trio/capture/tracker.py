"""Turns captured entries of all connections into rows; uses no clock, thread or file."""

from __future__ import annotations

from collections.abc import Callable

from rsocket_trio.capture.buffer import CLOSED, OPENED, OVER, RECEIVED, Entry, Recorded
from rsocket_trio.capture.chunks import StreamuxTrack
from rsocket_trio.capture.connections import Track
from rsocket_trio.capture.family import FamilyTrack
from rsocket_trio.capture.rows import Origin, Row, Rows
from rsocket_trio.capture.sessions import Sessions
from rsocket_trio.mux.recording import Facts
from rsocket_trio.rsocket.dialects import DIALECTS


class Tracker:
    """Turns entries into rows of the three tables. ``new_id`` names connections."""

    def __init__(self, origin: Origin, new_id: Callable[[], str]) -> None:
        self._origin = origin
        self._new_id = new_id
        self._rows = Rows()
        self._tracks: dict[Recorded, Track] = {}
        self._sessions: Sessions = {}

    def __len__(self) -> int:
        """Return the number of connections that are tracked."""
        return len(self._tracks)

    def take(self) -> dict[str, list[Row]]:
        """Remove and return the rows so far, by table."""
        return self._rows.take()

    @property
    def waiting(self) -> int:
        """Return the number of frame rows that have not been taken."""
        return len(self._rows.frames)

    def see(self, entry: Entry) -> None:
        """Handle one entry of the buffer."""
        source, kind, now, frames, _, dropped, text = entry
        if kind == OPENED:
            self._tracks[source] = self._track(source.facts, now)
            return
        track = self._tracks.get(source)
        if track is None:
            return
        if kind == CLOSED:
            track.drop(dropped)
            track.closed(now, text)
        elif kind == OVER:
            track.drop(dropped)
            self._over(track, now, text)
        else:
            track.frames(now, kind == RECEIVED, frames, dropped)
            return
        if track.is_done:
            self._tracks.pop(source, None)

    def finish(self, now: int, reason: str) -> None:
        """End the capture: end all connections and sessions that it tracks."""
        for source, track in self._tracks.items():
            track.drop(source.dropped)
            track.give_up(now, reason)
        self._tracks.clear()
        self._sessions.clear()

    def _track(self, facts: Facts, now: int) -> Track:
        conn_id = self._new_id()
        if facts.dialect in DIALECTS:
            return FamilyTrack(self._origin, self._rows, facts, conn_id, now, self._sessions)
        return StreamuxTrack(self._origin, self._rows, facts, conn_id, now)

    def _over(self, track: Track, now: int, reason: str) -> None:
        track.over(now, reason)
        session = track.session
        name = session.side, session.id
        if self._sessions.get(name) is session and session.is_over:
            del self._sessions[name]
        if session.resumes:
            done = [source for source, other in self._tracks.items() if other.session is session and other.is_done]
            for source in done:
                del self._tracks[source]
