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

A peer may send any payload in fragments, which are joined: a case is about payloads, whatever their frames.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Final

import attrs

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
CLIENT_REQUESTS: Final = ("ask", "stream", "sub", "channel")
"""The templates of requests that a client under test is told to make; some clients' are called ``asked_stream``."""
MAX_HEADER_BYTES: Final = 4
"""Bytes of the largest header of a chunk."""
SHOWN: Final = 64
"""Bytes of a frame that a message shows."""


REQUESTS: Final = frozenset({"REQUEST_RESPONSE", "REQUEST_FNF", "REQUEST_STREAM", "REQUEST_SUB", "REQUEST_CHANNEL"})
"""The types that open a stream."""
NUMBER_SIZE: Final = 4
ITEMS: Final = frozenset({"PAYLOAD", "RESPONSE"})
ENDS: Final = frozenset({"CANCEL", "ERROR"})
"""The types that end a stream, and a payload with it whose last fragment did not come."""
MAX_JOINED: Final = 128 * 1024 * 1024
"""Bytes of fragments that are joined at most."""


class Torn(Exception):
    """A frame that no peer may send, by those before it on its stream."""


@attrs.frozen
class FrameKind:
    """A type of frames, and the bits that should be 0 in them, as a mask of their header and fixed fields."""

    name: str
    unused: bytes


UNKNOWN_KIND: Final = FrameKind("", b"")
"""The type of a frame that is unknown or cut short."""


def _slice_of(bounds: Sequence[int]) -> slice:
    return slice(*bounds)


def _masks_of(flags: Mapping[str, str]) -> dict[str, int]:
    return {name: int.from_bytes(bytes.fromhex(mask), "big") for name, mask in flags.items()}


def _kinds_of(types: Mapping[str, str]) -> dict[int, FrameKind]:
    rows = ((name, *text.split(" ", 1)) for name, text in types.items())
    return {int(number, 16): FrameKind(name, bytes.fromhex(unused)) for name, number, unused in rows}


@attrs.frozen
class Headers:
    """The headers of a dialect's frames, made of the tables of its file. By default there are none, as in Streamux.

    The number of a type stands in the bytes ``type``, above its lowest ``type_shift`` bits. ``flags`` are masks of a
    header by name: ignore, metadata, follows, complete, next, number and opaque, of which a dialect may lack some. With
    ``number`` REQUEST_CHANNEL has an initial number; with those of ``opaque`` fields stand before the metadata that are
    not told apart. ``metadata_length`` are bytes before the length of metadata, its own bytes, and how many it counts
    besides. An EXT with ``block_type`` is a frame of the dialect itself.
    """

    type: slice = attrs.field(default=(0,), converter=_slice_of)
    id: slice = attrs.field(default=(0,), converter=_slice_of)
    type_shift: int = 0
    flags: Mapping[str, int] = attrs.field(factory=dict, converter=_masks_of)
    kinds: Mapping[int, FrameKind] = attrs.field(factory=dict, converter=_kinds_of)
    metadata_length: Sequence[int] = (0, 0, 0)
    requests_repeat: bool = False
    """True if the fragments of a request are frames of its own type, not PAYLOAD."""
    block_type: int | None = None

    @property
    def size(self) -> int:
        return int(max(self.type.stop, self.id.stop))

    def kind(self, frame: bytes) -> FrameKind:
        if len(frame) < self.type.stop:
            return UNKNOWN_KIND
        return self.kinds.get(int.from_bytes(frame[self.type], "big") >> self.type_shift, UNKNOWN_KIND)

    def stream_id(self, frame: bytes) -> int:
        return int.from_bytes(frame[self.id], "big")

    def has(self, frame: bytes, flag: str) -> bool:
        return bool(int.from_bytes(frame[: self.size].ljust(self.size, b"\0"), "big") & self.flags.get(flag, 0))

    def cleared(self, frame: bytes) -> bytes:
        """Return the frame with 0 in the bits that should be 0."""
        mask = self.kind(frame).unused[: len(frame)]
        begin = int.from_bytes(frame[: len(mask)], "big") & ~int.from_bytes(mask, "big")
        return begin.to_bytes(len(mask), "big") + frame[len(mask) :]

    def joined(self, fragments: Sequence[bytes]) -> bytes:
        """Return the frame of which these are the fragments. Raise ``Torn``."""
        first = fragments[0]
        start, is_opaque = self.content_start(first), self.has(first, "opaque")
        # An opaque one stands as a whole before the rest.
        metadata, data, has_metadata = list[bytes](), [first[start:]] if is_opaque else [], False
        for fragment in fragments[is_opaque:]:
            more_metadata, more_data = self.content(fragment)
            if more_metadata and any(data):
                raise Torn("metadata stands in a fragment behind data")
            has_metadata |= more_metadata is not None and not is_opaque
            metadata.append(more_metadata or b"")
            data.append(more_data)
        flags = {"follows": False, "complete": any(self.has(fragment, "complete") for fragment in fragments)}
        if self.kind(first).name in ITEMS:
            flags["next"] = True
        if has_metadata:
            flags["metadata"] = True
            before, size, counted = self.metadata_length
            length = sum(map(len, metadata))
            if length + counted >> 8 * size:
                raise Torn(f"{length} bytes of metadata came")
            kind = first[start : start + before] if self.has(first, "metadata") else bytes(before)
            data[:0] = [kind, (length + counted).to_bytes(size, "big"), *metadata]
        word = int.from_bytes(first[: self.size], "big")
        for name, is_set in flags.items():
            mask = self.flags.get(name, 0)
            word = word | mask if is_set else word & ~mask
        return b"".join([word.to_bytes(self.size, "big"), first[self.size : start], *data])

    def content(self, frame: bytes) -> tuple[bytes | None, bytes]:
        """Return the metadata, if there is any, and the data of a frame. Raise ``Torn`` for metadata cut short."""
        start = self.content_start(frame)
        if not self.has(frame, "metadata"):
            return None, frame[start:]
        before, size, counted = self.metadata_length
        begin = start + before + size
        end = begin + int.from_bytes(frame[start + before : begin], "big") - counted
        if not begin <= end <= len(frame):
            raise Torn("metadata is longer than its fragment")
        return frame[begin:end], frame[end:]

    def content_start(self, frame: bytes) -> int:
        """Return where metadata and data begin."""
        kind = self.kind(frame)
        has_number = kind.name == "REQUEST_CHANNEL" and self.has(frame, "number")
        return len(kind.unused) + NUMBER_SIZE * has_number

    def is_foreign_extension(self, frame: bytes) -> bool:
        """Return whether the frame is an EXT that the dialect does not know, and may be ignored."""
        if self.kind(frame).name != "EXT" or not self.has(frame, "ignore"):
            return False
        return int.from_bytes(frame[self.size : self.size + 4], "big") != self.block_type


