"""Payloads in pieces: cutting one that is too large for a frame, and joining what came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.joining import Joining
from rsocket_trio.payload import Payload
from rsocket_trio.values import value

TINY = 32
"""Bytes of metadata and data together below which a fragment counts as tiny.

The smallest MTU that implementations document is 64 bytes (rsocket-java, rsocket-go). In 1.0 that leaves 55 for the
payload, and in the dialect with the longest header 48.
"""


@value
class Piece:
    """A part of a payload: metadata ends before data begins, and only the last piece has no ``follows``."""

    metadata: memoryview | None
    data: memoryview
    follows: bool


def pieces(payload: Payload, first_room: int, room: int, metadata_header: int) -> Iterator[Piece]:
    """Cut a payload into pieces of ``room`` bytes (the first ``first_room``), headers not counted.

    ``metadata_header`` is what a piece pays for carrying metadata at all. Nothing is copied.
    """
    metadata = memoryview(payload.metadata) if payload.metadata is not None else None
    data = memoryview(payload.data)
    left = first_room
    while metadata is not None:
        part = metadata[: left - metadata_header]
        metadata = metadata[len(part) :]
        if len(metadata):
            yield Piece(part, data[:0], follows=True)
            left = room
            continue
        share = data[: left - metadata_header - len(part)]
        data = data[len(share) :]
        yield Piece(part, share, follows=len(data) > 0)
        if not len(data):
            return
        left = room
        metadata = None
    while True:
        share = data[:left]
        data = data[len(share) :]
        yield Piece(None, share, follows=len(data) > 0)
        if not len(data):
            return
        left = room


@attrs.define(eq=False)
class Assembly:
    """A payload that is still arriving, and what bounds it."""

    data_mime: str | int | None = None
    metadata_mime: str | int | None = None
    size: int = 0
    _metadata: BytesIO | None = None
    _data: Joining = attrs.field(factory=Joining)
    _tiny: int = 0
    _metadata_type: int = 0

    def add(self, payload: Payload, limit: int, tiny_limit: int) -> None:
        """Take one more piece.

        Raises ``RemoteProtocolError`` for metadata after data (RS10-FRAG-09), a payload above ``limit`` bytes, or
        more than ``tiny_limit`` pieces below ``TINY`` bytes in a row (RS10-FRAG-08).
        """
        self._count(payload.size, limit, tiny_limit)
        if payload.metadata is not None:
            if self._data.size:
                raise RemoteProtocolError("metadata in a fragment after data began")
            if self._metadata is None:
                self._metadata = BytesIO()
                self._metadata_type = payload.metadata_type
            self._metadata.write(payload.metadata)
        if payload.data:
            self._data.add(payload.data)

    def add_data(self, data: bytes | memoryview, limit: int, tiny_limit: int) -> None:
        """Take one more piece that has nothing but data. Raises as ``add`` does."""
        self._count(len(data), limit, tiny_limit)
        self._data.add(data)

    def add_large(self, parts: Sequence[memoryview]) -> int:
        """Take pieces that have nothing but data, are not tiny, and no more than there may be. Returns their bytes."""
        data, before = self._data, self._data.size
        for part in parts:
            data.add(part)
        size = data.size - before
        self.size += size
        self._tiny = 0
        return size

    def _count(self, size: int, limit: int, tiny_limit: int) -> None:
        self.size += size
        if self.size > limit:
            raise RemoteProtocolError(f"payload of more than {limit} bytes in fragments")
        self._tiny = self._tiny + 1 if size < TINY else 0
        if self._tiny > tiny_limit:
            raise RemoteProtocolError(f"more than {tiny_limit} fragments below {TINY} bytes in a row")

    @property
    def pieces(self) -> int:
        """Pieces of data that are held one by one."""
        return self._data.pieces

    def join(self) -> Payload:
        """The whole payload, with the MIME types of its first piece."""
        metadata = None if self._metadata is None else self._metadata.getvalue()
        return Payload(
            self._data.join(),
            metadata,
            metadata_type=self._metadata_type,
            data_mime=self.data_mime,
            metadata_mime=self.metadata_mime,
        )
