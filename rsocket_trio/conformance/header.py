"""Headers of frames as the document of a dialect draws them, and the fragments that they tell of.

A peer may send any payload in fragments, which are joined: a case is about payloads, whatever their frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

REQUESTS: Final = frozenset(
    {"REQUEST_RESPONSE", "REQUEST_FNF", "REQUEST_STREAM", "REQUEST_SUB", "REQUEST_CHANNEL"},
)
"""The types that open a stream."""
FLAGS: Final = ("ignore", "metadata", "follows", "complete", "next", "number", "opaque")
"""The flags by name. A dialect may lack some. With ``number`` REQUEST_CHANNEL has an initial number, which it has in
each where there is no such flag; with those of ``opaque`` fields stand before the metadata that are not told apart."""
NUMBER_SIZE: Final = 4


ITEMS: Final = frozenset({"PAYLOAD", "RESPONSE"})
ENDS: Final = frozenset({"CANCEL", "ERROR"})
"""The types that end a stream, and a payload with it whose last fragment did not come."""

MAX_JOINED: Final = 128 * 1024 * 1024
"""Bytes of fragments that are joined at most."""


class Torn(Exception):
    """Fragments that no peer may send."""


@attrs.frozen
class MetadataLength:
    """The length before metadata: bytes that stand before it, its own bytes, and how many it counts besides."""

    before: int
    size: int
    counted: int


@attrs.frozen
class FrameKind:
    """A type of frames, and the bits that should be 0 in them, as a mask of their header and fixed fields."""

    name: str
    unused: bytes


@attrs.frozen
class Headers:
    """The headers of a dialect's frames.

    The number of a type stands in ``type_bytes``, above its lowest ``type_shift`` bits. ``flags`` are masks of a header
    by the names of ``FLAGS``. An EXT with ``block_type`` is a frame of the dialect itself.
    """

    type_bytes: slice
    type_shift: int
    id_bytes: slice
    flags: Mapping[str, int]
    kinds: Mapping[int, FrameKind]
    metadata_length: MetadataLength
    requests_repeat: bool = False
    """True if the fragments of a request are frames of its own type, not PAYLOAD."""
    block_type: int | None = None

    @classmethod
    def parse(cls, header: Mapping[str, Any], types: Mapping[str, str]) -> Headers:
        """Read the tables ``header`` and ``types`` of a dialect's file."""
        kinds = {}
        for name, text in types.items():
            number, _, unused = text.partition(" ")
            kinds[int(number, 16)] = FrameKind(name, bytes.fromhex(unused))
        start, end, shift = header["type"]
        flags = {name: int.from_bytes(bytes.fromhex(header[name]), "big") for name in FLAGS if name in header}
        return cls(
            slice(start, end),
            shift,
            slice(*header["id"]),
            flags,
            kinds,
            MetadataLength(*header["metadata_length"]),
            header.get("requests_repeat", False),
            header.get("block_type"),
        )

    @property
    def size(self) -> int:
        """Bytes of a header."""
        return int(max(self.type_bytes.stop, self.id_bytes.stop))

    def kind(self, frame: bytes) -> FrameKind | None:
        """Return the type of a frame, ``None`` for one that is unknown or cut short."""
        if len(frame) < self.type_bytes.stop:
            return None
        return self.kinds.get(int.from_bytes(frame[self.type_bytes], "big") >> self.type_shift)

    def stream_id(self, frame: bytes) -> int:
        """Return the stream id of a frame."""
        return int.from_bytes(frame[self.id_bytes], "big")

    def has(self, frame: bytes, flag: str) -> bool:
        """Return whether a flag of ``FLAGS`` is set."""
        return bool(int.from_bytes(frame[: self.size].ljust(self.size, b"\0"), "big") & self.flags.get(flag, 0))

    def cleared(self, frame: bytes) -> bytes:
        """Return the frame with 0 in the bits that should be 0."""
        kind = self.kind(frame)
        if kind is None:
            return frame
        mask = kind.unused[: len(frame)]
        begin = int.from_bytes(frame[: len(mask)], "big") & ~int.from_bytes(mask, "big")
        return begin.to_bytes(len(mask), "big") + frame[len(mask) :]

    def content(self, kind: FrameKind, frame: bytes) -> tuple[bytes | None, bytes]:
        """Return the metadata, if there is any, and the data of a frame. Raise ``Torn`` for metadata cut short."""
        start = self._content_start(kind, frame)
        if not self.has(frame, "metadata"):
            return None, frame[start:]
        length = self.metadata_length
        begin = start + length.before + length.size
        end = begin + int.from_bytes(frame[start + length.before : begin], "big") - length.counted
        if not begin <= end <= len(frame):
            raise Torn("metadata is longer than its fragment")
        return frame[begin:end], frame[end:]

    def with_content(self, kind: FrameKind, frame: bytes, metadata: bytes | None, data: bytes) -> bytes:
        """Return the frame with other metadata and data. Raise ``Torn`` for metadata that no frame can have."""
        start, length = self._content_start(kind, frame), self.metadata_length
        if metadata is None:
            return frame[:start] + data
        before = frame[start : start + length.before] if self.has(frame, "metadata") else bytes(length.before)
        if (len(metadata) + length.counted) >> 8 * length.size:
            raise Torn(f"{len(metadata)} bytes of metadata came")
        size = (len(metadata) + length.counted).to_bytes(length.size, "big")
        return self.with_flags(frame[:start] + before + size + metadata + data, {"metadata": True})

    def with_flags(self, frame: bytes, flags: Mapping[str, bool]) -> bytes:
        """Return the frame with these flags set or not."""
        word = int.from_bytes(frame[: self.size], "big")
        for name, is_set in flags.items():
            mask = self.flags.get(name, 0)
            word = word | mask if is_set else word & ~mask
        return word.to_bytes(self.size, "big") + frame[self.size :]

    def _content_start(self, kind: FrameKind, frame: bytes) -> int:
        has_number = kind.name == "REQUEST_CHANNEL" and self.has(frame, "number")
        return len(kind.unused) + NUMBER_SIZE * has_number

    def is_foreign_extension(self, frame: bytes) -> bool:
        """Return whether the frame is an EXT that the dialect does not know, and may be ignored."""
        kind = self.kind(frame)
        if kind is None or kind.name != "EXT" or not self.has(frame, "ignore"):
            return False
        ext_type = int.from_bytes(frame[self.size : self.size + 4], "big")
        return self.block_type is None or ext_type != self.block_type


