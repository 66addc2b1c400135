"""The notation of frames in cases: templates of a dialect, filled with arguments, or hex; to send, or to match.

A template is a row of tokens: hex bytes as they are; ``{name:4}`` a number of so many bytes, big endian; ``{name:+3}``
bytes behind their length of so many bytes, and ``{name:+3+4}`` the same with a length that counts 4 more; ``{name}``
bytes. In what is expected, ``?`` is any half of a byte and ``..`` any number of bytes. Arguments are numbers (``7``,
``0x201``), texts in quotes, hex behind ``h``, or ``*`` for any. ``"x"*1000`` is a text so many times in a row.

Messages of Streamux are drawn bit by bit: ``0`` and ``1``, numbers of so many bits as ``1:8``, ``?:8`` for any, fields
as ``{name:4b}``. ``{id:i}`` and ``0:l`` have the negotiated widths of ids and lengths; a template that has one of them
is the header of a chunk, a little-endian number. ``{data:+l}`` is the length of the payload behind that.

In cases of resumption an argument can be a value of the session: ``{token}``, and its positions, ``{sent}`` and
``{received}``, also as ``{received+1}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Final

import attrs

from rsocket_trio.conformance.header import NO_HEADERS, Headers

TOKEN: Final = re.compile(
    r"\{(?P<name>[a-z_]+)(?::(?P<sized>\+?)(?:(?P<size>\d+)(?P<bits>b?)|(?P<wide>[il]))(?:\+(?P<counted>\d+))?)?\}|"
    r"(?P<number>\d+|\?):(?P<of>\d+|[il])|(?P<bit>[01])|(?P<hex>(?:[0-9a-fA-F?]{2})+)|\.\."
)
ARGUMENT: Final = re.compile(
    r'\s*(?:(?:"(?P<text>[^"]*)"|h(?P<hex>(?:[0-9a-fA-F]{2})*)(?=[\s*]|$))(?:\*(?P<times>\d+))?|(?P<word>[^\s"]+))'
)
VALUE: Final = re.compile(r"\{(?P<name>token|sent|received)(?P<more>[+-]\d+)?\}")
TOKEN_LENGTH: Final = 2
"""Bytes of the length before a resume token."""
WITH_TOKEN: Final = ("client_resumable", "client_resumable_leased", "client_resume")
"""The templates of a client's frames that have one."""
REQUESTS: Final = ("ask", "stream", "sub", "channel")
"""The templates of requests that a client under test is told to make; some clients' are called ``asked_stream``."""
MOST_BYTES: Final = 4
"""Bytes of the largest header of a chunk."""
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
        size = len(self.value)
        if len(frame) < size or (len(frame) > size and not self.is_open):
            return False
        got, mask, value = (int.from_bytes(octets, "big") for octets in (frame[:size], self.mask, self.value))
        return not (got ^ value) & mask and (self.rest is None or self._rest_in(frame) is not None)

    def end_in(self, frame: bytes) -> int:
        """Return where the last fixed bytes end in a frame that fits, in the first place where they do."""
        at = self._rest_in(frame)
        return len(self.value) if self.rest is None or at is None else at + self.rest.end_in(frame[at:])

    def _rest_in(self, frame: bytes) -> int | None:
        """Return the first place in the frame where the rest can begin, ``None`` if there is none."""
        places = range(len(self.value), len(frame) + 1)
        return next((at for at in places if self.rest is not None and self.rest.fits(frame[at:])), None)

    def __str__(self) -> str:
        digits = zip(self.value[:SHOWN].hex(), self.mask[:SHOWN].hex(), strict=True)
        halves = "".join(digit if fixed == "f" else "?" for digit, fixed in digits)
        begin = " ".join(halves[place : place + 2] for place in range(0, len(halves), 2))
        if len(self.value) > SHOWN:
            return f"{begin} ... {len(self.value)} bytes"
        return f"{begin}{' ..' if self.is_open else ''}{f' {self.rest}' if self.rest else ''}"


