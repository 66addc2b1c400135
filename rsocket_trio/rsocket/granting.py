"""``CreditGrant``: a queued REQUEST_N that absorbs further credit, so that one frame grants it all."""

from __future__ import annotations

from collections.abc import Callable

from rsocket_trio.mux.stream_state import RECEIVING
from rsocket_trio.rsocket.streams import Stream


class CreditGrant:
    """A REQUEST_N that waits to leave: further credit is added to it instead of queued behind it.

    It stands in the urgent queue, or in that of its own stream: behind its unsent request, or behind the fragments that
    are leaving (rsocket-js takes no REQUEST_N while it joins those of the same stream).
    """

    __slots__ = ("_encode", "amount", "stream")

    size = 20  # bytes of the largest REQUEST_N of any dialect, as they count in the outbox

    def __init__(self, encode: Callable[[Stream, int], bytes], stream: Stream, amount: int) -> None:
        self._encode = encode
        self.stream = stream
        self.amount = amount

    def encoded(self) -> bytes | None:
        """Return the frame, ``None`` if it was sent already or the stream needs no credit any more."""
        if self.stream.grant is self:
            self.stream.grant = None
        amount, self.amount = self.amount, 0
        return self._encode(self.stream, amount) if amount and self.stream.open & RECEIVING else None

    take = encoded

    @property
    def next_size(self) -> int:
        """The size of the frame in bytes, 0 once it was sent."""
        return self.size if self.amount else 0
