"""Frames of HTTP/2 as bytes (RFC 9113, 4 and 6), and the number of those without content that a peer may send."""

from __future__ import annotations

from struct import Struct
from typing import Final

from h2.errors import ErrorCodes

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""The types of frames."""
HEADER: Final = Struct(">HBBBI")
"""The header of a frame: the length in two parts, the type, the flags and the stream."""
HEADER_SIZE: Final = 9
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
MAX_ID: Final = 0x7FFFFFFF
"""The largest stream id, window and increment; the bit above it is reserved."""
SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
"""Bytes of the frames that have a size of their own."""


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

    def refund(self) -> None:
        """Give one back."""
        self._left = min(self._burst, self._left + 1)


def frame_of(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    size = len(body)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + body


def window_update(stream_id: int, increment: int) -> bytes:
    """Return the frame that opens a window."""
    return frame_of(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))
