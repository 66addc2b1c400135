"""Streamux as the tester speaks it: chunks in widths that two initialize messages agree on.

Names as ``$a`` stand for ids that the peer chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import attrs

from rsocket_trio.conformance.notation import (
    ANYTHING,
    Argument,
    ExpectedAnswer,
    Notation,
    Torn,
    Unfit,
    arguments_in,
    header_size,
)

NAMED: Final = re.compile(r"\$[a-z]+")
OFFER: Final = 5
"""Bytes of an initialize message."""
FIELDS: Final = {
    "version": (8, 1, 255),
    "reserved": (2, 0, 0),
    "quick init request": (1, 0, 1),
    "quick init allowed": (1, 0, 1),
    "min id bits": (4, 0, 15),
    "max id bits": (5, 0, 29),
    "recommended id bits": (5, 0, 31),
    "min length bits": (4, 1, 15),
    "max length bits": (5, 1, 30),
    "recommended length bits": (5, 0, 31),
}
"""The fields of an initialize message: bits (SMX-INI-03), and the least and the largest number that may be offered."""
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
        return header_size(sum(self))


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
    for name, (bits, _, _) in reversed(FIELDS.items()):
        offer[name] = number & ((1 << bits) - 1)
        number >>= bits
    return offer


def check_offer(offer: dict[str, int]) -> None:
    """Raise ``Disagreed`` for an offer that no peer may make (SMX-INI-05 to -09, SMX-QI-01, SMX-QI-02)."""
    for name, (_, least, most) in FIELDS.items():
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


def agreed(first: bytes, second: bytes) -> Widths:
    """Return the widths that two initialize messages give. Raise ``Disagreed`` (SMX-NEG-03 to -07, SMX-QI-03, -05)."""
    offers = [offer_of(first), offer_of(second)]
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
class ChunkedAnswer(ExpectedAnswer):
    """A response that is expected in any chunks, and how much of it has come; ``data`` is ``None`` if it may be any."""

    data: bytes | None = None
    _size: int = 0

    def take(self, frame: bytes) -> bool:
        is_last, data = self.end.fits(frame), frame[len(self.end.value) :]
        # An empty chunk that is not the last is no part of a message (SMX-MSG-05).
        if not is_last and not (data and self.item.fits(frame)):
            return False
        size, expected = self._size + len(data), self.data
        if expected is not None and not (
            expected.startswith(data, self._size) and (size == len(expected) or not is_last)
        ):
            return False
        self._size, self.is_over = size, is_last
        return True


@attrs.define(eq=False)
class Streamux(Notation):
    """The messages of Streamux on one connection: what both sides offered, and the ids in flight.

    What came is cut by the widths of the connection; borders of messages mean nothing.
    """

    negotiates = True
    opening = "initialize message"

    offers: list[bytes] = attrs.field(factory=lambda: [b"", b""])
    """The initialize messages of the tester and of the peer, as far as they have passed."""
    agreed_widths: Widths = UNKNOWN
    fault: str = ""
    """The reason for which no session comes about."""
    is_agreed: bool = False
    is_early: bool = False
    """True once a side has requested a quick init: its requests may come at once."""
    has_greeted: bool = False
    """True once the peer's initialize message was looked at."""
    is_ping: bool = False
    """True if the last chunk that was looked at is a ping."""
    requests: dict[int, set[str]] = attrs.field(factory=dict)
    """The peer's requests and pings that are in flight by id: which are ``complete``, ``answered`` or ``cancelled``."""
    ids: dict[str, int] = attrs.field(factory=dict)
    """The ids of the peer's by their names in the case."""
    asked: set[int] = attrs.field(factory=set)
    """The ids of requests that the tester answers by itself."""
    incomplete: bytes = b""
    """The bytes that the tester has sent of an incomplete chunk."""

    @property
    def widths(self) -> Mapping[str, int]:
        return dict(zip("il", self.agreed_widths, strict=True))

    def connected(self) -> Streamux:
        return Streamux(self.dialect, self.length_size, self.length_counts_itself, self.first_id, self.templates)

    @property
    def has_widths(self) -> bool:
        return not self.fault and (self.is_agreed or self.is_early)

    def greet(self, side: int, data: bytes) -> bytes:
        """Take bytes of an initialize message from one side. Return what stands behind it."""
        missing = OFFER - len(self.offers[side])
        self.offers[side] += data[:missing]
        if missing and missing <= len(data):
            try:
                self._settle(self.offers[side])
            except Disagreed as reason:
                self.fault = str(reason)
        return data[missing:]

    def _settle(self, offer: bytes) -> None:
        """Take note of the widths that an offer leads to. Raise ``Disagreed``."""
        if min(map(len, self.offers)) == OFFER:
            self.agreed_widths, self.is_agreed = agreed(*self.offers), True
            return
        # A quick init goes by what its requester recommends, before the other side has spoken.
        first = offer_of(offer)
        self.agreed_widths = within_most(first["recommended id bits"], first["recommended length bits"])
        self.is_early = bool(first["quick init request"])

    def cut(self, data: bytes, side: int = 1) -> tuple[list[bytes], bytes]:
        """Return whole messages that the peer has sent, side 1, or the tester, and what stands behind them."""
        messages = []
        if len(self.offers[side]) < OFFER:
            if len(data) < OFFER:
                return [], data
            messages.append(data[:OFFER])
            data = self.greet(side, data)
        if data and self.fault:
            return [*messages, data], b""
        chunks, rest = self.chunks(data) if self.has_widths else ([], data)
        return messages + chunks, rest

    def chunks(self, data: bytes) -> tuple[list[bytes], bytes]:
        size, chunks, at = self.agreed_widths.header_size, [], 0
        while len(data) >= at + size:
            number = int.from_bytes(data[at : at + size], "little")
            end = at + size + (number >> 2 & (1 << self.agreed_widths.length_bits) - 1)
            if len(data) < end:
                break
            chunks.append(data[at:end])
            at = end
        return chunks, data[at:]

    def parsed(self, chunk: bytes) -> ChunkFields:
        size = self.agreed_widths.header_size
        number = int.from_bytes(chunk[:size], "little")
        return ChunkFields(number >> 2 + self.agreed_widths.length_bits, number >> 1 & 1, number & 1, chunk[size:])

    def arguments(self, text: str) -> list[Argument]:
        """Return the arguments of a line; a name that has no id yet stands for any."""
        return arguments_in(NAMED.sub(lambda name: str(self.ids.get(name[0], "*")), text))

    def with_length(self, frame: bytes) -> bytes:
        return frame

    def probe_id(self, number: int) -> int:
        """Return the highest id, which no case uses."""
        return (1 << self.agreed_widths.id_bits) - 1

    def sent(self, data: bytes) -> None:
        """Take note of what the tester sends: its offer, and answers that free ids."""
        rest = self.greet(0, data)
        if not self.is_agreed:
            return
        chunks, self.incomplete = self.chunks(self.incomplete + rest)
        for chunk in map(self.parsed, chunks):
            request = self.requests.get(chunk.id)
            if not chunk.response or request is None:
                continue
            if chunk.last:
                request.add("answered")
            is_acked = not chunk.data and not chunk.last and "cancelled" in request
            if is_acked or request == {"complete", "answered"}:
                del self.requests[chunk.id]

    def note(self, frame: bytes) -> None:
        """Take note of what the peer sends. Raise ``Torn`` for what is wrong whatever the case says."""
        is_offer, self.has_greeted, self.is_ping = not self.has_greeted, True, False
        if is_offer or not self.has_widths:
            return
        chunk = self.parsed(frame)
        if chunk.id >> self.agreed_widths.id_bits:
            raise Torn("bits of a header that nothing uses are set")
        if chunk.response:
            return
        request = self.requests.get(chunk.id)
        if not chunk.data and not chunk.last:
            if request is not None:
                request.add("cancelled")
            return
        if request is not None and request & {"complete", "cancelled"}:
            raise Torn(f"the id {chunk.id} is used again although it is in flight")
        self.is_ping = request is None and not chunk.data
        request = self.requests.setdefault(chunk.id, set())
        if chunk.last:
            request.add("complete")
        if request == {"complete", "answered"}:
            del self.requests[chunk.id]

    def answer_aside(self, frame: bytes) -> bytes | None:
        """Return the answer to a ping, which may come at any time."""
        return self.fill("ping_ack", self.parsed(frame).id).value if self.is_ping else None

    def answer(self, text: str) -> ChunkedAnswer:
        """Return the answer of a request id and data. Raise ``NotationError`` for other arguments."""
        *request_id, data = self.arguments(text) or [b""]
        item, end = (self.fill(name, *request_id, ANYTHING) for name in ("more", "last"))
        try:
            whole = self.fill("last", *request_id, data)
        except Unfit:
            whole = end  # it takes more than one chunk
        return ChunkedAnswer(whole, item, end, data=data if isinstance(data, bytes) else None)

    def answer_request(self, frame: bytes) -> bytes | None:
        """Return the answer to a chunk of a request: an empty response once it is whole, the ack of a cancel.

        Return ``None`` for a chunk that needs a reason.
        """
        chunk = self.parsed(frame)
        if not self.is_agreed or chunk.response:
            return None
        if not chunk.data and not chunk.last:
            return self.fill("cancel_ack", chunk.id).value if chunk.id in self.asked else None
        self.asked.add(chunk.id)
        return self.fill("response_end", chunk.id).value if chunk.last else b""

    def is_request(self, text: str, request_id: int, data: bytes) -> bool:
        """Return whether this is the request whose id, or name, and data a piece of a line has."""
        return all(
            argument in (ANYTHING, got) for argument, got in zip(self.arguments(text), (request_id, data), strict=True)
        )

    def bind(self, text: str, frame: bytes) -> None:
        """Let the name of an id in a piece of a line stand for that of the frame which came for it."""
        for name in NAMED.findall(text):
            self.ids.setdefault(name, self.parsed(frame).id)
