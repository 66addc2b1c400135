"""Captures: the frames of connections as rows in files, for analysis later. No payload is kept."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from rsocket_trio.capture.buffer import FrameBuffer, Recorded
from rsocket_trio.capture.rows import CaptureOrigin
from rsocket_trio.capture.rsocket_decoder import ConnectionTracker
from rsocket_trio.capture.schema import TABLES
from rsocket_trio.capture.writers import FORMATS, GROUP, TableWriter, need_pyarrow
from rsocket_trio.mux.framing import Facts, Recorder

__all__ = ["Capture"]

logger = logging.getLogger("rsocket_trio")

CLOSE_TIMEOUT = 5.0
"""Seconds for writing the rest at the end."""
LAST_PART = 0.2
"""Share of them that is kept for completing the files if decoding the rest takes longer."""
PAUSE = 0.05
"""Seconds between two looks into the buffer, which wakes the thread earlier when it is half full."""
SLICE = 32
"""Frames after which the thread releases the interpreter, so that the connections' thread need not wait for it."""
PAUSE_BETWEEN_SLICES = 0.0001
"""Seconds for which it does so."""


class Capture:
    """Records the frames of any number of connections as three tables of files in ``directory``. Payloads are not kept.

    ``format`` is ``parquet``, which needs pyarrow, or ``jsonl``. A file is complete, and gets its name, after
    ``rotate_seconds`` or at about ``rotate_bytes``, and when the capture is closed. Frames that wait to be decoded are
    bounded by ``buffer_frames`` and ``buffer_bytes`` (and one read more); frames beyond are dropped and counted.
    ``host`` is the name in the rows, that of the machine by default, and ``capture_id`` names this capture there.

    A capture belongs to the connections of one event loop. Connections never wait for the disk; when the disk fails,
    ``error`` holds the reason and all further frames are dropped.

    Raise ``OSError`` naming the directory if it is not writable, ``ValueError`` for an unknown format or an invalid
    bound, and ``ModuleNotFoundError`` naming the extra if pyarrow is missing.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        format: str = "parquet",
        rotate_bytes: int = 64 * 2**20,
        rotate_seconds: float = 60.0,
        buffer_frames: int = 65536,
        buffer_bytes: int = 16 * 2**20,
        host: str | None = None,
    ) -> None:
        kind = FORMATS.get(format)
        if kind is None:
            raise ValueError(f"capture format {format!r}: the known ones are {', '.join(FORMATS)}")
        for name, bound in (
            ("rotate_bytes", rotate_bytes),
            ("rotate_seconds", rotate_seconds),
            ("buffer_frames", buffer_frames),
            ("buffer_bytes", buffer_bytes),
        ):
            if not bound > 0:
                raise ValueError(f"{name} of {bound}: must be above 0")
        if format == "parquet":
            need_pyarrow()
        self.directory = Path(directory)
        self.capture_id = secrets.token_hex(16)
        """The name of this run, in every row."""
        _check(self.directory, self.capture_id)
        origin = CaptureOrigin(
            self.capture_id, host or socket.gethostname(), time.time_ns() // 1000, time.monotonic_ns()
        )
        self._writers = {
            table: TableWriter(self.directory, table, kind, self.capture_id[:12], rotate_bytes, rotate_seconds)
            for table in TABLES
        }
        self._wake = threading.Event()
        """Has the thread look into the buffer at once."""
        self._buffer = FrameBuffer(buffer_frames, buffer_bytes, self._wake.set)
        self._tracker = ConnectionTracker(origin, partial(secrets.token_hex, 16))
        self._stopping = False
        self._flushes: list[threading.Event] = []
        self._left = 0
        self._handed = 0
        self.error: Exception | None = None
        """The reason why nothing is recorded any more; ``None`` while the capture works."""
        self._thread = threading.Thread(target=self._run, name=f"capture {self.directory}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "closed" if self._stopping else f"failed: {self.error}" if self.error is not None else "open"
        return f"<Capture {self.directory}, {self.dropped} frames dropped, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Return how many frames are in no file: there was no room, or writing failed."""
        lost = self._left + self._tracker.waiting + self._handed - self._writers["frames"].kept
        return self._buffer.dropped + (lost if self.error is not None else 0)

    def _opened(self, facts: Facts) -> Recorder:
        """Return the recorder of a connection that is about to carry its first frame. Called by connections."""
        return Recorded(self._buffer, facts)

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Write all frames seen so far into whole files. Return whether that was done within ``timeout`` seconds.

        Blocks its thread: in an event loop call it through ``trio.to_thread.run_sync``.
        """
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        return self._thread.is_alive() and done.wait(timeout) and self.error is None

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """End the capture, and wait at most ``timeout`` seconds until the rest is written. Never raises.

        Blocks its thread, as ``flush`` does. Later frames are dropped.
        """
        if self._stopping:
            return
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
            self._hand_over(complete=True)
        except Exception as error:
            # No failure of the capture may reach a connection.
            self._fail(error)
            for writer in self._writers.values():
                # Mostly a full disk, which has room for the small rest of another table.
                with suppress(Exception):
                    writer.complete()
                writer.abandon()
        finally:
            for done in self._flushes:
                done.set()

    def _once(self) -> None:
        # Counted before the buffer is read: a flush that is asked for later may mean later frames.
        flushes = len(self._flushes)
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
        self._hand_over(complete=flushes > 0)
        for done in self._flushes[:flushes]:
            done.set()
        del self._flushes[:flushes]

    def _hand_over(self, *, complete: bool = False) -> None:
        now = time.monotonic()
        taken = self._tracker.take()
        self._handed += len(taken["frames"])
        for table, rows in taken.items():
            self._writers[table].add(rows, now)
        if complete:
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
        logger.error("capture into %s failed, and records nothing more: %s", self.directory, error)


def _check(directory: Path, capture_id: str) -> None:
    """Raise ``OSError`` naming the directory where files can't be made in it."""
    try:
        for table in TABLES:
            (directory / table).mkdir(parents=True, exist_ok=True)
        probe = directory / "frames" / f".probe-{capture_id}"
        probe.write_bytes(b"\0")
        probe.unlink()
    except OSError as error:
        raise OSError(error.errno, f"can't capture into {directory}: {error.strerror or error}") from error