@attrs.frozen
class TemplateToken:
    """A part of a template: fixed bits, a field, or any number of bytes."""

    name: str = ""
    """The name of the field, if it is one."""
    width: int | str = 0
    """Bits of the number, or of the length before the bytes, or the name of its negotiated width."""
    is_sized: bool = False
    """True if the number is the length of bytes."""
    counted: int = 0
    """Bytes that the length counts beside those of the field."""
    value: int = 0
    mask: int = 0
    """The bits of ``value`` that are fixed."""

    @property
    def is_gap(self) -> bool:
        """Return whether it is any number of bytes."""
        return not self.name and not self.width

    @property
    def is_number(self) -> bool:
        """Return whether it is a field with a number of its own."""
        return bool(self.name and self.width and not self.is_sized)

    def number_of(self, template: str, argument: Argument, width: int) -> int | None:
        """Return the number of the field with this argument, ``None`` for any. Raise ``NotationError``, ``Unfit``."""
        if isinstance(argument, Anything):
            return None
        if self.is_number != isinstance(argument, int):
            kind = "a number" if self.is_number else "text in quotes or hex behind h"
            raise NotationError(f"{template}: {self.name} is {kind}")
        number = argument if isinstance(argument, int) else len(argument) + self.counted
        if width and number >> width:
            fault = Unfit if width % 8 or width != self.width else NotationError
            raise fault(f"{template}: {self.name} of {number} does not fit {width} bits")
        return number


GAP: Final = TemplateToken()


@cache
def token_of(text: str) -> TemplateToken:
    """Read a token of a template. Raise ``NotationError`` for what is none."""
    match = TOKEN.fullmatch(text)
    if match is None:
        raise NotationError(f"{text!r} is no hex, bit, number, field, ? or ..")
    if name := match["name"]:
        width = match["wide"] or int(match["size"] or 0) * (1 if match["bits"] else 8)
        return TemplateToken(name, width, bool(match["sized"]), int(match["counted"] or 0))
    if digits := match["hex"]:
        mask = "".join("0" if digit == "?" else "f" for digit in digits)
        return TemplateToken("", 4 * len(digits), value=int(digits.replace("?", "0"), 16), mask=int(mask, 16))
    if text == "..":
        return GAP
    digits, wide = match["number"] or match["bit"], match["of"] or "1"
    value, fixed = (0, 0) if digits == "?" else (int(digits), -1)
    return TemplateToken("", int(wide) if wide.isdigit() else wide, value=value, mask=fixed)


