"""The chunk header for two negotiated widths, and the reader that cuts a byte stream into chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.framing import EncodedFrame, Gathering
from rsocket_trio.streamux.negotiation import Terms

TERMINATION: Final = 1
"""The lowest bit of a header: the last chunk of its message."""
RESPONSE: Final = 2
"""The bit above: the chunk is part of a response, and the id is that of a request of its receiver."""

CANCEL: Final = 0
"""A chunk without payload, by its two bits (SMX-OOB-02): always a cancel,"""
CANCEL_ACK: Final = RESPONSE
"""always the acknowledgement of one,"""
PING: Final = TERMINATION
"""a ping if it is the first of its id, else the end of a request,"""
PING_ACK: Final = RESPONSE | TERMINATION
"""and in answer to a ping its acknowledgement, else the end of a response."""


class HeaderLayout:
    """The header of all chunks of a session: one number, sent little endian (SMX-HDR-02).

    From the high bit: unused bits, the request id, the length, the response and the termination bit.
    """

    __slots__ = ("_used", "id_shift", "length_mask", "size")

    def __init__(self, terms: Terms) -> None:
        self.size = terms.header_size
        self.id_shift = terms.length_bits + 2
        self.length_mask = terms.length_cap
        self._used = terms.id_bits + self.id_shift

    def pack(self, request_id: int, length: int, flags: int) -> bytes:
        """Return the header's bytes; ``flags`` are the response and the termination bit."""
        return (request_id << self.id_shift | length << 2 | flags).to_bytes(self.size, "little")

    def check(self, number: int) -> None:
        """Raise ``RemoteProtocolError`` for a header whose unused bits are set."""
        if number >> self._used:
            unused = 8 * self.size - self._used
            raise RemoteProtocolError(
                f"chunk header 0x{number:0{2 * self.size}X}: its upper {unused} bits are unused and must be 0"
            )

    def cut(self, request_id: int, data: bytes, flags: int, most: int) -> Iterator[EncodedFrame]:
        """Yield the chunks of one message, each made as it leaves: at most ``most`` bytes of payload in each.

        Of ``flags`` the termination bit stands on the last one only. Nothing is copied.
        """
        view = memoryview(data)
        size = len(view)
        for start in range(0, size, most):
            end = min(start + most, size)
            last = flags if end == size else flags & ~TERMINATION
            yield self.pack(request_id, end - start, last), view[start:end]


class Consumer(Protocol):
    """The receiver of chunks. Each method may raise ``RemoteProtocolError``; ``bits`` are response and termination."""

    def on_chunk(self, request_id: int, bits: int, payload: bytes) -> None:
        """Take a whole chunk."""
        ...

    def on_run(self, request_id: int, bits: int, payloads: list[bytes]) -> None:
        """Take several whole chunks in a row whose headers are the same."""
        ...

    def begin_chunk(self, request_id: int, length: int, bits: int) -> bool:
        """Return whether to keep the payload of a chunk that begins here and is not complete yet."""
        ...

    def on_skipped(self, request_id: int, bits: int) -> None:
        """Take note that a chunk that was not wanted has passed."""
        ...


@attrs.define(eq=False, repr=False)
class ChunkReader:
    """Cuts the bytes of a stream into chunks, however the stream was cut on its way.

    An announced length allocates nothing until its bytes are here. Chunks with a payload of more than ``limit`` bytes
    are an error.
    """

    _layout: HeaderLayout
    _limit: int
    _consumer: Consumer
    _rest: bytes = b""
    """A header that is not complete."""
    _missing: int = 0
    """Bytes of a payload that are to come."""
    _gathering: Gathering | None = None
    _id: int = 0
    _bits: int = 0
    _length: int = 0

    @property
    def partial(self) -> str:
        """The incomplete header or chunk in which the bytes end, in words; empty between two chunks."""
        if self._missing:
            here = self._length - self._missing
            return f"inside a chunk of request id {self._id}: {here} of {self._length} bytes came"
        if self._rest:
            return f"inside a chunk header: {len(self._rest)} of {self._layout.size} bytes came"
        return ""

    def feed(self, data: bytes) -> None:
        """Take bytes. Raise ``RemoteProtocolError`` if they are no chunk, after the chunks before it were handed on."""
        start = 0
        if self._missing:
            if len(data) < self._missing:
                self._keep(data)
                return
            start = self._missing
            self._complete(data[:start])
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        layout, limit, take, size = self._layout, self._limit, self._consumer.on_chunk, len(data)
        header_size, id_shift, length_mask, used = layout.size, layout.id_shift, layout.length_mask, layout._used
        from_bytes, on_run = int.from_bytes, self._consumer.on_run
        while (body := start + header_size) <= size:
            header = data[start:body]
            number = from_bytes(header, "little")
            if number >> used:
                layout.check(number)
            length = number >> 2 & length_mask
            if length > limit:
                raise RemoteProtocolError(f"chunk of {length} bytes on request id {number >> id_shift}, limit {limit}")
            start = body + length
            if start > size:
                self._begin(number >> id_shift, number & 3, length)
                self._keep(data[body:])
                return
            payload = data[body:start]
            step = header_size + length
            if length and start + step <= size and data.startswith(header, start):
                payloads = [payload]
                while start + step <= size and data.startswith(header, start):
                    payloads.append(data[start + header_size : start + step])
                    start += step
                on_run(number >> id_shift, number & 3, payloads)
            else:
                take(number >> id_shift, number & 3, payload)
        self._rest = data[start:]

    def _begin(self, request_id: int, bits: int, length: int) -> None:
        self._id, self._bits, self._length = request_id, bits, length
        self._missing = length
        self._gathering = Gathering() if self._consumer.begin_chunk(request_id, length, bits) else None

    def _keep(self, piece: bytes) -> None:
        self._missing -= len(piece)
        if self._gathering is not None:
            self._gathering.add(piece, self._missing)

    def _complete(self, piece: bytes) -> None:
        self._missing = 0
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            self._consumer.on_skipped(self._id, self._bits)
        else:
            self._consumer.on_chunk(self._id, self._bits, gathering.complete(piece))
