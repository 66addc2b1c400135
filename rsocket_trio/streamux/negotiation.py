"""The negotiation of Streamux: the initialize message, the terms that two of them give, and a connection's options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from operator import index
from typing import Any, Final, Literal, Self, get_args

import attrs
from attrs.validators import optional

from rsocket_trio.errors import NegotiationFailed, StreamError
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.streamux_magic import SIZE, VERSION
from rsocket_trio.values import between

WILDCARD: Final = 31
"""A recommendation that defers to the peer's (SMX-INI-10: of either field)."""
MAX_HEADER_BITS: Final = 30
"""Bits that the id and the length may take together, beside the response and the termination bit."""

QUICK_INIT_DELAY: Final = 0.01
"""Seconds that the initialize message of a quick init waits for a first request, so that one write sends both."""

Side = Literal["a", "b"]


@attrs.frozen
class Field:
    """One field of the initialize message, its width, and the values that may stand in it (SMX-INI-05)."""

    name: str
    bits: int
    low: int
    high: int
    wildcard: bool = False


# fmt: off
FIELDS: Final = (
    #      name        bits  low  high  or 31
    Field("version",     8,   1,  255),
    Field("reserved",    2,   0,    0),
    Field("qr",          1,   0,    1),
    Field("qa",          1,   0,    1),
    Field("min_id",      4,   0,   15),
    Field("max_id",      5,   0,   29),
    Field("rec_id",      5,   0,   29,  wildcard=True),
    Field("min_len",     4,   1,   15),
    Field("max_len",     5,   1,   30),
    Field("rec_len",     5,   1,   30,  wildcard=True),
)
# fmt: on


