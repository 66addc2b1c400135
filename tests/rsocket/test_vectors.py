"""Bytes written by hand from the documents mean what the documents say, and are what we write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from rsocket_trio.cli.frame_json import from_json, to_json
from rsocket_trio.rsocket import codec
from rsocket_trio.rsocket.dialect import (
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
    RSOCKET_2_0_DRAFT,
    Dialect,
)
from rsocket_trio.rsocket.extensions import entries as extensions
from tests.each_row import each_row

VECTORS = Path(__file__).parent.parent / "conformance" / "vectors"
FILES = {
    "rsocket_1_0.txt": RSOCKET_1_0,
    "reactivesocket_0_2.txt": REACTIVESOCKET_0_2,
    "reactivesocket_0_1.txt": REACTIVESOCKET_0_1,
    "reactivesocket_0_0.txt": REACTIVESOCKET_0_0,
    "rsocket_2_0_draft.txt": RSOCKET_2_0_DRAFT,
}
LEFT_OUT: dict[str, dict[str, Any]] = {REACTIVESOCKET_0_0.name: {"version": 0}}
"""What the JSON of a file does not repeat in every frame, besides ``"ignore": false``."""
ERRORS = vars(codec) | vars(extensions)
BOTH_WAYS, READ_ONLY, MALFORMED = "=", "<", "!"


@attrs.frozen
class Vector:
    """One frame of a file: its bytes, and what they mean or why they mean nothing."""

    dialect: Dialect
    kind: str
    name: str
    clauses: tuple[str, ...]
    data: bytes
    content: dict[str, Any]
    error: str = ""
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.dialect.name}: {self.name}"


def read(path: Path, dialect: Dialect) -> Iterator[Vector]:
    for block in re.split(r"\n\s*\n", path.read_text()):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        name, clauses = re.split(r" {4,}", lines[0][2:])
        *data, meaning = lines[1:]
        content: dict[str, Any] = {}
        error, offset = "", 0
        if lines[0][0] == MALFORMED:
            _, error, place = meaning.split()
            offset = int(place)
        else:
            content = {
                "ignore": False,
                **LEFT_OUT.get(dialect.name, {}),
                **json.loads(re.sub(r"@(\w+)\*(\d+)", repeated, meaning)),
            }
        yield Vector(dialect, lines[0][0], name, tuple(clauses.split()), unhex(data), content, error, offset)


def repeated(match: re.Match[str]) -> str:
    return match[1] * int(match[2])


def unhex(lines: list[str]) -> bytes:
    tokens = " ".join(line.partition("#")[0] for line in lines).split()
    return bytes.fromhex("".join(token.partition("*")[0] * int(token.partition("*")[2] or 1) for token in tokens))


ALL = [vector for name, dialect in FILES.items() for vector in read(VECTORS / name, dialect)]
WELL_FORMED = [vector for vector in ALL if vector.kind != MALFORMED]
WRITABLE = [vector for vector in ALL if vector.kind == BOTH_WAYS]
BROKEN = [vector for vector in ALL if vector.kind == MALFORMED]


@each_row("vector", WELL_FORMED, ids=str)
def test_published_bytes_have_the_published_meaning(vector: Vector) -> None:
    assert to_json(vector.dialect, vector.data) == vector.content


@each_row("vector", WRITABLE, ids=str)
def test_the_published_meaning_is_written_as_the_published_bytes(vector: Vector) -> None:
    assert from_json(vector.dialect, vector.content).hex(" ") == vector.data.hex(" ")


@each_row("vector", BROKEN, ids=str)
def test_bytes_that_are_no_frame_are_refused_with_the_reason_and_the_place(vector: Vector) -> None:
    with pytest.raises(ERRORS[vector.error]) as caught:
        vector.dialect.codec.decode(vector.data)

    assert (type(caught.value).__name__, caught.value.offset) == (vector.error, vector.offset)


@pytest.mark.parametrize("dialect", FILES.values(), ids=lambda dialect: dialect.name)
def test_every_frame_type_has_vectors_both_ways(dialect: Dialect) -> None:
    written = {vector.content["type"] for vector in WRITABLE if vector.dialect is dialect}

    assert written == {row.name for row in dialect.codec.rows}


def test_no_two_vectors_share_a_name() -> None:
    assert len({str(vector) for vector in ALL}) == len(ALL)