def has_name(kind: FrameKind | None, names: frozenset[str]) -> bool:
    """Return whether the type is one of these."""
    return kind is not None and kind.name in names


@attrs.define(eq=False)
class Parts:
    """The fragments of one payload so far."""

    kind: FrameKind
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

    def _continues(self, parts: Parts, kind: FrameKind) -> bool:
        """Return whether a frame of this type is a fragment: fragments of requests are PAYLOAD, or of their type."""
        assert self.headers is not None
        return kind.name in ITEMS or (kind is parts.kind and self.headers.requests_repeat)

    def _begun(self, headers: Headers, kind: FrameKind, frame: bytes, number: int) -> Parts:
        completes = headers.has(frame, "complete")
        is_known = not headers.has(frame, "opaque")
        metadata, data = headers.content(kind, frame) if is_known else (None, b"")
        return Parts(
            kind, frame, None if metadata is None else [metadata], [data], completes, is_known, number, len(frame)
        )

    def _add(self, headers: Headers, parts: Parts, kind: FrameKind, frame: bytes) -> None:
        metadata, data = headers.content(kind, frame)
        if metadata is not None:
            if parts.has_data and metadata:
                raise Torn("metadata stands in a fragment behind data")
            parts.metadata = [*(parts.metadata or ()), metadata]
        parts.data.append(data)
        parts.size += len(frame)
        if parts.size > MAX_JOINED:
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
