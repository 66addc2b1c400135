"""Frames that a peer may send of its own at any time, and what the tester answers."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.conformance.header import REQUESTS, has_name
from rsocket_trio.conformance.notation import Notation
from rsocket_trio.conformance.streamux import Streamux

REJECTED: Final = 0x202
REJECTION: Final = b"the tester serves no requests"
LATER: Final = frozenset({"CANCEL", "REQUEST_N", "PAYLOAD", "ERROR"})
"""The types that may follow a request on its stream."""
LATER_ON_SHARED_ID: Final = frozenset({"CANCEL", "REQUEST_N"})
"""The same where both sides may use one id for two streams: only a requester sends these."""


@attrs.define(eq=False)
class UnaskedFrames:
    """Takes requests of the server under test, METADATA_PUSH, and EXT with I. A client makes the requests of its case.

    A request is rejected. ReactiveSocket 0.0 has no code for that, and Streamux no error: its answer is empty.
    """

    serves_requests: bool
    """True if the peer may make requests of its own."""
    _streams: set[int] = attrs.field(factory=set)
    """The streams that the server has opened."""

    def answer(self, notation: Notation, frame: bytes) -> bytes | None:
        """Return the answer to a frame, empty if there is none. Return ``None`` for a frame that needs a reason."""
        if isinstance(notation, Streamux):
            return self._chunk(notation, frame) if self.serves_requests else None
        headers = notation.headers
        kind = headers.kind(frame) if headers else None
        if headers is None or kind is None:
            return None
        stream_id = headers.stream_id(frame)
        if has_name(kind, REQUESTS) and self.serves_requests and _may_open(notation, stream_id):
            is_known = stream_id in self._streams
            self._streams.add(stream_id)
            return b"" if is_known or kind.name == "REQUEST_FNF" else _rejection(notation, stream_id)
        if kind.name == "METADATA_PUSH":
            return b"" if not stream_id and headers.has(frame, "metadata") else None
        if headers.is_foreign_extension(frame):
            return b""
        later = LATER_ON_SHARED_ID if notation.id_steps == 1 else LATER
        return b"" if stream_id in self._streams and has_name(kind, later) else None

    def _chunk(self, notation: Streamux, frame: bytes) -> bytes | None:
        """Answer a chunk of a request with an empty response once it is whole, and a cancel with its ack."""
        session = notation.session
        if not session.is_agreed:
            return None
        chunk = session.parsed(frame)
        if chunk.response:
            return None
        if not chunk.data and not chunk.last:
            is_known = chunk.id in self._streams
            return notation.templates["cancel_ack"].fill([chunk.id]).value if is_known else None
        self._streams.add(chunk.id)
        return notation.templates["response_end"].fill([chunk.id]).value if chunk.last else b""


def _may_open(notation: Notation, stream_id: int) -> bool:
    """Return whether a server may open a stream of this id. Before 1.0 it may go by the first id of its client."""
    return stream_id > 0 and (notation.id_steps > 0 or (stream_id - notation.first_id) % 2 == 1)


def _rejection(notation: Notation, stream_id: int) -> bytes:
    template = notation.templates["send_error"]
    values: dict[str, int | bytes] = {"id": stream_id, "code": REJECTED, "text": REJECTION}
    return template.fill([values[name] for name in template.fields]).value
