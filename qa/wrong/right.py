"""Servers of RSocket 1.0 that are right and unusual: a fair tester finds no failure in them.

They are the server without faults, in a manner that the document allows and few implementations have.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from qa.wrong.server import (
    CANCEL,
    CLOSE,
    END,
    EXT,
    KEEPALIVE,
    METADATA_PUSH,
    PAYLOAD,
    REFUSE,
    REQUEST_CHANNEL,
    REQUEST_FNF,
    REQUEST_N,
    REQUEST_RESPONSE,
    REQUEST_STREAM,
    SERVE,
    SETUP,
    SKIP,
    UNSUPPORTED_SETUP_ENDS,
    Book,
    C,
    F,
    Frame,
    I,
    L,
    M,
    N,
    R,
    Reaction,
    Rule,
    Session,
    Switch,
)

FIVE: Final = (5).to_bytes(4, "big")


class TalkingSession(Session):
    """A server that requests by itself right after SETUP, and sends KEEPALIVE, METADATA_PUSH and EXT with I."""

    _may_request = False
    """True if the client's SETUP says nothing of leases."""

    def _begin(self, frame: Frame) -> None:
        super()._begin(frame)
        if frame.type == SETUP and not frame.flags & L:
            self._may_request = True
            self._send(REQUEST_RESPONSE, 0, 2, b"who are you?")
            self._send(KEEPALIVE, R, 0, bytes(8) + b"are you there?")
            self._send(REQUEST_FNF, 0, 4, b"welcome")
            self._send(REQUEST_STREAM, 0, 6, FIVE + b"news")
            self._send(REQUEST_CHANNEL, 0, 8, FIVE + b"talk")
            self._send(REQUEST_RESPONSE, F, 10, b"a request ")
            self._send(PAYLOAD, N, 10, b"in two fragments")
            self._send(METADATA_PUSH, M, 0, b"hello")
            self._send(EXT, I, 0, FIVE + b"more")
            self._send(EXT, I | M, 2, FIVE + b"\0\0\1me")

    def _request(self, frame: Frame) -> None:
        if frame.stream_id == 1 and self._may_request:
            self._send(CANCEL, 0, 6)
            self._send(EXT, I, 1, FIVE)
            self._send(METADATA_PUSH, M, 0, b"again")
            self._send(KEEPALIVE, R, 0, bytes(8))
            self._send(REQUEST_RESPONSE, 0, 12, b"anything new?")
        super()._request(frame)


class FragmentingSession(Session):
    """A server that sends every payload of 2 bytes and more in two fragments."""

    def _send(self, kind: int, flags: int, stream_id: int, body: bytes = b"") -> None:
        if kind != PAYLOAD:
            super()._send(kind, flags, stream_id, body)
            return
        end = 3 + int.from_bytes(body[:3], "big") if flags & M else 0
        metadata, data = body[3:end], body[end:]
        half = (len(metadata) + len(data)) // 2
        if not half:
            super()._send(kind, flags, stream_id, body)
        elif half < len(metadata):
            super()._send(kind, flags & ~C | F, stream_id, with_length(metadata[:half]))
            super()._send(kind, flags, stream_id, with_length(metadata[half:]) + data)
        else:
            half -= len(metadata)
            super()._send(kind, flags & ~C | F, stream_id, body[: end + half])
            super()._send(kind, flags & ~M, stream_id, data[half:])


def with_length(metadata: bytes) -> bytes:
    """Return metadata behind its length."""
    return len(metadata).to_bytes(3, "big") + metadata


PLAIN: Final[Mapping[Rule, Reaction]] = {
    Rule.NO_CREDIT_AT_ALL: SERVE,
    Rule.COUNT_RESERVED_BIT: SERVE,
    Rule.NO_INTERVAL: SERVE,
    Rule.NO_LIFETIME: SERVE,
    Rule.LIFETIME_RESERVED_BIT: SERVE,
    Rule.METADATA_TOO_LONG_WITH_I: END,
    Rule.PAYLOAD_OF_NOTHING: SERVE,
    Rule.UNKNOWN_CODE_ON_0: SKIP,
    Rule.STREAM_CODE_ON_0: SKIP,
    Rule.OTHER_MINOR_VERSION: UNSUPPORTED_SETUP_ENDS,
    Rule.OTHER_MAJOR_VERSION: UNSUPPORTED_SETUP_ENDS,
    Rule.FIRST_IS_UNKNOWN: CLOSE,
    Rule.SHORTER_THAN_A_HEADER: CLOSE,
    Rule.RESERVED_BIT: SERVE,
    Rule.RESERVED_BIT_WITH_I: SERVE,
    Rule.MALFORMED_WITH_I: END,
    Rule.REQUEST_N_OF_0: REFUSE,
    Rule.REQUEST_ON_0: END,
    Rule.ID_OF_OURS: REFUSE,
    Rule.BEYOND_GRANT: SERVE,
}
"""Reactions other than the catalogue reads, to what the document leaves open or binds the client alone with."""


class PlainSession(Session):
    """A server written from the document alone. It sends an item and its end in two frames, and grants one by one."""

    def _reaction(self, rule: Rule) -> Reaction:
        return PLAIN.get(rule, rule.right)

    def _send(self, kind: int, flags: int, stream_id: int, body: bytes = b"") -> None:
        if kind == PAYLOAD and flags & C and flags & N:
            super()._send(PAYLOAD, flags & ~C, stream_id, body)
            super()._send(PAYLOAD, C, stream_id)
        elif kind == REQUEST_N:
            for _ in range(int.from_bytes(body, "big")):
                super()._send(REQUEST_N, flags, stream_id, (1).to_bytes(4, "big"))
        else:
            super()._send(kind, flags, stream_id, body)


class Manner(Enum):
    """The ways in which a right server can be unusual, and the sessions that are so."""

    TALKS = (
        "it requests right after SETUP, and sends KEEPALIVE, METADATA_PUSH and EXT with I of its own",
        TalkingSession,
    )
    FRAGMENTS = "it sends every payload of 2 bytes and more in fragments", FragmentingSession
    PLAIN = "it does what the document says, and nothing that the catalogue reads in it", PlainSession
    SETS_BITS = "it sets bits that should be 0", Session, Switch.UNUSED_BITS_SET

    def __init__(self, description: str, session: type[Session], switch: Switch | None = None) -> None:
        self.description = description
        self._session = session
        self._switch = switch

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")

    def make(self, switch: Switch | None, book: Book | None, *, leases: bool) -> Session:
        """Return the server's side of a connection."""
        return self._session(switch or self._switch, book, leases=leases)
