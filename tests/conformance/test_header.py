"""Headers of frames: their types, their flags, and the bits that should be 0."""

from __future__ import annotations

import pytest

from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.notation import Headers
from rsocket_trio.rsocket.dialect import DIALECTS

CASES = {
    "rsocket/1.0": [
        ("00000001 283f 78", "00000001 2820 78"),
        ("00000001 23ff 80000005", "00000001 2000 00000005"),
        ("00000001 1827 80000001 ff", "00000001 1800 00000001 ff"),
        ("00000001 2420", "00000001 2400"),
        ("00000000 0fff 8000000000000000 ff", "00000000 0c80 0000000000000000 ff"),
        ("00000001 8fff ff", "00000001 8fff ff"),
        ("00000001 28", "00000001 28"),
    ],
    "rsocket/2.0-draft": [("00000001 2a3f 78", "00000001 2838 78"), ("00000001 127f ff", "00000001 1218 ff")],
    "reactivesocket/0.2": [("00000001 253f 000000", "00000001 2500 000000")],
    "reactivesocket/0.1": [
        ("000b ffff 00000002 78", "000b 7000 00000002 78"),
        ("0009 ffff 00000002 80000001", "0009 0000 00000002 00000001"),
    ],
    "reactivesocket/0.0": [("00 ff 0020 0000000000000002 ff", "00 70 0020 0000000000000002 ff")],
}


def headers_of(dialect: str) -> Headers:
    return read_chapter(dialect).notation.headers


@pytest.mark.parametrize(
    ("dialect", "frame", "cleared"), [(dialect, *row) for dialect, rows in CASES.items() for row in rows]
)
def test_bits_that_should_be_0_are_cleared(dialect: str, frame: str, cleared: str) -> None:
    assert headers_of(dialect).cleared(bytes.fromhex(frame)) == bytes.fromhex(cleared)


@pytest.mark.parametrize("dialect", CASES)
def test_the_types_are_those_of_the_dialect(dialect: str) -> None:
    rows = {row.number: row.name for row in DIALECTS[dialect].codec.rows}

    assert {number: kind.name for number, kind in headers_of(dialect).kinds.items()} == rows


def test_an_extension_of_the_dialect_itself_is_no_foreign_one() -> None:
    draft, plain = headers_of("rsocket/2.0-draft"), headers_of("rsocket/1.0")
    block, other = bytes.fromhex("00000000 fe00 00000001"), bytes.fromhex("00000000 fe00 00000007")

    assert [draft.is_foreign_extension(one) for one in (block, other)] == [False, True]
    assert [plain.is_foreign_extension(one) for one in (block, other)] == [True, True]
    assert not plain.is_foreign_extension(bytes.fromhex("00000000 fc00 00000007"))
