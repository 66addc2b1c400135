"""What the commands ``frames`` and ``detect`` answer, line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.cli.frame_json import from_json, to_json
from rsocket_trio.cli.frames import decode_lines, detect_lines, encode_lines
from rsocket_trio.cli.hex_lines import answer
from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import (
    DIALECTS,
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
)
from tests.each_row import each_row

CANCEL = "00000005 2400"
CANCEL_JSON = {"type": "CANCEL", "stream_id": 5, "ignore": False}
each_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


def decoded(*lines: str, dialect: Dialect = RSOCKET_1_0, tcp: bool = False) -> list[Any]:
    return [json.loads(text) for text, _ in decode_lines(dialect, lines, tcp=tcp)]


def test_each_line_is_a_frame() -> None:
    assert decoded(CANCEL + "\n", "\n", "0000000724 00\n") == [CANCEL_JSON, {**CANCEL_JSON, "stream_id": 7}]


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


def test_the_exit_code_is_1_if_any_line_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert answer(decode_lines(RSOCKET_1_0, [CANCEL])) == 0
    assert answer(decode_lines(RSOCKET_1_0, ["?", CANCEL])) == 1
    assert [json.loads(line).get("type") for line in capfd.readouterr().out.splitlines()] == ["CANCEL", None, "CANCEL"]


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


def test_after_a_bad_frame_a_byte_stream_goes_on() -> None:
    assert len(decoded("000006 00000001 3c00", "000006", CANCEL, tcp=True)) == 2


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
        ("{}", "type: None is none of SETUP, LEASE, "),
        ('{"type": "RESPONSE"}', "type: 'RESPONSE' is none of"),
        ('{"type": "CANCEL", "stream_id": 0}', "CANCEL stream_id 0: must be from 1 to 2147483647"),
        ('{"type": "CANCEL", "stream_id": "1"}', "stream_id: a whole number expected, not '1'"),
        ('{"type": "CANCEL", "stream_id": true}', "stream_id: a whole number expected, not True"),
        ('{"type": "CANCEL", "stream_id": 1, "ignore": 1}', "ignore: true or false expected, not 1"),
        ('{"type": "CANCEL", "stream_id": 1, "other_flags": 512}', "other_flags: 512 has bits other than the spare"),
        ('{"type": "CANCEL", "stream_id": 1, "other_flags": 1024}', "other_flags: 1024 has bits"),
        ('{"type": "CANCEL", "stream_id": 1, "other_flags": -1}', "other_flags: -1 has bits"),
        ('{"type": "CANCEL", "stream_id": 1, "metadata": "61"}', "metadata: CANCEL has no such key"),
        ('{"type": "REQUEST_FNF", "stream_id": 1, "data": "6"}', "data: not hex: 1 digits, which is odd, not '6'"),
        ('{"type": "REQUEST_FNF", "stream_id": 1, "metadata": 5}', "metadata: hex digits in quotes expected, not 5"),
        ('{"type": "REQUEST_STREAM", "stream_id": 1}', "REQUEST_STREAM initial_n None: must be from 1 to 2147483647"),
        ('{"type": "SETUP", "keepalive_ms": 1, "max_lifetime_ms": 0}', "SETUP max_lifetime 0.0: must be from"),
        ('{"type": "SETUP", "keepalive_ms": 1' + "0" * 400 + "}", "keepalive_ms: "),
        ('{"type": "SETUP", "data_mime": 6}', "data_mime: text expected, not 6"),
        ('{"type": "PAYLOAD", "stream_id": 1}', "PAYLOAD next False, complete False"),
    ],
)
def test_json_that_describes_no_frame_says_which_key_is_wrong(line: str, text: str) -> None:
    [(answer, good)] = encode_lines(RSOCKET_1_0, [line])
    error = json.loads(answer)

    assert not good
    assert error["error"].startswith(text)
    assert "\n" not in error["error"]


def test_absent_keys_are_false_null_0_or_empty() -> None:
    short = from_json(RSOCKET_1_0, {"type": "PAYLOAD", "stream_id": 1, "complete": True})
    long = from_json(
        RSOCKET_1_0,
        {
            "type": "PAYLOAD",
            "stream_id": 1,
            "ignore": False,
            "follows": False,
            "complete": True,
            "next": None,
            "metadata": None,
            "data": "",
            "other_flags": 0,
            "initial_n": None,
        },
    )

    assert short == long == bytes.fromhex("00000001 2840")


def test_absent_metadata_is_null_and_empty_metadata_is_empty() -> None:  # RS10-MD-05
    absent, empty = decoded("00000001 2820", "00000001 2920 000000")

    assert (absent["metadata"], empty["metadata"]) == (None, "")


def test_a_dialect_shows_the_keys_that_its_frames_have() -> None:
    old = decoded(CANCEL, "00000000 2c00 00000001", dialect=REACTIVESOCKET_0_2)
    new = decoded(CANCEL, "00000000 2c00 00000001")

    assert ["metadata" in one for one in old + new] == [True, True, False, False]


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


@given(number=st.integers(1, 0x0D) | st.just(0xFFFF), flags=st.integers(0, 0xFFFF), body=st.binary(max_size=60))
def test_json_of_0_1_is_written_and_shown_again_the_same(number: int, flags: int, body: bytes) -> None:
    data = number.to_bytes(2, "big") + flags.to_bytes(2, "big") + bytes([0, 0, 0, number & 1]) + body

    comes_back_the_same(REACTIVESOCKET_0_1, data)


@given(
    number=st.sampled_from([row.number for row in REACTIVESOCKET_0_0.codec.rows]),
    flags=st.integers(0, 0xFF),
    body=st.binary(max_size=60),
)
def test_json_of_0_0_is_written_and_shown_again_the_same(number: int, flags: int, body: bytes) -> None:
    data = bytes([0, flags]) + number.to_bytes(2, "big") + bytes(7) + bytes([number & 1]) + body

    comes_back_the_same(REACTIVESOCKET_0_0, data)


def comes_back_the_same(dialect: Dialect, data: bytes) -> None:
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


@each_row(
    ("dialect", "stream", "error", "offset"),
    [
        (REACTIVESOCKET_0_1, "0000000b 000a0000 000000", "frame of 7 bytes at offset 0, the smallest has 8", 0),
        (REACTIVESOCKET_0_1, "00000003", "frame of -1 bytes at offset 0, the smallest has 8", 0),
        (REACTIVESOCKET_0_1, "8000000c 000a0000 00000005", "frame of 2147483656 bytes at offset 4, 8 left", 0),
        (REACTIVESOCKET_0_1, "000000", "length prefix needs 4 bytes at offset 0, 3 left", 0),
        (REACTIVESOCKET_0_1, "0000000c 000e0000 00000005", "frame of 8 bytes: unknown type 0x0E", 4),
        (REACTIVESOCKET_0_0, "0000000c 00000016 00000000", "frame of 8 bytes: header needs 12", 4),
        (REACTIVESOCKET_0_0, "00000010 00000004 0000000000000005", "frame of 12 bytes: unknown type 0x04", 6),
    ],
)
def test_what_is_wrong_with_a_byte_stream_of_32_bit_lengths_is_said_with_its_place(
    dialect: Dialect, stream: str, error: str, offset: int
) -> None:
    assert decoded(stream, dialect=dialect, tcp=True) == [{"error": error, "offset": offset}]


@each_row(
    ("dialect", "content", "text"),
    [
        (REACTIVESOCKET_0_1, {"type": "PAYLOAD"}, "type: 'PAYLOAD' is none of SETUP, LEASE, KEEPALIVE"),
        (REACTIVESOCKET_0_1, {"type": "EXT", "stream_id": 1}, "EXT stream_id 1: must be 0"),
        (REACTIVESOCKET_0_1, {"type": "RESPONSE", "stream_id": 2, "next": True}, "next: RESPONSE has no such key"),
        (REACTIVESOCKET_0_1, {"type": "KEEPALIVE", "last_received_position": 1}, "last_received_position: KEEPALIVE"),
        (REACTIVESOCKET_0_1, {"type": "CANCEL", "stream_id": 2, "metadata_type": 1}, "metadata_type: CANCEL has no"),
        (REACTIVESOCKET_0_0, {"type": "KEEPALIVE"}, "type: 'KEEPALIVE' is none of SETUP, SETUP_ERROR, LEASE"),
        (REACTIVESOCKET_0_0, {"type": "SETUP", "version": 256}, "SETUP major 256: must be from 0 to 255"),
        (REACTIVESOCKET_0_0, {"type": "CANCEL", "stream_id": 2, "version": 1}, "version: CANCEL has no such key"),
        (REACTIVESOCKET_0_0, {"type": "ERROR", "stream_id": 2, "error_code": 1}, "error_code: ERROR has no such key"),
        (REACTIVESOCKET_0_0, {"type": "ERROR", "stream_id": 0}, "ERROR stream_id 0: that is for SETUP_ERROR"),
        (REACTIVESOCKET_0_0, {"type": "SETUP_ERROR", "stream_id": 2}, "SETUP_ERROR stream_id 2: that is for ERROR"),
        (REACTIVESOCKET_0_0, {"type": "RESPONSE", "stream_id": 2, "other_flags": 16}, "other_flags: 16 has bits"),
        (
            REACTIVESOCKET_0_0,
            {"type": "RESPONSE", "stream_id": 2, "metadata": "", "metadata_type": 256},
            "RESPONSE metadata_type 256: must be from 0 to 255",
        ),
    ],
)
def test_json_that_describes_no_frame_of_the_oldest_dialects_says_why(
    dialect: Dialect, content: dict[str, object], text: str
) -> None:
    with pytest.raises((ValueError, LocalProtocolError)) as caught:
        from_json(dialect, content)

    assert str(caught.value).startswith(text)


def test_absent_keys_of_the_oldest_dialects_are_0_too() -> None:
    assert from_json(REACTIVESOCKET_0_1, {"type": "REQUEST_SUB", "stream_id": 2})[8:] == bytes(4)
    assert from_json(REACTIVESOCKET_0_1, {"type": "REQUEST_CHANNEL", "stream_id": 2})[8:] == b""  # null is no number
    assert from_json(REACTIVESOCKET_0_1, {"type": "SETUP"})[8:] == bytes(14)
    assert from_json(REACTIVESOCKET_0_0, {"type": "SETUP"}) == bytes.fromhex("0000 0001") + bytes(10)
    assert from_json(REACTIVESOCKET_0_0, {"type": "EXT", "stream_id": None}) == bytes.fromhex("0000 ffff 00000000")


def test_the_dialect_is_told_by_the_first_bytes() -> None:
    lines = ["000014 00000000 0400 00010000 000001f4", "000014 00000000 0400 00000002", "ff", "\n", "000014000000"]

    assert list(detect_lines(lines)) == [
        ("rsocket/1.0", True),
        ("reactivesocket/0.2", True),
        ("unknown", True),
        ("unknown", True),
    ]


def test_first_bytes_that_are_no_hex_are_an_error() -> None:
    [(answer, good)] = detect_lines(["G"])

    assert not good
    assert json.loads(answer) == {"error": "not hex: 'G' at digit 0", "offset": 0}
