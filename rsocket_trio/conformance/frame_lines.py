"""Shows what passed in a case: a line for each frame, decoded, and equal ones together.

Only reports use it: cases are played and judged without the codecs of this library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import attrs

from rsocket_trio.conformance.wire import Passed
from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Row
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import DIALECTS, REACTIVESOCKET_0_0
from rsocket_trio.rsocket.frames import ErrorFrame, Frame

BYTES_SHOWN: Final = 256
"""Bytes of a frame that are shown as hex."""
TEXT_SHOWN: Final = 24
"""Bytes of data that are shown as text, where they are such."""
SERIES: Final = 4
"""Lines in a row that differ in numbers alone and are all shown."""
NUMBER: Final = re.compile(r"\d+")
HIDDEN: Final = frozenset({"stream_id", "interaction", "metadata_type", "ignore", "has_metadata"})
"""Attributes of frames that a line has elsewhere, or not at all."""
CODES: Final = {
    0x001: "INVALID_SETUP",
    0x002: "UNSUPPORTED_SETUP",
    0x003: "REJECTED_SETUP",
    0x004: "REJECTED_RESUME",
    0x101: "CONNECTION_ERROR",
    0x102: "CONNECTION_CLOSE",
    0x201: "APPLICATION_ERROR",
    0x202: "REJECTED",
    0x203: "CANCELED",
    0x204: "INVALID",
}
CODES_0_0: Final = {0x0001: "INVALID_SETUP", 0x0010: "UNSUPPORTED_SETUP", 0x0100: "REJECTED_SETUP"}


def frame_line(dialect: str, data: bytes) -> str:
    """Return a frame in words: its type, stream, flags, numbers and sizes, an ERROR's code and text.

    A frame that can't be decoded is shown by what is wrong with it; one of Streamux, whose layout was negotiated, as
    hex.
    """
    if dialect not in DIALECTS:
        return hex_of(data)
    try:
        return _decoded(DIALECTS[dialect], data)
    except RemoteProtocolError as error:
        return f"not understood: {error}"


def _decoded(dialect: Dialect, data: bytes) -> str:
    codec = dialect.codec
    frame = codec.decode(data)
    header = codec.header(data)
    assert header is not None  # A frame that was decoded has a header,
    row = codec.row(header.number)
    assert row is not None  # and a type.
    facts = list(_error_facts(dialect, row, frame) if isinstance(frame, ErrorFrame) else _facts(frame))
    if row.ignorable and header.flags & codec.ignore_flag:
        facts.insert(0, "ignore")
    if spare := header.flags & codec.spare_flags(row):
        facts.append(f"other flags 0x{spare:x}")
    place = f" stream {frame.stream_id}" if row.has_stream_id else ""
    return f"{row.name}{place}{': ' if facts else ''}{', '.join(facts)}"


def _facts(frame: Frame) -> list[str]:
    """Return the flags that are set, then the numbers and texts, then what has a size."""
    flags: list[str] = []
    numbers: list[str] = []
    sizes: list[str] = []
    for attribute in attrs.fields(type(frame)):
        content = getattr(frame, attribute.name)
        name = attribute.name.replace("_", " ")
        if attribute.name in HIDDEN or content is None or content == () or content is False:
            continue
        if isinstance(content, Payload):
            sizes += _payload_facts(content)
        elif content is True:
            flags.append(name)
        elif isinstance(content, bytes):
            sizes.append(_bytes_fact(name, content))
        elif isinstance(content, tuple):
            sizes.append(f"{len(content)} {name}")
        elif isinstance(content, float):
            numbers.append(f"{name} {content:g} s")
        else:
            numbers.append(f"{name} {readable(str(content))}")
    return [*flags, *numbers, *sizes]


def _payload_facts(payload: Payload) -> Iterator[str]:
    if payload.metadata is not None:
        yield size_of(payload.metadata, "metadata")
    yield _bytes_fact("data", payload.data)


def _bytes_fact(name: str, content: bytes) -> str:
    """Return short text as it is, and the size of anything else."""
    is_text = content.isascii() and content.decode("ascii", "replace").isprintable()
    if content and name == "data" and len(content) <= TEXT_SHOWN and is_text:
        return f'data "{content.decode()}"'
    return size_of(content, name)


def size_of(content: bytes, name: str) -> str:
    """Return the size of a field in words."""
    return f"{len(content)} byte{'' if len(content) == 1 else 's'} of {name}"


def _error_facts(dialect: Dialect, row: Row, frame: ErrorFrame) -> Iterator[str]:
    is_old = dialect.name == REACTIVESOCKET_0_0.name
    # The ERROR of a stream has no code in 0.0.
    if not is_old or row.name != "ERROR":
        name = (CODES_0_0 if is_old else CODES).get(frame.code)
        yield f"{name} (0x{frame.code:x})" if name else f"0x{frame.code:x}"
    if frame.metadata is not None:
        yield size_of(frame.metadata, "metadata")
    if frame.data:
        yield f'"{readable(frame.data)}"'


def explanation(dialect: str, record: Sequence[Passed]) -> str:
    """Return the last ERROR of the peer that has a text, one of the connection before one of a stream.

    An empty text if there is none.
    """
    found = ""
    for passed in record:
        if passed.sent or passed.event or not passed.is_frame or dialect not in DIALECTS:
            continue
        try:
            frame = DIALECTS[dialect].codec.decode(passed.data)
        except RemoteProtocolError:
            continue
        if isinstance(frame, ErrorFrame) and frame.data and (frame.stream_id == 0 or not found):
            found = _decoded(DIALECTS[dialect], passed.data)
    return found


def lines(
    dialect: str, record: Sequence[Passed], sent: str = ">", received: str = "<", *, with_hex: bool = False
) -> list[str]:
    """Return the record in lines, behind these words for the two directions.

    Equal ones in a row are one; of many that differ in numbers alone the first and the last stay. ``with_hex`` adds
    the bytes of each frame below it.
    """
    found: list[str] = []
    for (line, data), several in groupby(
        (_line(dialect, passed, sent, received), passed.data if with_hex else b"") for passed in record
    ):
        times = len(list(several))
        found.append(f"{line} ({times} times)" if times > 1 else line)
        if data and dialect in DIALECTS:
            found.append(f"{' ' * len(sent)}   {hex_of(data)}")
    return found if with_hex else list(_ends_of_series(found))


def _ends_of_series(found: Sequence[str]) -> Iterator[str]:
    for _, series in groupby(found, lambda line: NUMBER.sub("#", line)):
        alike = list(series)
        if len(alike) > SERIES:
            alike[1:-1] = [f"{alike[0].split()[0]} {len(alike) - 2} more that differ in numbers"]
        yield from alike


def _line(dialect: str, passed: Passed, sent: str, received: str) -> str:
    if passed.event:
        return passed.event
    shown = frame_line(dialect, passed.data) if passed.is_frame else f"{hex_of(passed.data)} (no frame)"
    return f"{sent if passed.sent else received} {shown}"


def hex_lines(record: Sequence[Passed]) -> list[str]:
    """Return the record in lines of hex, ``>`` before what was sent and ``<`` before what was received."""
    return [
        passed.event or f"{'>' if passed.sent else '<'} {hex_of(passed.data)}{'' if passed.is_frame else ' (no frame)'}"
        for passed in record
    ]


def hex_of(data: bytes) -> str:
    """Return bytes as hex, the first of them if there are many."""
    shown = data[:BYTES_SHOWN].hex(" ") or "(an empty frame)"
    return f"{shown} ... {len(data)} bytes" if len(data) > BYTES_SHOWN else shown
