"""Joins the fragments in which a peer may send a payload: a case is about payloads, whatever their frames."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.conformance.header import REQUESTS, Headers, Kind, Torn, has_name

ITEMS: Final = frozenset({"PAYLOAD", "RESPONSE"})
ENDS: Final = frozenset({"CANCEL", "ERROR"})
"""The types that end a stream, and a payload with it whose last fragment did not come."""

LONGEST: Final = 128 * 1024 * 1024
"""Bytes of fragments that are joined at most."""


@attrs.define(eq=False)
class Parts:
    """The fragments of one payload so far."""

    kind: Kind
    first: bytes
    metadata: list[bytes] | None
    data: list[bytes]
    completes: bool
    is_known: bool
    """True if metadata and data of the first fragment are told apart; else it stands as a whole before the rest."""
    number: int
    """The place of the first fragment among the frames."""
    size: int
    """Bytes of the fragments."""

    @property
    def has_data(self) -> bool:
        """Return whether data has begun."""
        return any(self.data) or not self.is_known


@attrs.define(eq=False)
class Fragments:
    """Joins fragments, stream by stream. Without headers, as in Streamux, each frame stays as it is."""

    headers: Headers | None
    began_at: int = 0
    """The place among the frames where the one began that was whole last."""
    _parts: dict[int, Parts] = attrs.field(factory=dict)
    _count: int = 0

    @property
    def pending(self) -> bytes:
        """Return the first fragment of an item that is not whole, empty if there is none."""
        return next((parts.first for parts in self._parts.values() if parts.kind.name in ITEMS), b"")

    def take(self, frame: bytes) -> bytes | None:
        """Return the frame, or the whole that it completes, or ``None`` if more is to come. Raise ``Torn``."""
        number, self._count = self._count, self._count + 1
        self.began_at = number
        headers = self.headers
        kind = headers.kind(frame) if headers else None
        if headers is None or kind is None:
            return frame
        stream_id = headers.stream_id(frame)
        parts = self._parts.get(stream_id)
        # With COMPLETE on an item FOLLOWS means nothing.
        is_last = kind.name in ITEMS and headers.has(frame, "complete")
        follows = not is_last and headers.has(headers.cleared(frame), "follows")
        if parts is not None and self._continues(parts, kind):
            self._add(headers, parts, kind, frame)
            if follows:
                return None
            del self._parts[stream_id]
            self.began_at = parts.number
            return self._joined(headers, parts)
        if parts is not None and kind.name in ENDS:
            del self._parts[stream_id]
        if not follows or parts is not None or not has_name(kind, ITEMS | REQUESTS):
            return frame
        self._parts[stream_id] = self._begun(headers, kind, frame, number)
        return None

    def _continues(self, parts: Parts, kind: Kind) -> bool:
        """Return whether a frame of this type is a fragment: fragments of requests are PAYLOAD, or of their type."""
        assert self.headers is not None
        return kind.name in ITEMS or (kind is parts.kind and self.headers.requests_repeat)

    def _begun(self, headers: Headers, kind: Kind, frame: bytes, number: int) -> Parts:
        completes = headers.has(frame, "complete")
        is_known = not headers.has(frame, "opaque")
        metadata, data = headers.content(kind, frame) if is_known else (None, b"")
        return Parts(
            kind, frame, None if metadata is None else [metadata], [data], completes, is_known, number, len(frame)
        )

    def _add(self, headers: Headers, parts: Parts, kind: Kind, frame: bytes) -> None:
        metadata, data = headers.content(kind, frame)
        if metadata is not None:
            if parts.has_data and metadata:
                raise Torn("metadata stands in a fragment behind data")
            parts.metadata = [*(parts.metadata or ()), metadata]
        parts.data.append(data)
        parts.size += len(frame)
        if parts.size > LONGEST:
            raise Torn(f"fragments of {parts.size} bytes came")
        parts.completes |= headers.has(frame, "complete")

    def _joined(self, headers: Headers, parts: Parts) -> bytes:
        flags = {"follows": False, "complete": parts.completes}
        if parts.kind.name in ITEMS:
            flags["next"] = True
        data = b"".join(parts.data)
        if not parts.is_known:
            return headers.with_flags(parts.first, flags) + data
        metadata = None if parts.metadata is None else b"".join(parts.metadata)
        return headers.with_flags(headers.with_content(parts.kind, parts.first, metadata, data), flags)
