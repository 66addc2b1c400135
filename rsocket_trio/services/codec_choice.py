"""Objects as payloads: which types are objects of a codec, and which codec a request and its answers have.

Text and bytes are the payload itself. The codec of objects is decided by the entries of the request, by its connection,
and by the codecs that there are.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Never, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin

import attrs

from rsocket_trio.codecs import Codec, DecodeError, decode_text, find_codec
from rsocket_trio.errors import Invalid, RemoteProtocolError
from rsocket_trio.formats import KINDS_KEPT, type_name
from rsocket_trio.forms import Handler, unfit
from rsocket_trio.metadata.composite import Entry
from rsocket_trio.metadata.mime import (
    ACCEPT_MIME_TYPES,
    COMPOSITE_METADATA,
    MIME_TYPE,
    NO_MIME,
    OCTET_STREAM,
    decode_accepted_mimes,
    decode_data_mime,
    mime_name,
)
from rsocket_trio.metadata.routes import read_request
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, as_payload
from rsocket_trio.terms import Setup
from rsocket_trio.values import value

NONE = type(None)
Read: TypeAlias = Callable[[bytes], object]
SAYS_NOTHING = (*NO_MIME, OCTET_STREAM)
"""Data MIME types of a connection that leave the choice to the codecs of the responder."""
ANSWERS = "an answer is bytes, text, a Payload, or an object: a dataclass, an attrs class, a model, a dict, a list"
MAX_CHOICES = 64
"""Ways to name the codecs of a request for which they are kept: a peer could think of any number."""
MAX_CHOICE_BYTES = 256
"""Bytes of the entries for which they are kept: a list of accepted types may be as long as a payload."""


@value
class Encode:
    """An argument of a contract's method that is an object by its type: ``argument`` is encoded even if it is text."""

    argument: object


def whole_type(kind: object) -> tuple[object, bool]:
    """Return the type of text or bytes of which ``kind`` takes the whole payload, and whether it admits ``None``.

    Text are ``str``, ``str | None``, and both within ``Annotated`` and ``NewType``: it is ``str`` with constraints.
    Bytes are ``bytes`` and ``bytes | None``. Unions with other types, enums and ``Literal`` are objects: ``None``.
    """
    if kind is str or kind is bytes or kind is NONE:
        return None if kind is NONE else kind, kind is NONE
    inner: object
    if get_origin(kind) in (Union, UnionType):
        parts = [whole_type(member) for member in get_args(kind)]
        others = [whole for whole, _ in parts if whole is not None]
        admits = any(admits for _, admits in parts)
        return others[0] if len(others) == 1 and len(parts) == 1 + (NONE in get_args(kind)) else None, admits
    if get_origin(kind) is Annotated:
        inner, *constraints = get_args(kind)
        whole, admits = whole_type(inner)
        return None if whole in (None, bytes) else Annotated[(whole, *constraints)], admits
    # Of a NewType, and of a `type` statement.
    inner = getattr(kind, "__supertype__", getattr(kind, "__value__", None))
    if inner is None or isinstance(kind, type | Enum):
        return None, False
    whole, admits = whole_type(inner)
    return None if whole is bytes else whole, admits


def is_object_type(kind: object) -> bool:
    """Return whether answers and items of this type are objects of a codec, whatever their values.

    Those of other types are data as it is where the value is a payload, bytes or text, and objects where it is not.
    """
    if get_origin(kind) in (Union, UnionType):
        return any(map(is_object_type, get_args(kind)))
    if kind in (inspect.Parameter.empty, Any, object, NONE, NoReturn, Never) or isinstance(kind, TypeVar):
        return False
    if isinstance(kind, type):
        return not issubclass(kind, PAYLOAD_LIKE) or issubclass(kind, Enum)
    return whole_type(kind)[0] is None


@lru_cache(KINDS_KEPT)
def _reader(kind: object) -> Read | None:
    whole, admits = whole_type(kind)
    if whole is bytes:
        return (lambda data: data or None) if admits else bytes
    return None if whole is None else lambda data: None if admits and not data else decode_text(data, whole)


def reader_of(kind: object) -> Read | None:
    """Return the function that reads the data of a payload as ``kind``: text or bytes, or either and ``None``.

    ``None`` where a codec has to read it.
    """
    try:
        return _reader(kind)
    except TypeError:
        return None  # not hashable: a type for a codec of the application's own


def decode_object(codec: Codec, data: bytes, kind: object) -> Any:
    """Return the data of a payload as an object of type ``kind``, for which there is no ``reader_of``.

    Empty data is ``None`` where ``kind`` admits it, unless the codec reads it as something. Raise ``DecodeError``, or
    another ``ValueError`` of the codec, for data that does not fit.
    """
    try:
        return codec.decode(data, kind)
    except ValueError:
        if data:
            raise
    if whole_type(kind)[1]:
        return None
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    raise DecodeError("$", f"no data, expected {type_name(kind)}")


