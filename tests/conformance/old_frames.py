"""The frames of ReactiveSocket 0.0 and 0.1 for peers made of bytes, in the notation of the conformance cases."""

from __future__ import annotations

import struct
from typing import Any

from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.notation import Argument, Notation
from tests.conformance.raw import APPLICATION_ERROR, OPAQUE, Raw, Wire, u32

INVALID_SETUP = "INVALID_SETUP"


class OldWire(Wire):
    """The frames of one of the two documents."""

    length_size = 4
    length_counts_itself = True
    first_ids = (2, 1)

    @property
    def _notation(self) -> Notation:
        return read_chapter(self.name).notation

    @property
    def _has_codes(self) -> bool:
        return self.name == "reactivesocket/0.1"

    def _frame(self, name: str, *arguments: Argument) -> bytes:
        return self._notation.fill(name, *arguments).value

    def parsed(self, data: bytes) -> Raw:
        """RS00-HDR-05, RS01-HDR-05."""
        if self._has_codes:
            kind, flags, stream_id = struct.unpack_from(">HHI", data)
            return Raw(kind, flags, stream_id, data[8:])
        _, flags, kind, stream_id = struct.unpack_from(">BBHQ", data)
        return Raw(kind, flags, stream_id, data[12:])

    def prefixed(self, *frames: bytes) -> bytes:
        return b"".join(map(self._notation.with_length, frames))

    def setup(self, **fields: Any) -> bytes:
        times = (20_000, fields.get("lifetime", 90_000)) if self._has_codes else ()
        return self._frame("setup_with", *times, OPAQUE, OPAQUE, fields.get("data", b""))

    def keepalive(self, data: bytes = b"") -> bytes:
        return self._frame("keepalive", data)

    def ask(self, stream_id: int, data: bytes = b"") -> bytes:
        return self._frame("ask", stream_id, data)

    def stream(self, stream_id: int, n: int, data: bytes = b"") -> bytes:
        return self._frame("stream", stream_id, n, data)

    def channel(self, stream_id: int, n: int, data: bytes = b"") -> bytes:
        return self._frame("channel", stream_id, n, data)

    def request_n(self, stream_id: int, n: int) -> bytes:
        return self._frame("request_n", stream_id, n)

    def cancel(self, stream_id: int) -> bytes:
        return self._frame("cancel", stream_id)

    def item(self, stream_id: int, data: bytes = b"", *, follows: bool = False) -> bytes:
        return self._frame("item_more" if follows else "item", stream_id, data)

    def error(self, stream_id: int, code: int = APPLICATION_ERROR, text: bytes = b"") -> bytes:
        """A stream's error, or in 0.1 the connection's."""
        return self._frame("send_error", stream_id, *([code] if self._has_codes else []), text)

    # What peers see

    def probe(self, stream_id: int, data: bytes) -> tuple[bytes, bytes]:
        return self.ask(stream_id, data), self._frame("last", stream_id, data)

    def failure(self, got: Raw, code: int | str) -> tuple[bool, bytes]:
        """An ERROR; on stream 0 of 0.0 a SETUP_ERROR. A stream's ERROR of 0.0 has no code."""
        if not self._has_codes and got.stream_id:
            return (got.type, got.flags) == (0x21, 0), got.body
        kind = 0x0C if self._has_codes else 0x02
        number = 1 if code == INVALID_SETUP else code
        return (got.type, got.flags, got.body[:4]) == (kind, 0, u32(int(number))), got.body[4:]

    def is_told(self, code: int | str) -> bool:
        """0.1 says why a connection ends (RS01-IGN-02), 0.0 only why it refuses one (RS00-HDR-10)."""
        return self._has_codes or isinstance(code, str)


RS00, RS01 = OldWire("reactivesocket/0.0"), OldWire("reactivesocket/0.1")
OLD = (RS00, RS01)
