"""Turns captured entries of all connections into rows; uses no clock, thread or file."""

from __future__ import annotations

from collections.abc import Callable

from rsocket_trio.capture.buffer import CLOSED, OPENED, OVER, RECEIVED, BufferEntry, Recorded
from rsocket_trio.capture.connection_decoder import ConnectionDecoder, Sessions
from rsocket_trio.capture.rows import Origin, Row, Rows
from rsocket_trio.capture.rsocket_decoder import RSocketDecoder
from rsocket_trio.capture.streamux_decoder import StreamuxDecoder
from rsocket_trio.mux.recording import Facts
from rsocket_trio.rsocket.dialects import DIALECTS


class Tracker:
    """Turns entries into rows of the three tables. ``new_id`` names connections."""

    def __init__(self, origin: Origin, new_id: Callable[[], str]) -> None:
        self._origin = origin
        self._new_id = new_id
        self._rows = Rows()
        self._decoders: dict[Recorded, ConnectionDecoder] = {}
        self._sessions: Sessions = {}

    def __len__(self) -> int:
        """Return the number of connections that are tracked."""
        return len(self._decoders)

    def take(self) -> dict[str, list[Row]]:
        """Remove and return the rows so far, by table."""
        return self._rows.take()

    @property
    def waiting(self) -> int:
        """Return the number of frame rows that have not been taken."""
        return len(self._rows.frames)

    def see(self, entry: BufferEntry) -> None:
        """Handle one entry of the buffer."""
        source, kind, now, frames, _, dropped, text = entry
        if kind == OPENED:
            self._decoders[source] = self._decoder_for(source.facts, now)
            return
        decoder = self._decoders.get(source)
        if decoder is None:
            return
        if kind == CLOSED:
            decoder.drop(dropped)
            decoder.closed(now, text)
        elif kind == OVER:
            decoder.drop(dropped)
            self._over(decoder, now, text)
        else:
            decoder.frames(now, kind == RECEIVED, frames, dropped)
            return
        if decoder.is_done:
            self._decoders.pop(source, None)

    def finish(self, now: int, reason: str) -> None:
        """End the capture: end all connections and sessions that it tracks."""
        for source, decoder in self._decoders.items():
            decoder.drop(source.dropped)
            decoder.give_up(now, reason)
        self._decoders.clear()
        self._sessions.clear()

    def _decoder_for(self, facts: Facts, now: int) -> ConnectionDecoder:
        conn_id = self._new_id()
        if facts.dialect in DIALECTS:
            return RSocketDecoder(self._origin, self._rows, facts, conn_id, now, self._sessions)
        return StreamuxDecoder(self._origin, self._rows, facts, conn_id, now)

    def _over(self, decoder: ConnectionDecoder, now: int, reason: str) -> None:
        decoder.over(now, reason)
        session = decoder.session
        name = session.side, session.id
        if self._sessions.get(name) is session and session.is_over:
            del self._sessions[name]
        if session.resumes:
            done = [source for source, other in self._decoders.items() if other.session is session and other.is_done]
            for source in done:
                del self._decoders[source]
