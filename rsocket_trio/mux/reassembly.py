"""Payloads that come in fragments: the pieces are joined in pooled buffers."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.payload import Payload

TINY = 32
"""Bytes of metadata and data together below which a fragment counts as tiny.

The smallest MTU that implementations document is 64 bytes (rsocket-java, rsocket-go). In 1.0 that leaves 55 for the
payload, and in the dialect with the longest header 48.
"""
SMALL = 2 * 1024 * 1024
"""Bytes up to which a payload is joined at its end."""
PIECES = 256
"""Pieces below which a payload is joined at its end: each costs 40 bytes, and a peer chooses how small they are."""
WORTH_KEEPING = 256 * 1024
"""Bytes from which memory is worth keeping for the next payload."""


class BufferPool:
    """Memory in which payloads were joined, kept for the next ones: ``SMALL`` bytes in a process at most.

    Pieces and the whole are in memory together for a moment. The C library gives that much back to the system with
    each payload and gets it again page by page: that was more than half of the cost of an echo of 1 MiB.

    Programs may run Trio in several threads. Each change here is one call that no other thread can interrupt, so memory
    never has two owners.
    """

    def __init__(self) -> None:
        # By size. Views: assigning to a slice of a bytearray first copies the assigned bytes.
        self._kept: list[memoryview] = []

    def take(self, size: int) -> memoryview | None:
        """Return the largest buffer of at least ``size`` bytes and at most twice as many; ``None`` if there is none.

        The caller owns it from here. A peer that sends half a payload and stops must not hold many times its size.
        """
        for place in reversed(range(len(self._kept))):
            try:
                memory = self._kept.pop(place)
            except IndexError:
                continue  # another thread was quicker
            if size <= len(memory) <= 2 * size:
                return memory
            self.give(memory)
        return None

    def give(self, memory: memoryview) -> None:
        """Keep this buffer. The caller must not use it any more."""
        self._kept.append(memory)
        self._kept.sort(key=len)
        while sum(map(len, self._kept)) > SMALL:
            self._kept[:1] = ()

    def learn(self, size: int) -> None:
        """Allocate a buffer of this size for the next payload, unless one like it is kept already."""
        if WORTH_KEEPING <= size <= SMALL and not any(size <= len(memory) <= 2 * size for memory in self._kept):
            self.give(memoryview(bytearray(size)))


BUFFER_POOL = BufferPool()


class Reassembly:
    """The bytes of a payload that comes in pieces. It allocates no more than has arrived, beside pooled memory.

    A small payload is joined at its end, in pooled memory if that is free and large enough. The bytes of one that is
    large, or comes in many pieces, are copied as they come: joining tens of megabytes at once would hold up all other
    tasks. With ``copies`` they are from the start, for pieces so small that an object for each is many times as large.
    ``BytesIO`` hands its buffer over without one more copy.
    """

    __slots__ = ("_buffer", "_filled", "_pieces", "_pooled", "size")

    def __init__(self, *, copies: bool = False) -> None:
        self.size = 0
        self._buffer: BytesIO | None = BytesIO() if copies else None
        self._pooled: memoryview | None = None
        self._filled = 0
        self._pieces: list[bytes | memoryview] = []  # they follow the bytes in the pooled memory

    def add(self, piece: bytes | memoryview) -> None:
        """Take one more piece. It is kept uncopied, and keeps alive the object that it is a view of."""
        self.size += len(piece)
        if self._buffer is not None:
            self._buffer.write(piece)
            return
        pooled = self._pooled
        if pooled is not None and self.size <= len(pooled):
            pooled[self._filled : self.size] = piece
            self._filled = self.size
            return
        pieces = self._pieces
        pieces.append(piece)
        if self.size > SMALL or len(pieces) == PIECES:
            self._buffer = BytesIO()
            if pooled is not None:
                self._buffer.write(pooled[: self._filled])
                BUFFER_POOL.give(pooled)
                self._pooled = None
            self._buffer.writelines(pieces)
            pieces.clear()
        elif pooled is None and self.size >= WORTH_KEEPING:
            self._pooled = pooled = BUFFER_POOL.take(self.size)
            if pooled is not None:
                for earlier in pieces:
                    end = self._filled + len(earlier)
                    pooled[self._filled : end] = earlier
                    self._filled = end
                pieces.clear()

    @property
    def pieces(self) -> int:
        """Return how many pieces are kept as they came, each an object of its own."""
        return len(self._pieces)

    def join(self) -> bytes:
        """Return all pieces as one. Call it once: small pieces and pooled memory are given up."""
        if self._buffer is not None:
            return self._buffer.getvalue()
        pieces, self._pieces = self._pieces, []
        pooled, self._pooled = self._pooled, None
        whole = b"".join(pieces if pooled is None else (pooled[: self._filled], *pieces))
        if pooled is None or pieces:
            BUFFER_POOL.learn(len(whole))
        else:
            BUFFER_POOL.give(pooled)
        return whole


@attrs.define(eq=False)
class PartialPayload:
    """A payload that is still arriving, within its bounds."""

    data_mime: str | int | None = None
    metadata_mime: str | int | None = None
    size: int = 0
    _metadata: BytesIO | None = None
    _data: Reassembly = attrs.field(factory=Reassembly)
    _tiny: int = 0
    _metadata_type: int = 0

    def add(self, payload: Payload, limit: int, tiny_limit: int) -> None:
        """Take one more piece.

        Raise ``RemoteProtocolError`` for metadata after data (RS10-FRAG-09), a payload above ``limit`` bytes, or
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
        """Take one more piece that has nothing but data. Raise as ``add`` does."""
        self._count(len(data), limit, tiny_limit)
        self._data.add(data)

    def add_large(self, parts: Sequence[memoryview]) -> int:
        """Take pieces that have nothing but data, are not tiny, and no more than there may be. Return their bytes."""
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
        """Return the whole payload, with the MIME types of its first piece. Call it once, as ``Reassembly.join``."""
        return Payload(
            self._data.join(),
            None if self._metadata is None else self._metadata.getvalue(),
            metadata_type=self._metadata_type,
            data_mime=self.data_mime,
            metadata_mime=self.metadata_mime,
        )
