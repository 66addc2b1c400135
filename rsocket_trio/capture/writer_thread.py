"""The thread of a capture: it decodes the buffered frames and writes rows. No connection ever waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Final

from rsocket_trio.capture.buffer import Buffer, BufferEntry
from rsocket_trio.capture.tracker import Tracker
from rsocket_trio.capture.writers import GROUP, TableWriter

logger = logging.getLogger("rsocket_trio")

PAUSE: Final = 0.05
"""Seconds between two looks into the buffer, which wakes the thread earlier when it is half full."""
SLICE: Final = 32
"""Frames after which the thread releases the interpreter, so that the connections' thread need not wait for it."""
PAUSE_BETWEEN_SLICES: Final = 0.0001
"""Seconds for which it does so."""
LAST_PART: Final = 0.2
"""Share of the closing time that is kept for completing the files if decoding the rest takes longer."""


class WriterThread:
    """Moves entries from the buffer through the tracker into files, until it is stopped or fails."""

    def __init__(self, name: str, buffer: Buffer, tracker: Tracker, writers: Mapping[str, TableWriter]) -> None:
        self._name = name
        self._buffer = buffer
        self._tracker = tracker
        self._writers = writers
        self._wake = threading.Event()
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

    def wake(self) -> None:
        """Have the thread look into the buffer at once."""
        if not self._wake.is_set():
            self._wake.set()

    def flush(self, timeout: float) -> bool:
        """Have all frames so far written into whole files. Return whether that was done within ``timeout`` seconds."""
        done = threading.Event()
        self._flushes.append(done)
        self.wake()
        if not self._thread.is_alive():
            return False
        return done.wait(timeout) and self.error is None

    def stop(self, timeout: float) -> None:
        """Let the thread write the rest and end; after ``timeout`` seconds record a failure and leave it."""
        # First, so that connections that go on add nothing more.
        self._buffer.is_shut = True
        self._stopping = True
        self.wake()
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
            if len(entry.frames) <= SLICE:
                self._tracker.see(entry)
            else:
                self._see_slowly(entry)
            seen += len(entry.frames) + 1
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

    def _see_slowly(self, entry: BufferEntry) -> None:
        for start in range(0, len(entry.frames), SLICE):
            dropped = entry.dropped if not start else 0
            self._tracker.see(entry._replace(frames=entry.frames[start : start + SLICE], dropped=dropped))
            time.sleep(PAUSE_BETWEEN_SLICES)

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
