"""The gate that holds a client's frames while the server's application considers the SETUP."""

from __future__ import annotations

from rsocket_trio.limits import Limits, charged
from rsocket_trio.rsocket.connection_frames import Control
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import ErrorFrame, ExtFrame, MetadataPushFrame, PayloadFrame
from rsocket_trio.rsocket.stream_table import StreamTable

ANSWERS = (PayloadFrame, ErrorFrame)
"""Frames that only a responder sends, where the two sides' ids tell nothing."""

FOR_HANDLERS = (MetadataPushFrame, ExtFrame)
"""Frames for the connection that an application's handlers take: none of those runs before the gate is open."""


class Gate:
    """Holds frames until the application accepts the SETUP. Keepalives, leases, errors and answers pass.

    ``owes_answer`` says that the SETUP asked for one: then nothing may be said before it.
    """

    __slots__ = ("_control", "_dialect", "_held", "_limits", "_size", "_table", "owes_answer")

    def __init__(self, dialect: Dialect, limits: Limits, table: StreamTable, control: Control) -> None:
        self._dialect = dialect
        self._limits = limits
        self._table = table
        self._control = control
        self._held: list[bytes] = []
        self._size = 0
        self.owes_answer = False

    @property
    def is_full(self) -> bool:
        """Whether enough is held for reading to pause."""
        return len(self._held) >= self._limits.held_frames or self._size >= self._limits.held_size

    @property
    def size(self) -> int:
        """The charged size of all held frames in bytes, overhead included."""
        return charged(self._size, len(self._held))

    def lets_through(self, data: bytes) -> bool:
        """Return whether to process this frame now; otherwise hold it."""
        if self._passes(data):
            return True
        self._held.append(data)
        self._size += len(data)
        if self._table.learns:
            self._learn(data)
        return False

    def open(self) -> list[bytes]:
        """Return the held frames in order."""
        held, self._held, self._size = self._held, [], 0
        return held

    def _learn(self, data: bytes) -> None:
        """Learn the peer's parity from a held request: the application may send requests before it is processed."""
        codec = self._dialect.codec
        header = codec.header(data)
        row = None if header is None else codec.row(header.number)
        if header is not None and header.stream_id and row is not None and row.interaction is not None:
            self._table.learn(header.stream_id)

    def _passes(self, data: bytes) -> bool:
        codec = self._dialect.codec
        header = codec.header(data)
        if header is None:
            return True
        row = codec.row(header.number)
        if self.owes_answer:
            # Only an end that the peer announces needs no answer.
            return row is not None and row.frame is ErrorFrame
        if row is not None and row.frame in FOR_HANDLERS:
            return row.frame is ExtFrame and self._control.is_for_session(data)
        if header.stream_id and not self._dialect.ids_have_parity:
            # The id may be one of ours and one of the peer's: only what answers our own requests goes on.
            return row is not None and row.frame in ANSWERS
        # A request, or something for a request that is held already, waits.
        return not header.stream_id or self._table.find(header.stream_id) is not None
