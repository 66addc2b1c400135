"""Detects whether the first bytes of a connection begin Streamux."""

from __future__ import annotations

from rsocket_trio.streamux.negotiation import SIZE, VERSION


def begins(data: bytes) -> bool | None:
    """Return whether these bytes begin an initialize message of this version; ``None`` if more bytes must decide.

    DET-01: a length in the last two bytes tells it from a frame of 64 KiB and more, which has zeros there.
    """
    if len(data) < SIZE:
        plausible = data[:1] in (b"", bytes([VERSION])) and not (len(data) > 1 and data[1] & 0xC0)
        return None if plausible else False
    return data[0] == VERSION and not data[1] & 0xC0 and (data[3] != 0 or data[4] != 0)
