"""The positions of a session that can be resumed: the bytes of the frames that count, both ways."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.conformance.notation import Pattern

HEADER: Final = 6
"""Bytes of stream id, type and flags."""
CONNECTION: Final = bytes(4)
"""The stream id of frames about the connection."""


@attrs.define(eq=False)
class Positions:
    """The tester's count. REQUEST frames, REQUEST_N, CANCEL, PAYLOAD and ERROR of streams count, without their length.

    With ``resumable`` that is true of the streams alone that one of these requests opens.
    """

    resumable: tuple[Pattern, ...] = ()
    sent: int = 0
    _came: list[bytes] = attrs.field(factory=list)
    _streams: set[bytes] = attrs.field(factory=set)

    @property
    def received(self) -> int:
        """Return the bytes that came, but for those that are said to be lost."""
        return sum(map(len, self._came))

    def note_sent(self, frame: bytes) -> None:
        """Count a frame of the tester, if it counts."""
        self.sent += len(frame) * self._counts(frame)

    def note_received(self, frame: bytes) -> None:
        """Count a frame of the peer, if it counts."""
        if self._counts(frame):
            self._came.append(frame)

    def lose(self, frame: Pattern) -> list[bytes]:
        """Count the first such frame and those behind it as lost. Return them. Raise ``LookupError`` if none came."""
        places = [place for place, came in enumerate(self._came) if frame.fits(came)]
        if not places:
            raise LookupError("no such frame came")
        lost = self._came[places[0] :]
        del self._came[places[0] :]
        return lost

    def _counts(self, frame: bytes) -> bool:
        kind = frame[4] >> 4 if len(frame) >= HEADER else 0
        stream = frame[:4]
        # Types 0x04 to 0x07 are requests, and those from there through 0x0B the others that count.
        if kind not in (1, 2) or stream == CONNECTION:
            return False
        if kind == 1 and any(mark.fits(frame) for mark in self.resumable):
            self._streams.add(stream)
        return not self.resumable or stream in self._streams
