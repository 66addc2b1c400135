"""Codecs between objects and the data of payloads, each by its MIME type: JSON, MessagePack, CBOR, text and bytes.

A codec is anything with ``mime``, ``encode`` and ``decode``. JSON and MessagePack are msgspec's. CBOR is cbor2's, which
the extra ``services`` has; it is loaded with the first value. They take dataclasses, attrs classes, msgspec's structs,
typed dictionaries, named tuples, enums, dates, UUIDs, decimals, unions and what these are made of, and pydantic's
models where pydantic is installed.

Data of a peer is never trusted: data that does not fit its type raises `DecodeError`, whose text begins with the path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, Union, get_args, get_origin

import attrs
import msgspec

from rsocket_trio.formats import (
    Reader,
    adapter,
    cbor_reader,
    holds_model,
    is_model_error,
    json_reader,
    messagepack_reader,
    type_name,
    write_cbor,
    write_json,
    write_messagepack,
)
from rsocket_trio.hostile_data import UNHASHABLE
from rsocket_trio.masking import readable
from rsocket_trio.payload import as_bytes

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_PATH = 256
"""Characters of a path in an error; a peer's keys may be part of it."""
MAX_ERROR = 1024
"""Characters of a path and the reason behind it."""
MAX_FAULTS = 1000
"""Faults that pydantic finds in one value up to which they are described; that makes objects for all of them."""


class Codec(Protocol):
    """Turns objects into bytes of one MIME type, and back."""

    @property
    def mime(self) -> str:
        """The MIME type, as it is sent: lower case, without parameters."""

    def encode(self, value: object, /) -> bytes:
        """Return ``value`` as bytes. Raise ``TypeError`` for a type, ``ValueError`` for a value that it can't write."""

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return the object of type ``kind`` that ``data`` holds. Raise ``ValueError`` if there is none."""


class DecodeError(ValueError):
    """Data that is not what was expected.

    ``path`` is the place in the data, as in ``$.orders[3].amount``, and ``reason`` says what is wrong there; text of a
    peer is shortened and escaped. The error's text is both: ``$.amount: expected int, got str``. The others of several
    faults stand in the reason, behind semicolons.
    """

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        self.path = readable(path, MAX_PATH)
        self.reason = readable(reason, MAX_ERROR - len(f"{self.path}: "))
        super().__init__(self.path, self.reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def find_codec(codecs: Collection[Codec], mime: str) -> Codec:
    """Return the codec of a MIME type.

    ``codecs`` are those that there are, and ``mime`` is the type that a peer or a caller names: its case and its
    parameters, such as ``; charset=utf-8``, are ignored, and the usual other names of MessagePack and JSON are known.
    Raise ``ValueError`` if there is none: "no codec for application/x, here: application/json, text/plain".
    """
    bare = _bare(mime)
    bare = OTHER_NAMES.get(bare, bare)
    for codec in codecs:
        if codec.mime == mime or _bare(codec.mime) == bare:
            return codec
    here = ", ".join(codec.mime for codec in codecs) or "none"
    raise ValueError(f"no codec for {readable(mime[:256])}, here: {here}")


def _bare(mime: str) -> str:
    return mime.partition(";")[0].strip().lower()


def checked_codecs(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return ``codecs`` as a tuple. Raise ``TypeError`` for what is no codec, ``ValueError`` for none at all."""
    if hasattr(codecs, "mime"):
        raise TypeError(f"codecs takes codecs in a list, not {type(codecs).__name__} alone")
    several = tuple(codecs)
    for codec in several:
        if not all(hasattr(codec, name) for name in ("mime", "encode", "decode")):
            raise TypeError(f"a codec has mime, encode and decode, and {type(codec).__name__} has not")
    if not several:
        raise ValueError("codecs: at least one is needed")
    return several


def convert_text(text: str, kind: object) -> object:
    """Return ``text``, of a route or a payload, as ``kind``. Raise ``DecodeError`` if it does not fit."""
    if kind is str:
        return text
    try:
        if holds_model(kind):
            return adapter(kind).validate_strings(text)
        return msgspec.convert(text, kind, strict=False)
    except ValueError as error:
        raise decode_error(error) from None


def decode_text(data: bytes, kind: object = str) -> object:
    """Return ``data`` as UTF-8 text that fits ``kind``: ``str``, perhaps with constraints.

    Raise `DecodeError` for data that is not UTF-8, and for a text that breaks a constraint.
    """
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError("$", f"not UTF-8 at byte {error.start}") from None
    return convert_text(text, kind)


@attrs.frozen(eq=False, repr=False)
class ObjectCodec:
    """A codec of objects in one format.

    ``name`` is that of its constant. ``write`` returns a value as bytes, and ``reader`` the function that reads bytes
    as a type.
    """

    mime: str
    _name: str
    _write: Callable[[object], bytes]
    _reader: Callable[[object], Reader]

    def encode(self, value: object, /) -> bytes:
        """Return ``value`` as bytes. Raise ``TypeError`` for a type, ``ValueError`` for a value that it can't hold."""
        try:
            return self._write(value)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        except OverflowError as error:
            raise ValueError("an integer of more than 64 bits has no MessagePack") from error

    def decode(self, data: bytes, kind: object, /) -> Any:
        """Return the object of type ``kind`` that ``data`` holds.

        Raise `DecodeError` if it does not fit, and ``TypeError`` for a type that no codec can decode.
        """
        read = self._reader(kind)
        try:
            return read(data)
        except (ValueError, RecursionError) as error:
            raise decode_error(error) from error
        except TypeError as error:
            if "unhashable type" not in str(error):
                raise  # of a validator
            raise DecodeError("$", UNHASHABLE) from error

    def __repr__(self) -> str:
        return self._name


