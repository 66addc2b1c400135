"""The frames of ReactiveSocket 0.0 and 0.1, written and read by hand as their documents draw them."""

from __future__ import annotations

import struct
from typing import Any

import attrs

from tests.conformance.raw import APPLICATION_ERROR, OPAQUE, Log, Raw, u32, u64

INVALID_SETUP = "INVALID_SETUP"


@attrs.frozen(eq=False)
class OldWire:
    """The frames of one of the two documents."""

    name: str
    header: str
    types: dict[str, int]
    flags: dict[str, int]
    codes: dict[str, int]
    count: str
    """Numbers of items."""
    first_ids: tuple[int, int]
    """The client's and the server's."""

    length_size = 4
    length_counts_itself = True

    def __str__(self) -> str:
        return self.name

    @property
    def has_version(self) -> bool:
        """Every frame has it; otherwise SETUP."""
        return self.header == ">BBHQ"

    @property
    def counted(self) -> str:
        """The flag that peers of 0.1 set, and Go needs, where a number stands always; the document does not name it."""
        return "" if self.has_version else "N"

    # The header

    def frame(
        self, kind: str | int, flags: str | int = "", stream_id: int | None = 0, body: bytes = b"", *, version: int = 0
    ) -> bytes:
        number = self.types[kind] if isinstance(kind, str) else kind
        bits = flags if isinstance(flags, int) else sum(self.flags[flag] for flag in flags)
        if self.has_version:  # RS00-HDR-05
            head = struct.pack(">BBH", version, bits, number)
            return head + (b"" if stream_id is None else u64(stream_id)) + body
        return struct.pack(">HH", number, bits) + (b"" if stream_id is None else u32(stream_id)) + body  # RS01-HDR-05

    def parsed(self, data: bytes) -> Raw:
        if self.has_version:
            version, bits, number = struct.unpack_from(">BBH", data)
            assert version == 0
            size = 8
        else:
            number, bits = struct.unpack_from(">HH", data)
            size = 4
        kind = next(name for name, value in self.types.items() if value == number)
        names = self.flags if not self.has_version else {**self.flags}
        meaning = {
            "SETUP": "IMLS",
            "KEEPALIVE": "IMR",
            "REQUEST_CHANNEL": "IMFCN",
            "REQUEST_STREAM": "IMFN",
            "REQUEST_SUB": "IMFN",
        }.get(kind, "IMFC")
        flags = "".join(flag for flag in meaning if flag in names and bits & names[flag])
        assert sum({names[flag] for flag in flags}) == bits, f"spare bits in {data!r}"
        if kind == "EXT":
            return Raw(kind, flags, None, data[4:])
        return Raw(kind, flags, int.from_bytes(data[4 : 4 + size], "big"), data[4 + size :])

    def prefixed(self, *frames: bytes) -> bytes:
        """RS00-HDR-04, RS01-HDR-04: the length counts its own four bytes."""
        return b"".join(u32(len(one) + 4) + one for one in frames)

    def sized(self, metadata: bytes, kind: int = 0) -> bytes:
        """RS00-MD-03, RS01-MD-02: the length counts its own word, which has the type in 0.0."""
        return u32(kind << 24 | len(metadata) + 4) + metadata

    def n(self, number: int) -> bytes:
        return struct.pack(self.count, number)

    # Frames

    def setup(
        self,
        flags: str = "",
        *,
        version: tuple[int, int] | None = None,
        keepalive: int = 20_000,
        lifetime: int = 90_000,
        metadata_mime: bytes = OPAQUE,
        data_mime: bytes = OPAQUE,
        metadata: bytes | None = None,
        data: bytes = b"",
        stream_id: int = 0,
    ) -> bytes:
        body = bytes([len(metadata_mime)]) + metadata_mime + bytes([len(data_mime)]) + data_mime
        if metadata is not None:
            flags += "M"
            body += self.sized(metadata)
        if self.has_version:
            return self.frame("SETUP", flags, stream_id, body + data, version=version[0] if version else 0)
        fields = struct.pack(">HHII", *(version or (0, 1)), keepalive, lifetime)
        return self.frame("SETUP", flags, stream_id, fields + body + data)

    def keepalive(self, data: bytes = b"", flags: str = "R") -> bytes:
        return self.frame("KEEPALIVE", flags, 0, data)

    def _with(self, kind: str, flags: str, stream_id: int, fields: bytes, data: bytes, metadata: bytes | None) -> bytes:
        if metadata is not None:
            return self.frame(kind, flags + "M", stream_id, fields + self.sized(metadata) + data)
        return self.frame(kind, flags, stream_id, fields + data)

    def ask(self, stream_id: int, data: bytes = b"", flags: str = "", metadata: bytes | None = None) -> bytes:
        return self._with("REQUEST_RESPONSE", flags, stream_id, b"", data, metadata)

    def stream(self, stream_id: int, n: int, data: bytes = b"", flags: str = "") -> bytes:
        return self.frame("REQUEST_STREAM", flags + self.counted, stream_id, self.n(n) + data)

    def channel(self, stream_id: int, n: int, data: bytes = b"", flags: str = "") -> bytes:
        return self.frame("REQUEST_CHANNEL", flags + "N", stream_id, self.n(n) + data)

    def request_n(self, stream_id: int, n: int) -> bytes:
        return self.frame("REQUEST_N", "", stream_id, self.n(n))

    def cancel(self, stream_id: int) -> bytes:
        return self.frame("CANCEL", "", stream_id)

    def item(self, stream_id: int, data: bytes = b"", flags: str = "", metadata: bytes | None = None) -> bytes:
        return self._with("RESPONSE", flags, stream_id, b"", data, metadata)

    def error(self, stream_id: int, code: int = APPLICATION_ERROR, text: bytes = b"") -> bytes:
        """A stream's error, or in 0.1 the connection's."""
        return self.frame("ERROR", "", stream_id, (b"" if self.has_version else u32(code)) + text)

    def last_item(self, stream_id: int, data: bytes = b"") -> bytes:
        return self.item(stream_id, data, "C")

    # What peers see

    def probe(self, stream_id: int, data: bytes) -> tuple[bytes, bytes]:
        return self.ask(stream_id, data), self.last_item(stream_id, data)

    def failure(self, got: Raw, code: int | str) -> tuple[bool, bytes]:
        """An ERROR; on stream 0 of 0.0 a SETUP_ERROR. A stream's ERROR of 0.0 has no code."""
        kind = "SETUP_ERROR" if self.has_version and not got.stream_id else "ERROR"
        if (got.type, got.flags) != (kind, ""):
            return False, b""
        if kind == "ERROR" and self.has_version:
            return True, got.body
        number = self.codes[code] if isinstance(code, str) else code
        return int.from_bytes(got.body[:4], "big") == number, got.body[4:]

    def is_told(self, code: int | str) -> bool:
        """0.1 says why a connection ends (RS01-IGN-02), 0.0 only why it refuses one (RS00-HDR-10)."""
        return not self.has_version or isinstance(code, str)