@attrs.frozen
class Initialize:
    """The initialize message: the offer of one peer. Any number that fits its field may stand in it, right or wrong.

    ``qr`` requests a quick init, ``qa`` allows one. The others count bits of a chunk header's request id and length:
    at least, at most, and recommended.
    """

    min_id: int
    max_id: int
    rec_id: int
    min_len: int
    max_len: int
    rec_len: int
    qr: bool = False
    qa: bool = False
    version: int = VERSION
    reserved: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read five bytes, most significant bit first (SMX-INI-04). Raise ``NegotiationFailed`` for a wrong size."""
        if len(data) != SIZE:
            raise NegotiationFailed(f"initialize message of {len(data)} bytes: it has {SIZE}")
        number = int.from_bytes(data, "big")
        numbers: dict[str, Any] = {}
        for field in reversed(FIELDS):
            numbers[field.name] = number & ((1 << field.bits) - 1)
            number >>= field.bits
        return cls(**{**numbers, "qr": bool(numbers["qr"]), "qa": bool(numbers["qa"])})

    def encode(self) -> bytes:
        """Write the five bytes. Raise ``ValueError`` for a number that does not fit its field."""
        number = 0
        for field in FIELDS:
            content = index(getattr(self, field.name))
            if not 0 <= content < 1 << field.bits:
                raise ValueError(f"{field.name} of {content}: its field holds 0 to {(1 << field.bits) - 1}")
            number = number << field.bits | content
        return number.to_bytes(SIZE, "big")

    def check(self) -> None:
        """Raise ``NegotiationFailed``, naming field and value, for an offer that no peer may make (SMX-INI-09)."""
        for field in FIELDS:
            content = int(getattr(self, field.name))
            if not (field.low <= content <= field.high or (field.wildcard and content == WILDCARD)):
                wildcard = f", or {WILDCARD}" if field.wildcard else ""
                raise NegotiationFailed(f"{field.name} of {content}: must be {field.low} to {field.high}{wildcard}")
        for kind in ("id", "len"):
            low, high, recommended = self.range_of(kind)
            if high < low:
                raise NegotiationFailed(f"max_{kind} of {high} is below min_{kind} of {low}")
            if recommended == WILDCARD:
                if self.qr:
                    raise NegotiationFailed(f"rec_{kind} of {WILDCARD}: a quick init can't leave it to the peer")
            elif not low <= recommended <= high:
                raise NegotiationFailed(f"rec_{kind} of {recommended}: outside of its own {low} to {high}")
        if self.qr and self.qa:
            raise NegotiationFailed("qr and qa are both set: one side asks for a quick init, the other allows it")

    def range_of(self, kind: str) -> tuple[int, int, int]:
        """Return the least, most and recommended bits of ``"id"`` or ``"len"``."""
        if kind == "id":
            return self.min_id, self.max_id, self.rec_id
        return self.min_len, self.max_len, self.rec_len


@attrs.frozen
class Terms:
    """The agreed terms: the widths of the request id and of the length in every chunk header of the session."""

    id_bits: int
    length_bits: int

    @property
    def header_size(self) -> int:
        """Bytes of a chunk header: both widths, the response and the termination bit, in whole octets (SMX-NEG-09)."""
        return (self.id_bits + self.length_bits + 2 + 7) // 8

    @property
    def id_cap(self) -> int:
        """Requests that one side can have in flight."""
        return 1 << self.id_bits

    @property
    def length_cap(self) -> int:
        """Bytes of the largest payload of one chunk."""
        return (1 << self.length_bits) - 1


def negotiate(a: Initialize, b: Initialize) -> tuple[Terms, Side | None]:
    """Return the terms of two peers, the same ones on both sides (SMX-NEG-01), and who asked for a quick init.

    Raise ``NegotiationFailed`` naming the field and the values.
    """
    a.check()
    b.check()
    if a.version != b.version:
        raise NegotiationFailed(f"version {a.version} against {b.version}: they must be equal")
    if a.version != VERSION:
        raise NegotiationFailed(f"version {a.version}: spoken here is {VERSION}")
    if not (a.qr or b.qr):
        return _within_bits(_agreed(a, b, "id"), _agreed(a, b, "len")), None
    if a.qr and b.qr:
        raise NegotiationFailed("qr is set on both sides: nobody is left to allow the quick init")
    asking, allowing = (a, b) if a.qr else (b, a)
    if not allowing.qa:
        raise NegotiationFailed("qr of one side without qa of the other: the quick init is not allowed")
    for kind in ("id", "len"):
        recommended = asking.range_of(kind)[2]
        low, high, _ = allowing.range_of(kind)
        if not low <= recommended <= high:
            # SMX-QI-03: it is not clamped, because the side that asked has used it already.
            raise NegotiationFailed(f"rec_{kind} of {recommended} for a quick init: the other side has {low} to {high}")
    return quick_terms(asking), "a" if a.qr else "b"


def quick_terms(asking: Initialize) -> Terms:
    """Return the terms of a quick init if it succeeds: known before the peer has sent a byte (SMX-QI-04, -08).

    The message must be one that ``check`` accepts.
    """
    return _within_bits(asking.rec_id, asking.rec_len)


def _agreed(a: Initialize, b: Initialize, kind: str) -> int:
    """Return one of the two agreed widths (SMX-NEG-04 to -06)."""
    a_low, a_high, a_recommended = a.range_of(kind)
    b_low, b_high, b_recommended = b.range_of(kind)
    low, high = max(a_low, b_low), min(a_high, b_high)
    if high < low:
        raise NegotiationFailed(
            f"min_{kind} of {low} against max_{kind} of {high}: no number of bits is right for both sides"
        )
    wishes = [wish for wish in (a_recommended, b_recommended) if wish != WILDCARD]
    recommended = min(wishes) if wishes else low + (high - low + 1) // 2
    return min(max(recommended, low), high)


def _within_bits(id_bits: int, length_bits: int) -> Terms:
    """Limit both widths to 30 bits together (SMX-NEG-07). None falls below its minimum, which is at most 15."""
    if id_bits + length_bits > MAX_HEADER_BITS:
        if min(id_bits, length_bits) > MAX_HEADER_BITS // 2:
            id_bits = length_bits = MAX_HEADER_BITS // 2
        elif id_bits > length_bits:
            id_bits = MAX_HEADER_BITS - length_bits
        else:
            length_bits = MAX_HEADER_BITS - id_bits
    return Terms(id_bits, length_bits)


@attrs.define(eq=False, repr=False)
class Negotiation:
    """The exchange of the two initialize messages, over once the peer's is whole; ``received`` is the part that came.

    A quick init holds the outbox: its message leaves before the first request, or alone after ``QUICK_INIT_DELAY``.
    """

    _initialize: Initialize
    _outbox: Outbox
    _alone_until: float = math.inf
    overdue_at: float = math.inf
    received: bytes = b""

    @property
    def deadline(self) -> float:
        """The time at which ``expire`` has something to do."""
        return min(self._alone_until, self.overdue_at)

    def start(self, now: float, *, client: bool, timeout: float) -> Terms | None:
        """Send this side's message. Return the terms of a quick init.

        A client that begins before the server's message came gives it ``timeout`` seconds; one that waits
        for it is bounded by the time of connecting.
        """
        message = self._initialize.encode()
        if client and self._initialize.qr:
            self.overdue_at = now + timeout
            self._outbox.hold()
            self._alone_until = now + QUICK_INIT_DELAY
            return quick_terms(self._initialize)
        self._outbox.put_urgent(message)
        return None

    def send(self) -> None:
        """Release the initialize message of a quick init, before all chunks that were put behind it."""
        if self._alone_until != math.inf:
            self._alone_until = math.inf
            self._outbox.release(self._initialize.encode())

    def expire(self, now: float) -> bool:
        """Send the message of a quick init alone if that is due. Return whether the peer's message is overdue."""
        if now >= self._alone_until:
            self.send()
        return now >= self.overdue_at

    def take(self, data: bytes) -> tuple[bytes, Terms | None]:
        """Take bytes of the peer's message. Return the bytes behind it, and the terms once it is whole.

        Raise ``NegotiationFailed`` if the peer's message is invalid or the two do not agree.
        """
        missing = SIZE - len(self.received)
        self.received += data[:missing]
        if len(self.received) < SIZE:
            return b"", None
        self.send()  # even if it fails, the peer has to get this side's offer (SMX-INI-01)
        theirs = Initialize.decode(self.received)
        try:
            theirs.check()
        except NegotiationFailed as error:
            raise NegotiationFailed(f"the peer's {error}") from None
        return data[missing:], negotiate(self._initialize, theirs)[0]


