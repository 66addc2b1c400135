"""Options of a Streamux connection: the offer for the negotiation, and choices the protocol leaves open."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args

import attrs
from attrs.validators import optional

from rsocket_trio.errors import NegotiationFailed, StreamError
from rsocket_trio.streamux.negotiation import Initialize
from rsocket_trio.values import between

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
        """Return the initialize message with these options."""
        return Initialize(
            *(self.min_id, self.max_id, self.rec_id, self.min_len, self.max_len, self.rec_len), qr=self.qr, qa=self.qa
        )