# RS00-TYP-01, RS00-HDR-08, RS00-SERR-03
RS00 = OldWire(
    "reactivesocket/0.0",
    ">BBHQ",
    {
        "SETUP": 0x0001,
        "SETUP_ERROR": 0x0002,
        "LEASE": 0x0003,
        "REQUEST_RESPONSE": 0x0011,
        "REQUEST_FNF": 0x0012,
        "REQUEST_STREAM": 0x0013,
        "REQUEST_SUB": 0x0014,
        "REQUEST_N": 0x0015,
        "CANCEL": 0x0016,
        "RESPONSE": 0x0020,
        "ERROR": 0x0021,
        "METADATA_PUSH": 0x0031,
        "EXT": 0xFFFF,
    },
    {"I": 0x80, "M": 0x40, "F": 0x20, "L": 0x20, "C": 0x10},
    {INVALID_SETUP: 0x0001},
    ">Q",
    (2, 1),
)
# RS01-TYP-01, RS01-HDR-07, RS01-ERR-04
RS01 = OldWire(
    "reactivesocket/0.1",
    ">HHI",
    {
        "SETUP": 0x0001,
        "LEASE": 0x0002,
        "KEEPALIVE": 0x0003,
        "REQUEST_RESPONSE": 0x0004,
        "REQUEST_FNF": 0x0005,
        "REQUEST_STREAM": 0x0006,
        "REQUEST_SUB": 0x0007,
        "REQUEST_CHANNEL": 0x0008,
        "REQUEST_N": 0x0009,
        "CANCEL": 0x000A,
        "RESPONSE": 0x000B,
        "ERROR": 0x000C,
        "METADATA_PUSH": 0x000D,
        "EXT": 0xFFFF,
    },
    {"I": 0x8000, "M": 0x4000, "F": 0x2000, "L": 0x2000, "R": 0x2000, "C": 0x1000, "S": 0x1000, "N": 0x0800},
    {INVALID_SETUP: 1},
    ">I",
    (2, 1),
)
OLD = (RS00, RS01)


class OldLog(Log):
    """The same responder, of whose requests the data are noted."""

    def noted(self, interaction: str, request: Any) -> tuple[object, ...]:
        return interaction, request.data
