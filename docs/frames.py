"""Draws the frames on the pages of the protocols, by ``frames.toml``: run it to renew them.

The bytes are those of the conformance cases, which are written by the documents.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rsocket_trio.conformance.catalogue import Word, pieces, read_chapter
from rsocket_trio.conformance.notation import Headers
from rsocket_trio.conformance.streamux_notation import FIELDS

PAGES: Final = Path(__file__).parent / "explanation" / "protocols"
INPUT: Final = tomllib.loads((Path(__file__).parent / "frames.toml").read_text("utf-8"))
PART: Final = re.compile(r"(<!-- frames of (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN: Final = (Word.SEND, Word.EXPECT, Word.EXPECT_ALL, Word.EXPECT_LATER)
HEADERS: Final = {
    "reactivesocket/0.0": ("version", "flags", "type", "stream id"),
    "reactivesocket/0.1": ("type", "flags", "stream id"),
}
"""The fields of the header; that of the others is a stream id, and a type with flags."""
LINE: Final = "{:<4}{:<25}{:<33}{}"
BITS: Final = "{:<19}{:<7}{:<25}{}"
WIDTHS: Final = {"i": 8, "l": 14}
"""Bits of ids and lengths that two initialize messages as the first one drawn agree on."""


class Part(NamedTuple):
    """A field of a frame: its bytes, its name, and what the bytes say."""

    content: bytes
    name: str
    value: str


def example(dialect: str, template: str) -> tuple[str, str]:
    """Return the first frame of a template that a case has, in the notation of cases, and the name of the case."""
    found = [
        (piece, case.id)
        for case in read_chapter(dialect).cases
        for step in case.steps
        if step.word in SHOWN
        for piece in pieces(step.rest)
        if piece.partition(" ")[0] == template and not re.search(r"[${*#]| or ", piece)
    ]
    return min(found, key=lambda one: one[0].count('""'))


def parts(dialect: str, piece: str, names: Iterator[str]) -> Iterator[Part]:
    """Yield the fields of a frame; ``names`` are those of bytes behind the header that are no field of the template."""
    notation = read_chapter(dialect).notation
    template = notation.templates[piece.partition(" ")[0]]
    frame = notation.frame(piece).value
    header = iter(HEADERS.get(dialect, ("stream id", "type and flags")))
    arguments = iter(notation.arguments(piece.partition(" ")[2]))
    at = 0
    for token in template.tokens:
        argument = next(arguments) if token.name else None
        if at < notation.headers.size:
            name = next(header)
        elif token.name:
            called = INPUT["names"].get(token.name, token.name)
            name = INPUT["names"].get(f"{template.name}.{token.name}", called)
        else:
            name = next(names)
        if size := int(token.width) // 8:
            content = frame[at : at + size]
            at += size
            called = f"length of {name}" if token.is_sized else name
            yield Part(content, called, value_of(dialect, notation.headers, frame, called, content))
        if isinstance(argument, bytes):
            at += len(argument)
            yield Part(argument, name, f'"{argument.decode()}"')


def value_of(dialect: str, headers: Headers, frame: bytes, name: str, content: bytes) -> str:
    """Return what the bytes of a field say: a number, or the type and the flags by their names."""
    kind = headers.kind(frame).name
    called = INPUT["flags"].get(dialect, {}).get(kind, {})
    flags = [called.get(flag, flag) for flag in headers.flags if flag != "opaque" and headers.has(frame, flag)]
    named = {"type": [kind], "flags": flags, "type and flags": [kind, *flags]}
    number = int.from_bytes(content, "big")
    is_code = name == "code" or name.startswith(("entry", "MIME", "strateg"))
    return ", ".join(named.get(name, [f"0x{number:X}" if is_code else str(number)]))


def drawn(dialect: str, row: str) -> str:
    """Return one frame byte by byte, under its type."""
    template, _, names = row.partition(": ")
    piece, case = example(dialect, template)
    lines, at = [LINE.format("at", "bytes", "field", "value")], 0
    for part in parts(dialect, piece, iter(names.split("; "))):
        for begin in range(0, len(part.content), 8):
            shown = (part.name, part.value) if not begin else ("", "")
            lines.append(LINE.format(at + begin, part.content[begin : begin + 8].hex(" "), *shown))
        at += len(part.content)
    notation = read_chapter(dialect).notation
    return block(f"{notation.headers.kind(notation.frame(piece).value).name}: `{template}`", lines, case)


def drawn_in_bits(row: str) -> str:
    """Return one message of Streamux bit by bit, under its title."""
    name, _, title = row.partition(": ")
    piece, case = example("streamux/1", name)
    notation = read_chapter("streamux/1").notation
    template = notation.templates[name]
    message = template.fill(notation.arguments(piece.partition(" ")[2]), WIDTHS).value
    is_chunk = any(token.width in WIDTHS for token in template.tokens)
    widths = [WIDTHS[token.width] if isinstance(token.width, str) else token.width for token in template.tokens]
    names = ["request id", "length", "response", "termination"] if is_chunk else list(FIELDS)
    above = sum(widths)
    header = -(-above // 8)
    number = int.from_bytes(message[:header], "little" if is_chunk else "big")
    lines = [BITS.format("bytes", "bits", "field", "value"), message[:header].hex(" ")]
    for field, width in zip(names, widths, strict=True):
        above -= width
        bits = f"{above + width - 1}-{above}" if width > 1 else str(above)
        lines.append(BITS.format("", bits, field, number >> above & (1 << width) - 1))
    if payload := message[header:]:
        lines.append(BITS.format(payload.hex(" "), "", "payload", f'"{payload.decode()}"'))
    return block(title, lines, case)


def block(title: str, lines: list[str], case: str) -> str:
    """Return the lines of a drawing under a heading."""
    text = "\n".join(line.rstrip() for line in lines)
    return f"### {title}\n\n```text\n{text}\n```\n\nAs in the case `{case}`.\n"


def filled(text: str) -> str:
    """Return a page with its frames as the cases have them."""

    def drawing(found: re.Match[str]) -> str:
        dialect = found[2]
        rows = INPUT["frames"][dialect]
        frames = [drawn_in_bits(row) if dialect == "streamux/1" else drawn(dialect, row) for row in rows]
        return "\n".join([found[1], *frames, found[3]])

    return PART.sub(drawing, text)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(filled(path.read_text("utf-8")), "utf-8")
