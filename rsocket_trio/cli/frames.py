"""The command ``frames``: decodes frames to JSON and encodes JSON to frames, a line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import click

from rsocket_trio.cli.data import stdin_lines
from rsocket_trio.cli.exit_codes import FAILED
from rsocket_trio.cli.frame_json import from_json, to_json
from rsocket_trio.cli.help_page import CommandGroup
from rsocket_trio.cli.hex_lines import Answer, answer, error_at, object_lines, unhex
from rsocket_trio.cli.options import dialect as dialect_name
from rsocket_trio.connection.protocols import SHORT
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import DIALECTS, RSOCKET_1_0, dialect_named

STREAMUX = ("streamux/1", "streamux")
SHORT_WITH_FRAMES = ", ".join(short for short, name in SHORT.items() if name in DIALECTS)


def dialect_with_frames(text: str) -> str:
    """Return the full name of a dialect. Refuse Streamux: a chunk's bytes do not tell the width of its fields."""
    if text in STREAMUX:
        raise click.BadParameter(
            f"{text!r}: its chunks depend on a negotiation; the known ones are {', '.join(DIALECTS)}"
        )
    return dialect_name(text)


dialect_option = click.option(
    "--dialect",
    type=dialect_with_frames,
    metavar="NAME",
    default=RSOCKET_1_0.name,
    show_default=True,
    help=f"The dialect of the frames, in full or in short: {SHORT_WITH_FRAMES}.",
)
tcp_option = click.option("--tcp", is_flag=True, help="With length prefixes, as on a byte stream.")


FRAME_CODES = {FAILED: "a frame could not be translated; the others were"}


@click.group(
    "frames",
    cls=CommandGroup,
    examples=("frames decode < frames.hex", "frames encode --dialect 0.2 < frames.json"),
    codes=FRAME_CODES,
)
def command() -> None:
    """Translate frames between bytes and JSON."""


@command.command(
    "decode", examples=("frames decode < frames.hex", "frames decode --tcp < stream.hex"), codes=FRAME_CODES
)
@dialect_option
@tcp_option
@click.pass_context
def decode(ctx: click.Context, /, dialect: str, tcp: bool) -> None:
    """Frames in hex, one a line, as JSON; with --tcp all lines are one byte stream."""
    ctx.exit(answer(decode_lines(dialect_named(dialect), stdin_lines(), tcp=tcp)))


@command.command(
    "encode",
    examples=("frames encode < frames.json", "frames encode --dialect 0.2 --tcp < frames.json"),
    codes=FRAME_CODES,
)
@dialect_option
@tcp_option
@click.pass_context
def encode(ctx: click.Context, /, dialect: str, tcp: bool) -> None:
    """Frames in JSON, one a line, as hex."""
    ctx.exit(answer(encode_lines(dialect_named(dialect), stdin_lines(), tcp=tcp)))


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
    prefix = PREFIXES[dialect.framing] if tcp else None

    def encoded(content: dict[str, object]) -> str:
        frame = from_json(dialect, content)
        return (prefix.add(frame) if prefix else frame).hex()

    return object_lines(lines, encoded, error_at)


def _decoded(dialect: Dialect, line: str) -> Answer:
    try:
        return json.dumps(to_json(dialect, unhex(line))), True
    except RemoteProtocolError as error:
        return error_at(str(error), error.offset)
    except ValueError as error:
        return error_at(str(error))


def _decode_stream(dialect: Dialect, text: str) -> Iterator[Answer]:
    try:
        stream = unhex(text)
    except ValueError as error:
        yield error_at(str(error))
        return
    prefix = PREFIXES[dialect.framing]
    offset = 0
    while offset < len(stream):
        start = offset + prefix.size
        if start > len(stream):
            left = len(stream) - offset
            yield error_at(f"length prefix needs {prefix.size} bytes at offset {offset}, {left} left", offset)
            return
        size = int.from_bytes(stream[offset:start], "big") - prefix.counted
        if size < dialect.codec.minimum:
            # ALL-RCT-05: after such a prefix the start of the next frame is unknown.
            yield error_at(
                f"frame of {size} bytes at offset {offset}, the smallest has {dialect.codec.minimum}", offset
            )
            return
        if start + size > len(stream):
            yield error_at(f"frame of {size} bytes at offset {start}, {len(stream) - start} left", offset)
            return
        try:
            yield json.dumps(to_json(dialect, stream[start : start + size])), True
        except RemoteProtocolError as error:
            yield error_at(str(error), start + error.offset)
        offset = start + size
