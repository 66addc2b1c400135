"""Inputs that guided runs led to, kept as text: a file for each target, a line of hexadecimal digits for each input."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"
MOST: Final = 30
"""Inputs that are kept for one target: the shortest, each of which reached something that none before it did."""
LONGEST: Final = 300
"""Bytes of an input that is kept."""


def kept(target: str) -> list[bytes]:
    """Return the inputs that are kept for this target."""
    path = FOLDER / f"{target}.txt"
    return [bytes.fromhex(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


def keep(target: str, inputs: Iterable[bytes]) -> int:
    """Keep these inputs and no others; how many they are."""
    chosen = sorted({data for data in inputs if len(data) <= LONGEST}, key=lambda data: (len(data), data))[:MOST]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.txt").write_text("".join(f"{data.hex()}\n" for data in chosen), "ascii")
    return len(chosen)
