"""Streamux as the tester speaks it: chunks drawn bit by bit, in widths that two initialize messages agree on.

A drawing is a row of bits, the highest first: ``0`` and ``1``, numbers of so many bits as ``1:8``, ``?:8`` for any,
fields as ``{id:i}``. ``i`` and ``l`` are the negotiated widths of ids and lengths; a drawing that has one of them is
the header of a chunk, a little-endian number. ``{data:+l}`` is the length of the payload that stands behind the header.
Names as ``$a`` stand for ids that the peer chooses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import attrs

from rsocket_trio.conformance.notation import (
    Anything,
    Argument,
    FramePattern,
    Notation,
    NotationError,
    Template,
    Unfit,
    arguments_in,
)

TOKEN: Final = re.compile(
    r"\{(?P<name>[a-z_]+):(?P<counts>\+?)(?P<wide>\d+|[il])\}|(?P<number>\d+|\?):(?P<bits>\d+|[il])|(?P<bit>[01])"
)
NAMED: Final = re.compile(r"\$[a-z]+")
OFFER: Final = 5
"""Bytes of an initialize message."""
FIELDS: Final = {
    "version": 8,
    "reserved": 2,
    "quick init request": 1,
    "quick init allowed": 1,
    "min id bits": 4,
    "max id bits": 5,
    "recommended id bits": 5,
    "min length bits": 4,
    "max length bits": 5,
    "recommended length bits": 5,
}
"""The fields of an initialize message and their bits (SMX-INI-03)."""
RANGES: Final = {
    "version": (1, 255),
    "reserved": (0, 0),
    "max id bits": (0, 29),
    "min length bits": (1, 15),
    "max length bits": (1, 30),
}
WILDCARD: Final = 31
MOST: Final = 30
"""Bits of an id and a length together."""


class Disagreed(Exception):
    """Two initialize messages that no session can follow, or one that no peer may send."""


class Widths(NamedTuple):
    """The bits of ids and lengths in a session."""

    id_bits: int
    length_bits: int

    @property
    def header_size(self) -> int:
        """Bytes of a header, by the table of the document (SMX-NEG-09)."""
        total = self.id_bits + self.length_bits
        return 1 if total <= 6 else 2 if total <= 14 else 3 if total <= 22 else 4


UNKNOWN: Final = Widths(29, 30)
"""The widths that a drawing is checked with before it is played, when nothing is negotiated yet."""


class ChunkFields(NamedTuple):
    """One chunk: ``response`` and ``last`` are its bits."""

    id: int
    response: int
    last: int
    data: bytes


def offer_of(message: bytes) -> dict[str, int]:
    """Return the fields of an initialize message, right or wrong."""
    number, offer = int.from_bytes(message, "big"), {}
    for name, bits in reversed(FIELDS.items()):
        offer[name] = number & ((1 << bits) - 1)
        number >>= bits
    return offer


def check_offer(offer: dict[str, int]) -> None:
    """Raise ``Disagreed`` for an offer that no peer may make (SMX-INI-05 to -09, SMX-QI-01, SMX-QI-02)."""
    for name, (least, most) in RANGES.items():
        if not least <= offer[name] <= most:
            raise Disagreed(f"{name} of {offer[name]}")
    for kind in ("id", "length"):
        least, most, wish = (offer[f"{word} {kind} bits"] for word in ("min", "max", "recommended"))
        if most < least:
            raise Disagreed(f"max {kind} bits of {most} below a min of {least}")
        if wish != WILDCARD and not least <= wish <= most:
            raise Disagreed(f"recommended {kind} bits of {wish}, outside of {least} to {most}")
        if wish == WILDCARD and offer["quick init request"]:
            raise Disagreed(f"a wildcard for {kind} bits with a quick init request")
    if offer["quick init request"] and offer["quick init allowed"]:
        raise Disagreed("a quick init both requested and allowed")


def agreed(one: bytes, other: bytes) -> Widths:
    """Return the widths that two initialize messages give. Raise ``Disagreed`` (SMX-NEG-03 to -07, SMX-QI-03, -05)."""
    offers = [offer_of(one), offer_of(other)]
    for offer in offers:
        check_offer(offer)
    if {offer["version"] for offer in offers} != {1}:
        raise Disagreed("another version")
    quick = [offer for offer in offers if offer["quick init request"]]
    if len(quick) == len(offers) or (quick and not any(offer["quick init allowed"] for offer in offers)):
        raise Disagreed("a quick init request that is not allowed")
    return within_most(*(_bits(kind, offers, quick) for kind in ("id", "length")))


def _bits(kind: str, offers: Sequence[dict[str, int]], quick: Sequence[dict[str, int]]) -> int:
    least = max(offer[f"min {kind} bits"] for offer in offers)
    most = min(offer[f"max {kind} bits"] for offer in offers)
    if most < least:
        raise Disagreed(f"ranges of {kind} bits that do not meet")
    wishes = [offer[f"recommended {kind} bits"] for offer in quick or offers]
    wish = min([wish for wish in wishes if wish != WILDCARD], default=least + (most - least + 1) // 2)
    if quick and not least <= wish <= most:
        raise Disagreed(f"recommended {kind} bits of {wish} in a quick init, outside of {least} to {most}")
    return min(max(wish, least), most)


def within_most(id_bits: int, length_bits: int) -> Widths:
    """Return widths whose sum is at most 30 (SMX-NEG-07)."""
    if id_bits + length_bits <= MOST:
        return Widths(id_bits, length_bits)
    if min(id_bits, length_bits) > MOST // 2:
        return Widths(MOST // 2, MOST // 2)
    if id_bits > length_bits:
        return Widths(MOST - length_bits, length_bits)
    return Widths(id_bits, MOST - id_bits)


@attrs.define(eq=False)
class Request:
    """A request of the peer's that is in flight, or a ping."""

    is_complete: bool = False
    is_answered: bool = False
    is_cancelled: bool = False


