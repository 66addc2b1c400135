"""Named readers of a log: how far each has acknowledged, so that nothing is dropped before all of them have it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rsocket_trio.errors import Rejected, readable
from rsocket_trio.values import value

READERS = 1000
"""Named readers of a log, at most."""
_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}", re.ASCII)


@value
class Reader:
    """The reader called ``name``: it needs nothing below ``ends`` any more, by partition.

    ``seen`` is the time of its last acknowledgement, in microseconds since 1970.
    """

    name: str
    ends: Mapping[int, int]
    seen: int


def reader_name(name: object) -> str:
    """Return ``name`` if it is one of a reader. Raise ``ValueError``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = readable(str(name)[:100])
        raise ValueError(f"the name of a reader has 1 to 64 letters, digits, '-', '_' and '.', not {shown!r}")
    return name


def acknowledged(readers: Mapping[str, Reader], name: str, ends: Mapping[int, int], now: int) -> Reader:
    """Return the reader with these ends: none goes back. Raise ``Rejected`` for one reader too many."""
    known = readers.get(name)
    if known is None:
        if len(readers) >= READERS:
            raise Rejected(f"{READERS} readers have acknowledged: that is the limit, until one is forgotten")
        return Reader(name, dict(ends), now)
    kept = dict(known.ends)
    for partition, end in ends.items():
        kept[partition] = max(end, kept.get(partition, 0))
    return Reader(name, kept, now)


def lowest_of(readers: Iterable[Reader], partition: int) -> int | None:
    """Return the position of ``partition`` that all readers have reached, ``None`` without readers."""
    return min((reader.ends.get(partition, 0) for reader in readers), default=None)
