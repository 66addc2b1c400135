"""What passed in a case, as reports show it: a line for each frame, equal ones together."""

from __future__ import annotations

from rsocket_trio.conformance.report import explanation, record_lines
from rsocket_trio.conformance.wire import Passed

DIALECT = "rsocket/1.0"


DIALECT = "rsocket/1.0"


def test_chunks_of_streamux_stay_bytes() -> None:
    assert record_lines("streamux/1", [Passed(False, b"\1\2")]) == ["< 01 02"]


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
