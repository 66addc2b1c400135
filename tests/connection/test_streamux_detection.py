"""The detection of Streamux among all dialects: five bytes decide, at any cut, on byte streams and in messages."""

from __future__ import annotations

import pytest

from rsocket_trio.connection.protocols import detect_protocol, name_of
from rsocket_trio.rsocket.detection import UNDECIDED
from tests.each_row import each_row

BEGINS = {
    "wildcards": "01 00 ef e7 df",
    "the least": "01 00 00 04 21",
    "the most": "01 0f ef 7f de",
    "a quick init": "01 20 eb 87 10",
    "one that is allowed": "01 10 eb 87 10",
    "what no peer may offer": "01 30 ff c3 e1",
}
OTHERS = {
    "version 0": "00 00 eb 87 10",
    "version 2": "02 00 eb 87 10",
    "the lower reserved bit": "01 40 eb 87 10",
    "the upper reserved bit": "01 80 eb 87 10",
    "no lengths at all": "01 00 e8 00 00",
    "a frame of 64 KiB": "01 00 00 00 00",
    "a frame of 128 KiB less one": "01 ff ff 00 00",
}
over = each_row("message", [False, True], ids=["bytes", "messages"])


def found(data: bytes, *, message: bool, ended: bool = False) -> str | None:
    """The name of what was found, ``?`` as long as it is not."""
    result = detect_protocol(data, message=message, ended=ended)
    if result is None:
        return None
    return "?" if result is UNDECIDED else name_of(result)


@each_row("begins", BEGINS.values(), ids=list(BEGINS))
@over
@pytest.mark.clause("DET-01", "DET-09")
def test_five_bytes_decide_and_no_fewer(begins: str, message: bool) -> None:
    says = bytes.fromhex(begins)
    assert [found(says[:cut], message=message) for cut in range(1, 6)] == ["?"] * 4 + ["streamux/1"]
    assert found(says + b"whatever follows", message=message) == "streamux/1"
    assert found(says, message=message, ended=True) == "streamux/1"
    assert {found(says[:cut], message=False, ended=True) for cut in range(5)} == {None}


@each_row("begins", OTHERS.values(), ids=list(OTHERS))
@over
@pytest.mark.clause("DET-01")
def test_bytes_that_are_close_are_not_taken_for_it(begins: str, message: bool) -> None:
    for rest in (b"", bytes(16), b"\xff" * 16):
        assert found(bytes.fromhex(begins) + rest, message=message) != "streamux/1"


@pytest.mark.clause("DET-01")
def test_any_bit_of_a_length_is_enough() -> None:
    for bit in range(16):
        assert found(b"\x01\x00\x00" + (1 << bit).to_bytes(2, "big"), message=False) == "streamux/1"


@pytest.mark.clause("DET-01", "DET-02")
@each_row("size", [65536, 65537, 70_000, 131_071, 2**22 - 1])
def test_a_large_frame_of_1_0_is_no_initialize_message(size: int) -> None:
    frame = size.to_bytes(3, "big") + bytes.fromhex("00000000 0400 0001 0000")
    seen = [found(frame[:cut], message=False) for cut in range(1, 14)]
    assert "streamux/1" not in seen
    assert seen[-1] == "rsocket/1.0"
