"""The notation of frames in cases: templates of a dialect, filled with arguments, or hex; to send, or to match.

A template is a row of tokens: hex bytes as they are; ``{name:4}`` a number of so many bytes, big endian; ``{name:+3}``
bytes behind their length of so many bytes, and ``{name:+3+4}`` the same with a length that counts 4 more; ``{name}``
bytes. In what is expected, ``?`` is any half of a byte and ``..`` any number of bytes. Arguments are numbers (``7``,
``0x201``), texts in quotes, hex behind ``h``, or ``*`` for any. ``"x"*1000`` is a text so many times in a row.

In cases of resumption an argument can be a value of the session: ``{token}``, and its positions, ``{sent}`` and
``{received}``, also as ``{received+1}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Final

import attrs

from rsocket_trio.conformance.header import Headers

FIELD: Final = re.compile(r"\{(?P<name>[a-z_]+)(?::(?P<sized>\+?)(?P<size>\d+)(?:\+(?P<counted>\d+))?)?\}")
ARGUMENT: Final = re.compile(
    r'\s*(?:(?:"(?P<text>[^"]*)"|h(?P<hex>(?:[0-9a-fA-F]{2})*)(?=[\s*]|$))(?:\*(?P<times>\d+))?|(?P<word>[^\s"]+))'
)
VALUE: Final = re.compile(r"\{(?P<name>token|sent|received)(?P<more>[+-]\d+)?\}")
TOKEN: Final = "{token:+2}"
"""The field of a resume token."""
REQUESTS: Final = ("ask", "stream", "sub", "channel")
"""The templates of requests that a client under test is told to make; some clients' are called ``asked_stream``."""
SHOWN: Final = 64
"""Bytes of a frame that a message shows."""


class NotationError(ValueError):
    """A frame that is not written as the notation has it."""


class Unfit(Exception):
    """A number or a payload for which the frames of this connection have no room."""


class Anything:
    """The argument ``*``: any value of its field."""


ANYTHING: Final = Anything()
Argument = int | bytes | Anything


@attrs.frozen
class FramePattern:
    """The bytes of one frame without its length. ``mask`` is FF where a byte is fixed, 00 where it may be any, F0 and
    0F where that is true of its halves."""

    value: bytes
    mask: bytes
    is_open: bool = False
    """True if more bytes may follow."""
    rest: FramePattern | None = None
    """The fixed bytes behind them, anywhere in what follows."""

    @property
    def is_exact(self) -> bool:
        """Return whether every byte is fixed, so that the frame can be sent."""
        return not self.is_open and not self.mask.strip(b"\xff")

    def fits(self, frame: bytes) -> bool:
        """Return whether these are the bytes of such a frame."""
        if self.is_exact:
            return frame == self.value
        if len(frame) < len(self.value) or (len(frame) > len(self.value) and not self.is_open):
            return False
        got, mask, wanted = (int.from_bytes(one, "big") for one in (frame[: len(self.value)], self.mask, self.value))
        if (got ^ wanted) & mask:
            return False
        return self.rest is None or any(self.rest.fits(frame[at:]) for at in self._places(frame))

    def end_in(self, frame: bytes) -> int:
        """Return where the last fixed bytes end in a frame that fits, in the first place where they do."""
        if self.rest is None:
            return len(self.value)
        at = next(at for at in self._places(frame) if self.rest.fits(frame[at:]))
        return at + self.rest.end_in(frame[at:])

    def _places(self, frame: bytes) -> range:
        """Return where the rest can begin."""
        return range(len(self.value), len(frame) + 1)

    def __str__(self) -> str:
        digits = zip(self.value[:SHOWN].hex(), self.mask[:SHOWN].hex(), strict=True)
        halves = "".join(digit if fixed == "f" else "?" for digit, fixed in digits)
        shown = " ".join(halves[place : place + 2] for place in range(0, len(halves), 2))
        if len(self.value) > SHOWN:
            return f"{shown} ... {len(self.value)} bytes"
        shown = f"{shown} .." if self.is_open else shown
        return f"{shown} {self.rest}" if self.rest else shown


@attrs.frozen
class TemplateField:
    """A place for an argument."""

    name: str
    size: int
    """Bytes of the number, or of the length before the bytes; 0 if there is none."""
    is_sized: bool
    """True if bytes stand behind their length."""
    counted: int
    """Bytes that the length counts beside those of the field."""

    def bytes_of(self, template: str, argument: int | bytes) -> bytes:
        """Return the bytes of an argument. Raise ``NotationError`` for one of the wrong kind or size."""
        if self.size and not self.is_sized:
            if not isinstance(argument, int):
                raise NotationError(f"{template}: {self.name} is a number")
            try:
                return argument.to_bytes(self.size, "big")
            except OverflowError:
                raise NotationError(f"{template}: {self.name} of {argument} does not fit {self.size} bytes") from None
        if not isinstance(argument, bytes):
            raise NotationError(f"{template}: {self.name} is text in quotes or hex behind h")
        return (len(argument) + self.counted).to_bytes(self.size, "big") + argument if self.size else argument