NO_HEADERS: Final = Headers()


@attrs.define(eq=False)
class Parts:
    """The fragments of one payload so far: their type, the place of the first among the frames, and their bytes."""

    kind: FrameKind
    place: int
    fragments: list[bytes]
    size: int


@attrs.define(eq=False)
class Fragments:
    """Joins fragments, stream by stream. Without types, as in Streamux, each frame stays as it is."""

    headers: Headers
    began_at: int = 0
    """The place among the frames where the one began that was whole last."""
    _parts: dict[int, Parts] = attrs.field(factory=dict)
    _count: int = 0

    @property
    def pending(self) -> bytes:
        """Return the first fragment of an item that is not whole, empty if there is none."""
        return next((parts.fragments[0] for parts in self._parts.values() if parts.kind.name in ITEMS), b"")

    def take(self, frame: bytes) -> bytes | None:
        """Return the frame, or the whole that it completes, or ``None`` if more is to come. Raise ``Torn``."""
        self.began_at, self._count = self._count, self._count + 1
        headers = self.headers
        kind, stream_id = headers.kind(frame), headers.stream_id(frame)
        parts, is_item = self._parts.get(stream_id), kind.name in ITEMS
        # With COMPLETE on an item FOLLOWS means nothing.
        is_last = is_item and headers.has(frame, "complete")
        follows = not is_last and headers.has(headers.cleared(frame), "follows")
        if parts is None:
            if not follows or kind.name not in ITEMS | REQUESTS:
                return frame
            self._parts[stream_id] = Parts(kind, self.began_at, [frame], len(frame))
            return None
        # Fragments of requests are PAYLOAD, or of their type.
        if is_item or (kind is parts.kind and headers.requests_repeat):
            parts.fragments.append(frame)
            parts.size += len(frame)
            if parts.size > MAX_JOINED:
                raise Torn(f"fragments of {parts.size} bytes came")
            if follows:
                return None
            del self._parts[stream_id]
            self.began_at = parts.place
            return headers.joined(parts.fragments)
        if kind.name in ENDS:
            del self._parts[stream_id]
        return frame


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
        return frame == self.value if self.is_exact else self.end_in(frame) is not None

    def end_in(self, frame: bytes) -> int | None:
        """Return where the last fixed bytes end, in the first place where they do, ``None`` for another frame."""
        size = len(self.value)
        got, mask, value = (int.from_bytes(octets, "big") for octets in (frame[:size], self.mask, self.value))
        if len(frame) < size or (len(frame) > size and not self.is_open) or (got ^ value) & mask:
            return None
        if self.rest is None:
            return size
        ends = ((at, self.rest.end_in(frame[at:])) for at in range(size, len(frame) + 1))
        return next((at + end for at, end in ends if end is not None), None)

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
        if (at := head.end_in(frame)) is None:
            return None
        begin = at + TOKEN_LENGTH
        return frame[begin : begin + int.from_bytes(frame[at:begin], "big")]


