"""Shows frames as lines for people: what a frame says, and the size of its metadata, which may be secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_0, Dialect
from rsocket_trio.rsocket.frames import ErrorFrame, Frame

TEXT_SHOWN: Final = 64
"""Bytes of data that are shown as text, where they are such."""
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
DRAFT_CODES: Final = {0x001: "INVALID_SETUP", 0x010: "UNSUPPORTED_SETUP", 0x100: "REJECTED_SETUP"}
"""The codes of ReactiveSocket 0.0, those of SETUP_ERROR."""


def frame_line(dialect: Dialect, data: bytes) -> str:
    """Return a frame in words: its type, stream, flags, numbers and sizes, an ERROR's code and text.

    A frame that can't be decoded is shown by what is wrong with it.
    """
    codec = dialect.codec
    try:
        frame = codec.decode(data)
    except RemoteProtocolError as error:
        return f"not understood: {error}"
    header, row = codec.header(data), codec.row_of(frame)
    flags = header.flags if header else 0
    facts = list(_facts(dialect, frame))
    if row.ignorable and flags & codec.ignore_flag:
        facts.insert(0, "ignore")
    if spare := flags & codec.spare_flags(row):
        facts.append(f"other flags 0x{spare:x}")
    place = f" stream {frame.stream_id}" if row.has_stream_id else ""
    return f"{row.name}{place}{': ' if facts else ''}{', '.join(facts)}"


def _facts(dialect: Dialect, frame: Frame) -> Iterator[str]:
    """Yield the flags that are set and the numbers, texts and sizes of a frame, those of its payload last."""
    fields: dict[str, object] = attrs.asdict(frame, recurse=False)
    if isinstance(frame, ErrorFrame):
        is_draft = dialect.name == REACTIVESOCKET_0_0.name
        # The ERROR of a stream has no code in 0.0.
        if not (is_draft and frame.stream_id):
            name = (DRAFT_CODES if is_draft else CODES).get(frame.code)
            yield f"{name} (0x{frame.code:x})" if name else f"0x{frame.code:x}"
        fields = {"metadata": frame.metadata}
    payload = fields.pop("payload", None)
    if isinstance(payload, Payload):
        fields |= {"metadata": payload.metadata, "data": payload.data}
    for name, content in fields.items():
        if name in HIDDEN or content is None or content is False or content == ():
            continue
        label = name.replace("_", " ")
        if isinstance(content, bytes):
            yield _bytes_fact(label, content)
        elif isinstance(content, tuple):
            yield f"{len(content)} {label}"
        elif isinstance(content, float):
            yield f"{label} {content:g} s"
        else:
            yield label if content is True else f"{label} {readable(str(content))}"
    if isinstance(frame, ErrorFrame) and frame.data:
        yield f'"{readable(frame.data)}"'


def _bytes_fact(name: str, content: bytes) -> str:
    """Return data that begins like text as it is, and the size of anything else."""
    size = f"{len(content)} byte{'s' * (len(content) != 1)} of {name}"
    if name != "data" or not content:
        return size
    try:
        content[:TEXT_SHOWN].decode()
    except UnicodeDecodeError:
        return size
    text = f'"{readable(content, TEXT_SHOWN)}"'
    return f"data {text}" if len(content) <= TEXT_SHOWN else f"{size}, {text}"