@attrs.frozen
class Fixed:
    """Bytes as they are, with their mask."""

    value: bytes
    mask: bytes


class Gap:
    """Any number of bytes: ``..``."""


GAP: Final = Gap()
Token = TemplateField | Fixed | Gap


@cache
def token_of(text: str) -> Token:
    """Read a token of a template. Raise ``NotationError`` for what is none."""
    if text == "..":
        return GAP
    if found := FIELD.fullmatch(text):
        return TemplateField(found["name"], int(found["size"] or 0), bool(found["sized"]), int(found["counted"] or 0))
    if len(text) % 2 or not re.fullmatch(r"[0-9a-fA-F?]+", text):
        raise NotationError(f"{text!r} is no hex, field, ? or ..")
    mask = bytes.fromhex("".join("0" if digit == "?" else "f" for digit in text))
    return Fixed(bytes.fromhex(text.replace("?", "0")), mask)


@attrs.frozen
class Template:
    """One frame of a dialect with named fields, in the order of its arguments."""

    name: str
    tokens: tuple[str, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, text: str) -> Template:
        """Read a template. Raise ``NotationError`` naming it."""
        tokens = tuple(text.split())
        try:
            read = [token_of(token) for token in tokens]
        except NotationError as error:
            raise NotationError(f"template {name}: {error}") from None
        return cls(name, tokens, tuple(token.name for token in read if isinstance(token, TemplateField)))

    def fill(self, arguments: Sequence[Argument]) -> FramePattern:
        """Return the frame with these arguments. Raise ``NotationError`` for a wrong number or kind of them."""
        if len(arguments) != len(self.fields):
            raise NotationError(f"{self.name} takes {len(self.fields)} arguments, {' '.join(self.fields)}")
        return _filled(self.name, self.tokens, iter(arguments))

    def unfilled(self) -> FramePattern:
        """Return the frame with any arguments."""
        return self.fill([ANYTHING] * len(self.fields))

    def parts(self, stream_id: int, frame: bytes) -> tuple[bytes | None, bytes] | None:
        """Return metadata and data of such a frame on this stream, ``None`` for another one."""
        if "metadata" not in self.fields:
            head = self.fill([stream_id, b""]).value
            return (None, frame[len(head) :]) if frame.startswith(head) else None
        length = next(
            token for token in map(token_of, self.tokens) if isinstance(token, TemplateField) and token.is_sized
        )
        size = length.size
        head = self.fill([stream_id, b"", b""]).value[:-size]
        if not frame.startswith(head):
            return None
        begin = len(head) + size
        end = begin + int.from_bytes(frame[len(head) : begin], "big") - length.counted
        return frame[begin:end], frame[end:]

    def numbers_in(self, frame: bytes) -> dict[str, int]:
        """Return the numbers of a frame of this kind by their names, those before the first field without a size."""
        numbers, at = {}, 0
        for token in map(token_of, self.tokens):
            if isinstance(token, Fixed):
                at += len(token.value)
            elif isinstance(token, Gap) or not token.size or token.is_sized:
                break
            else:
                numbers[token.name] = int.from_bytes(frame[at : at + token.size], "big")
                at += token.size
        return numbers


def _filled(name: str, tokens: Sequence[str], arguments: Iterator[Argument]) -> FramePattern:
    value, mask, is_open = b"", b"", False
    for number, token in enumerate(map(token_of, tokens)):
        if isinstance(token, Gap):
            is_open = True
        elif is_open:
            return FramePattern(value, mask, True, _filled(name, tokens[number:], arguments))
        elif isinstance(token, Fixed):
            value, mask = value + token.value, mask + token.mask
        elif not isinstance(argument := next(arguments), Anything):
            part = token.bytes_of(name, argument)
            value, mask = value + part, mask + b"\xff" * len(part)
        elif token.size and not token.is_sized:
            value, mask = value + bytes(token.size), mask + bytes(token.size)
        else:
            is_open = True
    return FramePattern(value, mask, is_open)


def arguments_in(text: str) -> list[Argument]:
    """Return the arguments of a line. Raise ``NotationError`` for one that can't be read."""
    found: list[Argument] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = ARGUMENT.match(text, at)
        if match is None:
            raise NotationError(f"{text[at:]!r} can't be read")
        at = match.end()
        times = int(match["times"] or 1)
        if match["text"] is not None:
            found.append(match["text"].encode() * times)
        elif match["hex"] is not None:
            found.append(bytes.fromhex(match["hex"]) * times)
        elif match["word"] == "*":
            found.append(ANYTHING)
        else:
            found.append(_number(match["word"]))
    return found


def valued(text: str, values: Mapping[str, int | bytes]) -> str:
    """Return a line with the values of a session in the places of their names."""

    def value_of(found: re.Match[str]) -> str:
        value = values[found["name"]]
        return f"h{value.hex()}" if isinstance(value, bytes) else str(max(0, value + int(found["more"] or 0)))

    return VALUE.sub(value_of, text)


