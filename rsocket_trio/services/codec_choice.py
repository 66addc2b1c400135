"""The codec of a request and of its answers: what its entries, its connection and the codecs here decide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import attrs

from rsocket_trio.codecs import Codec, find_codec
from rsocket_trio.errors import Invalid, RemoteProtocolError
from rsocket_trio.metadata.composite import Entry, encode_composite
from rsocket_trio.metadata.mime import (
    ACCEPT_MIME_TYPES,
    COMPOSITE_METADATA,
    MIME_TYPE,
    NO_MIME,
    OCTET_STREAM,
    mime_name,
)
from rsocket_trio.metadata.mimetypes_per_stream import (
    decode_accepted_mimes,
    decode_data_mime,
    encode_accepted_mimes,
    encode_data_mime,
)
from rsocket_trio.payload import Payload
from rsocket_trio.terms import Setup
from rsocket_trio.values import value

SAYS_NOTHING = (*NO_MIME, OCTET_STREAM)
"""Data MIME types of a connection that leave the choice to the codecs of the responder."""
MAX_CHOICES = 64
"""Ways to name the codecs of a request for which they are kept: a peer could think of any number."""
MAX_CHOICE_BYTES = 256
"""Bytes of the entries for which they are kept: a list of accepted types may be as long as a payload."""


def codec_of_connection(codecs: Sequence[Codec], data_mime: str | int, metadata_mime: str | int) -> tuple[Codec, bool]:
    """Return the codec for objects on a connection with these MIME types, and whether a request has to name it.

    A connection of octet-streams takes the first codec, which a request names where its metadata is composite. So does
    a connection without composite metadata whose MIME type no codec covers. Raise ``ValueError`` for such a MIME type
    elsewhere.
    """
    if data_mime in SAYS_NOTHING:
        return _first(codecs), metadata_mime == COMPOSITE_METADATA
    try:
        return find_codec(codecs, str(data_mime)), False
    except ValueError:
        if metadata_mime == COMPOSITE_METADATA:
            raise
        return _first(codecs), False


def codec_or_first(codecs: Sequence[Codec], data_mime: str | int, metadata_mime: str | int) -> Codec:
    """Return the codec for objects on a connection with these MIME types, or the first where there is none for it."""
    try:
        return codec_of_connection(codecs, data_mime, metadata_mime)[0]
    except ValueError:
        return _first(codecs)


@value
class RequestForm:
    """The encoding of objects in the requests of a connection: made once for each connection that sends some.

    ``codec`` encodes and decodes them. ``names`` is the metadata of a request whose data is an object, which names the
    codec, and ``accepts`` that of a request of which only the answer is one; both are ``None`` where the connection's
    MIME type says it.
    """

    codec: Codec
    names: bytes | None
    accepts: bytes | None


def form_of_requests(codecs: Sequence[Codec], data_mime: str | int, metadata_mime: str | int) -> RequestForm:
    """Return how requests carry objects on a connection with these MIME types. Raise ``ValueError`` as above."""
    codec, named = codec_of_connection(codecs, data_mime, metadata_mime)
    if not named:
        return RequestForm(codec, None, None)
    return RequestForm(
        codec,
        encode_composite([Entry(MIME_TYPE, encode_data_mime(codec.mime))]),
        encode_composite([Entry(ACCEPT_MIME_TYPES, encode_accepted_mimes([codec.mime]))]),
    )


@value
class NoCodec:
    """Stands for the codec of a MIME type that no codec covers, for ``reason``: what needs it is ``Invalid``."""

    reason: str
    mime: str = ""

    def refusal(self) -> Invalid:
        """Return the error for what needs the codec."""
        return Invalid(self.reason)

    def encode(self, value: object, /) -> NoReturn:
        """Raise ``Invalid``."""
        raise self.refusal()

    def decode(self, data: bytes, kind: Any, /) -> NoReturn:
        """Raise ``Invalid``."""
        raise self.refusal()


@attrs.define(eq=False)
class CodecChoices:
    """The codecs of a responder, the preferred one first, and the choice among them for each call."""

    codecs: Sequence[Codec]
    _kept: dict[tuple[object, ...], tuple[Codec, Codec]] = attrs.field(factory=dict, init=False)
    """The choices so far, by what requests and their connections say of the MIME types."""

    def of_call(self, request: Payload, entries: Sequence[Entry], setup: Setup) -> tuple[Codec, Codec]:
        """Return the codecs of ``request``, whose MIME entries are ``entries``, and of its answers.

        Each is a ``NoCodec`` if no codec covers what is named: bytes and text need none.
        """
        mimes = (request.data_mime, setup.data_mime, setup.metadata_mime)
        key = (*mimes, *[(entry.mime, entry.content) for entry in entries])
        choice = self._kept.get(key)
        if choice is None:
            choice = self._choose(request, entries, setup)
            if sum(len(entry.content) for entry in entries) <= MAX_CHOICE_BYTES:
                if len(self._kept) >= MAX_CHOICES:
                    self._kept.clear()  # all, as other threads may be in here too and the oldest may be gone
                self._kept[key] = choice
        return choice

    def _choose(self, request: Payload, entries: Sequence[Entry], setup: Setup) -> tuple[Codec, Codec]:
        decoder: Codec
        encoder: Codec
        try:
            decoder = encoder = codec_of_request(self.codecs, request, entries, setup.data_mime, setup.metadata_mime)
        except Invalid as error:
            # Data that is taken as it is may be of any type.
            decoder = NoCodec(error.text)
            encoder = codec_or_first(self.codecs, setup.data_mime, setup.metadata_mime)
        try:
            return decoder, codec_of_answer(self.codecs, encoder, entries) if entries else encoder
        except Invalid as error:
            return decoder, NoCodec(error.text)


def codec_of_request(
    codecs: Sequence[Codec], request: Payload, entries: Iterable[Entry], data_mime: str | int, metadata_mime: str | int
) -> Codec:
    """Return the codec of a request that came with these MIME ``entries``. Raise ``Invalid`` if none covers it."""
    try:
        said = request.data_mime if request.data_mime not in NO_MIME else _named(entries)
        if said is None or said in SAYS_NOTHING:
            return codec_of_connection(codecs, data_mime, metadata_mime)[0]
        return find_codec(codecs, str(mime_name(said)))
    except (ValueError, RemoteProtocolError) as error:
        raise Invalid(str(error)) from None


def codec_of_answer(codecs: Sequence[Codec], of_request: Codec, entries: Iterable[Entry]) -> Codec:
    """Return the codec of the answers: the first that the requester accepts, or that of the request if it says nothing.

    Octets say nothing: bytes are sent as they are whatever it accepts. Raise ``Invalid`` if it accepts only what no
    codec covers.
    """
    accepted: list[str | int] = []
    try:
        for entry in entries:
            if entry.mime == ACCEPT_MIME_TYPES:
                accepted += decode_accepted_mimes(entry.content)
    except RemoteProtocolError as error:
        raise Invalid(f"accepted MIME types: {error}") from None
    problem = ""
    for mime in accepted:
        if mime == "*/*":
            return of_request
        if mime in SAYS_NOTHING:
            continue
        try:
            return find_codec(codecs, str(mime))
        except ValueError as error:
            problem = problem or str(error)
    if problem and not any(mime in SAYS_NOTHING for mime in accepted):
        raise Invalid(problem)
    return of_request


def _named(entries: Iterable[Entry]) -> str | int | None:
    for entry in entries:
        if entry.mime == MIME_TYPE:
            return decode_data_mime(entry.content)
    return None


def _first(codecs: Sequence[Codec]) -> Codec:
    if not codecs:
        raise ValueError("no codec here")
    return codecs[0]
