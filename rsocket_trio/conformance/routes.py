"""Requests by route and with credentials: the metadata that the tester adds for a server which asks for them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from rsocket_trio.conformance.catalogue import Case, Word, each_of, pieces, split_of, with_id
from rsocket_trio.conformance.notation import Notation, NotationError
from rsocket_trio.metadata import (
    AUTHENTICATION,
    COMPOSITE_METADATA,
    OCTET_STREAM,
    ROUTING,
    Credentials,
    Entry,
    encode_authentication,
    encode_composite,
    with_route,
)

DIALECT: Final = "rsocket/1.0"
"""The dialect whose servers are asked by route: routing metadata is an extension of RSocket 1.0."""
HEADER: Final = struct.Struct(">IH")
TERMS: Final = slice(0, 18)
"""The bytes of SETUP before its MIME types."""
METADATA_FLAG: Final = 0x100
LARGEST_FRAME: Final = (1 << 24) - 1
ROUTED: Final = {4: ("echo", 0), 6: ("count", 4), 7: ("talk", 4)}
"""The interaction that requests of a type ask for, and the bytes of their fixed fields."""
SILENT: Final = b"silent"
"""The data of a request that is never answered."""
SENT: Final = (Word.SEND, Word.RAW, Word.DRIP, Word.SPLIT, Word.EACH, Word.IN_TURN, Word.TIMES)


@attrs.frozen
class Routes:
    """The routes of interactions, by the names of ``NEEDS``, and the MIME types of the SETUP that carries them.

    In a connection with the MIME type of composite metadata or of routing, a route is written so. With another one it
    is the metadata as text. Without a route for ``silent`` that request goes where ``echo`` does. ``credentials`` are
    sent in the SETUP and with requests, in composite metadata.
    """

    paths: Mapping[str, str]
    metadata_mime: str = COMPOSITE_METADATA
    data_mime: str = OCTET_STREAM
    credentials: Credentials | None = attrs.field(default=None, repr=False)

    @property
    def secret(self) -> bytes:
        """Return the bytes that nothing may show: the credentials as they are sent, empty without any."""
        return b"" if self.credentials is None else encode_authentication(self.credentials)

    @property
    def _credentials_entry(self) -> bytes:
        return encode_composite([Entry(AUTHENTICATION, self.secret)]) if self.credentials is not None else b""

    def written(self, frame: bytes, setup: bytes) -> bytes:
        """Return a frame as it is sent: a request with its route, and the usual SETUP with the MIME types.

        Every other frame stays as it is, and so does a request with metadata of its own.
        """
        if frame == setup:
            mimes = (mime.encode() for mime in (self.metadata_mime, self.data_mime))
            head = frame[TERMS] + b"".join(bytes([len(mime)]) + mime for mime in mimes)
            return with_metadata(head, len(head), self._credentials_entry)
        name, start = self._asked(frame)
        if not name:
            return frame
        route = self._route_metadata(self.paths[name]) if name in self.paths else b""
        return with_metadata(frame, start, route + self._credentials_entry)

    def obstacle(self, case: Case, notation: Notation) -> str:
        """Return the reason for which a case can't be played by route, empty if there is none."""
        by_route = any(name in self.paths or (name == "silent" and "echo" in self.paths) for name in case.needs)
        if not by_route and self.credentials is None:
            return ""
        how = "requests go by route" if self.credentials is None else "the server gets credentials"
        setup = notation.frame("setup").value
        try:
            frames = list(_sent_in(case, notation))
        except NotationError:
            return "its frames have no room for a route"
        for word, frame in frames:
            kind = HEADER.unpack_from(frame)[1] >> 10 if len(frame) >= HEADER.size else 0
            if kind == 1 and frame != setup:
                return f"it has a SETUP of its own, and {how}"
            if word is Word.RAW:
                return f"it sends bytes, and {how}"
            if kind in ROUTED and HEADER.unpack_from(frame)[1] & METADATA_FLAG:
                return f"its requests have metadata of their own, and {how}"
            if len(self.written(frame, setup)) > LARGEST_FRAME:
                return "its frames have no room for a route"
        return ""

    def _asked(self, frame: bytes) -> tuple[str, int]:
        """Return the interaction that a request without metadata asks for, if it is one, and where its data begins."""
        if len(frame) < HEADER.size:
            return "", 0
        word = HEADER.unpack_from(frame)[1]
        name, fixed = ROUTED.get(word >> 10, ("", 0))
        start = HEADER.size + fixed
        if not name or word & METADATA_FLAG or len(frame) < start:
            return "", 0
        if name == "echo" and frame[start:] == SILENT and "silent" in self.paths:
            name = "silent"
        return name, start

    def _route_metadata(self, path: str) -> bytes:
        if self.metadata_mime in (COMPOSITE_METADATA, ROUTING):
            return with_route(path, None, self.metadata_mime)
        return path.encode()


def with_metadata(frame: bytes, start: int, metadata: bytes) -> bytes:
    """Return a frame without metadata with this metadata, if there is any; its data begins at ``start``."""
    if not metadata:
        return frame
    stream_id, word = HEADER.unpack_from(frame)
    head = HEADER.pack(stream_id, word | METADATA_FLAG) + frame[HEADER.size : start]
    return head + len(metadata).to_bytes(3, "big") + metadata + frame[start:]


def _sent_in(case: Case, notation: Notation) -> Iterator[tuple[Word, bytes]]:
    """Yield the frames that a case sends, with the words of their steps. Raise ``NotationError`` for unknown values."""
    for step in case.steps:
        if step.word not in SENT:
            continue
        if step.word in (Word.EACH, Word.IN_TURN):
            ids, sent, _, _ = each_of(step.rest)
            texts = [with_id(sent, ids[0])]
        elif step.word is Word.TIMES:
            texts = [step.rest.partition(" ")[2]]
        elif step.word is Word.SPLIT:
            texts = pieces(split_of(step.rest)[1])
        else:
            texts = pieces(step.rest)
        for text in texts:
            yield step.word, notation.frame(text).value
