"""Detects the dialect of a client from the first bytes of its connection."""

from __future__ import annotations

import enum
from typing import Final

from rsocket_trio.rsocket.dialect import (
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
    RSOCKET_2_0_DRAFT,
    Dialect,
)

RESUME: Final = 0x0D
SETUP: Final = 0x01
LENGTH: Final = 4
"""Bytes of the length of 0.1."""


class Undecided(enum.Enum):
    """The answer of ``detect`` while it needs more bytes."""

    UNDECIDED = enum.auto()


UNDECIDED: Final = Undecided.UNDECIDED


class _Signature:
    """A pattern of a dialect's first frame on a byte stream, a token for each byte.

    ``--`` is any byte, ``04`` that byte, ``04/FC`` one that is 04 under the mask FC, ``!00`` any other than that.
    """

    def __init__(self, dialect: Dialect, drawn: str) -> None:
        tokens = drawn.split()
        self.dialect = dialect
        self.framing = dialect.framing
        self.size = len(tokens)
        """Bytes that the frame must have, its length prefix included."""
        self.clues = [_clue(index, token) for index, token in enumerate(tokens) if token != "--"]

    def fits(self, data: bytes, *, message: bool, ended: bool) -> bool | None:
        """Return whether the bytes so far fit, ``None`` if more bytes could still decide.

        A message gets its byte stream length before it, so that one pattern fits both transports (DET-09).
        """
        prefix, counted = self.framing.prefix, self.framing.counted
        if message:
            data = (min(len(data), self.framing.largest) + counted).to_bytes(prefix, "big") + data
        size = len(data)
        if size >= prefix and prefix - counted + int.from_bytes(data[:prefix], "big") < self.size:
            return False  # The frame ends before the last byte that decides; what follows is another one.
        for index, mask, content, is_equal in self.clues:
            if index >= size:
                return False if ended else None
            if (data[index] & mask == content) is not is_equal:
                return False
        return True


def _clue(index: int, token: str) -> tuple[int, int, int, bool]:
    """Return index, mask and value of a byte that matters, and whether it is to have that value or not."""
    content, _, mask = token.removeprefix("!").partition("/")
    return index, int(mask or "FF", 16), int(content, 16), token[0] != "!"


# In the order in which they are tried. The type is the upper six bits of its byte; a length of 32 bits begins with 0.
_SIGNATURES: Final = (
    #                               length      stream id   type  fl  version
    _Signature(RSOCKET_1_0,        "-- -- -- 00 00 00 00 04/FC -- 00 01 00 00"),  # DET-02, SETUP
    _Signature(RSOCKET_1_0,        "-- -- -- 00 00 00 00 34/FC -- 00 01 00 00"),  # DET-02, RESUME
    _Signature(RSOCKET_1_0,        "-- -- -- 00 00 00 00 34/FC -- 00 00 00 01"),  # the same as rsocket-js writes it
    _Signature(REACTIVESOCKET_0_2, "-- -- -- 00 00 00 00 04/FC -- 00 00 00 02"),  # DET-03, SETUP
    _Signature(REACTIVESOCKET_0_2, "-- -- -- 00 00 00 00 34/FC -- 00 00 00 02"),  # DET-03, RESUME
    #                               length      stream id   type  fl  data MIME type
    _Signature(RSOCKET_2_0_DRAFT,  "-- -- -- 00 00 00 00 04/FC -- !00"),  # DET-04
    #                               length         type  flags stream id   version
    _Signature(REACTIVESOCKET_0_1, "00/80 -- -- -- 00 01 -- -- 00 00 00 00 00 00 00 01"),  # DET-05, what 0.1 says
    _Signature(REACTIVESOCKET_0_1, "00/80 -- -- -- 00 01 -- -- 00 00 00 00 00 00 00 00"),  # DET-05, what most say
    _Signature(REACTIVESOCKET_0_1, "00/80 -- -- -- 00 01 -- -- 00 00 00 00 00 00 00 02"),  # DET-05, what some say
    #                               length         v  fl type  stream id
    _Signature(REACTIVESOCKET_0_0, "00/80 -- -- -- 00 -- 00 01 00 00 00 00 00 00 00 00"),  # DET-06
)  # fmt: skip

