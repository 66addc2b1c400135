"""Headers of frames as the document of a dialect draws them: types, flags, and the bits that should be 0."""

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


class Torn(Exception):
    """Fragments that no peer may send."""


@attrs.frozen
class MetadataLength:
    """The length before metadata: bytes that stand before it, its own bytes, and how many it counts besides."""

    before: int
    size: int
    counted: int


@attrs.frozen
class Kind:
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
    kinds: Mapping[int, Kind]
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
            kinds[int(number, 16)] = Kind(name, bytes.fromhex(unused))
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

    def kind(self, frame: bytes) -> Kind | None:
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

    def content(self, kind: Kind, frame: bytes) -> tuple[bytes | None, bytes]:
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

    def with_content(self, kind: Kind, frame: bytes, metadata: bytes | None, data: bytes) -> bytes:
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

    def _content_start(self, kind: Kind, frame: bytes) -> int:
        has_number = kind.name == "REQUEST_CHANNEL" and self.has(frame, "number")
        return len(kind.unused) + NUMBER_SIZE * has_number

    def is_foreign_extension(self, frame: bytes) -> bool:
        """Return whether the frame is an EXT that the dialect does not know, and may be ignored."""
        kind = self.kind(frame)
        if kind is None or kind.name != "EXT" or not self.has(frame, "ignore"):
            return False
        ext_type = int.from_bytes(frame[self.size : self.size + 4], "big")
        return self.block_type is None or ext_type != self.block_type


def has_name(kind: Kind | None, names: frozenset[str]) -> bool:
    """Return whether the type is one of these."""
    return kind is not None and kind.name in names