@attrs.frozen
class Template:
    """One frame of a dialect with named fields, in the order of its arguments."""

    name: str
    tokens: tuple[TemplateToken, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, text: str) -> Template:
        """Read a template. Raise ``NotationError`` naming it."""
        try:
            tokens = tuple(map(token_of, text.split()))
        except NotationError as error:
            raise NotationError(f"template {name}: {error}") from None
        return cls(name, tokens, tuple(token.name for token in tokens if token.name))

    def fill(self, arguments: Sequence[Argument], widths: Mapping[str, int]) -> FramePattern:
        """Return the frame with these arguments, in the ``widths`` of the connection where it has some of them.

        Raise ``NotationError`` for a wrong number or kind of arguments, ``Unfit`` for what the widths forbid.
        """
        if len(arguments) != len(self.fields):
            raise NotationError(f"{self.name} takes {len(self.fields)} arguments, {' '.join(self.fields)}")
        return self._filled(self.tokens, iter(arguments), widths)

    def _filled(
        self, tokens: Sequence[TemplateToken], arguments: Iterator[Argument], widths: Mapping[str, int]
    ) -> FramePattern:
        value = mask = total = 0
        payload: Argument = b""
        is_open, is_header, rest = False, False, None
        for place, token in enumerate(tokens):
            if is_open and not token.is_gap:
                rest = self._filled(tokens[place:], arguments, widths)
                break
            width = token.width if isinstance(token.width, int) else widths[token.width]
            is_header |= token.width in widths
            number: int | None = token.value
            fixed = token.mask & (1 << width) - 1
            content: Argument = b""
            if token.name:
                content = next(arguments)
                number = token.number_of(self.name, content, width)
                fixed = 0 if number is None else (1 << width) - 1
            if token.is_gap or (content is ANYTHING and not token.is_number and not is_header):
                is_open = True
                continue
            if not token.name and number is not None and number >> width:
                raise Unfit(f"{self.name}: {number} does not fit {width} bits")
            value, mask, total = value << width | (number or 0) * bool(width), mask << width | fixed, total + width
            if token.width in widths and token.is_sized:
                payload = content
            elif isinstance(content, bytes):
                bits = 8 * len(content)
                value, mask = value << bits | int.from_bytes(content, "big"), mask << bits | (1 << bits) - 1
                total += bits
        if not is_header:
            size, left = divmod(total, 8)
            if left:
                raise NotationError(f"{self.name}: {total} bits are no bytes")
            return FramePattern(value.to_bytes(size, "big"), mask.to_bytes(size, "big"), is_open, rest)
        size = header_size(sum(widths.values()), total)
        # The upper bits that nothing uses are 0 (SMX-HDR-03).
        mask |= (1 << 8 * size) - (1 << total)
        tail = payload if isinstance(payload, bytes) else b""
        begin, fixed_begin = value.to_bytes(size, "little"), mask.to_bytes(size, "little")
        return FramePattern(begin + tail, fixed_begin + b"\xff" * len(tail), payload is ANYTHING)

    def parts(self, stream_id: int, frame: bytes, widths: Mapping[str, int]) -> tuple[bytes | None, bytes] | None:
        """Return metadata and data of such a frame on this stream, ``None`` for another one.

        An empty chunk of Streamux that is not the last is no part of a message (SMX-MSG-05).
        """
        if widths:
            pattern = self.fill([stream_id if name == "id" else ANYTHING for name in self.fields], widths)
            data = frame[len(pattern.value) :]
            return (None, data) if pattern.fits(frame) and (data or frame[0] & 1) else None
        sized = next((token for token in self.tokens if token.is_sized), None)
        size = int(sized.width) // 8 if sized else 0
        head = self.fill([stream_id, *[b""] * (len(self.fields) - 1)], widths).value
        begin = len(head)
        if not frame.startswith(head[: begin - size]):
            return None
        if sized is None:
            return None, frame[begin:]
        end = begin + int.from_bytes(frame[begin - size : begin], "big") - sized.counted
        return frame[begin:end], frame[end:]

    def numbers_in(self, frame: bytes) -> dict[str, int]:
        """Return the numbers of a frame of this kind by their names, those before the first field without a size."""
        numbers, at = {}, 0
        for token in self.tokens:
            if token.is_gap or (token.name and not token.is_number):
                break
            size = int(token.width) // 8
            if token.name:
                numbers[token.name] = int.from_bytes(frame[at : at + size], "big")
            at += size
        return numbers

    def token_in(self, frame: bytes) -> bytes | None:
        """Return the resume token in a frame of this kind, ``None`` for another frame."""
        place = next(place for place, token in enumerate(self.tokens) if token.name == "token")
        head = self._filled((*self.tokens[:place], GAP), iter(()), {})
        if not head.fits(frame):
            return None
        begin = head.end_in(frame) + TOKEN_LENGTH
        return frame[begin : begin + int.from_bytes(frame[begin - TOKEN_LENGTH : begin], "big")]