# DET-07: these first frames are answered. A SETUP of 0.1 with another version gets an error in 0.1's layout; any other
# frame that 1.0 knows, except RESUME, gets one in 1.0's layout: the first frame must be SETUP.
_ANSWERS: Final = (
    _Signature(REACTIVESOCKET_0_1, "00/80 -- -- -- 00 01 -- -- 00 00 00 00 -- -- -- --"),
    *(
        _Signature(RSOCKET_1_0, f"-- -- -- 00/80 -- -- -- {row.number << 2:02X}/FC --")
        for row in RSOCKET_1_0.codec.rows
        if row.name != "RESUME"
    ),
)


def detect(data: bytes, *, message: bool, ended: bool) -> Dialect | Undecided | None:
    """Return the dialect whose client sends these first bytes, ``None`` if no dialect begins like this.

    ``message`` says that ``data`` is the first message of a transport that keeps borders, with or without the length
    that peers of 0.1 put before it (``keeps_length``), ``ended`` that no more bytes will come. At most 16 bytes are
    needed. ``UNDECIDED`` as long as more bytes could change the answer, that of ``answer_for`` included.
    """
    ended = ended or message  # nothing that follows a whole message, an empty one too, changes what it is
    data, message = _without_border(data, message)
    dialect = _first_that_fits(_SIGNATURES, data, message=message, ended=ended)
    if dialect is None and _first_that_fits(_ANSWERS, data, message=message, ended=ended) is UNDECIDED:
        return UNDECIDED
    return dialect


def answer_for(data: bytes, *, message: bool) -> Dialect | None:
    """Return the dialect in which INVALID_SETUP answers unrecognised bytes, ``None`` to close silently."""
    data, message = _without_border(data, message)
    dialect = _first_that_fits(_ANSWERS, data, message=message, ended=True)
    if dialect is None and _is_misplaced_resume(data if message else _first_frame(data)):
        return RSOCKET_1_0
    return dialect if isinstance(dialect, Dialect) else None


def keeps_length(message: bytes) -> bool:
    """Return whether a client's first message is a frame of 0.1 behind its byte stream length.

    A SETUP is told by its type and stream id alone: no other layout has them there, and a length that contradicts the
    size of the message can be answered so. Any other frame is one if its length is right.
    """
    codec = REACTIVESOCKET_0_1.codec
    if len(message) < LENGTH + codec.minimum or message[4] or codec.row(message[5]) is None:
        return False
    if message[5] == SETUP and not any(message[8:12]):
        return True
    return int.from_bytes(message[:LENGTH], "big") == len(message)


def _without_border(data: bytes, message: bool) -> tuple[bytes, bool]:
    """Return a message that keeps its length as bytes of a stream, with the correct length; all else as it is."""
    if message and data[4:5] == b"\0" and keeps_length(data):
        return len(data).to_bytes(LENGTH, "big") + data[LENGTH:], False
    return data, message


def _first_frame(data: bytes) -> bytes:
    """Return the received part of the first frame without its length, nothing if it is too small for a frame."""
    size = int.from_bytes(data[:3], "big")
    return data[3 : 3 + size] if size >= RSOCKET_1_0.codec.minimum else b""


def _is_misplaced_resume(frame: bytes) -> bool:
    """Return whether the frame is a RESUME off stream 0: answered like any other wrong first frame (RS10-CON-02)."""
    # Five bytes tell: four of stream id, and the type in the upper six bits of the fifth.
    return len(frame) >= 5 and frame[4] >> 2 == RESUME and 0 < int.from_bytes(frame[:4], "big") < 2**31


def _first_that_fits(
    signatures: tuple[_Signature, ...], data: bytes, *, message: bool, ended: bool
) -> Dialect | Undecided | None:
    if not data and not ended:
        return UNDECIDED
    for signature in signatures:
        fits = signature.fits(data, message=message, ended=ended)
        if fits is None:
            return UNDECIDED
        if fits:
            return signature.dialect
    return None
