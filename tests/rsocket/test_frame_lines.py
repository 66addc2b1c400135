"""Frames as people see them: a line for each, which shows no metadata."""

from __future__ import annotations

from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import DIALECTS, REACTIVESOCKET_0_0, RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.frame_lines import frame_line
from rsocket_trio.rsocket.frames import ErrorFrame, Frame, MetadataPushFrame, PayloadFrame, ResumeFrame, SetupFrame
from tests.each_row import each_row

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
SETUP = SetupFrame(1, 0, 20, 90, "a/b", "c/d", Payload("hi", "secret"), lease=True)
FRAMES: dict[str, Frame] = {
    "SETUP stream 0: major 1, minor 0, keepalive interval 20 s, max lifetime 90 s, metadata mime a/b, data mime c/d, "
    'lease, 6 bytes of metadata, data "hi"': SetupFrame(
        1, 0, 20, 90, "a/b", "c/d", Payload("hi", "secret"), lease=True
    ),
    'ERROR stream 1: REJECTED (0x202), "no\\nway"': ErrorFrame(1, 0x202, b"no\nway"),
    "METADATA_PUSH stream 0: 6 bytes of metadata": MetadataPushFrame(b"secret"),
    "RESUME stream 0: major 1, minor 0, 6 bytes of token, last received server position 1, "
    "first available client position 2": ResumeFrame(1, 0, b"secret", 1, 2),
}


@each_row(("frame", "line"), LINES.items(), ids=LINES.values())
def test_a_frame_is_shown_by_what_it_says(frame: str, line: str) -> None:
    assert frame_line(RSOCKET_1_0, bytes.fromhex(frame)) == line


@each_row(("line", "frame"), FRAMES.items(), ids=[line.partition(" ")[0] for line in FRAMES])
def test_metadata_and_tokens_are_shown_by_their_size(line: str, frame: Frame) -> None:
    assert frame_line(RSOCKET_1_0, RSOCKET_1_0.codec.encode(frame)) == line


@each_row("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_data_is_shown_up_to_64_bytes(dialect: Dialect) -> None:
    long = dialect.codec.encode(PayloadFrame(1, Payload(b"a" * 100)))

    assert f'100 bytes of data, "{"a" * 61}..."' in frame_line(dialect, long)


def test_the_error_of_a_stream_has_no_code_in_the_first_draft() -> None:
    error = REACTIVESOCKET_0_0.codec.encode(ErrorFrame(2, 0x201, b"oops"))

    assert frame_line(REACTIVESOCKET_0_0, error) == 'ERROR stream 2: "oops"'
