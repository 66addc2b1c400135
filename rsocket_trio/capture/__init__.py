"""Captures: the frames of connections as rows in files, for analysis later. No payload is kept."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rsocket_trio.capture.buffer import Buffer, Recorded
from rsocket_trio.capture.rows import Origin
from rsocket_trio.capture.schema import TABLES
from rsocket_trio.capture.writer_thread import Tracker, WriterThread
from rsocket_trio.capture.writers import FORMATS, TableWriter, need_pyarrow
from rsocket_trio.mux.recording import Facts, Recorder

__all__ = ["Capture"]

CLOSE_TIMEOUT = 5.0
"""Seconds for writing the rest at the end."""


class Capture:
    """Records the frames of any number of connections as three tables of files in ``directory``. Payloads are not kept.

    ``format`` is ``parquet``, which needs pyarrow, or ``jsonl``. A file is complete, and gets its name, after
    ``rotate_seconds`` or at about ``rotate_bytes``, and when the capture is closed. Frames that wait to be decoded are
    bounded by ``buffer_frames`` and ``buffer_bytes`` (and one read more); frames beyond are dropped and counted.
    ``host`` is the name in the rows, that of the machine by default.

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
        origin = Origin(self.capture_id, host or socket.gethostname(), time.time_ns() // 1000, time.monotonic_ns())
        self._writers = {
            table: TableWriter(self.directory, table, kind, self.capture_id[:12], rotate_bytes, rotate_seconds)
            for table in TABLES
        }
        wake = threading.Event()
        self._buffer = Buffer(buffer_frames, buffer_bytes, wake.set)
        tracker = Tracker(origin, partial(secrets.token_hex, 16))
        self._worker = WriterThread(str(self.directory), self._buffer, tracker, self._writers, wake)
        self._closed = False
        self._worker.start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"failed: {self.error}" if self.error is not None else "open"
        return f"<Capture {self.directory}, {self.dropped} frames dropped, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Return how many frames are in no file: there was no room, or writing failed."""
        return self._buffer.dropped + self._worker.lost

    @property
    def error(self) -> Exception | None:
        """Return the reason why nothing is recorded any more; ``None`` while the capture works."""
        return self._worker.error

    def _opened(self, facts: Facts) -> Recorder:
        """Return the recorder of a connection that is about to carry its first frame; ``facts`` describe it. Called
        by connections.
        """
        return Recorded(self._buffer, facts)

    def flush(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Write all frames seen so far into whole files. Return whether that was done within ``timeout`` seconds.

        Blocks its thread: in an event loop call it through ``trio.to_thread.run_sync``.
        """
        return self._worker.flush(timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """End the capture, and wait at most ``timeout`` seconds until the rest is written. Never raises.

        Blocks its thread, as ``flush`` does. Later frames are dropped.
        """
        if not self._closed:
            self._closed = True
            self._worker.stop(timeout)


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
