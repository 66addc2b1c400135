"""Converts the lines of ``frames decode``, ``frames encode`` and ``detect``: text in, text out, no terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import attrs

from rsocket_trio.cli.frame_keys import unhex
from rsocket_trio.cli.frames_json import from_json, to_json
from rsocket_trio.connection.dialects import detect, name_of
from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.rsocket.detection import Undecided
from rsocket_trio.rsocket.dialect import Dialect

Answer: TypeAlias = tuple[str, bool]
"""A line of output, and whether it is a result (true) or an error (false)."""


@attrs.frozen
class Prefix:
    """The length prefix of frames on a byte stream."""

    size: int
    """Bytes of the length field."""
    counted: int
    """Bytes of the length field that the length includes."""

    def add(self, frame: bytes) -> bytes:
        """Return the frame behind its length prefix."""
        return (len(frame) + self.counted).to_bytes(self.size, "big") + frame


PREFIXES: Final = {"u24": Prefix(3, 0), "u32": Prefix(4, 4)}
"""Length prefixes by the name in ``Dialect.framing``."""


def decode_lines(dialect: Dialect, lines: Iterable[str], *, tcp: bool = False) -> Iterator[Answer]:
    """Decode hex, one frame a line, to one JSON object a line; blank lines are skipped.

    With ``tcp`` the lines are one byte stream with length prefixes, and offsets count from its start.
    """
    if tcp:
        yield from _decode_stream(dialect, "".join(lines))
        return
    for line in lines:
        if line.strip():
            yield _decoded(dialect, line)


def encode_lines(dialect: Dialect, lines: Iterable[str], *, tcp: bool = False) -> Iterator[Answer]:
    """Encode JSON objects, one a line, to hex, one frame a line; with ``tcp`` each frame has its length prefix."""
    for line in lines:
        if line.strip():
            yield _encoded(dialect, line, PREFIXES[dialect.framing] if tcp else None)


def detect_lines(lines: Iterable[str]) -> Iterator[Answer]:
    """Detect the dialect of each line, which holds the first bytes of a byte stream in hex; or say ``unknown``."""
    for line in lines:
        if line.strip():
            yield _detected(line)


def run(answers: Iterable[Answer], write: Callable[[str], object]) -> int:
    """Write every line as it comes. Return the exit code: 1 if any line is an error."""
    exit_code = 0
    for text, good in answers:
        write(text)
        if not good:
            exit_code = 1
    return exit_code


def _decoded(dialect: Dialect, line: str) -> Answer:
    try:
        return json.dumps(to_json(dialect, unhex(line))), True
    except RemoteProtocolError as error:
        return _error(str(error), error.offset)
    except ValueError as error:
        return _error(str(error))


def _encoded(dialect: Dialect, line: str, prefix: Prefix | None) -> Answer:
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            return _error(f"a JSON object expected, not {content!r:.80}")
        frame = from_json(dialect, content)
    except RecursionError:
        return _error("not JSON: nested too deeply")
    except json.JSONDecodeError as error:
        return _error(f"not JSON: {error}")
    except (ValueError, LocalProtocolError) as error:
        return _error(str(error))
    return (prefix.add(frame) if prefix else frame).hex(), True


def _detected(line: str) -> Answer:
    try:
        found = detect(unhex(line), message=False, ended=True)
    except ValueError as error:
        return _error(str(error))
    return ("unknown" if found is None or isinstance(found, Undecided) else name_of(found)), True


def _decode_stream(dialect: Dialect, text: str) -> Iterator[Answer]:
    try:
        stream = unhex(text)
    except ValueError as error:
        yield _error(str(error))
        return
    prefix = PREFIXES[dialect.framing]
    offset = 0
    while offset < len(stream):
        start = offset + prefix.size
        if start > len(stream):
            left = len(stream) - offset
            yield _error(f"length prefix needs {prefix.size} bytes at offset {offset}, {left} left", offset)
            return
        size = int.from_bytes(stream[offset:start], "big") - prefix.counted
        if size < dialect.codec.minimum:
            # ALL-RCT-05: after such a prefix the start of the next frame is unknown.
            yield _error(f"frame of {size} bytes at offset {offset}, the smallest has {dialect.codec.minimum}", offset)
            return
        if start + size > len(stream):
            yield _error(f"frame of {size} bytes at offset {start}, {len(stream) - start} left", offset)
            return
        try:
            yield json.dumps(to_json(dialect, stream[start : start + size])), True
        except RemoteProtocolError as error:
            yield _error(str(error), start + error.offset)
        offset = start + size


def _error(text: str, offset: int = 0) -> Answer:
    return json.dumps({"error": text, "offset": offset}), False