Requests = Literal["auto", "whole", "chunks"]
Spurious = Literal["end", "report"]


def _one_of(kind: object) -> Callable[[object, attrs.Attribute[str], object], None]:
    words = get_args(kind)

    def check(instance: object, attribute: attrs.Attribute[str], word: object) -> None:
        if word not in words:
            raise ValueError(f"StreamuxOptions.{attribute.name} of {word!r}: must be one of {', '.join(words)}")

    return check


def _callable(instance: object, attribute: attrs.Attribute[Any], function: object) -> None:
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        kind = "a coroutine function" if callable(function) else type(function).__name__
        raise TypeError(f"StreamuxOptions.{attribute.name} is a plain function, not {kind}")


def _flag(instance: object, attribute: attrs.Attribute[bool], flag: object) -> None:
    if not isinstance(flag, bool):
        raise TypeError(f"StreamuxOptions.{attribute.name} is a bool, not {type(flag).__name__}")


@attrs.frozen(kw_only=True)
class StreamuxOptions:
    """Options of a Streamux connection, checked when they are made.

    The first eight are the fields of the initialize message, by the names that ``rsocket-trio streamux`` shows. A
    recommendation of 31 leaves it to the peer. Raise ``ValueError`` or ``TypeError`` naming the field if it can't be
    offered.
    """

    qr: bool = attrs.field(default=False, validator=_flag)
    """Request a quick init: requests go out before the peer's initialize message came, with the recommended widths."""
    qa: bool = attrs.field(default=False, validator=_flag)
    """Allow a quick init to the peer. ``serve`` does by default."""
    min_id: int = attrs.field(default=0, validator=between(0, 15, whole=True))
    """Bits of a request id, at least."""
    max_id: int = attrs.field(default=29, validator=between(0, 29, whole=True))
    """Bits of a request id, at most."""
    rec_id: int = attrs.field(default=14, validator=between(0, 31, whole=True))
    """Bits of a request id, recommended: 14 let 16,384 requests be in flight."""
    min_len: int = attrs.field(default=1, validator=between(1, 15, whole=True))
    """Bits of a chunk's length, at least."""
    max_len: int = attrs.field(default=24, validator=between(1, 30, whole=True))
    """Bits of a chunk's length, at most: 24 are what ``Limits.frame_size`` lets in by default."""
    rec_len: int = attrs.field(default=16, validator=between(1, 31, whole=True))
    """Bits of a chunk's length, recommended: 16 make chunks of 64 KiB, behind which urgent ones wait little."""
    in_flight: int = attrs.field(default=10_000, validator=between(1, 2**29, whole=True))
    """Requests and pings of this side that may be in flight, or locked after a cancel; further ones wait."""
    requests: Requests = attrs.field(default="auto", validator=_one_of(Requests))
    """The default handler that serves requests if the responder has one for request_response and one for
    request_channel: ``whole`` joins them for the first, ``chunks`` passes them to the second as they come. ``auto``
    passes those to the channel that begin with a chunk which is neither full nor the last."""
    message_budget: int | None = attrs.field(default=None, validator=optional(between(1, whole=True)))
    """Bytes of one message that may wait for a reader. Beyond: that message is refused, and reading never pauses for
    the others. ``None``: reading pauses above ``Limits.inbox_size``, for all messages of the connection."""
    spurious: Spurious = attrs.field(default="end", validator=_one_of(Spurious))
    """The effect of a response or an acknowledgement without a request, or of the re-use of a live id: ``end`` the
    connection, or ``report`` it in the log and in ``connection.faults``, and ignore it."""
    encode_error: Callable[[StreamError], bytes | None] | None = attrs.field(default=None, validator=_callable)
    """Encodes the answer to a failed request, for the protocol has no errors: a plain function that is given the error
    as the peer may see it and returns the response, or ``None``. Without it, and once a part of the response was
    sent, a failing handler ends the session."""

    def __attrs_post_init__(self) -> None:
        try:
            self._initialize().check()
        except NegotiationFailed as error:
            raise ValueError(f"StreamuxOptions: {error}") from None

    def _initialize(self) -> Initialize:
        return Initialize(
            *(self.min_id, self.max_id, self.rec_id, self.min_len, self.max_len, self.rec_len), qr=self.qr, qa=self.qa
        )
