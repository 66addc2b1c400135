"""Wraps a transport of messages that begin with their own size, as frames of ReactiveSocket 0.1 do on a byte stream.

The document leaves the length out where messages have borders; its peers that spoke over WebSocket kept it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.framing import EncodedFrame, Framing32
from rsocket_trio.transports.base import Transport, WrappedTransport

LENGTH = Framing32.prefix
"""Bytes of the length, which counts them."""


class LengthOnMessages(WrappedTransport):
    """Another transport of messages, each of which is one frame behind its length, and neither more nor less."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._error: RemoteProtocolError | None = None
        # The limit of a message is that of a frame, which the length does not belong to. Not every transport has one.
        allow = getattr(transport, "allow", None)
        if allow is not None:
            allow(LENGTH)

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        await self._transport.send([_behind_length(frame) for frame in frames])

    async def receive(self) -> Sequence[bytes]:
        """Return the next frames. ``RemoteProtocolError`` for a wrong length comes behind the frames before it."""
        if self._error is not None:
            raise self._error
        frames: list[bytes] = []
        for message in await self._transport.receive():
            length = int.from_bytes(message[:LENGTH], "big")
            if length != len(message) or length < LENGTH:
                fault = f" whose length says {length}: a message is one frame"
                if len(message) < LENGTH:
                    fault = f", which has no room for its length of {LENGTH}"
                self._error = RemoteProtocolError(f"message of {len(message)} bytes{fault}")
                if frames:
                    break
                raise self._error
            frames.append(message[LENGTH:])
        return frames


def _behind_length(frame: EncodedFrame) -> EncodedFrame:
    parts = (frame,) if isinstance(frame, bytes) else frame
    return (LENGTH + sum(map(len, parts))).to_bytes(LENGTH, "big"), *parts
