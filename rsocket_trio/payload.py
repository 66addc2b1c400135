"""Payload: data and metadata, the one value that users hold."""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from rsocket_trio.masking import shown_bytes, shown_metadata, shown_size
from rsocket_trio.values import value

BytesLike: TypeAlias = bytes | bytearray | memoryview | str


class Payload:
    """The content of one message: ``data``, and ``metadata`` that may be absent (``None``) or present and empty.

    Both are kept as ``bytes``; text is encoded as UTF-8, other buffers are copied. ``metadata_type`` is the type byte
    of ReactiveSocket 0.0, from 0 to 255. ``data_mime`` and ``metadata_mime`` replace the MIME types of the connection
    for this payload in the extension draft: a text, or the number of a well-known type.

    Raise ``TypeError`` for data or metadata that is neither bytes nor text.
    """

    __slots__ = ("data", "data_mime", "metadata", "metadata_mime", "metadata_type")

    def __init__(
        self,
        data: BytesLike = b"",
        metadata: BytesLike | None = None,
        *,
        metadata_type: int = 0,
        data_mime: str | int | None = None,
        metadata_mime: str | int | None = None,
    ) -> None:
        self.data = data if type(data) is bytes else as_bytes(data)
        self.metadata = metadata if metadata is None or type(metadata) is bytes else as_bytes(metadata)
        self.metadata_type = metadata_type
        self.data_mime = data_mime
        self.metadata_mime = metadata_mime

    @property
    def text(self) -> str:
        """Return the data as UTF-8. Raise ``UnicodeDecodeError`` if it is not UTF-8."""
        return self.data.decode()

    @property
    def size(self) -> int:
        """Return the bytes of data and metadata together."""
        return len(self.data) + (len(self.metadata) if self.metadata is not None else 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Payload):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.data, self.metadata))

    def __repr__(self) -> str:
        return self._shown(None if self.metadata is None else shown_metadata(self.metadata, self.metadata_mime))

    def _shown(self, metadata: str | None) -> str:
        shown = [shown_bytes(self.data)]
        if metadata is not None:
            shown.append(f"metadata={metadata}")
        if self.metadata_type:
            shown.append(f"metadata_type={self.metadata_type}")
        if self.data_mime is not None:
            shown.append(f"data_mime={self.data_mime!r}")
        if self.metadata_mime is not None:
            shown.append(f"metadata_mime={self.metadata_mime!r}")
        return f"Payload({', '.join(shown)})"


EMPTY: Final = Payload()
"""The payload of who gives none."""


@value
class MetadataPush:
    """Metadata that the peer pushed onto one stream of ReactiveSocket 0.0, in order with the items of the stream.

    ``metadata`` is bytes, ``metadata_type`` its type byte, from 0 to 255.
    """

    metadata: bytes = attrs.field(repr=shown_metadata)
    metadata_type: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of metadata."""
        return len(self.metadata)


PayloadLike: TypeAlias = Payload | bytes | bytearray | memoryview | str
"""The types that stand for a payload; text is UTF-8."""
PAYLOAD_LIKE: Final = (Payload, bytes, bytearray, memoryview, str)
"""The same, for ``isinstance``."""


def as_bytes(content: object) -> bytes:
    """Return bytes, buffers and text as ``bytes``. Raise ``TypeError`` for anything else."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"bytes or str expected, not {type(content).__name__}")


def as_payload(content: object) -> Payload:
    """Return ``content`` as a payload. Raise ``TypeError`` if it is not payload-like."""
    if type(content) is bytes:
        return Payload(content)
    if isinstance(content, Payload):
        return content
    if isinstance(content, bytes | bytearray | memoryview | str):
        return Payload(content)
    raise TypeError(f"a payload is Payload, bytes, bytearray, memoryview or str, not {type(content).__name__}")


def with_metadata(payload: Payload, metadata: BytesLike | None) -> Payload:
    """Return ``payload`` with other metadata, and all the rest of it."""
    kind, data_mime, metadata_mime = payload.metadata_type, payload.data_mime, payload.metadata_mime
    return Payload(payload.data, metadata, metadata_type=kind, data_mime=data_mime, metadata_mime=metadata_mime)


def without_metadata(payload: Payload) -> str:
    """Return the ``repr`` of ``payload`` with the size of its metadata only, which may be secret or a part of it."""
    return payload._shown(None if payload.metadata is None else shown_size(payload.metadata))