@attrs.frozen(eq=False, repr=False)
class PlainCodec:
    """A codec of one type, ``kind``, whose values are the data as they are: text in UTF-8, or bytes.

    It writes values of the types ``taken``, too.
    """

    mime: str
    _name: str
    _kind: type
    _taken: tuple[type, ...] = ()

    def encode(self, value: object, /) -> bytes:
        """Return ``value`` as bytes. Raise ``TypeError`` for anything else than text, or bytes and the like."""
        if not isinstance(value, (self._kind, *self._taken)):
            raise TypeError(f"{self.mime} carries {self._kind.__name__}, not {type_name(type(value))}")
        return as_bytes(value)

    def decode(self, data: bytes, kind: object, /) -> Any:
        """Return ``data``, or its text. Raise `DecodeError` if ``kind`` does not take it, and for what is no UTF-8."""
        if not _takes(kind, self._kind):
            name = self._kind.__name__
            raise DecodeError("$", f"expected {type_name(kind)}, got {self.mime}, which carries {name}")
        return decode_text(data) if self._kind is str else data

    def __repr__(self) -> str:
        return self._name


def _takes(kind: object, whole: type) -> bool:
    """Return whether a value of the type ``whole`` fits the annotation ``kind``."""
    if kind is Any or kind is object or kind is whole:
        return True
    if get_origin(kind) in (Union, UnionType):
        return any(_takes(member, whole) for member in get_args(kind))
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else getattr(kind, "__supertype__", None)
    return inner is not None and _takes(inner, whole)


JSON: Final = ObjectCodec("application/json", "JSON", write_json, json_reader)
"""JSON by msgspec, ``application/json``.

NaN and the infinities are refused both ways, since JSON has none. Where a key occurs twice, the last one holds.
Integers have at most 4,300 digits. Bytes are base64 text. Dates, UUIDs and decimals are text, named tuples are arrays.
"""
MESSAGEPACK: Final = ObjectCodec("application/msgpack", "MESSAGEPACK", write_messagepack, messagepack_reader)
"""MessagePack by msgspec, ``application/msgpack``.

Dates with a time zone are its timestamps, and bytes its binary; UUIDs, decimals and other dates are text. NaN and the
infinities are numbers. Extension types other than timestamps are refused. Where a key occurs twice, the last one holds.
"""
CBOR: Final = ObjectCodec("application/cbor", "CBOR", write_cbor, cbor_reader)
"""CBOR by cbor2, ``application/cbor``.

Values are written as in JSON, so that dates, UUIDs and decimals are text, and bytes are byte strings. Read are text and
the tags for dates, big integers, decimals and UUIDs; other tags, shared references among them, are refused, and so are
keys that occur twice in one map. Integers have at most 4,300 digits. NaN and the infinities are numbers.
"""
TEXT: Final = PlainCodec("text/plain", "TEXT", str)
"""Text in UTF-8, ``text/plain``."""
BYTES: Final = PlainCodec("application/octet-stream", "BYTES", bytes, (bytearray, memoryview))
"""Bytes as they are, ``application/octet-stream``."""

DEFAULT_CODECS: Final = (JSON, MESSAGEPACK, CBOR, TEXT, BYTES)
"""The codecs of who names none, the preferred one first."""

OTHER_NAMES: Final = {
    **dict.fromkeys(("application/x-msgpack", "application/vnd.msgpack", "application/messagepack"), MESSAGEPACK.mime),
    **dict.fromkeys(("text/json", "application/x-json"), JSON.mime),
}
"""Other names that peers give to MIME types. They are understood, and never sent."""


def decode_error(error: BaseException) -> DecodeError:
    """Return what a library says about data as a `DecodeError`, with the path first.

    ``error`` is of msgspec, pydantic or cbor2, or one that a class raised as an object of it was made.
    """
    if isinstance(error, DecodeError):
        return error
    if isinstance(error, RecursionError):
        return DecodeError("$", "nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return DecodeError("$", "invalid UTF-8")
    if is_model_error(error):
        return _of_model(error, "$")
    text, path = str(error), "$"
    if text.endswith("`") and " - at `" in text:
        text, _, path = text[:-1].rpartition(" - at `")
        path = path.replace("`", "")
    is_key = path.startswith("key in ")
    path = path.removeprefix("key in ")
    if error.__cause__ is None:
        return DecodeError(path, f"key: {_as_reason(text)}" if is_key else _as_reason(text))
    fault = error.__cause__.__cause__
    return _of_model(fault, path) if is_model_error(fault) else DecodeError(path, text)  # in words of its class


def _as_reason(text: str) -> str:
    """Return text of msgspec in small letters and without quotes, with types as they are called in JSON."""
    text = text.removeprefix("Object contains ").removeprefix("Object ")
    first = text.partition(" ")[0]
    if first[1:].islower():
        text = first.lower() + text[len(first) :]
    if not text.startswith("expected"):
        return text
    expected, comma, got = text.replace("`", "").partition(", got ")
    return expected + comma + JSON_TYPES.get(got, got)


JSON_TYPES = {"dict": "object", "list": "array", "NoneType": "null", "None": "null"}
"""The names of Python's types in messages of msgspec, where they are not their own."""


def _of_model(error: ValidationError, path: str) -> DecodeError:
    """Return all faults that pydantic found in the value at a path, as far as an error may hold them."""
    if error.error_count() > MAX_FAULTS:
        return DecodeError(path, f"{error.error_count()} faults")
    places = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        names = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in fault["loc"])
        places.append(f"{path}{names}: {_as_reason(fault['msg'])}")
    first, _, reason = "; ".join(places).partition(": ")
    return DecodeError(first, reason)
