"""Extension entries of the draft: blocks of entries, the values in them, and what a session does with them."""

from __future__ import annotations

from rsocket_trio.rsocket.extensions.blocks import MalformedExtension, Point, UnknownExtension
from rsocket_trio.rsocket.frames import Entry

__all__ = ["Entry", "MalformedExtension", "Point", "UnknownExtension"]
