"""The frames that the extension draft draws otherwise than 1.0, written by hand from its document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from rsocket_trio import Responder, RSocketError, open_connection_over
from tests.conformance.raw import EXT, SETUP, M, RawPeer, Wire, frame, sized, u32

X, A, D, Y = 0x200, 0x080, 0x010, 0x008
SETUP_OK = 0x0F

KEEPALIVE_ID, RESUME_ID, LEASE_ID, BROKER_ID = 0x01, 0x02, 0x03, 0x04
KEEPALIVES = u32(20_000) + u32(90_000)
"""The terms of our own client by default."""


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


def setup_ok(*entries: bytes, stream_id: int = 0, data: bytes = b"") -> bytes:
    """RSX-OK-01."""
    return frame(SETUP_OK, X if entries else 0, stream_id, block(*entries) + data)


def keepalives(interval: int = 20_000, lifetime: int = 90_000, *, ignore: bool = True, ack: bool = False) -> bytes:
    """RSX-KA-01."""
    return entry(KEEPALIVE_ID, u32(interval) + u32(lifetime), ignore=ignore, ack=ack)


def strategies(*names: int, ignore: bool = False, ack: bool = True) -> bytes:
    """RSX-LEASE-01."""
    return entry(LEASE_ID, bytes([len(names), *(0x80 | name for name in names)]), ignore=ignore, ack=ack)


def selected(*names: int) -> bytes:
    """RSX-LEASE-03: the same in SETUP_OK."""
    return strategies(*names, ack=False)


def ext_block(*entries: bytes, flags: int = 0, stream_id: int = 0, metadata: bytes = b"") -> bytes:
    """RSX-EXT-02."""
    return frame(EXT, flags, stream_id, u32(1) + block(*entries) + metadata)


def beat(data: bytes = b"", *, respond: bool = True) -> bytes:
    """RSX-KA-04, RSX-KA-05."""
    return ext_block(entry(KEEPALIVE_ID, data, ignore=True, nibble=1 if respond else 0), flags=X)


def permits(ttl: int, number: int, strategy: int = 0) -> bytes:
    """RSX-LEASE-04."""
    return ext_block(entry(LEASE_ID, bytes([0x80 | strategy]) + u32(ttl) + u32(number)))


def request(
    kind: int, stream_id: int, *entries: bytes, n: int | None = None, data: bytes = b"", flags: int = 0
) -> bytes:
    """RSX-REQ-01, RSX-REQ-02."""
    body = (b"" if n is None else u32(n)) + block(*entries) + data
    return frame(kind, flags | (X if entries else 0), stream_id, body)


class DraftWire(Wire):
    """The frames of the draft: those of 1.0 but for SETUP, as far as peers and scenes need them."""

    def setup(self, **fields: Any) -> bytes:
        return setup(keepalives(), **fields)


RSX = DraftWire("rsocket/2.0-draft", (2, 0))


@asynccontextmanager
async def asking_client(
    responder: Responder | None = None, **options: Any
) -> AsyncIterator[tuple[RawPeer, list[object]]]:
    """A client that waits for SETUP_OK, and what became of it: the connection, then the error, if any."""
    ours, theirs = trio.testing.memory_stream_pair()
    outcome: list[object] = []

    async def run() -> None:
        try:
            async with open_connection_over(theirs, dialect=RSX.name, responder=responder, **options) as connection:
                outcome.append(connection)
                await trio.sleep_forever()
        except RSocketError as error:
            outcome.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        peer = RawPeer(ours)
        got = await peer.receive()
        assert (got.type, got.flags & A) == (SETUP, A), got
        yield peer, outcome
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(ours)
