"""What holds a payload of unknown size while it comes piece by piece?"""

from __future__ import annotations

from io import BytesIO

SMALL = 2 * 1024 * 1024
"""Bytes up to which what came is joined at its end."""
PIECES = 256
"""How many there may be for that: each costs 40 bytes, and a peer chooses how small they are."""
WORTH_KEEPING = 256 * 1024
"""Bytes from which memory is worth keeping for the next payload."""


class Spare:
    """Memory in which payloads were joined, kept for the next ones: ``SMALL`` bytes in a process at most.

    Pieces and the whole are in memory together for a moment. The C library gives that much back to the system with
    each payload and gets it again page by page: of what an echo of 1 MiB took, that was more than half.

    Programs may run Trio in several threads. Each change here is one call that no other thread gets between, so memory
    never has two owners.
    """

    def __init__(self) -> None:
        # By size. Views, because a slice of a bytearray that is set makes a copy of what it is set to first.
        self._kept: list[memoryview] = []

    def take(self, size: int) -> memoryview | None:
        """The largest memory that has this size and not more than twice of it; ``None`` if there is none.

        It is the caller's from here. Who sends half a payload and stops must not hold many times of it.
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
        """Keep this. The giver forgets it."""
        self._kept.append(memory)
        self._kept.sort(key=len)
        while sum(map(len, self._kept)) > SMALL:
            self._kept[:1] = ()

    def learn(self, size: int) -> None:
        """Somebody would have had use for so much: have it next time, if nothing like it is kept."""
        if WORTH_KEEPING <= size <= SMALL and not any(size <= len(memory) <= 2 * size for memory in self._kept):
            self.give(memoryview(bytearray(size)))


SPARE = Spare()


class Joining:
    """Bytes that come in pieces. It never asks for memory for more than what is here, but for what was kept anyway.

    What is small is joined at its end, from the spare memory where that is free and large enough. Of what is large, or
    comes in many pieces, bytes are copied as they come: joining tens of megabytes would hold up everybody else for as
    long. ``BytesIO`` hands its buffer over without one more copy.
    """

    __slots__ = ("_buffer", "_filled", "_pieces", "_spare", "size")

    def __init__(self) -> None:
        self.size = 0
        self._buffer: BytesIO | None = None
        self._spare: memoryview | None = None
        self._filled = 0
        self._pieces: list[bytes | memoryview] = []  # behind what the spare memory holds

    def add(self, piece: bytes | memoryview) -> None:
        """Take one more piece. It is kept as it is, with what it is a view of."""
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
        """Pieces that are kept as they came, each an object of its own."""
        return len(self._pieces)

    def join(self) -> bytes:
        """All of them."""
        if self._buffer is not None:
            return self._buffer.getvalue()
        return self._joined()

    def _joined(self) -> bytes:
        """What is held so far, as one; nothing of it is held any more."""
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
