"""Decodes a captured Streamux connection: cuts its bytes into chunks and assigns them to requests."""

from __future__ import annotations

from typing import Final

from rsocket_trio.capture.captured_stream import CapturedStream
from rsocket_trio.capture.connection_decoder import CapturedFrame, ConnectionDecoder
from rsocket_trio.capture.rows import FrameCells, Origin, Rows
from rsocket_trio.capture.schema import (
    CANCEL,
    CHUNK,
    COMPLETE,
    END,
    INITIALIZE,
    PING,
    PING_ACK,
    STREAMUX_CANCEL,
    STREAMUX_CANCEL_ACK,
)
from rsocket_trio.errors import NegotiationFailed, RemoteProtocolError
from rsocket_trio.mux.recording import Facts
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.streamux.chunks import RESPONSE, TERMINATION, ChunkReader, HeaderLayout
from rsocket_trio.streamux.negotiation import Initialize, Terms, negotiate, quick_terms
from rsocket_trio.streamux_magic import SIZE

LONGEST_CHUNK: Final = 2**30 - 1
"""Bytes of a chunk that are still read."""
ANSWER: Final = Interaction.REQUEST_RESPONSE
"""One request message and one response message: the wire does not show whether they are handled in pieces."""


def stream_id_of(request_id: int, *, clients: bool) -> int:
    """Return the stream id of a request: odd for requests of the client, even for those of the server, never 0."""
    return 2 * request_id + (1 if clients else 2)


class StreamuxDecoder(ConnectionDecoder):
    """A connection of Streamux. Received bytes are cut into chunks here, so a drop makes the rest unreadable."""

    def __init__(self, origin: Origin, rows: Rows, facts: Facts, conn_id: str, now: int) -> None:
        super().__init__(origin, rows, facts, conn_id, now)
        self._heard = {True: b"", False: b""}
        self._initial: dict[bool, Initialize] = {}
        self._layout: HeaderLayout | None = None
        self._reader: ChunkReader | None = None
        self._deaf = False
        self._length = 0
        self._now = now
        self._pinged: set[int] = set()

    def _after_drop(self) -> None:
        # The next byte may be in the middle of a chunk.
        self._deaf = True

    def _take(self, now: int, inward: bool, frame: CapturedFrame) -> None:
        self._now = now
        data, beyond = (frame, 0) if isinstance(frame, bytes) else frame
        if inward and self._deaf:
            self._lose()
            return
        if inward not in self._initial:
            missing = SIZE - len(self._heard[inward])
            self._heard[inward] += data[:missing]
            data = data[missing:]
            if len(self._heard[inward]) < SIZE:
                return
            self._initialize(inward, Initialize.decode(self._heard[inward]))
            if not data:
                return
        layout = self._layout
        if layout is None:
            self._unread(inward, len(data) + beyond)
        elif inward:
            assert self._reader is not None
            try:
                self._reader.feed(data)
            except RemoteProtocolError:
                self._deaf = True
                self._unread(inward, len(data))
        else:
            number = int.from_bytes(data[: layout.size], "little")
            self._chunk(False, number >> layout.id_shift, number & 3, len(data) + beyond - layout.size)

    def _lose(self) -> None:
        """Count a read as one dropped frame, once the chunks of its direction cannot be cut any more."""
        self.drops += 1
        self._unreported_drops += 1
        self.session.drops += 1

    def _unread(self, inward: bool, size: int) -> None:
        self._count(inward, size)
        self._row(FrameCells(self._now, inward, size))

    # The negotiation

    def _initialize(self, inward: bool, message: Initialize) -> None:
        self._initial[inward] = message
        self._count(inward, SIZE)
        seen = FrameCells(self._now, inward, SIZE)
        seen.stream_id, seen.frame_type = 0, INITIALIZE
        self._row(seen)
        terms = self._terms(message)
        if terms is not None and self._layout is None:
            self._layout = HeaderLayout(terms)
            self._reader = ChunkReader(self._layout, LONGEST_CHUNK, self)

    def _terms(self, message: Initialize) -> Terms | None:
        """Return the negotiated terms of the chunks of both sides, or ``None`` if they are not known."""
        try:
            message.check()
            if message.qr:
                return quick_terms(message)
            if len(self._initial) == 2:
                return negotiate(self._initial[True], self._initial[False]).terms
        except NegotiationFailed:
            return None
        return None

    # Chunks; the reader delivers received chunks

    def on_chunk(self, request_id: int, bits: int, payload: bytes) -> None:
        """Handle a whole received chunk."""
        self._chunk(True, request_id, bits, len(payload))

    def begin_chunk(self, request_id: int, length: int, bits: int) -> bool:
        """Return ``False``: no payload is kept. A chunk in several reads is counted by its length at its end."""
        self._length = length
        return False

    def on_skipped(self, request_id: int, bits: int) -> None:
        """Handle a received chunk whose payload was skipped, after its last byte."""
        self._chunk(True, request_id, bits, self._length)

    def _chunk(self, inward: bool, request_id: int, bits: int, length: int) -> None:
        layout = self._layout
        assert layout is not None
        now, size = self._now, layout.size + length
        self._count(inward, size)
        response = bool(bits & RESPONSE)
        # The id counts requests of the sender of the chunk, or, with the response bit, those of its receiver.
        ours = inward == response
        by_client = ours == (self.facts.side == "client")
        seen = FrameCells(now, inward, size)
        seen.stream_id = stream_id = stream_id_of(request_id, clients=by_client)
        seen.flags = bits
        seen.data_bytes = length
        stream = self.session.streams.get(stream_id)
        if length:
            seen.frame_type = CHUNK
            if stream is None and not response:
                stream = self._begin(stream_id, ours)
            self._message(stream, bits, seen)
        elif bits == RESPONSE:
            seen.frame_type = STREAMUX_CANCEL_ACK
        elif not bits:
            seen.frame_type = STREAMUX_CANCEL
            if stream is not None:
                stream.half(by_requester=True).size += size
                self.session.end(stream, now, CANCEL)
        elif stream is None:
            self._ping(stream_id, response, seen)
        else:
            seen.frame_type = END
            self._message(stream, bits, seen)
        self._row(seen)

    def _begin(self, stream_id: int, ours: bool) -> CapturedStream:
        stream = CapturedStream(stream_id, ANSWER, self._now, self.conn_id, self.session.drops, ours)
        self._streams += 1
        self.session.begin(stream, self._now)
        return stream

    def _message(self, stream: CapturedStream | None, bits: int, seen: FrameCells) -> None:
        """Handle a chunk of a request or of a response."""
        seen.fragments = 0
        if stream is None:
            return
        by_requester = stream.ours != seen.inward
        half = stream.half(by_requester)
        half.size += seen.frame_bytes
        half.pieces += 1
        if not by_requester and stream.first is None:
            stream.first = self._now
        if bits & TERMINATION:
            seen.fragments = min(half.pieces, 2**15 - 1)
            half.pieces = 0
            stream.item(self._now, by_requester=by_requester)
            if not by_requester:
                self.session.end(stream, self._now, COMPLETE)

    def _ping(self, stream_id: int, response: bool, seen: FrameCells) -> None:
        if not response:
            seen.frame_type = PING
            self._pinged.add(stream_id)
            self._beat(self._now, seen.inward, asks=True)
        elif stream_id in self._pinged:
            seen.frame_type = PING_ACK
            self._pinged.discard(stream_id)
            self._beat(self._now, seen.inward, asks=False)
        else:
            seen.frame_type = END
