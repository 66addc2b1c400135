"""Reading captures back, and rows by the names of their columns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rsocket_trio.capture.buffer import CLOSED, OVER, RECEIVED, SENT, BufferEntry, FrameBuffer, Recorded
from rsocket_trio.capture.connection_decoder import CapturedFrame
from rsocket_trio.capture.rows import CaptureOrigin, Row
from rsocket_trio.capture.rsocket_decoder import ConnectionTracker
from rsocket_trio.capture.schema import TABLES
from rsocket_trio.mux.framing import Facts

Named = dict[str, Any]


def named(table: str, rows: Iterable[Row]) -> list[Named]:
    """Rows as dictionaries."""
    names = [column.name for column in TABLES[table]]
    return [dict(zip(names, row, strict=True)) for row in rows]


def read(directory: Path, table: str) -> list[Named]:
    """All rows of the whole files of a table, in the order of their files."""
    rows: list[Named] = []
    for path in sorted((directory / table).rglob("part-*")):
        if path.suffix == ".parquet":
            # From memory: a thread of Arrow may have the file open for longer than its reader.
            rows += pq.ParquetFile(BytesIO(path.read_bytes())).read().to_pylist()
        else:
            rows += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return rows


class Script:
    """A tracker that is told by hand what passes on one connection; time is in microseconds."""

    def __init__(self, dialect: str = "rsocket/1.0", side: str = "client") -> None:
        numbers = iter(range(1000))
        self.tracker = ConnectionTracker(CaptureOrigin("capture", "host", 0, 0), lambda: f"conn-{next(numbers)}")
        self.buffer = FrameBuffer(10_000, 10_000_000, lambda: None)
        self.dialect = dialect
        self.side = side
        self.now = 0
        self.source = self.open()

    def open(self) -> Recorded:
        """Another connection."""
        source = Recorded(self.buffer, Facts(self.side, self.dialect, "memory", "peer"))
        entry = self.buffer.take()
        assert entry is not None
        self.tracker.see(entry._replace(now=self.now * 1000))
        return source

    def sent(self, *frames: CapturedFrame, **when: Any) -> None:
        """These went out."""
        self._see(SENT, list(frames), **when)

    def received(self, *frames: CapturedFrame, **when: Any) -> None:
        """These came in."""
        self._see(RECEIVED, list(frames), **when)

    def closed(self, reason: str = "closed", *, over: bool = True, source: Recorded | None = None) -> None:
        """The transport is gone, and with ``over`` the session as well."""
        self.now += 1
        for kind in (CLOSED, OVER)[: 1 + over]:
            self.tracker.see(BufferEntry(source or self.source, kind, self.now * 1000, [], 0, 0, reason))

    def rows(self) -> tuple[list[Named], list[Named], list[Named]]:
        """All rows so far: frames, interactions, connections."""
        taken = self.tracker.take()
        frames, interactions, connections = (named(table, taken[table]) for table in TABLES)
        return frames, interactions, connections

    def _see(
        self,
        kind: int,
        frames: list[CapturedFrame],
        *,
        at: int | None = None,
        source: Recorded | None = None,
        dropped: int = 0,
    ) -> None:
        self.now = self.now + 1 if at is None else at
        self.tracker.see(BufferEntry(source or self.source, kind, self.now * 1000, frames, 0, dropped))
