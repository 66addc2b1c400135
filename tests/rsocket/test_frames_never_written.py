"""What a document forbids is refused before it is written."""

from __future__ import annotations

import pytest

from rsocket_trio import LocalProtocolError, Payload
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.dialect import (
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
    RSOCKET_2_0_DRAFT,
    Dialect,
)
from rsocket_trio.rsocket.frames import ExtFrame, Frame, PayloadFrame, RequestFrame, RequestNFrame, SetupFrame

clause = pytest.mark.clause
LARGEST = 2**24 - 1


def setup(keepalive: float, lifetime: float) -> SetupFrame:
    return SetupFrame(1, 0, keepalive, lifetime, "a/b", "c/d", Payload())


FORBIDDEN: list[tuple[str, Dialect, Frame]] = [
    ("RS02-EXT-02", REACTIVESOCKET_0_2, ExtFrame(0, 0)),
    ("RS10-EXT-01", RSOCKET_1_0, ExtFrame(0, 0)),
    ("RSX-EXT-01", RSOCKET_2_0_DRAFT, ExtFrame(0, 0)),
    ("RS00-MD-06", REACTIVESOCKET_0_0, PayloadFrame(2, Payload(b"", bytes(LARGEST - 3)))),
    ("RS10-FRM-04", RSOCKET_1_0, PayloadFrame(2, Payload(bytes(LARGEST)))),
    ("RS02-FRM-03", REACTIVESOCKET_0_2, PayloadFrame(2, Payload(bytes(LARGEST)))),
    ("RS10-PAY-03", RSOCKET_1_0, PayloadFrame(1, Payload(b"x"), False, False, False)),
    ("RSX-PAY-02", RSOCKET_2_0_DRAFT, PayloadFrame(1, Payload(b"x"), False, False, False)),
    ("RS10-SETUP-04", RSOCKET_1_0, setup(0, 1)),
    ("RS10-SETUP-04", RSOCKET_1_0, setup(1, 0)),
    ("RS02-SETUP-04", REACTIVESOCKET_0_2, setup(0, 1)),
    ("RS10-N-01", RSOCKET_1_0, RequestNFrame(1, 0)),
    ("RS02-N-01", REACTIVESOCKET_0_2, RequestNFrame(1, 0)),
    ("RS10-N-01", RSOCKET_1_0, RequestFrame(1, Interaction.REQUEST_STREAM, Payload(), 0)),
    ("RS02-N-01", REACTIVESOCKET_0_2, RequestFrame(1, Interaction.REQUEST_CHANNEL, Payload(), 0)),
]


@pytest.mark.parametrize(
    ("dialect", "frame"),
    [pytest.param(dialect, frame, marks=clause(name), id=name) for name, dialect, frame in FORBIDDEN],
)
def test_a_frame_that_its_document_forbids_is_not_written(dialect: Dialect, frame: Frame) -> None:
    with pytest.raises(LocalProtocolError):
        dialect.codec.encode(frame)


@clause("RS01-MD-04", "RS01-MD-03")
@pytest.mark.parametrize("data", [0, 1, 300])
@pytest.mark.parametrize("metadata", [0, 1, 70_000])
def test_the_length_of_metadata_never_exceeds_what_its_frame_holds(metadata: int, data: int) -> None:
    frame = RequestFrame(2, Interaction.REQUEST_RESPONSE, Payload(bytes(data), bytes(metadata)))
    written = whole(REACTIVESOCKET_0_1.codec.encode(frame))

    assert int.from_bytes(written[8:12], "big") == 4 + metadata
    assert len(written) == 8 + 4 + metadata + data
