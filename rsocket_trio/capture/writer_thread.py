"""The thread of a capture: it decodes the buffered frames and writes rows. No connection ever waits for it.

The tracker, which turns entries of all connections into rows, uses no clock, thread or file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from rsocket_trio.capture.buffer import CLOSED, OPENED, OVER, RECEIVED, Buffer, BufferEntry, Recorded
from rsocket_trio.capture.connection_decoder import ConnectionDecoder, Sessions
from rsocket_trio.capture.rows import Origin, Row, Rows
from rsocket_trio.capture.rsocket_decoder import RSocketDecoder
from rsocket_trio.capture.writers import GROUP, TableWriter
from rsocket_trio.mux.recording import Facts
from rsocket_trio.rsocket.dialect import DIALECTS

logger = logging.getLogger("rsocket_trio")

PAUSE: Final = 0.05
"""Seconds between two looks into the buffer, which wakes the thread earlier when it is half full."""
SLICE: Final = 32
"""Frames after which the thread releases the interpreter, so that the connections' thread need not wait for it."""
PAUSE_BETWEEN_SLICES: Final = 0.0001
"""Seconds for which it does so."""
LAST_PART: Final = 0.2
"""Share of the closing time that is kept for completing the files if decoding the rest takes longer."""


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
        return ConnectionDecoder(self._origin, self._rows, facts, conn_id, now)

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


class WriterThread:
    """Moves entries from the buffer through the tracker into files, until it is stopped or fails."""

    def __init__(
        self, name: str, buffer: Buffer, tracker: Tracker, writers: Mapping[str, TableWriter], wake: threading.Event
    ) -> None:
        """Setting ``wake`` has the thread look into the buffer at once."""
        self._name = name
        self._buffer = buffer
        self._tracker = tracker
        self._writers = writers
        self._wake = wake
        self._stopping = False
        self._flushes: list[threading.Event] = []
        self.error: Exception | None = None
        self._left = 0
        self._handed = 0
        self._thread = threading.Thread(target=self._run, name=f"capture {name}", daemon=True)

    @property
    def lost(self) -> int:
        """Frames that were taken from the buffer, or left in it, and will be in no file."""
        if self.error is None:
            return 0
        return self._left + self._tracker.waiting + self._handed - self._writers["frames"].kept

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def flush(self, timeout: float) -> bool:
        """Have all frames so far written into whole files. Return whether that was done within ``timeout`` seconds."""
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        if not self._thread.is_alive():
            return False
        return done.wait(timeout) and self.error is None

    def stop(self, timeout: float) -> None:
        """Let the thread write the rest and end; after ``timeout`` seconds record a failure and leave it."""
        # First, so that connections that go on add nothing more.
        self._buffer.is_shut = True
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout * (1 - LAST_PART))
        if self._thread.is_alive():
            self._fail(TimeoutError(f"writing what is left took more than {timeout:g} s"))
            self._thread.join(timeout * LAST_PART)

    # In the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait(PAUSE)
                # Cleared before the buffer is read: an entry that comes later sets it again.
                self._wake.clear()
                self._once()
            while len(self._buffer):
                self._once()
            self._tracker.finish(time.monotonic_ns(), "the capture ended first")
            self._hand_over()
            self._complete()
        except Exception as error:
            # No failure of the capture may reach a connection.
            self._fail(error)
            for writer in self._writers.values():
                # Mostly a full disk, which has room for the small rest of another table.
                writer.save()
        finally:
            for done in self._flushes:
                done.set()

    def _once(self) -> None:
        # Counted before the buffer is read: a flush that is asked for later may mean later frames.
        wanted = len(self._flushes)
        seen = 0
        # Entries that arrive meanwhile wait for the next turn: they may come faster than they are decoded.
        for _ in range(len(self._buffer)):
            entry = self._buffer.take()
            if entry is None:
                break  # a failure in another thread has emptied the buffer
            for start in range(0, max(len(entry.frames), 1), SLICE):
                frames = entry.frames[start : start + SLICE]
                self._tracker.see(entry._replace(frames=frames, dropped=0 if start else entry.dropped))
                seen += len(frames) + 1
                if seen >= SLICE:
                    seen = 0
                    time.sleep(PAUSE_BETWEEN_SLICES)
            if self._tracker.waiting >= GROUP:
                self._hand_over()
        self._hand_over()
        if wanted:
            self._complete()
            for done in self._flushes[:wanted]:
                done.set()
            del self._flushes[:wanted]

    def _hand_over(self) -> None:
        now = time.monotonic()
        taken = self._tracker.take()
        self._handed += len(taken["frames"])
        for table, rows in taken.items():
            self._writers[table].add(rows, now)

    def _complete(self) -> None:
        for writer in self._writers.values():
            writer.complete()

    def _fail(self, error: Exception) -> None:
        """Record nothing more: log one line, and count the frames that were not written as dropped."""
        if self.error is not None:
            return
        self.error = error
        self._buffer.is_shut = True
        while (entry := self._buffer.take()) is not None:
            self._left += len(entry.frames)
        logger.error("capture into %s failed, and records nothing more: %s", self._name, error)