def shown(frame: bytes) -> str:
    """Return the bytes of a frame as hex, the first of them if there are many."""
    begin = frame[:SHOWN].hex(" ") or "an empty frame"
    return f"{begin} ... {len(frame)} bytes" if len(frame) > SHOWN else begin


def _number(word: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        raise NotationError(f"{word!r} is neither a number, nor text in quotes, nor hex behind h") from None


@attrs.frozen
class Notation:
    """The frames of one dialect: its name, the bytes of a length on byte streams, its templates by name."""

    dialect: str
    length_size: int
    length_counts_itself: bool
    first_id: int
    """The first stream id of a client: its ids are odd or even as this one is."""
    templates: Mapping[str, Template]
    resumable: tuple[FramePattern, ...] = ()
    """The requests whose streams can be resumed. All can be where there is none."""
    id_steps: int = 0
    """The distance of a client's ids, which may also skip some and begin anywhere. With 1 any id will do, with 0 the
    document says each."""
    headers: Headers | None = None
    """The headers of its frames, ``None`` for a protocol that has no types."""

    def cleared(self, frame: bytes) -> bytes:
        """Return the frame with 0 in the bits that should be 0."""
        return frame if self.headers is None else self.headers.cleared(frame)

    def other_id(self, text: str, frame: bytes) -> int | None:
        """Return the id of a request that a piece of a line describes, but on another stream that may be used."""
        name, _, rest = text.strip().partition(" ")
        template = self.templates.get(name)
        if not self.id_steps or template is None or name.removeprefix("asked_") not in REQUESTS:
            return None
        named = dict(zip(template.fields, self.arguments(rest), strict=True))
        expected = named["id"]
        if not isinstance(expected, int) or not template.fill(list({**named, "id": ANYTHING}.values())).fits(frame):
            return None
        found = template.numbers_in(frame)["id"]
        is_right = found > expected and (found - expected) % self.id_steps == 0
        return found if found and (is_right or self.id_steps == 1) else None

    def token_in(self, frame: bytes) -> bytes | None:
        """Return the resume token of a client's SETUP or of what it resumes with, else ``None``."""
        for name in ("client_resumable", "client_resumable_leased", "client_resume"):
            template = self.templates.get(name)
            if template is None:
                continue
            place = template.tokens.index(TOKEN)
            head = _filled(name, (*template.tokens[:place], ".."), iter(()))
            if head.fits(frame):
                begin = head.end_in(frame) + 2
                return frame[begin : begin + int.from_bytes(frame[begin - 2 : begin], "big")]
        return None

    negotiates: ClassVar[bool] = False
    """True if both sides send an initialize message first, and the layout of all others comes of the two."""
    opening: ClassVar[str] = "SETUP"

    def connected(self) -> Notation:
        """Return the notation of one connection."""
        return self

    def arguments(self, text: str) -> list[Argument]:
        """Return the arguments of a line. Raise ``NotationError`` for one that can't be read."""
        return arguments_in(text)

    def probe_id(self, number: int) -> int:
        """Return the id of a probe, of its number."""
        return number

    def sent(self, data: bytes) -> None:
        """Take note of bytes that the tester sends."""

    def note(self, frame: bytes) -> str:
        """Take note of a frame of the peer's. Return what is wrong with it whatever the case says, if anything."""
        return ""

    def answer_aside(self, frame: bytes) -> bytes | None:
        """Return the answer to the frame noted last if it may come at any time, else ``None``."""
        return None

    def bind(self, text: str, frame: bytes) -> None:
        """Let the names in a piece of a line stand for what they are in the frame that came for it."""

    def frame(self, text: str) -> FramePattern:
        """Return the frame that a piece of a line describes: ``hex`` and bytes, or a template and its arguments.

        Raise ``NotationError`` for what is neither.
        """
        name, _, rest = text.strip().partition(" ")
        if name == "hex":
            return Template.parse("hex", rest).fill(())
        template = self.templates.get(name)
        if template is None:
            raise NotationError(f"{self.dialect} has no frame {name!r}; it has {', '.join(sorted(self.templates))}")
        return template.fill(self.arguments(rest))

    def with_length(self, frame: bytes) -> bytes:
        """Return the frame as it stands on a byte stream."""
        size = len(frame) + self.length_size * self.length_counts_itself
        return size.to_bytes(self.length_size, "big") + frame

    def cut(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the whole frames at the beginning of a byte stream, and what stands behind them."""
        head, counted = self.length_size, self.length_size * (not self.length_counts_itself)
        frames, at = [], 0
        while len(data) >= at + head:
            # A length that counts itself and is smaller than that is nonsense: an empty frame, so that reading goes on.
            end = at + max(head, int.from_bytes(data[at : at + head], "big") + counted)
            if len(data) < end:
                break
            frames.append(data[at + head : end])
            at = end
        return frames, data[at:]
