"""What the commands ``frames`` and ``detect`` answer, line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.cli.frame_json import from_json, to_json
from rsocket_trio.cli.frames import decode_lines, detect_lines, encode_lines
from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.rsocket.dialect import DIALECTS, REACTIVESOCKET_0_0, REACTIVESOCKET_0_1, RSOCKET_1_0, Dialect
from tests.each_row import each_row

CANCEL = "00000005 2400"
CANCEL_JSON = {"type": "CANCEL", "stream_id": 5, "ignore": False}
each_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


def decoded(*lines: str, dialect: Dialect = RSOCKET_1_0, tcp: bool = False) -> list[Any]:
    return [json.loads(text) for text, _ in decode_lines(dialect, lines, tcp=tcp)]


def test_a_line_that_is_no_hex_or_no_frame_says_so_and_the_next_goes_on() -> None:
    lines = [CANCEL, "xyz", "000", "00000001 2920 00", "00000001 3c00", CANCEL]

    assert list(decode_lines(RSOCKET_1_0, lines)) == [
        (json.dumps(CANCEL_JSON), True),
        ('{"error": "not hex: \'x\' at digit 0", "offset": 0}', False),
        ('{"error": "not hex: 3 digits, which is odd", "offset": 0}', False),
        (
            '{"error": "PAYLOAD frame of 7 bytes: metadata length needs 3 bytes at offset 6, 1 left", "offset": 6}',
            False,
        ),
        ('{"error": "frame of 6 bytes: unknown type 0x0F", "offset": 4}', False),
        (json.dumps(CANCEL_JSON), True),
    ]


def test_a_byte_stream_may_be_cut_into_lines_anywhere() -> None:
    lines = ["00 0006 0000", "0", "005 2400\n", " 000007 0000", "0001 2820 61"]

    assert [one["type"] for one in decoded(*lines, tcp=True)] == ["CANCEL", "PAYLOAD"]


@each_row(
    ("tail", "error", "offset"),
    [
        ("00", "length prefix needs 3 bytes at offset 9, 1 left", 9),
        ("000007 00000001", "frame of 7 bytes at offset 12, 4 left", 9),
        ("000005 0000000124", "frame of 5 bytes at offset 9, the smallest has 6", 9),
        ("000007 00000001 2920 00", "PAYLOAD frame of 7 bytes: metadata length needs 3 bytes at offset 6, 1 left", 18),
        ("00x", "not hex: 'x' at digit 20", 0),
    ],
)
def test_what_is_wrong_with_a_byte_stream_is_said_with_its_place(tail: str, error: str, offset: int) -> None:
    *frames, last = decoded("000006", CANCEL, tail, tcp=True)

    assert frames == ([] if "hex" in error else [CANCEL_JSON])
    assert last == {"error": error, "offset": offset}


def test_json_becomes_hex_with_a_length_prefix_on_byte_streams() -> None:
    line = json.dumps(CANCEL_JSON)

    assert list(encode_lines(RSOCKET_1_0, ["\n", line])) == [("000000052400", True)]
    assert list(encode_lines(RSOCKET_1_0, [line], tcp=True)) == [("000006000000052400", True)]


@each_row(
    ("line", "text"),
    [
        ("{", "not JSON: "),
        ("[1]", "a JSON object expected, not [1]"),
        ("[" * 100_000, "not JSON"),
        ('{"type": "CANCEL", "stream_id": 0}', "CANCEL stream_id 0: must be from 1 to 2147483647"),
        ('{"type": "CANCEL", "stream_id": "1"}', "stream_id: a whole number expected, not '1'"),
        ('{"type": "CANCEL", "stream_id": 1, "other_flags": 512}', "other_flags: 512 has bits other than the spare"),
        ('{"type": "CANCEL", "stream_id": 1, "metadata": "61"}', "metadata: CANCEL has no such key"),
        ('{"type": "REQUEST_FNF", "stream_id": 1, "data": "6"}', "data: not hex: 1 digits, which is odd, not '6'"),
        ('{"type": "REQUEST_STREAM", "stream_id": 1}', "REQUEST_STREAM initial_n None: must be from 1 to 2147483647"),
        ('{"type": "SETUP", "keepalive_ms": 1' + "0" * 400 + "}", "keepalive_ms: "),
    ],
)
def test_json_that_describes_no_frame_says_which_key_is_wrong(line: str, text: str) -> None:
    [(answer, good)] = encode_lines(RSOCKET_1_0, [line])
    error = json.loads(answer)

    assert not good
    assert error["error"].startswith(text)
    assert "\n" not in error["error"]


def test_absent_keys_are_false_null_0_or_empty() -> None:
    short = {"type": "PAYLOAD", "stream_id": 1, "complete": True}
    said = {"ignore": False, "follows": False, "next": None, "metadata": None, "data": "", "other_flags": 0}

    assert from_json(RSOCKET_1_0, short) == from_json(RSOCKET_1_0, short | said) == bytes.fromhex("00000001 2840")


def test_absent_metadata_is_null_and_empty_metadata_is_empty() -> None:  # RS10-MD-05
    absent, empty = decoded("00000001 2820", "00000001 2920 000000")

    assert (absent["metadata"], empty["metadata"]) == (None, "")


@each_dialect
@given(number=st.integers(0, 63), flags=st.integers(0, 0x3FF), body=st.binary(max_size=60))
def test_what_was_shown_as_json_is_written_and_shown_again_the_same(
    dialect: Dialect, number: int, flags: int, body: bytes
) -> None:
    data = b"\0\0\0" + bytes([number & 1]) + (number << 10 | flags).to_bytes(2, "big") + body
    try:
        shown = to_json(dialect, data)
        written = from_json(dialect, json.loads(json.dumps(shown)))
    except (RemoteProtocolError, LocalProtocolError):
        return

    assert to_json(dialect, written) == shown


def test_a_length_prefix_of_32_bits_counts_itself() -> None:  # RS00-HDR-04, RS01-HDR-04
    line = json.dumps({"type": "CANCEL", "stream_id": 5})
    stream = "0000000c 000a0000 00000005 0000000d 000b0000 00000005 61"

    assert list(encode_lines(REACTIVESOCKET_0_1, [line], tcp=True)) == [("0000000c000a000000000005", True)]
    assert list(encode_lines(REACTIVESOCKET_0_0, [line], tcp=True)) == [("00000010000000160000000000000005", True)]
    first, second = decoded(stream, dialect=REACTIVESOCKET_0_1, tcp=True)
    assert (first["type"], second["type"], second["data"]) == ("CANCEL", "RESPONSE", "61")


def test_the_dialect_is_told_by_the_first_bytes() -> None:
    lines = ["000014 00000000 0400 00010000 000001f4", "000014 00000000 0400 00000002", "ff", "\n", "000014000000"]

    assert list(detect_lines(lines)) == [
        ("rsocket/1.0", True),
        ("reactivesocket/0.2", True),
        ("unknown", True),
        ("unknown", True),
    ]
