"""What passed in a case, as reports show it: a line for each frame, equal ones together."""

from __future__ import annotations

import pytest

from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.report import explanation, frame_line, record_lines
from rsocket_trio.conformance.wire import Passed

DIALECT = "rsocket/1.0"
LINES = {
    "00000001 2860 7821": 'PAYLOAD stream 1: next, complete, data "x!"',
    "00000001 2920 000002 0102 ff": "PAYLOAD stream 1: next, 2 bytes of metadata, 1 byte of data",
    "00000003 1800 00000002 6162": 'REQUEST_STREAM stream 3: initial n 2, data "ab"',
    "00000001 107f 78": 'REQUEST_RESPONSE stream 1: data "x", other flags 0x7f',
    "00000000 2c00 00000101 6f6f7073": 'ERROR stream 0: CONNECTION_ERROR (0x101), "oops"',
    "00000001 2c00 00000301": "ERROR stream 1: 0x301",
    "00000000 0c80 0000000000000007 6869": 'KEEPALIVE stream 0: respond, last received position 7, data "hi"',
    "00000001 2400": "CANCEL stream 1",
    "00000005 2000 00000009": "REQUEST_N stream 5: request n 9",
    "00000000 fe00 00000001": "EXT stream 0: ignore, ext type 1, 0 bytes of body",
    "00000001 f0": "not understood: frame of 5 bytes: header needs 6",
    "00000001 d800": "not understood: frame of 6 bytes: unknown type 0x36",
}


@pytest.mark.parametrize(("frame", "line"), LINES.items(), ids=LINES.values())
def test_a_frame_is_shown_by_what_it_says(frame: str, line: str) -> None:
    assert frame_line(DIALECT, bytes.fromhex(frame)) == line


def test_the_error_of_a_stream_has_no_code_in_the_first_draft() -> None:
    error = read_chapter("reactivesocket/0.0").notation.fill("error", 2).value + b"oops"

    assert frame_line("reactivesocket/0.0", error) == 'ERROR stream 2: "oops"'


def test_chunks_of_streamux_stay_bytes() -> None:
    assert frame_line("streamux/1", b"\1\2") == "01 02"


def received(*frames: str) -> list[Passed]:
    return [Passed(False, bytes.fromhex(frame)) for frame in frames]


def test_equal_frames_in_a_row_are_one_line() -> None:
    record = [*received(*["00000001 2400"] * 100, "00000003 2400"), Passed(True, b"", event="connection 2")]

    assert record_lines(DIALECT, record) == ["< CANCEL stream 1 (100 times)", "< CANCEL stream 3", "connection 2"]


def test_with_hex_each_frame_has_its_bytes_below() -> None:
    record = received("00000001 2400", "00000001 2400", "00000003 2400")

    assert record_lines(DIALECT, record, with_hex=True) == [
        "< CANCEL stream 1 (2 times)",
        "    00 00 00 01 24 00",
        "< CANCEL stream 3",
        "    00 00 00 03 24 00",
    ]


def test_the_end_that_the_peer_explains_is_that_of_the_connection() -> None:
    stream, connection = "00000001 2c00 00000204 6f6e65", "00000000 2c00 00000101 74776f"
    silent = "00000000 2c00 00000101"

    assert explanation(DIALECT, received(stream)) == 'ERROR stream 1: INVALID (0x204), "one"'
    assert explanation(DIALECT, received(connection, stream)) == 'ERROR stream 0: CONNECTION_ERROR (0x101), "two"'
    assert explanation(DIALECT, received(silent)) == ""
    assert explanation(DIALECT, [Passed(True, bytes.fromhex(connection))]) == ""
