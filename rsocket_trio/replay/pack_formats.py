"""The formats of packs on the wire, by name: ``plain/1`` always, ``arrow/1`` where pyarrow is installed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from rsocket_trio.errors import readable
from rsocket_trio.replay.packs import PLAIN, Pack, validated

ARROW: Final = "arrow/1"
"""The name of the format that is an Arrow IPC stream of one record batch."""


@cache
def known_formats() -> tuple[str, ...]:
    """Return the names of the formats that this process reads and writes, the cheapest first."""
    return (PLAIN,) if find_spec("pyarrow") is None else (PLAIN, ARROW)


def chosen_format(wanted: Iterable[str]) -> str | None:
    """Return the first of the wanted formats that is known, ``None`` if none is."""
    return next((form for form in wanted if form in known_formats()), None)


def encoded_pack(pack: Pack, form: str) -> bytes:
    """Return the bytes of a pack in a known format."""
    return pack.data if form == PLAIN else bytes(_arrow().to_arrow(pack))


def read_pack(data: bytes, form: str, rows: int | None) -> Pack:
    """Return the pack that a writer sent in the format ``form``; ``rows`` is how many it says to have, if it does.

    Raise ``ValueError`` for an unknown format, and for a pack that is torn or has another number of rows.
    """
    if form not in known_formats():
        raise ValueError(f"a pack in the format {readable(form[:100])!r}: known are {', '.join(known_formats())}")
    pack: Pack = validated(data, rows) if form == PLAIN else _arrow().from_arrow(data, rows)
    return pack


def _arrow() -> Any:
    # Programs without packs in this format never load pyarrow.
    return import_module("rsocket_trio.replay.arrow_packs")
