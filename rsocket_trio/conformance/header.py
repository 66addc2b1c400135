"""Headers of frames as the document of a dialect draws them, and the fragments that they tell of.

A peer may send any payload in fragments, which are joined: a case is about payloads, whatever their frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

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
        """Bytes of a header."""
        return int(max(self.type.stop, self.id.stop))

    def kind(self, frame: bytes) -> FrameKind:
        """Return the type of a frame."""
        if len(frame) < self.type.stop:
            return UNKNOWN_KIND
        return self.kinds.get(int.from_bytes(frame[self.type], "big") >> self.type_shift, UNKNOWN_KIND)

    def stream_id(self, frame: bytes) -> int:
        """Return the stream id of a frame."""
        return int.from_bytes(frame[self.id], "big")

    def has(self, frame: bytes, flag: str) -> bool:
        """Return whether a flag is set."""
        return bool(int.from_bytes(frame[: self.size].ljust(self.size, b"\0"), "big") & self.flags.get(flag, 0))

    def cleared(self, frame: bytes) -> bytes:
        """Return the frame with 0 in the bits that should be 0."""
        mask = self.kind(frame).unused[: len(frame)]
        begin = int.from_bytes(frame[: len(mask)], "big") & ~int.from_bytes(mask, "big")
        return begin.to_bytes(len(mask), "big") + frame[len(mask) :]

    def joined(self, fragments: Sequence[bytes]) -> bytes:
        """Return the frame of which these are the fragments. Raise ``Torn``."""
        first, *rest = fragments
        is_opaque = self.has(first, "opaque")
        # An opaque one stands as a whole before the rest.
        metadata, data = (None, first) if is_opaque else self.content(first)
        has_data, metadata_parts, data_parts = bool(data), [metadata or b""], [data]
        for fragment in rest:
            more_metadata, more_data = self.content(fragment)
            if has_data and more_metadata:
                raise Torn("metadata stands in a fragment behind data")
            metadata = metadata if more_metadata is None or is_opaque else b""
            metadata_parts.append(more_metadata or b"")
            data_parts.append(more_data)
            has_data |= bool(more_data)
        flags = {"follows": False, "complete": any(self.has(fragment, "complete") for fragment in fragments)}
        if self.kind(first).name in ITEMS:
            flags["next"] = True
        whole = b"".join(data_parts)
        start = self.content_start(first)
        if not is_opaque:
            whole = first[:start] + whole
        if metadata is not None:
            field = first[start:] if self.has(first, "metadata") else b""
            whole = self.with_metadata(whole, start, b"".join(metadata_parts), field)
        return self._with_flags(whole, flags)

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

    def with_metadata(self, frame: bytes, start: int, metadata: bytes, field: bytes = b"") -> bytes:
        """Return the frame with metadata before its data, which begins at ``start``. Raise ``Torn`` for too much.

        ``field`` are the bytes from where the length of metadata begins, as far as they are known: they have its type.
        """
        before, size, counted = self.metadata_length
        length = len(metadata) + counted
        if length >> 8 * size:
            raise Torn(f"{len(metadata)} bytes of metadata came")
        whole = (
            frame[:start]
            + field[:before].ljust(before, b"\0")
            + length.to_bytes(size, "big")
            + metadata
            + frame[start:]
        )
        return self._with_flags(whole, {"metadata": True})

    def _with_flags(self, frame: bytes, flags: Mapping[str, bool]) -> bytes:
        """Return the frame with these flags set or not."""
        word = int.from_bytes(frame[: self.size], "big")
        for name, is_set in flags.items():
            mask = self.flags.get(name, 0)
            word = word | mask if is_set else word & ~mask
        return word.to_bytes(self.size, "big") + frame[self.size :]

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
