"""How frames look on the screen."""

from __future__ import annotations

from rsocket_trio.cli.watching import described
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import DIALECTS, RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.frames import (
    ErrorFrame,
    Frame,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    ResumeFrame,
    SetupFrame,
)
from tests.each_row import each_row

SHOWN: dict[str, Frame] = {
    "SETUP, stream 0, major 1, minor 0, keepalive_interval 20, max_lifetime 90, metadata_mime a/b, data_mime c/d, "
    "metadata of 6 bytes, 'hi', lease": SetupFrame(1, 0, 20, 90, "a/b", "c/d", Payload("hi", "secret"), lease=True),
    "REQUEST_STREAM, stream 1, 'x', initial_n 7": RequestFrame(1, Interaction.REQUEST_STREAM, Payload("x"), 7),
    "PAYLOAD, stream 1, complete": PayloadFrame(1, Payload(), next=False, complete=True),
    "ERROR, stream 1, code 0x202, 'no\\nway'": ErrorFrame(1, 0x202, b"no\nway"),
    "METADATA_PUSH, stream 0, metadata of 6 bytes": MetadataPushFrame(b"secret"),
    "RESUME, stream 0, major 1, minor 0, token of 6 bytes, last_received_server_position 1, "
    "first_available_client_position 2": ResumeFrame(1, 0, b"secret", 1, 2),
}


@each_row(("line", "frame"), SHOWN.items(), ids=[line.partition(",")[0] for line in SHOWN])
def test_a_frame_is_a_line_that_shows_no_metadata(line: str, frame: Frame) -> None:
    assert described(RSOCKET_1_0, RSOCKET_1_0.codec.encode(frame)) == line


@each_row("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_data_is_shown_up_to_64_bytes(dialect: Dialect) -> None:
    long = dialect.codec.encode(PayloadFrame(1, Payload(b"a" * 100)))

    assert f"'{'a' * 64}'... 100 bytes" in described(dialect, long)