def header_size(bits: int, drawn: int = 0) -> int:
    """Return the bytes of a chunk's header by the bits of ids and lengths (SMX-NEG-09), or what is drawn, if more."""
    return max(next(size for size in (1, 2, 3, 4) if bits <= 8 * size - 2 or size == MAX_HEADER_BYTES), -(-drawn // 8))


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
            try:
                arguments.append(int(match["word"], 0))
            except ValueError:
                raise NotationError(
                    f"{match['word']!r} is neither a number, nor text in quotes, nor hex behind h"
                ) from None
    return arguments


def valued(text: str, values: Mapping[str, int | bytes]) -> str:
    """Return a line with the values of a session in the places of their names."""

    def value_of(match: re.Match[str]) -> str:
        value = values[match["name"]]
        return f"h{value.hex()}" if isinstance(value, bytes) else str(max(0, value + int(match["more"] or 0)))

    return VALUE.sub(value_of, text)


def shown(frame: bytes, most: int = SHOWN) -> str:
    """Return the bytes of a frame as hex, the first of them if there are many."""
    begin = frame[:most].hex(" ") or "an empty frame"
    return f"{begin} ... {len(frame)} bytes" if len(frame) > most else begin


@attrs.define(eq=False)
class ExpectedAnswer:
    """An answer that is expected: an item, and the end of its stream with it or right behind it."""

    pattern: FramePattern
    """The answer in one frame."""
    item: FramePattern
    end: FramePattern
    is_over: bool = False
    _has_item: bool = False

    def take(self, frame: bytes) -> bool:
        """Return whether the frame belongs to the answer, as the next part of it. ``is_over`` tells of the last one."""
        if self._has_item:
            self.is_over = self.end.fits(frame)
            return self.is_over
        self.is_over, self._has_item = self.pattern.fits(frame), self.item.fits(frame)
        return self.is_over or self._has_item


@attrs.define(eq=False)
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
        if name not in self.templates:
            raise NotationError(f"{self.dialect} has no frame {name!r}; it has {', '.join(sorted(self.templates))}")
        return self.templates[name].fill(arguments, self.widths)

    def any_of(self, name: str) -> FramePattern:
        return self.fill(name, *[ANYTHING] * len(self.templates[name].fields))

    def is_a(self, name: str, frame: bytes) -> bool:
        """Return whether the frame is of this template, whatever its fields say. None is where there is no such one."""
        return name in self.templates and self.any_of(name).fits(frame)

    def answer(self, text: str) -> ExpectedAnswer:
        """Return the answer of a stream id, metadata if there is any, and data. Raise ``NotationError`` for others."""
        arguments = self.arguments(text)
        form = "_described" if arguments[2:] else ""
        whole, item = (self.fill(f"{name}{form}", *arguments) for name in ("last", "item"))
        return ExpectedAnswer(whole, item, self.fill("complete", *arguments[:1]))

    def error(self, stream_id: int, code: int, text: bytes) -> bytes:
        """Return an error of a stream, without the code in a dialect that has none."""
        values: dict[str, Argument] = {"id": stream_id, "code": code, "text": text}
        return self.fill("send_error", *[values[name] for name in self.templates["send_error"].fields]).value

    def other_id(self, text: str, frame: bytes) -> int | None:
        """Return the id of a request that a piece of a line describes, but on another stream that may be used."""
        name, _, rest = text.strip().partition(" ")
        if not self.id_steps or name not in self.templates or name.removeprefix("asked_") not in CLIENT_REQUESTS:
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

    def connected(self) -> Notation:
        return self

    def arguments(self, text: str) -> list[Argument]:
        return arguments_in(text)

    def probe_id(self, number: int) -> int:
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