def codec_of_connection(codecs: Sequence[Codec], data_mime: str | int, metadata_mime: str | int) -> tuple[Codec, bool]:
    """Return the codec for objects on a connection with these MIME types, and whether a request has to name it.

    A connection of octet-streams takes the first codec, which a request names where its metadata is composite. So does
    a connection without composite metadata whose MIME type no codec covers. Raise ``ValueError`` for such a MIME type
    elsewhere.
    """
    is_composite = metadata_mime == COMPOSITE_METADATA
    if data_mime in SAYS_NOTHING:
        return codecs[0], is_composite
    try:
        return find_codec(codecs, str(data_mime)), False
    except ValueError:
        if is_composite:
            raise
        return codecs[0], False


@value
class NoCodec:
    """Stands for the codec of a MIME type that no codec covers: what needs it is ``Invalid``, for this ``reason``."""

    reason: str
    mime: str = ""

    def encode(self, *_: object) -> NoReturn:
        raise Invalid(self.reason)

    decode = encode


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
        key = (request.data_mime, setup.data_mime, setup.metadata_mime, *map(MIME_AND_CONTENT, entries))
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
            decoder = encoder = codec_of_request(self.codecs, request, entries, setup)
        except Invalid as error:
            # Data that is taken as it is may be of any type.
            decoder = NoCodec(error.text)
            try:
                encoder, _ = codec_of_connection(self.codecs, setup.data_mime, setup.metadata_mime)
            except ValueError:
                encoder = self.codecs[0]
        try:
            return decoder, codec_of_answer(self.codecs, encoder, entries)
        except Invalid as error:
            return decoder, NoCodec(error.text)


MIME_AND_CONTENT = operator.attrgetter("mime", "content")


def codec_of_request(codecs: Sequence[Codec], request: Payload, entries: Iterable[Entry], setup: Setup) -> Codec:
    """Return the codec of a request that came with these MIME ``entries``. Raise ``Invalid`` if none covers it."""
    try:
        named = [decode_data_mime(entry.content) for entry in entries if entry.mime == MIME_TYPE]
        mime = (named[0] if named else None) if request.data_mime in NO_MIME else request.data_mime
        if mime in SAYS_NOTHING:
            return codec_of_connection(codecs, setup.data_mime, setup.metadata_mime)[0]
        return find_codec(codecs, str(mime_name(mime)))
    except (ValueError, RemoteProtocolError) as error:
        raise Invalid(str(error)) from None


def codec_of_answer(codecs: Sequence[Codec], of_request: Codec, entries: Iterable[Entry]) -> Codec:
    """Return the codec of the answers: the first that the requester accepts, or that of the request if it says nothing.

    Octets say nothing: bytes are sent as they are whatever it accepts. Raise ``Invalid`` if it accepts only what no
    codec covers.
    """
    try:
        lists = [decode_accepted_mimes(entry.content) for entry in entries if entry.mime == ACCEPT_MIME_TYPES]
    except RemoteProtocolError as error:
        raise Invalid(f"accepted MIME types: {error}") from None
    problem: str | None = None
    accepted = [mime for mimes in lists for mime in mimes]
    for mime in (mime for mime in accepted if mime not in SAYS_NOTHING):
        if mime == "*/*":
            return of_request
        try:
            return find_codec(codecs, str(mime))
        except ValueError as error:
            problem = problem or str(error)
    if problem is None or any(mime in SAYS_NOTHING for mime in accepted):
        return of_request
    raise Invalid(problem)


def answer_payload(handler: Handler, request: Payload, setup: Setup, answer: object) -> Payload:
    """Return what a handler of bytes gave as an answer or an item, and is no payload, as one.

    ``None`` is an empty payload, an object is encoded for the call that ``request`` opened. Raise ``TypeError`` if it
    can't be encoded, and ``Invalid`` if the peer accepts no codec that is here.
    """
    if answer is None:
        return Payload()
    if hasattr(answer, "__aiter__"):
        raise unfit(handler.interaction, handler.registered, answer, "a payload: request_stream answers items")
    if handler.codecs is None:
        return as_payload(answer)  # raises: it serves no request
    mime = setup.metadata_mime if request.metadata_mime in NO_MIME else mime_name(request.metadata_mime)
    # The number of entries was held to the connection's limit when the handler was looked for.
    entries = read_request(request.metadata, mime, len(request.metadata or b"")).mimes
    _, codec = handler.codecs(request, entries, setup)
    return Payload(encoded(codec, answer, f"{handler.interaction} handler {handler.name}"))


def encoded(codec: Codec, item: object, handler: str = "") -> bytes:
    """Return an object as ``codec`` writes it. Raise ``TypeError`` if it can't; ``handler`` names whose it is."""
    try:
        return codec.encode(item)
    except (TypeError, ValueError) as error:
        text = f"{type(item).__name__} can't be encoded as {codec.mime}: {error}"
        if handler:
            text = f"{handler}: {text}; {ANSWERS}" if isinstance(error, TypeError) else f"{handler}: {text}"
        raise TypeError(text) from error
