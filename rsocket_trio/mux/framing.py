"""Cuts chunks of bytes into whole frames, and joins frames with their length prefixes for writing."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeAlias

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.values import value

EncodedFrame: TypeAlias = bytes | tuple[bytes | memoryview, ...]
"""A frame without its prefix, possibly in pieces: a large body is not copied before the one join."""


SMALL = 1024 * 1024
"""Bytes up to which pieces are joined at the end: that takes no noticeable time."""
PIECES = 64
"""Pieces that are kept apart at most: each costs 40 bytes, and a peer chooses how small they are."""
MAX_FRAME_BUFFER_BYTES = 32 * 1024 * 1024
AHEAD = 8
"""A buffer is allocated with at most this many times the bytes that have arrived."""
AT_ONCE = 64 * 1024
"""Bytes of a chunk up to which all its frames are handed out together, to be acted on without a pause."""
PORTION = 8192
"""Bytes of a larger chunk after which its frames are counted, each time."""
CROWD = 256
"""Frames after which a portion ends: all that are handed out together are acted on while other tasks wait. After a read
of more, the next reads bring less."""

ALIKE = 8
"""Frames in one write from which it is worth to look whether all have the same size."""


class Framing:
    """Cuts a byte stream into frames, however the stream was cut on its way. This one cuts nothing: each chunk passes.

    Message transports have it as well: they send frames one by one, since borders are lost.
    """

    __slots__ = ("_max", "error")

    error: RemoteProtocolError | None
    """The error that ends the frames. ``feed`` sets it rather than raising it, so that no frame before is lost."""
    pending: bool = False
    """True if whole frames are left over: the next ``feed`` hands them out, and needs nothing new for it."""
    portions: ClassVar[bool] = False
    """True if a chunk of any size is handed out in portions, so that no number of frames holds up others for long."""
    missing: int = 0
    """The bytes still to come of the frame that began, as far as its length is known."""

    def __init__(self, max_frame: float = math.inf) -> None:
        self.error = None
        self._max = max_frame

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a frame has arrived and the rest has not."""
        return False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames that this chunk completes, without prefixes. Check ``error`` and ``pending`` afterwards."""
        if self.error is None and len(chunk) > self._max:
            self.error = RemoteProtocolError(f"frame of {len(chunk)} bytes, limit {self._max}")
        return [chunk] if self.error is None else []

    def join(self, frames: Sequence[EncodedFrame]) -> bytes:
        """Return the bytes of all frames with their prefixes. Raise ``LocalProtocolError`` if one is too large."""
        if len(frames) == 1 and isinstance(frames[0], bytes):
            return frames[0]
        return b"".join(self.parts(frames))

    def parts(self, frames: Sequence[EncodedFrame]) -> list[bytes | memoryview]:
        """Return the same, not joined: for writes that take pieces."""
        parts: list[bytes | memoryview] = []
        for frame in frames:
            if isinstance(frame, bytes):
                parts.append(frame)
            else:
                parts += frame
        return parts


@functools.cache
def keep_freed_memory() -> None:
    """Have the C library keep a few megabytes that are freed, where it is glibc; it does nothing elsewhere.

    glibc gives freed memory back to the system above twice the size of the largest block that it mapped apart and that
    was freed. A frame of a megabyte and its payload are just above that: then each page of the next ones is mapped
    anew, which was a third of the cost of an echo. One larger block, which is never touched, raises that bound.
    """
    bytes(2 * SMALL)


class Gathering:
    """The bytes of one frame, which come piece by piece.

    Pieces are kept apart and joined at the end; many pieces are copied to a buffer that grows. A large frame gets a
    buffer of its full size once an eighth of it is here, and that buffer becomes the frame: a growing one would be
    moved, be in memory twice meanwhile, and leave holes. It is not allocated before: it may be resident from the start,
    and a peer must not make this side hold more than eight times the bytes that it sent.
    """

    __slots__ = ("_buffer", "_here", "_pieces")

    def __init__(self) -> None:
        self._buffer: io.BytesIO | None = None
        self._pieces: list[bytes] = []
        self._here = 0

    def add(self, chunk: bytes, missing: int) -> None:
        """Keep a piece; ``missing`` bytes are still to come behind it."""
        if self._buffer is not None:
            self._buffer.write(chunk)
            return
        pieces = self._pieces
        pieces.append(chunk)
        self._here += len(chunk)
        whole = self._here + missing
        if SMALL < whole <= MAX_FRAME_BUFFER_BYTES and self._here * AHEAD >= whole:
            keep_freed_memory()
            self._buffer = io.BytesIO(bytes(whole))
            self._buffer.writelines(pieces)
            pieces.clear()
        elif len(pieces) == PIECES:
            self._buffer = io.BytesIO()
            self._buffer.writelines(pieces)
            pieces.clear()

    def complete(self, chunk: bytes) -> bytes:
        """Return all pieces and this last one as one, and keep none."""
        buffer, self._buffer, self._here = self._buffer, None, 0
        if buffer is not None:
            buffer.write(chunk)
            return buffer.getvalue()
        pieces = self._pieces
        if not pieces:
            return chunk
        self._pieces = []
        pieces.append(chunk)
        return b"".join(pieces)


class _LengthPrefixed(Framing):
    """Frames behind a length prefix. Sizes here do not count the prefix, even if the length on the wire does.

    ``first_max`` bounds the first frame by itself. A length that was announced is a number and nothing else until its
    bytes are here.
    """

    __slots__ = ("_first", "_gathering", "_later_max", "_rest", "_smallest", "missing", "pending")

    portions = True
    prefix: ClassVar[int]
    """Bytes of the length field."""
    counted: ClassVar[int]
    """Bytes of the length field that the length counts."""
    largest: ClassVar[int]
    """Bytes of the largest frame that the length can express."""

    def __init__(self, max_frame: float = math.inf, smallest: int = 6, first_max: int | None = None) -> None:
        self._first = True
        self._later_max = min(max_frame, self.largest)
        super().__init__(self._later_max if first_max is None else min(first_max, self._later_max))
        self._smallest = smallest
        self._rest = b""  # a prefix that is not complete, or whole frames that are pending
        self.pending = False
        self._gathering: Gathering | None = None  # a frame that is not complete
        self.missing = 0  # bytes of that frame that are to come

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a frame has arrived and the rest has not."""
        return self.missing > 0 or len(self._rest) > 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames that this chunk completes, without prefixes. Check ``error`` afterwards."""
        frames: list[bytes] = []
        if self.error is not None:
            return frames
        in_portions = self.pending or len(chunk) > AT_ONCE
        self.pending = False
        offset = 0
        if self.missing:
            if len(chunk) < self.missing:
                self._gather(chunk)
                return frames
            offset = self.missing
            frames.append(self._complete(chunk))
        elif self._rest:
            chunk = self._rest + chunk
            self._rest = b""
        prefix, counted, smallest, largest, size = self.prefix, self.counted, self._smallest, self._max, len(chunk)
        end = min(size, PORTION) if in_portions else size
        last, alike = -1 - counted, 0  # no length yet, and no frames of the same length behind each other
        while (start := offset + prefix) <= end or (
            end < size and len(frames) < CROWD and start <= (end := min(size, offset + PORTION))
        ):
            length = int.from_bytes(chunk[offset:start], "big") - counted
            if length != last:
                if not smallest <= length <= largest:
                    self.error = self._refusal(length)
                    return frames
                if self._first:
                    self._first = False
                    self._max = largest = self._later_max
                last, alike = length, 0
            elif (alike := alike + 1) == ALIKE and (run := _run_of(chunk, offset, start, length, end)):
                frames += run
                offset += len(run) * (prefix + length)
                continue
            offset = start + length
            if offset > size:
                self.missing = length
                self._gather(chunk[start:])
                return frames
            frames.append(chunk[start:offset])
        self._rest = chunk[offset:]
        self.pending = end < size and bool(self._rest)
        return frames

    def join(self, frames: Sequence[EncodedFrame]) -> bytes:
        """Return the bytes of all frames with their prefixes. Raise ``LocalProtocolError`` if one is too large."""
        if len(frames) == 1 and type(frame := frames[0]) is bytes and len(frame) <= self.largest:
            return (len(frame) + self.counted).to_bytes(self.prefix, "big") + frame
        if len(frames) >= ALIKE:
            # The items of a stream have one size, and what overtakes them stands before them.
            sizes = [*map(len, frames)]
            last = sizes[-1]
            first = sizes.index(last)
            if (
                sizes.count(last) == len(sizes) - first >= ALIKE
                and {*map(type, run := frames[first:])} == {bytes}
                and last <= self.largest
            ):
                prefix = (last + self.counted).to_bytes(self.prefix, "big")
                return b"".join((*self.parts(frames[:first]), prefix, prefix.join(run)))  # type: ignore[arg-type]
        return b"".join(self.parts(frames))

    def parts(self, frames: Sequence[EncodedFrame]) -> list[bytes | memoryview]:
        """Return the same, not joined."""
        parts: list[bytes | memoryview] = []
        largest, counted, prefix = self.largest, self.counted, self.prefix
        for frame in frames:
            length = len(frame) if isinstance(frame, bytes) else sum(map(len, frame))
            if length > largest:
                raise LocalProtocolError(f"frame of {length} bytes, limit {largest}")
            parts.append((length + counted).to_bytes(prefix, "big"))
            if isinstance(frame, bytes):
                parts.append(frame)
            else:
                parts += frame
        return parts

    def _gather(self, chunk: bytes) -> None:
        self.missing -= len(chunk)
        if self._gathering is None:
            self._gathering = Gathering()
        self._gathering.add(chunk, self.missing)

    def _complete(self, chunk: bytes) -> bytes:
        """Return the frame that the beginning of this chunk completes, joined once however it was cut."""
        assert self._gathering is not None
        frame = self._gathering.complete(chunk[: self.missing])
        self.missing = 0
        return frame

    def _refusal(self, length: int) -> RemoteProtocolError:
        if length > self.largest:
            announced = length + self.counted
            return RemoteProtocolError(f"frame length 0x{announced:X}: its top bit must be 0")
        if length > self._max:
            return RemoteProtocolError(f"frame of {length} bytes, limit {self._max}")
        if length < 0:
            return RemoteProtocolError(f"frame length {length + self.counted}, which must count its own {self.counted}")
        return RemoteProtocolError(f"frame of {length} bytes, the smallest has {self._smallest}")


def _run_of(chunk: bytes, offset: int, start: int, length: int, end: int) -> list[bytes]:
    """Return the frames from ``offset`` to ``end`` if all have this length, else none.

    ``start`` is where the first one begins, behind its prefix.
    """
    stride = start - offset + length
    stop = offset + count_alike(chunk, offset, start, stride, end) * stride
    return [chunk[begin : begin + length] for begin in range(start, stop, stride)]


def count_alike(chunk: bytes, offset: int, start: int, stride: int, end: int) -> int:
    """Return how many pieces of ``stride`` bytes are between ``offset`` and ``end``, if all begin alike, else 0.

    They begin with the bytes from ``offset`` to ``start``.
    """
    count = (end - offset) // stride
    stop = offset + count * stride
    for place in range(offset, start):
        if chunk[place:stop:stride] != chunk[place : place + 1] * count:
            return 0
    return count


class Framing24(_LengthPrefixed):
    """A length of 24 bits that does not count itself: ReactiveSocket 0.2, the extension draft, RSocket 1.0."""

    __slots__ = ()

    prefix = 3
    counted = 0
    largest = 2**24 - 1


class Framing32(_LengthPrefixed):
    """A length of 32 bits, the top one 0, that counts its own 4 bytes: ReactiveSocket 0.0 and 0.1.

    ``max_frame`` and ``smallest`` are sizes without those 4 bytes, as everywhere.
    """

    __slots__ = ()

    prefix = 4
    counted = 4
    largest = 2**31 - 1 - 4


def whole(frame: EncodedFrame) -> bytes:
    """Return a frame as one piece of bytes."""
    return frame if isinstance(frame, bytes) else b"".join(frame)


@value
class Facts:
    """The facts of a transport connection that are known when its first frame passes.

    ``side`` is ``client`` or ``server``, ``transport`` the scheme (``tcp``, ``ws`` ...), ``peer_address`` the remote
    address.
    """

    side: str
    dialect: str
    transport: str = "stream"
    peer_address: str = ""


class Recorder(Protocol):
    """Observes one transport connection. No method waits, and none raises.

    Received frames are seen before the connection acts on them, sent ones before they are written.
    """

    def received(self, frames: Sequence[bytes]) -> None:
        """See whole frames that arrived; in Streamux, chunks of bytes."""
        ...

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        """These frames leave in one write."""
        ...

    def closed(self, reason: str) -> None:
        """The transport is closed, or lost. Its session may go on over another one."""
        ...

    def over(self, reason: str) -> None:
        """The session that began on this transport goes on over no other; all its streams have ended."""
        ...


class Recording(Protocol):
    """Makes the recorders: one for each transport connection, also for those that resume a session."""

    def _opened(self, facts: Facts) -> Recorder:
        """Return the recorder of a transport connection that is about to carry its first frame."""
        ...
