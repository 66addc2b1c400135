"""The commands ``frames`` and ``detect``: translate frames to JSON and back, and name the dialect of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

import click

from rsocket_trio.cli import interrupts
from rsocket_trio.cli.data import stdin_lines
from rsocket_trio.cli.exit_codes import FAILED
from rsocket_trio.cli.frame_json import from_json, to_json, unhex
from rsocket_trio.cli.help_page import Command, CommandGroup
from rsocket_trio.cli.options import FLAG, Row, add_rows
from rsocket_trio.cli.options import dialect as dialect_name
from rsocket_trio.cli.output import write_text
from rsocket_trio.connection.protocols import SHORT, detect_protocol, name_of
from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.rsocket.detection import Undecided
from rsocket_trio.rsocket.dialect import DIALECTS, RSOCKET_1_0, Dialect, dialect_named

STREAMUX = ("streamux/1", "streamux")
SHORT_WITH_FRAMES = ", ".join(short for short, name in SHORT.items() if name in DIALECTS)


def dialect_with_frames(text: str) -> str:
    """Return the full name of a dialect. Refuse Streamux: a chunk's bytes do not tell the width of its fields."""
    if text in STREAMUX:
        raise click.BadParameter(
            f"{text!r}: its chunks depend on a negotiation; the known ones are {', '.join(DIALECTS)}"
        )
    return dialect_name(text)


# fmt: off
ROWS: Final = (
    Row("dialect", "--dialect", f"The dialect of the frames, in full or in short: {SHORT_WITH_FRAMES}.",
                   {"type": dialect_with_frames, "metavar": "NAME", "default": RSOCKET_1_0.name, "show_default": True}),
    Row("tcp",     "--tcp", "With length prefixes, as on a byte stream.", FLAG),
)
# fmt: on
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
@partial(add_rows, rows=ROWS)
@click.pass_context
def decode(ctx: click.Context, /, dialect: str, tcp: bool) -> None:
    """Frames in hex, one a line, as JSON; with --tcp all lines are one byte stream."""
    ctx.exit(answer(decode_lines(dialect_named(dialect), stdin_lines(), tcp=tcp)))


@command.command(
    "encode",
    examples=("frames encode < frames.json", "frames encode --dialect 0.2 --tcp < frames.json"),
    codes=FRAME_CODES,
)
@partial(add_rows, rows=ROWS)
@click.pass_context
def encode(ctx: click.Context, /, dialect: str, tcp: bool) -> None:
    """Frames in JSON, one a line, as hex."""
    ctx.exit(answer(encode_lines(dialect_named(dialect), stdin_lines(), tcp=tcp)))


def decode_lines(dialect: Dialect, lines: Iterable[str], *, tcp: bool = False) -> Iterator[Answer]:
    """Decode hex, one frame a line, to one JSON object a line; blank lines are skipped.

    With ``tcp`` the lines are one byte stream with length prefixes, and offsets count from its start.
    """
    for text in ["".join(lines)] if tcp else filter(str.strip, lines):
        try:
            stream = unhex(text)
            for start, frame in _cut(dialect, stream) if tcp else [(0, stream)]:
                try:
                    yield json.dumps(to_json(dialect, frame)), True
                except RemoteProtocolError as error:
                    yield error_at(str(error), start + error.offset)
        except RemoteProtocolError as error:
            yield error_at(str(error), error.offset)
        except ValueError as error:
            yield error_at(str(error))


def encode_lines(dialect: Dialect, lines: Iterable[str], *, tcp: bool = False) -> Iterator[Answer]:
    """Encode JSON objects, one a line, to hex, one frame a line; with ``tcp`` each frame has its length prefix."""

    def encoded(content: dict[str, object]) -> str:
        frame = from_json(dialect, content)
        return (dialect.framing().join([frame]) if tcp else frame).hex()

    return object_lines(lines, encoded, error_at)


def _cut(dialect: Dialect, stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a byte stream with their offsets. Raise ``RemoteProtocolError`` with that of a bad length.

    ALL-RCT-05: after such a one the start of the next frame is unknown.
    """
    width, counted = dialect.framing.prefix, dialect.framing.counted
    end = 0
    while (offset := end) < len(stream):
        start, fault = offset + width, ""
        size = int.from_bytes(stream[offset:start], "big") - counted
        end = start + size
        if start > len(stream):
            fault = f"length prefix needs {width} bytes at offset {offset}, {len(stream) - offset} left"
        elif size < dialect.codec.minimum:
            fault = f"frame of {size} bytes at offset {offset}, the smallest has {dialect.codec.minimum}"
        elif end > len(stream):
            fault = f"frame of {size} bytes at offset {start}, {len(stream) - start} left"
        if fault:
            raise RemoteProtocolError(fault, offset=offset)
        yield start, stream[start:end]


@click.command("detect", cls=Command, examples=("detect < first-bytes.hex",), codes={FAILED: "a line was not hex"})
@click.pass_context
def detect(ctx: click.Context, /) -> None:
    """Name the dialect that the first bytes of a connection speak, in hex, or say "unknown"."""
    ctx.exit(answer(detect_lines(stdin_lines())))


def detect_lines(lines: Iterable[str]) -> Iterator[Answer]:
    """Detect the dialect of each line, which holds the first bytes of a byte stream in hex; or say ``unknown``."""
    for line in filter(str.strip, lines):
        try:
            protocol = detect_protocol(unhex(line), message=False, ended=True)
        except ValueError as error:
            yield error_at(str(error))
        else:
            yield "unknown" if protocol is None or isinstance(protocol, Undecided) else name_of(protocol), True


# Answers of a line each


Answer: TypeAlias = tuple[str, bool]
"""A line of output, and whether it is a result (true) or an error (false)."""


def answer(answers: Iterable[Answer]) -> int:
    """Write every answer to stdout as it comes. Return the exit code: 1 if any line is an error."""
    interrupts.work_begins()
    exit_code = 0
    for text, good in answers:
        write_text(text)
        if not good:
            exit_code = FAILED
    return exit_code


def error_at(text: str, offset: int = 0) -> Answer:
    """Return an error as JSON, with the offset of the byte at fault."""
    return json.dumps({"error": text, "offset": offset}), False


def object_lines(
    lines: Iterable[str], convert: Callable[[dict[str, object]], str], fail: Callable[[str], Answer]
) -> Iterator[Answer]:
    """Convert JSON objects, one a line; blank lines are skipped. ``fail`` makes an answer of the text of an error.

    ``convert`` may raise ``ValueError`` and ``LocalProtocolError``.
    """
    for line in filter(str.strip, lines):
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError(f"a JSON object expected, not {content!r:.80}")  # noqa: TRY004 - it is what came
            yield convert(content), True
        except RecursionError:
            yield fail("not JSON: nested too deeply")
        except json.JSONDecodeError as error:
            yield fail(f"not JSON: {error}")
        except (ValueError, LocalProtocolError) as error:
            yield fail(str(error))
