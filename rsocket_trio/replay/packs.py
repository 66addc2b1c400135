"""Packs: many rows in one element, as an Arrow IPC stream; ``arrow/1`` on the wire."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from rsocket_trio.values import value

ARROW: Final = "arrow/1"
"""The name of the format on the wire."""
PACK_BYTES = 256 * 2**10
"""Bytes of contents after which a pack is complete; only a single larger record makes it longer."""
PACK_ROWS = 8192
"""Rows of a pack, at most."""
SMALL_PACK = 16 * 2**10
"""Bytes below which a pack that was stored is joined with its neighbours when it is sent."""
FOREVER: Final = 2**63
"""A position beyond all others."""


@value
class Pack:
    """Rows as an Arrow IPC stream, ``data``: they span ``count`` positions from ``position`` on.

    ``timestamp`` is that of all rows without a time of their own, in microseconds since 1970. ``has_gaps`` says that
    some of the positions may have no row.
    """

    data: bytes
    count: int
    position: int = 0
    timestamp: int | None = None
    has_gaps: bool = False

    @property
    def end(self) -> int:
        """Return the position behind the pack."""
        return self.position + self.count

    @property
    def size(self) -> int:
        """Return the bytes of the stream."""
        return len(self.data)


@cache
def has_arrow() -> bool:
    """Return whether packs can be read and written here."""
    return find_spec("pyarrow") is not None


def arrow() -> Any:
    """Return the module of the functions for packs. Programs without packs never load pyarrow."""
    return import_module("rsocket_trio.replay.arrow_packs")
