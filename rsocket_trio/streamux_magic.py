"""The name and the first bytes of Streamux: all of it that a program needs to know which protocol a client speaks."""

from __future__ import annotations

from typing import Final

NAME: Final = "streamux/1"
"""The name of the dialect."""
VERSION: Final = 1
"""The protocol version of the specification, and the only one that is supported."""
SIZE: Final = 5
"""Bytes of an initialize message."""


def begins(data: bytes) -> bool | None:
    """Return whether these bytes begin an initialize message of this version; ``None`` if more bytes must decide.

    DET-01: a length in the last two bytes tells it from a frame of 64 KiB and more, which has zeros there.
    """
    if len(data) < SIZE:
        plausible = data[:1] in (b"", bytes([VERSION])) and not (len(data) > 1 and data[1] & 0xC0)
        return None if plausible else False
    return data[0] == VERSION and not data[1] & 0xC0 and (data[3] != 0 or data[4] != 0)
