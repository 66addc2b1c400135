"""Cuts the bytes of an HTTP/2 peer into frames, and bounds those that cost more than they carry.

DATA, WINDOW_UPDATE and GOAWAY are handled here and by the connection, every other frame goes to h2, which judges it.
Nearly all bytes are in DATA frames, and h2 makes a hexadecimal text of each; and it can't go on after a GOAWAY, which
lets open streams finish (RFC 9113, 6.8).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, Protocol

from h2.errors import ErrorCodes

from rsocket_trio.errors import readable
from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import CROWD, Gathering
from rsocket_trio.transports.first_bytes import PREFACE

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""The types of frames (RFC 9113, 6)."""
HEADER: Final = Struct(">HBBBI")
"""The header of a frame: the length in two parts, the type, the flags and the stream."""
HEADER_SIZE: Final = 9
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
STREAM: Final = 0x7FFFFFFF
"""The bits of a stream id, a window's increment and a last stream; the one above them is reserved."""
JUDGED: Final = 12
"""DATA frames that take as long as one that h2 handles."""
BEGUN: Final = 64
"""DATA frames that take as long as a stream that begins."""
MAX_FRAME: Final = 131072
"""Bytes of the largest frame that a peer may send."""
HEAD_LIMIT: Final = 65536
"""Bytes of a header block with its CONTINUATION frames; also of the fields that it expands to."""
MOST_CONTINUATIONS: Final = 32
SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
"""Bytes of the frames that have a size of their own."""
KNOWN_SETTINGS: Final = frozenset({1, 2, 3, 4, 5, 6, 8})
"""Settings that h2 is told of. It would keep all others, and a peer may name 65,536 (RFC 9113, 6.5.2)."""
HEADER_TABLE_SIZE: Final = 1
LARGEST_TABLE: Final = 4096
"""Bytes of the table of headers that this side compresses with, whatever more the peer allows."""
EMPTY_FRAMES: Final = 2_000
"""Frames without content that may come in a burst: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, and others."""
EMPTY_RATE: Final = 200.0
"""The number of those that become free again in a second; a DATA frame that is sent frees some, too."""


SETTINGS_FRAMES: Final = 100
"""SETTINGS frames that may come in a burst: h2 keeps a note of some until the next header block."""
SETTINGS_RATE: Final = 1.0
"""The number of those that become free again in a second."""


