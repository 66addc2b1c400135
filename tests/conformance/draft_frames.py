"""The frames that the extension draft draws otherwise than 1.0, written by hand from its document."""

from __future__ import annotations

from typing import Any

from tests.conformance.raw import EXT, SETUP, M, Wire, frame, sized, u32

X, A = 0x200, 0x080

KEEPALIVE_ID = 0x01


def entry(
    ext: int | str, payload: bytes = b"", *, ignore: bool = False, ack: bool = False, nibble: int = 0, spare: int = 0
) -> bytes:
    """RSX-TLV-01, RSX-TLV-02: an entry that is the last one."""
    name = bytes([0x80 | ext]) if isinstance(ext, int) else bytes([len(ext)]) + ext.encode()
    flags = (0x40 if ignore else 0) | (0x20 if ack else 0) | spare | nibble
    size = len(payload).to_bytes(3, "big") if ignore else b""
    return name + bytes([flags]) + size + payload


def block(*entries: bytes) -> bytes:
    """Entries behind one another: all but the last say that one more follows."""
    return b"".join(map(_followed, entries[:-1])) + entries[-1] if entries else b""


def _followed(one: bytes) -> bytes:
    flags = 1 if one[0] & 0x80 else 1 + one[0]
    return one[:flags] + bytes([one[flags] | 0x80]) + one[flags + 1 :]


def setup(
    *entries: bytes,
    version: tuple[int, int] = (2, 0),
    flags: int = 0,
    data_mime: bytes = b"\x86",
    metadata_mime: bytes = b"\x86",
    metadata: bytes | None = None,
    data: bytes = b"",
    stream_id: int = 0,
    ack: bool = False,
) -> bytes:
    """RSX-SETUP-02; 86 is application/octet-stream."""
    major, minor = version
    body = data_mime + metadata_mime + major.to_bytes(2, "big") + minor.to_bytes(2, "big") + block(*entries)
    flags |= (X if entries else 0) | (A if ack else 0) | (0 if metadata is None else M)
    return frame(SETUP, flags, stream_id, body + (b"" if metadata is None else sized(metadata)) + data)


def keepalives(interval: int = 20_000, lifetime: int = 90_000, *, ignore: bool = True, ack: bool = False) -> bytes:
    """RSX-KA-01."""
    return entry(KEEPALIVE_ID, u32(interval) + u32(lifetime), ignore=ignore, ack=ack)


def ext_block(*entries: bytes, flags: int = 0, stream_id: int = 0, metadata: bytes = b"") -> bytes:
    """RSX-EXT-02."""
    return frame(EXT, flags, stream_id, u32(1) + block(*entries) + metadata)


def beat(data: bytes = b"", *, respond: bool = True) -> bytes:
    """RSX-KA-04, RSX-KA-05."""
    return ext_block(entry(KEEPALIVE_ID, data, ignore=True, nibble=1 if respond else 0), flags=X)


class DraftWire(Wire):
    """The frames of the draft: those of 1.0 but for SETUP, as far as peers and scenes need them."""

    def setup(self, **fields: Any) -> bytes:
        return setup(keepalives(), **fields)


RSX = DraftWire("rsocket/2.0-draft", (2, 0))
