"""Frames of a peer that no step spells out: an answer in one frame or more, and frames of its own at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from rsocket_trio.conformance.header import REQUESTS
from rsocket_trio.conformance.notation import ANYTHING, Argument, FramePattern, Notation, NotationError, Unfit
from rsocket_trio.conformance.streamux_notation import Streamux

FORMS: Final = {
    "last": (True, True),
    "item": (True, False),
    "more": (False, False),
    "last_described": (True, True),
    "item_described": (True, False),
}
"""The frames of an answer by the names of their templates: whether each ends the item, and whether the stream.
Fragments are joined before: only chunks of Streamux come as ``more``."""
WITH_METADATA: Final = 3
"""Arguments of an answer with metadata: stream id, metadata, data."""
REJECTED: Final = 0x202
REJECTION: Final = b"the tester serves no requests"
LATER: Final = frozenset({"CANCEL", "REQUEST_N", "PAYLOAD", "ERROR"})
"""The types that may follow a request on its stream."""
LATER_ON_SHARED_ID: Final = frozenset({"CANCEL", "REQUEST_N"})
"""The same where both sides may use one id for two streams: only a requester sends these."""


@attrs.define(eq=False)
class ExpectedAnswer:
    """An answer that is expected, and how much of it has come."""

    stream_id: int
    metadata: bytes | None
    data: bytes | None
    """``None`` if it may be any."""
    pattern: FramePattern
    """The answer in one frame."""
    notation: Notation
    is_over: bool = False
    _is_whole: bool = False
    """True once the item has come, and its stream is to be completed."""
    _size: int = 0
    """Bytes of data that have come."""

    @classmethod
    def parse(cls, notation: Notation, arguments: Sequence[Argument]) -> ExpectedAnswer:
        """Make one of a stream id, metadata if there is any, and data. Raise ``NotationError`` for other arguments."""
        is_described = len(arguments) == WITH_METADATA
        name = "last_described" if is_described else "last"
        if name not in notation.templates:
            raise NotationError(f"the dialect has no frame {name!r}")
        try:
            pattern = notation.fill(name, *arguments)
        except Unfit:
            # It takes more than one frame.
            pattern = notation.fill(name, *arguments[:-1], ANYTHING)
        stream_id, data = arguments[0], arguments[-1]
        metadata = arguments[1] if is_described else None
        if not isinstance(stream_id, int) or not isinstance(metadata, bytes | None):
            raise NotationError("an answer has its stream id, its metadata if there is any, and its data")
        return cls(stream_id, metadata, data if isinstance(data, bytes) else None, pattern, notation)

    def take(self, frame: bytes) -> bool:
        """Return whether the frame belongs to the answer, as the next part of it. ``is_over`` tells of the last one."""
        if self._is_whole:
            self.is_over = self.notation.fill("complete", self.stream_id).fits(frame)
            return self.is_over
        for name, (ends_item, completes) in FORMS.items():
            parts = self.notation.parts(name, self.stream_id, frame)
            if parts is None or parts[0] != self.metadata:
                continue
            if not self._is_next(parts[1], is_last=ends_item):
                return False
            self._is_whole, self.is_over = ends_item, completes
            self._size += len(parts[1])
            return True
        return False

    def _is_next(self, data: bytes, *, is_last: bool) -> bool:
        """Return whether this is what is expected behind the data that came."""
        if self.data is None:
            return True
        return self.data.startswith(data, self._size) and (self._size + len(data) == len(self.data) or not is_last)


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
        kind, stream_id = headers.kind(frame), headers.stream_id(frame)
        if kind.name in REQUESTS and self.serves_requests and _may_open(notation, stream_id):
            is_known = stream_id in self._streams
            self._streams.add(stream_id)
            return b"" if is_known or kind.name == "REQUEST_FNF" else _rejection(notation, stream_id)
        if kind.name == "METADATA_PUSH":
            return b"" if not stream_id and headers.has(frame, "metadata") else None
        if headers.is_foreign_extension(frame):
            return b""
        later = LATER_ON_SHARED_ID if notation.id_steps == 1 else LATER
        return b"" if stream_id in self._streams and kind.name in later else None

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
            return notation.fill("cancel_ack", chunk.id).value if is_known else None
        self._streams.add(chunk.id)
        return notation.fill("response_end", chunk.id).value if chunk.last else b""


def _may_open(notation: Notation, stream_id: int) -> bool:
    """Return whether a server may open a stream of this id. Before 1.0 it may go by the first id of its client."""
    return stream_id > 0 and (notation.id_steps > 0 or (stream_id - notation.first_id) % 2 == 1)


def _rejection(notation: Notation, stream_id: int) -> bytes:
    values: dict[str, int | bytes] = {"id": stream_id, "code": REJECTED, "text": REJECTION}
    return notation.fill("send_error", *[values[name] for name in notation.templates["send_error"].fields]).value