@attrs.define(eq=False)
class StreamuxState:
    """The state of one connection: what both sides offered, and the ids in flight."""

    offers: list[bytes] = attrs.field(factory=lambda: [b"", b""])
    """The initialize messages of the tester and of the peer, as far as they have passed."""
    widths: Widths = UNKNOWN
    fault: str = ""
    """The reason for which no session comes about."""
    is_agreed: bool = False
    is_early: bool = False
    """True once a side has requested a quick init: its requests may come at once."""
    has_greeted: bool = False
    """True once the peer's initialize message was looked at."""
    is_ping: bool = False
    """True if the last chunk that was looked at is a ping."""
    requests: dict[int, Request] = attrs.field(factory=dict)
    ids: dict[str, int] = attrs.field(factory=dict)
    """The ids of the peer's by their names in the case."""
    said: bytes = b""
    """The bytes that the tester has sent of an incomplete chunk."""

    def greet(self, side: int, data: bytes) -> bytes:
        """Take bytes of an initialize message from one side. Return what stands behind it."""
        offer = self.offers[side]
        if len(offer) == OFFER:
            return data
        missing = OFFER - len(offer)
        self.offers[side] = offer = offer + data[:missing]
        if len(offer) == OFFER:
            ours, theirs = self.offers
            try:
                if len(ours) == len(theirs):
                    self.widths, self.is_agreed = agreed(ours, theirs), True
                else:
                    # A quick init goes by what its requester recommends, before the other side has spoken.
                    first = offer_of(offer)
                    self.widths = within_most(*(first[f"recommended {kind} bits"] for kind in ("id", "length")))
                    self.is_early = bool(first["quick init request"])
            except Disagreed as reason:
                self.fault = str(reason)
        return data[missing:]

    def cut(self, side: int, data: bytes) -> tuple[list[bytes], bytes]:
        """Return whole messages that one side has sent, and what stands behind them: it is given again."""
        found = []
        if len(self.offers[side]) < OFFER:
            if len(data) < OFFER:
                return [], data
            found.append(data[:OFFER])
            data = self.greet(side, data)
        if not data or not (self.is_agreed or self.is_early or self.fault):
            return found, data
        chunks, rest = ([data], b"") if self.fault else self.chunks(data)
        return found + chunks, rest

    def chunks(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Cut whole chunks off."""
        size, found, at = self.widths.header_size, [], 0
        while len(data) >= at + size:
            number = int.from_bytes(data[at : at + size], "little")
            end = at + size + (number >> 2 & (1 << self.widths.length_bits) - 1)
            if len(data) < end:
                break
            found.append(data[at:end])
            at = end
        return found, data[at:]

    def parsed(self, chunk: bytes) -> ChunkFields:
        """Return the fields of a whole chunk."""
        size = self.widths.header_size
        number = int.from_bytes(chunk[:size], "little")
        return ChunkFields(number >> 2 + self.widths.length_bits, number >> 1 & 1, number & 1, chunk[size:])


@attrs.frozen
class Drawing(Template):
    """One message of Streamux, bit by bit."""

    session: StreamuxState = attrs.field(factory=StreamuxState, eq=False)

    @classmethod
    def parse(cls, name: str, text: str) -> Drawing:
        """Read a drawing. Raise ``NotationError`` naming it."""
        tokens = tuple(text.split())
        for token in tokens:
            if not TOKEN.fullmatch(token):
                raise NotationError(f"drawing {name}: {token!r} is no bit, number, or field")
        return cls(name, tokens, tuple(found["name"] for token in tokens if (found := _token(token))["name"]))

    def fill(self, arguments: Sequence[Argument]) -> FramePattern:
        """Return the message. Raise ``NotationError`` for too few arguments, ``Unfit`` for what the widths forbid."""
        if len(arguments) != len(self.fields):
            raise NotationError(f"{self.name} takes {len(self.fields)} arguments, {' '.join(self.fields)}")
        left = iter(arguments)
        widths = dict(zip("il", self.session.widths, strict=True))
        value = mask = total = 0
        payload: bytes | None = b""
        is_header = False
        for token in self.tokens:
            found = _token(token)
            wide = found["wide"] or found["bits"] or "1"
            is_header |= wide in widths
            width = widths[wide] if wide in widths else int(wide)
            number: int | None
            if found["counts"]:
                argument = next(left)
                payload = argument if isinstance(argument, bytes) else None
                number = None if payload is None else len(payload)
            elif found["name"]:
                argument = next(left)
                number = argument if isinstance(argument, int) else None
            else:
                digits = found["number"] or found["bit"]
                number = None if digits == "?" else int(digits)
            if number is not None and number >> width:
                raise Unfit(f"{number} does not fit the {width} bits of {token} in {self.name}")
            value, mask = value << width | (number or 0), mask << width | (0 if number is None else (1 << width) - 1)
            total += width
        if not is_header:
            size = total // 8
            return FramePattern(value.to_bytes(size, "big"), mask.to_bytes(size, "big"))
        size = max(self.session.widths.header_size, -(-total // 8))
        # The upper bits that nothing uses are 0 (SMX-HDR-03).
        mask |= (1 << 8 * size) - (1 << total)
        rest = payload or b""
        return FramePattern(
            value.to_bytes(size, "little") + rest, mask.to_bytes(size, "little") + b"\xff" * len(rest), payload is None
        )

    def parts(self, stream_id: int, frame: bytes) -> tuple[bytes | None, bytes] | None:
        """Return no metadata and the payload of such a chunk with this id, ``None`` for another one.

        An empty chunk that is not the last is no part of a message (SMX-MSG-05).
        """
        pattern = self.fill([stream_id if name == "id" else Anything() for name in self.fields])
        chunk = self.session.parsed(frame)
        return (None, chunk.data) if pattern.fits(frame) and (chunk.data or chunk.last) else None


def _token(token: str) -> re.Match[str]:
    found = TOKEN.fullmatch(token)
    assert found is not None
    return found


@attrs.frozen
class Streamux(Notation):
    """The messages of Streamux. What came is cut by the widths of the connection; borders of messages mean nothing."""

    session: StreamuxState = attrs.field(factory=StreamuxState, eq=False)

    negotiates = True
    opening = "initialize message"

    @classmethod
    def parse(cls, dialect: str, texts: dict[str, str]) -> Streamux:
        """Read the drawings of a file. Raise ``NotationError``."""
        return cls(dialect, 0, False, 0, {name: Drawing.parse(name, text) for name, text in texts.items()})

    def connected(self) -> Streamux:
        """Return the same for one connection more."""
        session = StreamuxState()
        templates = {
            name: Drawing(name, drawing.tokens, drawing.fields, session) for name, drawing in self.templates.items()
        }
        return attrs.evolve(self, templates=templates, session=session)

    def arguments(self, text: str) -> list[Argument]:
        """Return the arguments of a line; a name that has no id yet stands for any."""
        return arguments_in(NAMED.sub(self._id_of, text))

    def _id_of(self, name: re.Match[str]) -> str:
        return str(self.session.ids.get(name[0], "*"))

    def with_length(self, frame: bytes) -> bytes:
        """Return the message as it is."""
        return frame

    def probe_id(self, number: int) -> int:
        """Return the highest id, which no case uses."""
        return (1 << self.session.widths.id_bits) - 1

    def cut(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the initialize message and whole chunks, as far as they have come, and what stands behind them."""
        return self.session.cut(1, data)

    def sent(self, data: bytes) -> None:
        """Take note of what the tester sends: its offer, and answers that free ids."""
        session = self.session
        rest = session.greet(0, data)
        if not session.is_agreed:
            return
        chunks, session.said = session.chunks(session.said + rest)
        for chunk in map(session.parsed, chunks):
            request = session.requests.get(chunk.id)
            if not chunk.response or request is None:
                continue
            request.is_answered |= bool(chunk.last)
            is_acked = not chunk.data and not chunk.last and request.is_cancelled
            if is_acked or (request.is_answered and request.is_complete and not request.is_cancelled):
                del session.requests[chunk.id]

    def note(self, frame: bytes) -> str:
        """Take note of what the peer sends. Return what is wrong with it whatever the case says, if anything."""
        session = self.session
        session.is_ping = False
        if not session.has_greeted:
            session.has_greeted = True
            return ""
        if session.fault or not (session.is_agreed or session.is_early):
            return ""
        chunk = session.parsed(frame)
        if chunk.id >> session.widths.id_bits:
            return "bits of a header that nothing uses are set"
        if chunk.response:
            return ""
        request = session.requests.get(chunk.id)
        if not chunk.data and not chunk.last:
            if request is not None:
                request.is_cancelled = True
            return ""
        if request is not None and (request.is_complete or request.is_cancelled):
            return f"the id {chunk.id} is used again although it is in flight"
        session.is_ping = request is None and not chunk.data
        request = session.requests.setdefault(chunk.id, Request())
        request.is_complete = bool(chunk.last)
        if request.is_complete and request.is_answered:
            del session.requests[chunk.id]
        return ""

    def answer_aside(self, frame: bytes) -> bytes | None:
        """Return the answer to a ping, which may come at any time."""
        return self.templates["ping_ack"].fill([self.session.parsed(frame).id]).value if self.session.is_ping else None

    def is_request(self, text: str, request_id: int, data: bytes) -> bool:
        """Return whether this is the request whose id, or name, and data a piece of a line has."""
        wanted = self.arguments(text)
        return all(isinstance(one, Anything) or one == got for one, got in zip(wanted, (request_id, data), strict=True))

    def bind(self, text: str, frame: bytes) -> None:
        """Let the name of an id in a piece of a line stand for that of the frame which came for it."""
        for name in NAMED.findall(text):
            self.session.ids.setdefault(name, self.session.parsed(frame).id)
