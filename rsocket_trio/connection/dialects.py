"""Names the five dialects of the RSocket family and Streamux, and detects the one that a client speaks."""

from __future__ import annotations

from typing import Final, TypeAlias

from rsocket_trio.rsocket import detection
from rsocket_trio.rsocket import dialects as family
from rsocket_trio.rsocket.detection import UNDECIDED, Undecided
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.streamux.negotiation import NAME, begins

STREAMUX: Final = NAME
ALL: Final[tuple[str, ...]] = (*family.ALL, STREAMUX)
SHORT: Final[dict[str, str]] = {
    "1.0": family.RSOCKET_1_0.name,
    "0.2": family.REACTIVESOCKET_0_2.name,
    "0.1": family.REACTIVESOCKET_0_1.name,
    "0.0": family.REACTIVESOCKET_0_0.name,
    "ext": family.RSOCKET_2_0_DRAFT.name,
    "streamux": STREAMUX,
}
"""Full names of the dialects by their short names."""
IN_SHORT: Final = ", ".join(SHORT)
Found: TypeAlias = Dialect | str
"""A dialect of the family by its record, Streamux by its name."""


def full_name(name: str) -> str:
    """Return the full name of a dialect, from its full or its short name. Raise ``ValueError`` for an unknown name."""
    full = SHORT.get(name, name)
    if full not in ALL:
        raise ValueError(f"dialect {name!r}: the known ones are {', '.join(ALL)}, in short {IN_SHORT}")
    return full


def name_of(found: Found) -> str:
    """Return the name of a detected dialect."""
    return found if isinstance(found, str) else found.name


def detect(data: bytes, *, message: bool, ended: bool) -> Found | Undecided | None:
    """Return the dialect of a client from its first bytes; ``None`` if no dialect begins like this.

    ``message`` says that ``data`` begins with the first message of a transport that keeps message borders, ``ended``
    that no more bytes will come. Streamux is tested first, by five bytes, and ignores borders (DET-01, DET-09).
    """
    streamux = begins(data)
    if streamux:
        return STREAMUX
    if streamux is None and not ended and (data or not message):
        return UNDECIDED
    return detection.detect(data, message=message, ended=ended)