class PeerFault(Exception):
    """The peer broke a rule of HTTP/2, or sent too much: the connection ends with GOAWAY and this code."""

    def __init__(self, text: str, code: ErrorCodes = ErrorCodes.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


class Allowance:
    """The number of times that a peer may do something: a burst, refilled at a rate per second."""

    __slots__ = ("_burst", "_left", "_rate", "_since", "_what")

    def __init__(self, what: str, burst: int, rate: float) -> None:
        self._what = what
        self._burst = burst
        self._rate = rate
        self._left = float(burst)
        self._since = 0.0

    def spend(self, now: float) -> None:
        """Count one more. Raise ``PeerFault`` if none is left."""
        self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        if self._left < 1:
            raise PeerFault(
                f"more than {self._burst} {self._what}, with {self._rate:g} a second forgiven",
                ErrorCodes.ENHANCE_YOUR_CALM,
            )
        self._left -= 1

    def refund(self, number: int) -> None:
        """Give some back."""
        self._left = min(self._burst, self._left + number)


def short_streams(limits: Limits) -> Allowance:
    """Return the allowance for streams that the peer resets, that are refused, and that end without a byte."""
    return Allowance("streams reset, refused or without content", limits.cancels, limits.cancel_rate)


class Taker(Protocol):
    """A stream that takes what DATA frames carry."""

    def deliver(self, piece: bytes) -> None:
        """Take the next bytes."""
        ...


class FrameOwner(Protocol):
    """The connection that frames are for."""

    def data_begins(self, stream_id: int, size: int, flags: int) -> Taker | None:
        """Count a DATA frame against the windows. Return who takes it; ``None`` if the frame is to be judged whole."""
        ...

    def data_ends(self, taker: Taker) -> None:
        """Note the end of a stream."""
        ...

    def padding_came(self, taker: Taker, size: int) -> None:
        """Note bytes of a DATA frame that carried nothing."""
        ...

    def window_opens(self, stream_id: int, increment: int) -> bool:
        """Note that the peer takes more. Return False if the frame is to be judged."""
        ...

    def check_begun(self, stream_id: int) -> None:
        """Raise ``PeerFault`` for a stream that was never opened."""
        ...

    def goes_away(self, last_stream_id: int, code: int, text: str) -> None:
        """Note that the peer opens and accepts no more streams."""
        ...

    def judge(self, frame: bytes) -> None:
        """Handle any other frame. Raise ``PeerFault``."""
        ...


class FrameIntake:
    """Reads the frames that one peer sends, and tells ``owner``. A server's begins with the client's preface.

    ``now`` tells the time, in seconds. An announced length allocates nothing until its bytes are here.
    """

    __slots__ = (
        *("_begun", "_block", "_body", "_continuations", "_ends", "_gathering", "_missing", "_now", "_owner"),
        *("_preface", "_rest", "_settings", "_taker", "empty"),
    )

    def __init__(self, owner: FrameOwner, now: Callable[[], float], *, server: bool) -> None:
        self.empty = Allowance("frames without content", EMPTY_FRAMES, EMPTY_RATE)
        self._settings = Allowance("SETTINGS frames", SETTINGS_FRAMES, SETTINGS_RATE)
        self._owner = owner
        self._now = now
        self._preface = PREFACE if server else b""
        self._begun = False  # whether the first frame came
        self._rest = b""  # a header that is not complete, or frames behind a portion
        self._body = 0  # bytes to come of the DATA frame that a stream takes
        self._taker: Taker | None = None
        self._ends = False  # whether that frame ends its stream
        self._gathering = Gathering()  # a frame that has to be whole, and is not
        self._missing = 0  # bytes of it that are to come
        self._block = 0  # bytes of the header block that is not complete
        self._continuations = 0

    def feed(self, chunk: bytes) -> bool:
        """Take a chunk. Return whether frames are left, which the next call takes: other tasks are to run first.

        Raise ``PeerFault``.
        """
        if self._rest:
            chunk, self._rest = self._rest + chunk, b""
        offset = self._take_preface(chunk) if self._preface else 0
        if self._body:
            offset = self._take_body(chunk, offset)
        elif self._missing:
            offset = self._take_missing(chunk, offset)
        size, frames, owner = len(chunk), 0, self._owner
        while (start := offset + HEADER_SIZE) <= size:
            if frames >= CROWD:
                self._rest = chunk[offset:]
                return True
            frames += 1
            high, low, kind, flags, stream_id = HEADER.unpack_from(chunk, offset)
            length = high << 8 | low
            if length > MAX_FRAME or not self._begun:
                self._check(chunk, offset, length, kind, flags)
            offset = start + length
            if kind == DATA and not flags & PADDED and not self._block:
                taker = owner.data_begins(stream_id & STREAM, length, flags)
                if taker is not None:
                    if not length and not flags & END_STREAM:
                        self.empty.spend(self._now())
                    if offset > size:
                        self._taker, self._ends, self._body = taker, bool(flags & END_STREAM), length
                        self._take_body(chunk, start)
                        return False
                    if length:
                        taker.deliver(chunk[start:offset])
                    if flags & END_STREAM:
                        owner.data_ends(taker)
                    continue
            if offset > size:
                self._missing = offset - size
                self._gathering.add(chunk[start - HEADER_SIZE :], self._missing)
                return False
            self._handle(chunk[start - HEADER_SIZE : offset], kind, flags, stream_id & STREAM)
            frames += BEGUN if kind == HEADERS else JUDGED
        self._rest = chunk[offset:]
        return False

    def _take_preface(self, chunk: bytes) -> int:
        """Take the client's preface, or as much as is here. Return where it ends."""
        wanted = self._preface
        came = chunk[: len(wanted)]
        if not wanted.startswith(came):
            raise PeerFault(f"{readable((PREFACE[: -len(wanted)] + came)[:32])!r} is no preface of HTTP/2")
        self._preface = wanted[len(came) :]
        return len(came)

    def _take_body(self, chunk: bytes, offset: int) -> int:
        """Pass on the next part of a DATA frame. Return where it ends."""
        taker = self._taker
        assert taker is not None
        piece = chunk[offset : offset + self._body]
        self._body -= len(piece)
        if piece:
            taker.deliver(piece)
        if not self._body:
            self._taker = None
            if self._ends:
                self._owner.data_ends(taker)
        return offset + len(piece)

    def _take_missing(self, chunk: bytes, offset: int) -> int:
        """Take the next part of a frame that has to be whole. Return where it ends."""
        piece = chunk[offset : offset + self._missing]
        self._missing -= len(piece)
        if self._missing:
            self._gathering.add(piece, self._missing)
        else:
            frame = self._gathering.complete(piece)
            _, _, kind, flags, stream_id = HEADER.unpack_from(frame)
            self._handle(frame, kind, flags, stream_id & STREAM)
        return offset + len(piece)

    def _check(self, chunk: bytes, offset: int, length: int, kind: int, flags: int) -> None:
        """Raise ``PeerFault`` for a frame that is too large, and for a first one that is none of HTTP/2."""
        if not self._begun:
            # RFC 9113, 3.4: both prefaces have a SETTINGS frame, which comes first.
            if kind != SETTINGS or flags & ACK or length > MAX_FRAME:
                raise PeerFault(f"the first frame is no SETTINGS: {chunk[offset : offset + 32].hex()}")
            self._begun = True
        if length > MAX_FRAME:
            raise PeerFault(f"frame of {length} bytes, limit {MAX_FRAME}", ErrorCodes.FRAME_SIZE_ERROR)

    def _handle(self, frame: bytes, kind: int, flags: int, stream_id: int) -> None:
        """Handle a whole frame that is not passed on in parts."""
        owner, length = self._owner, len(frame) - HEADER_SIZE
        size = SIZES.get(kind, length)
        if length != size or (kind == SETTINGS and (length % 6 or (flags & ACK and length))):
            raise PeerFault(f"frame of type {kind} of {length} bytes", ErrorCodes.FRAME_SIZE_ERROR)
        if self._block or kind in {HEADERS, PUSH_PROMISE, CONTINUATION}:
            self._count_block(length, kind, flags)
        elif kind == DATA:
            self._take_padded(frame, flags, stream_id)
            return
        else:
            self.empty.spend(self._now())
            if kind == RST_STREAM:
                owner.check_begun(stream_id)
            elif kind == WINDOW_UPDATE:
                if owner.window_opens(stream_id, int.from_bytes(frame[HEADER_SIZE:], "big") & STREAM):
                    return
            elif kind == GOAWAY and length >= 8 and not stream_id:
                last, code = (int.from_bytes(frame[at : at + 4], "big") for at in (HEADER_SIZE, HEADER_SIZE + 4))
                owner.goes_away(last & STREAM, code, readable(frame[HEADER_SIZE + 8 :]))
                return
            elif kind == SETTINGS:
                self._settings.spend(self._now())
                frame = _known_settings(frame)
        owner.judge(frame)

    def _count_block(self, length: int, kind: int, flags: int) -> None:
        """Count a frame of a header block. Raise ``PeerFault`` if the block is too long, or in too many frames."""
        if kind != CONTINUATION:
            self._block = self._continuations = 0
            # The stream's first byte gives it back.
            self.empty.spend(self._now())
        self._block += length + 1  # an empty one counts as well
        self._continuations += kind == CONTINUATION
        if self._block > HEAD_LIMIT or self._continuations > MOST_CONTINUATIONS:
            raise PeerFault(
                f"header block of {self._block} bytes in {self._continuations} CONTINUATION frames, "
                f"limits {HEAD_LIMIT} and {MOST_CONTINUATIONS}",
                ErrorCodes.ENHANCE_YOUR_CALM,
            )
        if flags & END_HEADERS:
            self._block = 0

    def _take_padded(self, frame: bytes, flags: int, stream_id: int) -> None:
        """Handle a DATA frame that is padded, or that nobody takes."""
        owner, length = self._owner, len(frame) - HEADER_SIZE
        padding = 0
        if flags & PADDED:
            padding = 1 + (frame[HEADER_SIZE] if length else 0)
        taker = owner.data_begins(stream_id, length, flags) if 0 < padding <= length else None
        if taker is None:
            if length <= padding and not flags & END_STREAM:
                self.empty.spend(self._now())
            owner.judge(frame)
            return
        if length > padding:
            taker.deliver(frame[HEADER_SIZE + 1 : len(frame) - padding + 1])
        elif not flags & END_STREAM:
            self.empty.spend(self._now())
        owner.padding_came(taker, padding)
        if flags & END_STREAM:
            owner.data_ends(taker)


def frame_of(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    size = len(body)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + body


def _known_settings(frame: bytes) -> bytes:
    """Return a SETTINGS frame without the settings that h2 need not know."""
    body = frame[HEADER_SIZE:]
    known = bytearray()
    for at in range(0, len(body), 6):
        setting, value = int.from_bytes(body[at : at + 2], "big"), int.from_bytes(body[at + 2 : at + 6], "big")
        if setting == HEADER_TABLE_SIZE:
            value = min(value, LARGEST_TABLE)
        if setting in KNOWN_SETTINGS:
            known += setting.to_bytes(2, "big") + value.to_bytes(4, "big")
    _, _, kind, flags, stream_id = HEADER.unpack_from(frame)
    return frame_of(kind, flags, stream_id, bytes(known))
