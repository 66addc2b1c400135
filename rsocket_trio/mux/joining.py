"""Joins payloads of unknown size as their pieces arrive, in memory that is kept for the next ones."""

from __future__ import annotations

from io import BytesIO

SMALL = 2 * 1024 * 1024
"""Bytes up to which a payload is joined at its end."""
PIECES = 256
"""Pieces below which a payload is joined at its end: each costs 40 bytes, and a peer chooses how small they are."""
WORTH_KEEPING = 256 * 1024
"""Bytes from which memory is worth keeping for the next payload."""


class Spare:
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


SPARE = Spare()


class Joining:
    """The bytes of a payload that comes in pieces. It allocates no more than has arrived, beside spare memory.

    A small payload is joined at its end, in spare memory if that is free and large enough. The bytes of one that is
    large, or comes in many pieces, are copied as they come: joining tens of megabytes at once would hold up all other
    tasks. ``BytesIO`` hands its buffer over without one more copy.
    """

    __slots__ = ("_buffer", "_filled", "_pieces", "_spare", "size")

    def __init__(self) -> None:
        self.size = 0
        self._buffer: BytesIO | None = None
        self._spare: memoryview | None = None
        self._filled = 0
        self._pieces: list[bytes | memoryview] = []  # they follow the bytes in the spare memory

    def add(self, piece: bytes | memoryview) -> None:
        """Take one more piece. It is kept uncopied, and keeps alive the object that it is a view of."""
        self.size += len(piece)
        if self._buffer is not None:
            self._buffer.write(piece)
            return
        spare = self._spare
        if spare is not None and self.size <= len(spare):
            spare[self._filled : self.size] = piece
            self._filled = self.size
            return
        pieces = self._pieces
        pieces.append(piece)
        if self.size > SMALL or len(pieces) == PIECES:
            self._buffer = BytesIO()
            if spare is not None:
                self._buffer.write(spare[: self._filled])
                SPARE.give(spare)
                self._spare = None
            self._buffer.writelines(pieces)
            pieces.clear()
        elif spare is None and self.size >= WORTH_KEEPING:
            self._spare = spare = SPARE.take(self.size)
            if spare is not None:
                for each in pieces:
                    end = self._filled + len(each)
                    spare[self._filled : end] = each
                    self._filled = end
                pieces.clear()

    @property
    def pieces(self) -> int:
        """Return how many pieces are kept as they came, each an object of its own."""
        return len(self._pieces)

    def join(self) -> bytes:
        """Return all pieces as one."""
        if self._buffer is not None:
            return self._buffer.getvalue()
        return self._joined()

    def _joined(self) -> bytes:
        """Return all bytes held so far as one, and hold none any more."""
        pieces, self._pieces = self._pieces, []
        spare, self._spare = self._spare, None
        if spare is None:
            whole = b"".join(pieces)
        else:
            whole = b"".join((spare[: self._filled], *pieces))
        if spare is None or pieces:
            SPARE.learn(len(whole))
        else:
            SPARE.give(spare)
        return whole