def header_size(bits: int, drawn: int = 0) -> int:
    """Return the bytes of a chunk's header by the bits of ids and lengths (SMX-NEG-09), or what is drawn, if more."""
    return max(next(size for size in (1, 2, 3, 4) if bits <= 8 * size - 2 or size == MOST_BYTES), -(-drawn // 8))


def arguments_in(text: str) -> list[Argument]:
    """Return the arguments of a line. Raise ``NotationError`` for one that can't be read."""
    arguments: list[Argument] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = ARGUMENT.match(text, at)
        if match is None:
            raise NotationError(f"{text[at:]!r} can't be read")
        at = match.end()
        times = int(match["times"] or 1)
        if match["text"] is not None:
            arguments.append(match["text"].encode() * times)
        elif match["hex"] is not None:
            arguments.append(bytes.fromhex(match["hex"]) * times)
        elif match["word"] == "*":
            arguments.append(ANYTHING)
        else:
            arguments.append(_number(match["word"]))
    return arguments


def valued(text: str, values: Mapping[str, int | bytes]) -> str:
    """Return a line with the values of a session in the places of their names."""

    def value_of(match: re.Match[str]) -> str:
        value = values[match["name"]]
        return f"h{value.hex()}" if isinstance(value, bytes) else str(max(0, value + int(match["more"] or 0)))

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
    headers: Headers = NO_HEADERS

    negotiates: ClassVar[bool] = False
    """True if both sides send an initialize message first, and the layout of all others comes of the two."""
    opening: ClassVar[str] = "SETUP"

    @property
    def widths(self) -> Mapping[str, int]:
        """Return the negotiated widths of this connection by the names that templates give them."""
        return {}

    def fill(self, name: str, *arguments: Argument) -> FramePattern:
        """Return a frame of a template with these arguments. Raise ``NotationError``, or ``Unfit``."""
        return self.templates[name].fill(arguments, self.widths)

    def any_of(self, name: str) -> FramePattern:
        """Return a frame of a template with any arguments."""
        return self.fill(name, *[ANYTHING] * len(self.templates[name].fields))

    def is_a(self, name: str, frame: bytes) -> bool:
        """Return whether the frame is of this template, whatever its fields say. None is where there is no such one."""
        return name in self.templates and self.any_of(name).fits(frame)

    def parts(self, name: str, stream_id: int, frame: bytes) -> tuple[bytes | None, bytes] | None:
        """Return metadata and data of a frame of this template on this stream, ``None`` for another one."""
        template = self.templates.get(name)
        return template.parts(stream_id, frame, self.widths) if template else None

    def other_id(self, text: str, frame: bytes) -> int | None:
        """Return the id of a request that a piece of a line describes, but on another stream that may be used."""
        name, _, rest = text.strip().partition(" ")
        if not self.id_steps or name not in self.templates or name.removeprefix("asked_") not in REQUESTS:
            return None
        template = self.templates[name]
        arguments = dict(zip(template.fields, self.arguments(rest), strict=True))
        expected = arguments["id"]
        if not isinstance(expected, int) or not self.fill(name, *(arguments | {"id": ANYTHING}).values()).fits(frame):
            return None
        stream_id = template.numbers_in(frame)["id"]
        is_right = stream_id > expected and (stream_id - expected) % self.id_steps == 0
        return stream_id if stream_id and (is_right or self.id_steps == 1) else None

    def token_in(self, frame: bytes) -> bytes | None:
        """Return the resume token of a client's SETUP or of what it resumes with, else ``None``."""
        templates = [self.templates[name] for name in WITH_TOKEN if name in self.templates]
        tokens = (template.token_in(frame) for template in templates)
        return next((token for token in tokens if token is not None), None)

    def cleared(self, frame: bytes) -> bytes:
        """Return the frame with 0 in the bits that should be 0."""
        return self.headers.cleared(frame)

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

    def note(self, frame: bytes) -> None:
        """Take note of a frame of the peer's. Raise ``Torn`` for what is wrong whatever the case says."""

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
            return Template.parse("hex", rest).fill((), {})
        if name not in self.templates:
            raise NotationError(f"{self.dialect} has no frame {name!r}; it has {', '.join(sorted(self.templates))}")
        return self.fill(name, *self.arguments(rest))

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
