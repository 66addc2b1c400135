"""Codecs between objects and the data of payloads, each by its MIME type: JSON, MessagePack, CBOR, text and bytes.

A codec is anything with ``mime``, ``encode`` and ``decode``. The built-in ones need the extra ``services``, which is
loaded with the first value: JSON and MessagePack are msgspec's, CBOR is cbor2's. They take dataclasses, attrs classes,
msgspec's structs, typed dictionaries, named tuples, enums, dates, UUIDs, decimals, unions and what these are made of,
and pydantic's models where pydantic is installed.

Data of a peer is never trusted: data that does not fit its type raises `DecodeError`, whose text begins with the path.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache, lru_cache, partial
from importlib import import_module
from inspect import signature
from io import BytesIO
from math import isfinite
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    NotRequired,
    Protocol,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from rsocket_trio.colliding_keys import MARK, Mark, Tables
from rsocket_trio.errors import readable
from rsocket_trio.extras import install_command
from rsocket_trio.hashed_integers import (
    LONG_INTEGER,
    MAX_BITS,
    TOO_LARGE,
    UNHASHABLE,
    bound_schema,
    check_hashed,
    form_without_hashes,
    has_untyped_set,
    hashes_numbers,
    key_types,
    member_types,
    stop_at_faults,
    type_parts,
)

KINDS_KEPT = 1024
"""Types for which a codec keeps what it has made for them."""
MOST_OF_PATH = 256
"""Characters of a path in an error; a peer's keys may be part of it."""
MOST_OF_ERROR = 1024
"""Characters of a path and the reason behind it."""


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
    _faults: tuple[DecodeError, ...] = ()
    """The faults that pydantic found, an error for each; empty for other data."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = _shortened(path, MOST_OF_PATH)
        self.reason = _shortened(reason, MOST_OF_ERROR - len(f"{self.path}: "))
        super().__init__(self.path, self.reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def _shortened(text: str, most: int) -> str:
    text = readable(text)
    return text if len(text) <= most else text[: most - 3] + "..."


def find_codec(codecs: Collection[Codec], mime: str) -> Codec:
    """Return the codec of a MIME type.

    ``codecs`` are those that there are, and ``mime`` is the type that a peer or a caller names: its case and its
    parameters, such as ``; charset=utf-8``, are ignored, and the usual other names of MessagePack and JSON are known.
    Raise ``ValueError`` if there is none: "no codec for application/x, here: application/json, text/plain".
    """
    for codec in codecs:
        if codec.mime == mime:
            return codec
    wanted = _bare(mime)
    wanted = OTHER_NAMES.get(wanted, wanted)
    for codec in codecs:
        if _bare(codec.mime) == wanted:
            return codec
    here = ", ".join(codec.mime for codec in codecs) or "none"
    raise ValueError(f"no codec for {readable(mime[:256])}, here: {here}")


def _bare(mime: str) -> str:
    return mime.partition(";")[0].strip().lower()


def checked_codecs(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return ``codecs`` as a tuple. Raise ``TypeError`` for what is no codec, ``ValueError`` for none at all."""
    if hasattr(codecs, "mime"):
        raise TypeError(f"codecs takes codecs in a list, not {type(codecs).__name__} alone")
    found = tuple(codecs)
    for each in found:
        if not all(hasattr(each, name) for name in ("mime", "encode", "decode")):
            raise TypeError(f"a codec has mime, encode and decode, and {type(each).__name__} has not")
    if not found:
        raise ValueError("codecs: at least one is needed")
    return found


def convert_text(text: str, kind: Any) -> Any:
    """Return ``text``, of a route or a payload, as ``kind``. Raise ``DecodeError`` if it does not fit."""
    if kind is str:
        return text
    if holds_model(kind):
        try:
            return _validator(kind, len(text)).validate_strings(text)
        except _pydantic().ValidationError as error:
            raise decode_error(error) from None
    msgspec = _msgspec()
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise decode_error(error) from None


def decode_text(data: bytes, kind: Any = str) -> Any:
    """Return ``data`` as UTF-8 text that fits ``kind``: ``str``, perhaps with constraints.

    Raise `DecodeError` for data that is not UTF-8, and for a text that breaks a constraint.
    """
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError("$", f"not UTF-8 at byte {error.start}") from None
    return convert_text(text, kind)


def check_type(kind: Any) -> None:
    """Refuse a type that no built-in codec can encode or decode.

    ``kind`` is an annotation. Raise ``TypeError``, which names the type, for a plain class, a function and the like,
    wherever they stand in ``kind``, and for unions whose members can't be told apart.
    """
    if holds_model(kind):
        _check_model(kind)
        return
    try:
        hash(kind)  # as a key of what is made for each type
        info = _inspect().type_info(kind)
    except (TypeError, NameError) as error:
        raise TypeError(f"{type_name(kind)} can't be encoded or decoded: {error}") from error
    for part in type_parts(info):
        if isinstance(part, _inspect().CustomType) and part.cls is not object:
            if not is_model(part.cls):
                where = "" if part.cls is kind else f", in {type_name(kind)}"
                raise TypeError(f"{type_name(part.cls)} can't be encoded or decoded{where}")
            _check_model(part.cls)


TEXT_KINDS = (
    "AnyType", "BoolType", "BytesType", "DateTimeType", "DateType", "DecimalType", "EnumType", "FloatType", "IntType",
    "LiteralType", "StrType", "TimeDeltaType", "TimeType", "UUIDType",
)  # fmt: skip
"""The names that msgspec has for the types that one text can be converted to."""


def check_text_type(kind: Any) -> None:
    """Refuse a type that no text can be converted to by `convert_text`. Raise ``TypeError``, which names it."""
    if kind is str:
        return
    check_type(kind)
    info = _inspect().type_info(kind)
    while isinstance(info, _inspect().Metadata):
        info = info.type
    parts = info.types if isinstance(info, _inspect().UnionType) else (info,)
    if not any(type(part).__name__ in TEXT_KINDS for part in parts):
        raise TypeError(f"{type_name(kind)} can't be made of a text")


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type as JSON shows it, with the classes that it is made of in ``$defs``.

    ``kind`` is an annotation. Raise ``TypeError`` for a type that `check_type` refuses, and for a model of pydantic
    that has no schema.
    """
    check_type(kind)
    if holds_model(kind):
        schema = _schema_of_model(kind)
    else:
        schema = _msgspec().json.schema(kind, schema_hook=_schema_of_custom)
    nested: dict[str, Any] = {}
    for definitions in _take_definitions(schema):
        for name, definition in definitions.items():
            nested.setdefault(name, definition)
    if nested:
        schema["$defs"] = {**schema.get("$defs", {}), **nested}
    return schema


def type_name(kind: Any) -> str:
    """Return the name of an annotation for messages: ``Order``, ``list[shop.Order]``, ``int | None``."""
    if isinstance(kind, type) and get_origin(kind) is None:
        return kind.__qualname__
    return repr(kind).replace("typing.", "")


class JSONCodec:
    """JSON, ``application/json``.

    NaN and the infinities are refused both ways, since JSON has none. Where a key occurs twice, the last one holds.
    Integers have at most 4,300 digits, and 64 bits where they are keys or members of sets.
    Bytes are base64 text. Dates, UUIDs and decimals are text, and named tuples are arrays.
    """

    __slots__ = ()
    mime = "application/json"

    def encode(self, value: object, /) -> bytes:
        """Return ``value`` as JSON. Raise ``TypeError`` for a type, ``ValueError`` for a value that JSON can't hold."""
        try:
            data = _json_encode()(value)
            if data.find(b"null") >= 0:  # ``in`` takes three times as long, as it tries an integer first
                _refuse_nan(value)  # msgspec writes null for it
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        return data

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return the object of type ``kind`` that ``data`` holds.

        Raise `DecodeError` if it does not fit, and ``TypeError`` for a type that `check_type` refuses.
        """
        return _read(_json_reader(kind), data)

    def __repr__(self) -> str:
        return "JSON"


class MessagePackCodec:
    """MessagePack, ``application/msgpack``.

    Dates with a time zone are its timestamps, and bytes its binary; UUIDs, decimals and other dates are text. NaN and
    the infinities are numbers. Extension types other than timestamps are refused. Where a key occurs twice, the last
    one holds.
    """

    __slots__ = ()
    mime = "application/msgpack"

    def encode(self, value: object, /) -> bytes:
        """Return ``value`` as MessagePack. Raise ``TypeError`` for a type, ``ValueError`` for too large an integer."""
        try:
            return _msgpack_encode()(value)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        except OverflowError as error:
            raise ValueError("an integer of more than 64 bits has no MessagePack") from error

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return the object of type ``kind`` that ``data`` holds.

        Raise `DecodeError` if it does not fit, and ``TypeError`` for a type that `check_type` refuses.
        """
        return _read(_msgpack_reader(kind), data)

    def __repr__(self) -> str:
        return "MESSAGEPACK"


class CBORCodec:
    """CBOR, ``application/cbor``.

    Values are written as in JSON, so that dates, UUIDs and decimals are text, and bytes are byte strings. Read are text
    and the tags for dates, big integers, decimals and UUIDs; other tags, shared references among them, are refused, and
    so are simple values without a meaning and keys that occur twice in one map. Integers have at most 4,300 digits, and
    64 bits where they are keys or members of sets. NaN and the infinities are numbers.
    """

    __slots__ = ()
    mime = "application/cbor"

    def encode(self, value: object, /) -> bytes:
        """Return ``value`` as CBOR. Raise ``TypeError`` for a type, ``ValueError`` for values nested too deeply."""
        try:
            return _cbor_encode()(value)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return the object of type ``kind`` that ``data`` holds.

        Raise `DecodeError` if it does not fit, and ``TypeError`` for a type that `check_type` refuses.
        """
        return _read(_cbor_reader(kind), data)

    def __repr__(self) -> str:
        return "CBOR"


class TextCodec:
    """Plain text in UTF-8, ``text/plain``: ``str`` only."""

    __slots__ = ()
    mime = "text/plain"

    def encode(self, value: object, /) -> bytes:
        """Return the text ``value`` as UTF-8. Raise ``TypeError`` for anything else."""
        if not isinstance(value, str):
            raise TypeError(f"text/plain carries str, not {type_name(type(value))}")
        return value.encode()

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return ``data`` as text. Raise `DecodeError` if it is no UTF-8, or ``kind`` does not take ``str``."""
        if kind is not str and not _takes(kind, str):
            raise DecodeError("$", f"expected {type_name(kind)}, got text/plain, which carries str")
        return decode_text(data)

    def __repr__(self) -> str:
        return "TEXT"


class BytesCodec:
    """Bytes as they are, ``application/octet-stream``: ``bytes`` only."""

    __slots__ = ()
    mime = "application/octet-stream"

    def encode(self, value: object, /) -> bytes:
        """Return ``value``, which must be bytes or the like. Raise ``TypeError`` for anything else."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"application/octet-stream carries bytes, not {type_name(type(value))}")
        return bytes(value)

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return ``data``. Raise `DecodeError` if ``kind`` does not take ``bytes``."""
        if kind is not bytes and not _takes(kind, bytes):
            raise DecodeError("$", f"expected {type_name(kind)}, got application/octet-stream, which carries bytes")
        return data

    def __repr__(self) -> str:
        return "BYTES"


JSON = JSONCodec()
"""JSON by msgspec, ``application/json``."""
MESSAGEPACK = MessagePackCodec()
"""MessagePack by msgspec, ``application/msgpack``."""
CBOR = CBORCodec()
"""CBOR by cbor2, ``application/cbor``."""
TEXT = TextCodec()
"""Text in UTF-8, ``text/plain``."""
BYTES = BytesCodec()
"""Bytes as they are, ``application/octet-stream``."""

DEFAULT_CODECS: Final = (JSON, MESSAGEPACK, CBOR, TEXT, BYTES)
"""The codecs of who names none, the preferred one first."""

OTHER_NAMES = {
    "application/x-msgpack": MESSAGEPACK.mime,
    "application/vnd.msgpack": MESSAGEPACK.mime,
    "application/messagepack": MESSAGEPACK.mime,
    "text/json": JSON.mime,
    "application/x-json": JSON.mime,
}
"""Other names that peers give to MIME types. They are understood, and never sent."""


def _read(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Return what ``read`` makes of ``data``. Raise `DecodeError` for data that does not fit."""
    try:
        return read(data)
    except (ValueError, RecursionError) as error:
        raise decode_error(error) from error
    except TypeError as error:
        if "unhashable type" not in str(error):
            raise  # of a validator
        raise DecodeError("$", UNHASHABLE) from error


# Errors of the libraries in one form


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
        return _of_pydantic(error)
    text = str(error)
    path = "$"
    if text.endswith("`") and " - at `" in text:
        text, _, path = text[:-1].rpartition(" - at `")
        path = path.replace("`", "")
    inner = error.__cause__
    of_key = path.startswith("key in ")
    path = path.removeprefix("key in ")
    if isinstance(inner, DecodeError):
        return _joined(inner._faults or (inner,), path)
    if inner is not None:
        return DecodeError(path, text)  # a class words its own refusals
    return DecodeError(path, f"key: {_as_reason(text)}" if of_key else _as_reason(text))


def _as_reason(text: str) -> str:
    """Return text of msgspec in small letters, with types as they are called in JSON and without quotes."""
    text = text.removeprefix("Object contains ").removeprefix("Object ")
    first = text.partition(" ")[0]
    if first[1:].islower():
        text = first.lower() + text[len(first) :]
    if not text.startswith("expected"):
        return text
    expected, comma, got = text.replace("`", "").partition(", got ")
    return NONE.sub("null", expected) + comma + JSON_TYPES.get(got, got.rpartition(".")[2])


NONE = re.compile(r"\bNone\b")
"""The name of null in some codecs of msgspec."""
PYDANTIC_TYPES = {"string": "str", "dict": "object", "model": "object", "dataclass": "object", "list": "array"}
"""The names of pydantic's types of errors in messages, where they are not their own."""
JSON_TYPES = {"dict": "object", "list": "array", "tuple": "array", "NoneType": "null", "None": "null"}
"""The names of Python's types in messages, as msgspec has them, where they are not their own."""
MOST_FAULTS = 1000
"""Faults that pydantic finds in one value up to which they are described; that makes objects for all of them."""


def is_model_error(error: BaseException) -> bool:
    """Return whether ``error`` is the one that pydantic raises for data that does not fit."""
    return "pydantic" in sys.modules and isinstance(error, _pydantic().ValidationError)


def _of_pydantic(error: Any) -> DecodeError:
    """Return all faults that pydantic found as one error, or as many as it may hold and the number of the others."""
    if (count := error.error_count()) > MOST_FAULTS:
        return DecodeError("$", f"{count} faults")
    return _joined([_fault(fault) for fault in error.errors(include_url=False, include_context=False)])


def _joined(faults: Sequence[DecodeError], path: str = "$") -> DecodeError:
    """Return ``faults`` of the value at ``path`` as one error: as many as it may hold, and the number of the others."""
    first, *others = placed = [DecodeError(path + fault.path.removeprefix("$"), fault.reason) for fault in faults]
    most, reason = MOST_OF_ERROR - len(f"{first.path}: "), first.reason
    for left, fault in zip(range(len(others), 0, -1), others, strict=True):
        longer = f"{reason}; {fault}"
        if len(longer) + (len(_rest(left - 1)) if left > 1 else 0) > most:
            # The first fault alone may be as long as an error: then it is cut.
            reason = _shortened(reason, most - len(_rest(left))) + _rest(left)
            break
        reason = longer
    error = DecodeError(first.path, reason)
    error._faults = tuple(placed)
    return error


def _rest(count: int) -> str:
    return f"; and {count} more"


def _fault(fault: Any) -> DecodeError:
    """Return one of the faults that pydantic found."""
    place = fault["loc"]
    what = fault["type"]
    if what == "missing":
        *place, name = place
        reason = f"missing required field `{name}`"
    elif what == "extra_forbidden":
        *place, name = place
        reason = f"unknown field `{name}`"
    elif what == "recursion_loop":
        reason = "nested too deeply"
    elif match := re.fullmatch(r"(\w+?)_(?:type|parsing|from_float|from_date_parsing|attributes_type)", what):
        got = type(fault["input"]).__name__
        reason = f"expected {PYDANTIC_TYPES.get(match[1], match[1])}, got {JSON_TYPES.get(got, got)}"
    elif what in ("value_error", "assertion_error"):
        reason = fault["msg"].partition(", ")[2]
    else:
        reason = _as_reason(fault["msg"])
    return DecodeError(_path(["$", *place]), reason)


# JSON: numbers that msgspec writes, and JSON does not have

NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""NaN and the infinities in MessagePack, and perhaps other data that looks like them."""


def _refuse_nan(value: object) -> None:
    """Raise ``ValueError`` if there is a number in ``value`` that JSON does not have."""
    try:
        if NOT_FINITE.search(_msgpack_encode()(value)) is None:
            return
    except (OverflowError, TypeError):
        pass  # an integer, or a part of a model, that MessagePack does not have
    # Of each level there is one name: a path for each value could take as much memory as all keys together, squared.
    names: list[object] = []
    levels: list[Iterator[tuple[Any, object]]] = [
        iter([("$", _msgspec().to_builtins(value, enc_hook=_encode_with_nan))])
    ]
    while levels:
        for name, part in levels[-1]:
            if isinstance(part, float) and not isfinite(part):
                raise ValueError(f"{_path([*names, name])}: {part} has no JSON")
            if isinstance(part, dict | list | tuple):
                names.append(name)
                levels.append(iter(part.items() if isinstance(part, dict) else enumerate(part)))
                break
        else:
            levels.pop()
            del names[-1:]


def _path(names: Iterable[object]) -> str:
    """Return the path of a value: the names are ``$``, keys, and the numbers of items."""
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names).removeprefix(".")


# What is made once, or once for each type


@cache
def _json_encode() -> Callable[[object], bytes]:
    encode: Callable[[object], bytes] = _msgspec().json.Encoder(enc_hook=_encode_for_json).encode
    return encode


@lru_cache(KINDS_KEPT)
def _json_reader(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that reads a JSON text as ``kind``."""
    check_type(kind)
    read, tables = _json_reader_of_any_keys(kind), _tables_of_type(kind)
    if not tables.numbers_of_texts and not tables.sets:
        return read

    def read_checked(data: bytes) -> Any:
        if len(data) > ANY_KEYS_SIZE:
            if len(data) > MOST_CONTAINERS:
                limit_containers(data, JSON_FORM)
            Tables(limit_parts=False, sets=tables.sets, texts=True).check(_untyped_json(data))
        return read(data)

    return read_checked


def _untyped_json(data: bytes) -> Any:
    """Return the value of a JSON text. Numbers that are out of range are in range where the type may take them."""
    msgspec = _msgspec()
    try:
        return msgspec.json.decode(data)
    except msgspec.ValidationError:
        return msgspec.json.Decoder(float_hook=float).decode(MORE_DIGITS.sub(b"0", data))


def _json_reader_of_any_keys(kind: Any) -> Callable[[bytes], Any]:
    if holds_model(kind):
        return partial(_read_model_in_json, kind)
    make = _msgspec().json.Decoder
    read: Callable[[bytes], Any] = make(kind, dec_hook=_decode_model).decode
    form = form_without_hashes(_inspect().type_info(kind), text_keys=True, rest=_msgspec().Raw)
    if form is None:
        return read
    check = make(form, dec_hook=check_hashed).decode

    def read_hashed(data: bytes) -> Any:
        if LONG_INTEGER.search(data) is not None:
            check(data)
        return read(data)

    return read_hashed


MORE_DIGITS = re.compile(rb"[0-9]{4301,}+")
"""More digits than an integer may have."""
LARGE_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
MANY_DIGITS = b"0" * 200
"""Digits in a row, one of two signs that JSON may have a number out of range; the other is a large exponent."""
LONG_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*+"|([0-9.eE+-]{5,}+)')
"""The next string of JSON, or the next number that may be out of range."""


def _read_model_in_json(kind: Any, data: bytes) -> Any:
    """Return what pydantic makes of a JSON text. Refuse what it lets pass, and msgspec does not."""
    if len(data) > MOST_CONTAINERS:
        limit_containers(data, JSON_FORM)
    decode = _msgspec().json.decode
    decode(data, type=_msgspec().Raw)  # refuses NaN and depth, and makes no objects
    # A regular expression would count the digits of each run from each of them.
    if LARGE_EXPONENT.search(data) is not None or data.translate(DIGITS_ALIKE).find(MANY_DIGITS) >= 0:
        for match in LONG_NUMBER.finditer(data):
            if match[1] is not None:
                decode(match[1])  # refuses what is out of range
    return _validator(kind, len(data)).validate_json(data)


@cache
def _msgpack_encode() -> Callable[[object], bytes]:
    encode: Callable[[object], bytes] = _msgspec().msgpack.Encoder(enc_hook=_encode_for_binary).encode
    return encode


@lru_cache(KINDS_KEPT)
def _msgpack_reader(kind: Any) -> Callable[[bytes], Any]:
    check_type(kind)
    decoder = _msgspec().msgpack.Decoder
    tables = _tables_of_type(kind)
    check: Callable[[bytes], Any] | None = None
    if holds_model(kind):
        untyped = decoder(ext_hook=_refuse_extension).decode

        def read(data: bytes) -> Any:
            if len(data) > MOST_CONTAINERS:
                limit_containers(data, MESSAGEPACK_FORM)
            return _validator(kind, len(data)).validate_python(untyped(data))

    else:
        read = decoder(kind, dec_hook=_decode_model, ext_hook=_refuse_extension).decode
        info = _inspect().type_info(kind)
        if has_untyped_set(info):
            form = form_without_hashes(info, text_keys=False, rest=_msgspec().Raw)
            check = decoder(form, dec_hook=check_hashed, ext_hook=_refuse_extension).decode

    def read_checked(data: bytes) -> Any:
        if len(data) > ANY_KEYS_SIZE:
            _check_tables_of_msgpack(data, tables)
        if check is not None:
            check(data)  # else arrays become tuples
        return read(data)

    return read_checked if tables.numbers or tables.sets else read


def _check_tables_of_msgpack(data: bytes, wanted: TablesOfType) -> None:
    _msgspec().msgpack.decode(data, type=_msgspec().Raw)  # refuses malformed data, and makes no objects
    marked = mark_large_maps(data, MESSAGEPACK_FORM)
    if marked is None and not wanted.sets:
        return
    if len(data) > MOST_CONTAINERS:
        limit_containers(data, MESSAGEPACK_FORM)
    try:
        value = _msgspec().msgpack.decode(marked or data, ext_hook=_mark)
    except TypeError:
        if not wanted.limit_parts:
            return  # a key that is a map, which the type may have
        raise
    Tables(limit_parts=wanted.limit_parts, sets=wanted.sets, texts=wanted.numbers_of_texts).check(value)


def _mark(code: int, _data: memoryview) -> Mark | None:
    return MARK if code == MARK_CODE else None  # other ones are refused where the type has them


def _refuse_extension(code: int, _data: memoryview) -> None:
    raise DecodeError("$", f"MessagePack extension {code}")


@cache
def _cbor_encode() -> Callable[[object], bytes]:
    to_builtins, dumps = _msgspec().to_builtins, _cbor2().dumps

    def encode(value: object) -> bytes:
        built = to_builtins(value, builtin_types=(bytes, bytearray), enc_hook=_encode_for_binary)
        data: bytes = dumps(built)
        return data

    return encode


SELF_DESCRIBED = b"\xd9\xd9\xf7"
"""The tag that says of what follows that it is CBOR."""
CBOR_TAGS_REFUSED = {5, 25, 28, 29, 30, 35, 36, 52, 54, 256, 258, 260, 261, 43000}
"""Tags that cbor2 makes objects for, except dates (0, 1, 100, 1004), big integers (2, 3), decimals (4) and UUIDs (37).

As they are converted, shared references (28, 29) could outgrow all memory.
"""
CBOR_SIMPLE = re.compile(rb"[\xe0-\xf3\xf7\xf8]")
"""The beginning of a simple value other than true, false and null, and perhaps other data."""


CBOR_CHECKED = re.compile(rb"[\xc2-\xc4\xd8-\xdb]")
"""The beginning of a big integer, a decimal, a UUID or a tag in more bytes, and perhaps other data."""
MAX_DIGITS = 4300
"""Decimal digits of an integer, as msgspec and Python themselves have it: to read n of them costs n squared."""
MAX_INTEGER = 10**MAX_DIGITS - 1
MAX_BYTES = (MAX_INTEGER.bit_length() + 7) // 8
EXPONENTS = range(-MAX_DIGITS, 129)
"""Exponents of a decimal: pydantic may make an integer of one, which costs a large exponent squared."""
ANY_KEYS_SIZE = 16 * 1024
"""Bytes of data without a type in which keys may be of every type: n squared is little there."""


class TablesOfType(NamedTuple):
    """The dictionaries and sets of a type, which say what may be hashed of data that is decoded without it."""

    only_text: bool = False
    """All keys are text or bytes."""
    numbers: bool = True
    """Keys may be numbers, times or others whose hashes a peer foresees."""
    numbers_of_texts: bool = True
    """Texts may become numbers that are keys or members."""
    sets: bool = True
    """Members of sets may be such values."""
    limit_parts: bool = True
    """No keys are arrays or maps, but for parts of which the type says nothing."""
    tags: frozenset[int] = frozenset()
    """Some keys are tagged like this in CBOR, and have hashes that can be made alike."""


@lru_cache(KINDS_KEPT)
def _tables_of_type(kind: Any) -> TablesOfType:
    if holds_model(kind):
        hashes = hashes_numbers(_adapter(kind).core_schema)
        return TablesOfType(numbers_of_texts=hashes, sets=hashes)
    info, inspect = _inspect().type_info(kind), _inspect()
    keys, members = key_types(info), member_types(info)
    custom = [part.cls for part in type_parts(info) if isinstance(part, inspect.CustomType)]
    untyped = bool(custom) or any(isinstance(part, inspect.AnyType) for part in type_parts(info))
    models = any(is_model(cls) and hashes_numbers(_adapter(cls).core_schema) for cls in custom)
    return TablesOfType(
        only_text=not untyped and keys <= {"StrType", "BytesType"},
        numbers=untyped or not keys <= NOT_FORESEEN,
        numbers_of_texts=models or not keys.isdisjoint({"IntType", "FloatType"}),
        sets=models or not members <= NOT_FORESEEN,
        limit_parts=keys.isdisjoint(TYPES_WITH_PARTS),
        tags=frozenset(tag for tag, name in ((4, "DecimalType"), (37, "UUIDType")) if name in keys),
    )


NOT_FORESEEN = {
    *("StrType", "BytesType", "NoneType", "BoolType", "DateType", "EnumType", "LiteralType", "DecimalType", "UUIDType"),
}
"""The names that msgspec has for types of keys and members that `Tables` does not look at."""
TYPES_WITH_PARTS = {
    *("TupleType", "VarTupleType", "FrozenSetType", "NamedTupleType", "StructType", "DataclassType", "CustomType"),
}
"""The names that msgspec has for types of keys that are arrays or maps."""


@lru_cache(KINDS_KEPT)
def _cbor_reader(kind: Any) -> Callable[[bytes], Any]:
    check_type(kind)
    tables = _tables_of_type(kind)
    untyped = _cbor_untyped(tables)

    def checked(data: bytes) -> Any:
        value = untyped(data)
        if (tables.sets or tables.numbers_of_texts) and len(data) > ANY_KEYS_SIZE:
            Tables(limit_parts=False, sets=tables.sets, texts=tables.numbers_of_texts).check(value)
        return value

    if holds_model(kind):
        return lambda data: _validator(kind, len(data)).validate_python(checked(data))
    convert = _msgspec().convert
    form = form_without_hashes(_inspect().type_info(kind), text_keys=False, rest=Any)

    def read(data: bytes) -> Any:
        value = checked(data)
        if form is not None and CBOR_CHECKED.search(data) is not None:
            convert(value, form, dec_hook=check_hashed)  # cbor2 has lists for sets
        return convert(value, kind, dec_hook=_decode_model)

    return read


@cache
def _cbor_untyped(tables: TablesOfType) -> Callable[[bytes], Any]:
    """Return a function that reads CBOR without a type."""
    to_builtins = _msgspec().to_builtins
    decoders: dict[int, Callable[[Any, bool], Any]] = {
        **{number: _refusal_of_tag(number) for number in CBOR_TAGS_REFUSED},
        2: partial(_integer_of_cbor, 1),
        3: partial(_integer_of_cbor, -1),
        4: partial(_decimal_of_cbor, 4 in tables.tags),
        37: partial(_uuid_of_cbor, 37 in tables.tags),
    }

    def read(data: bytes) -> Any:
        if len(data) > MOST_CONTAINERS:
            limit_containers(data, CBOR_FORM)
        is_long = len(data) > ANY_KEYS_SIZE
        if is_long and not tables.only_text and (marked := mark_large_maps(data, CBOR_FORM)) is not None:
            check = Tables(limit_parts=tables.limit_parts, sets=False, texts=False).check_keys
            _cbor_value(marked, {**decoders, MARK_TAG: partial(_check_map_of_cbor, check)}, only_text=False)
        value = _cbor_value(data, decoders, only_text=is_long and tables.only_text)
        if CBOR_SIMPLE.search(data) is not None:
            try:
                to_builtins(value, builtin_types=(bytes, bytearray))
            except TypeError as error:
                raise DecodeError("$", "CBOR has a simple value without a meaning") from error
        return value

    return read


def _cbor_value(data: bytes, decoders: dict[int, Callable[[Any, bool], Any]], *, only_text: bool) -> Any:
    """Return the value of data, with what decodes each tag. ``only_text`` refuses other keys than text and bytes."""
    cbor2 = _cbor2()
    decoder = cbor2.CBORDecoder(
        BytesIO(data.removeprefix(SELF_DESCRIBED)),
        strict_hashable_types=only_text,
        semantic_decoders=decoders,
        tag_hook=_refuse_tag,
        allow_duplicate_keys=False,
    )
    try:
        value = decoder.decode()
    except cbor2.CBORDecodeEOF as error:
        raise DecodeError("$", "input data was truncated") from error
    except cbor2.CBORDecodeError as error:
        raise _of_cbor(error) from error
    try:
        decoder.read(1)
    except cbor2.CBORDecodeEOF:
        return value
    raise DecodeError("$", "CBOR is malformed: trailing bytes")


def _check_map_of_cbor(check: Callable[[Sequence[Any]], None], items: Any, _immutable: bool) -> Mark:
    """Check the keys of a map that was marked, and return what is no other key; the items are the mark, keys and
    values."""
    if type(items) not in (list, tuple) or not items or items[0] is not None:
        raise DecodeError("$", f"CBOR tag {MARK_TAG}")
    if len(items) > 2 * LARGE_MAP:
        try:
            check(items[1::2])
        except ValueError as error:
            raise DecodeError("$", str(error)) from None
    return Mark()


NO_TEXT = "map key must be a text string or byte string"
"""The reason of cbor2 for other keys."""


def _integer_of_cbor(sign: int, data: Any, immutable: bool) -> int:
    """Return the integer of tag 2, or with the ``sign`` -1 that of tag 3; ``immutable`` says that it is in a key."""
    if type(data) is not bytes:
        raise DecodeError("$", "CBOR is malformed: a big integer is a byte string")
    if len(data) < 8:
        value = int.from_bytes(data)
        return value if sign > 0 else -1 - value
    data = data.lstrip(b"\x00")
    if immutable and 8 * len(data) > MAX_BITS:
        raise DecodeError("$", TOO_LARGE)
    if len(data) <= MAX_BYTES:
        value = int.from_bytes(data, "big") + (sign < 0)
        if value <= MAX_INTEGER:
            return sign * value
    raise DecodeError("$", f"integer of more than {MAX_DIGITS} digits")


def _decimal_of_cbor(as_key: bool, parts: Any, immutable: bool) -> Decimal:
    """Return the decimal of tag 4. ``as_key`` says whether it may be a key."""
    if immutable and not as_key:
        raise DecodeError("$", "CBOR tag 4 in a key")
    if type(parts) not in (list, tuple) or len(parts) != 2 or type(parts[0]) is not int or type(parts[1]) is not int:
        raise DecodeError("$", "CBOR is malformed: a decimal is two integers")
    exponent, mantissa = parts
    if exponent not in EXPONENTS:
        raise DecodeError("$", f"decimal with an exponent beyond {EXPONENTS[0]} to {EXPONENTS[-1]}")
    return Decimal(f"{mantissa}E{exponent}")


def _uuid_of_cbor(as_key: bool, data: Any, immutable: bool) -> UUID:
    """Return the UUID of tag 37. ``as_key`` says whether it may be a key."""
    if immutable and not as_key:
        raise DecodeError("$", "CBOR tag 37 in a key")
    if not isinstance(data, bytes) or len(data) != 16:
        raise DecodeError("$", "CBOR is malformed: a UUID is 16 bytes")
    return UUID(bytes=data)


def _refuse_tag(tag: Any, _immutable: bool) -> None:
    raise DecodeError("$", f"CBOR tag {tag.tag}")


def _refusal_of_tag(number: int) -> Callable[[Any, bool], None]:
    def refuse(_value: Any, _immutable: bool) -> None:
        raise DecodeError("$", f"CBOR tag {number}")

    return refuse


def _of_cbor(error: Exception) -> DecodeError:
    cause = error.__cause__
    if isinstance(cause, DecodeError | UnicodeDecodeError | RecursionError):
        return decode_error(cause)
    text = str(error)
    if "nesting depth" in text:
        return DecodeError("$", "nested too deeply")
    if NO_TEXT in text:
        return DecodeError("$", f"key of type {text.rpartition(' ')[2]}, where keys are text or bytes")
    if ": Duplicate map key: " in text:
        return DecodeError("$", f"key {text.partition('key: ')[2]} occurs twice")
    return DecodeError("$", f"CBOR is malformed: {text}")


# How many objects data would make

MOST_CONTAINERS = 250_000
"""Arrays and objects that are made without a type: one of a byte or three each, take up to 230 bytes of memory."""


class Form:
    """The heads of values in a format, as regular expressions over runs of them, since there may be millions.

    ``short`` is a number, a short string or the like, ``opening`` the head of an array or a map, and ``openings`` are
    the bytes that those begin with. ``long`` says how many bytes the length of a longer string has, by its first byte,
    and how many bytes follow beside the string.

    ``large_map`` is the head of a map of 64 pairs or more, whose length has a byte of its own at least, and ``mark``
    what stands in the place of one: the head of an array whose length of ``mark_width`` bytes follows, and behind that
    ``mark_item``.
    """

    def __init__(
        self,
        short: bytes,
        opening: bytes,
        openings: bytes,
        long: dict[int, tuple[int, int]],
        *,
        large_map: bytes = b"",
        mark: bytes = b"",
        mark_width: int = 0,
        mark_item: bytes = b"",
    ) -> None:
        self.short = re.compile(rb"(?:%b)*+" % short, re.DOTALL)
        self.opened = tuple(
            (count, re.compile(rb"(?:(?:%b)(?:%b){0,64}+){%d}+" % (opening, short, count), re.DOTALL))
            for count in (1000, 100, 10, 1)
        )
        self.openings = openings
        self.long = long
        self.large_map = re.compile(rb"(?:%b)" % large_map, re.DOTALL)
        self.to_large_map = re.compile(rb"(?:(?!%b)(?:%b|%b))*+" % (large_map, opening, short), re.DOTALL)
        self.mark, self.mark_width, self.mark_item = mark, mark_width, mark_item


CBOR_TAG = rb"[\xc0-\xd7]|\xd8.|\xd9..|\xda.{4}|\xdb.{8}"
CBOR_ITEM = (
    rb"[\x00-\x17\x20-\x37\xe0-\xf7]|[\x18\x38\xf8].|[\x19\x39\xf9]..|[\x1a\x3a\xfa].{4}|[\x1b\x3b\xfb].{8}|"
    + b"|".join(rb"[\x%02x\x%02x].{%d}" % (0x40 + size, 0x60 + size, size) for size in range(24))
)
CBOR_DEPTH = 400
"""Levels of arrays and maps that cbor2 reads."""
LARGE_MAP = 64
"""Pairs of a large map."""


def _above_63(width: int) -> bytes:
    """Return what matches a number of so many bytes above 63."""
    return rb"(?:(?!\x00{%d}[\x00-\x3f]).{%d})" % (width - 1, width)


LARGE_CBOR_MAPS = [rb"\xb9" + _above_63(2), rb"\xba" + _above_63(4), rb"\xbb" + _above_63(8)]
CBOR_HEAD = rb"[\x80-\x97\xa0-\xb7]|[\x98\xb8].|[\x99\xb9]..|[\x9a\xba].{4}|[\x9b\xbb].{8}"


def _few_cbor_items(levels: int) -> bytes:
    """Return what matches the items of a small map, in which so many levels of arrays and maps have no length."""
    inner = rb"|[\x5f\x7f\x9f\xbf]%b\xff" % _few_cbor_items(levels - 1) if levels else b""
    return rb"(?:%b|%b|%b%b){0,%d}+" % (CBOR_TAG, CBOR_ITEM, CBOR_HEAD, inner, 2 * LARGE_MAP - 1)


MARK_TAG = 0x6D61726B
MARK_CODE = 0x6D
"""A tag of CBOR, and an extension of MessagePack, for a map that is read as an array: data has neither."""
JSON_FORM = Form(rb'[^"\[{]++|"(?:[^"\\]++|\\.)*+"', rb"[\[{]", b"[{", {})
CBOR_FORM = Form(
    rb"[\x5f\x7f\xff]|%b|%b" % (CBOR_ITEM, CBOR_TAG),
    rb"[\x80-\x97\x9f-\xb7\xbf]|[\x98\xb8].|[\x99\xb9]..|[\x9a\xba].{4}|[\x9b\xbb].{8}",
    bytes(range(0x80, 0xC0)),
    {first + width: (1 << width, 0) for first in (0x58, 0x78) for width in range(4)},
    large_map=b"|".join((rb"\xb8[\x40-\xff]", *LARGE_CBOR_MAPS, rb"\xbf(?!%b\xff)" % _few_cbor_items(2))),
    mark=b"\xda" + MARK_TAG.to_bytes(4, "big") + b"\x9b",
    mark_width=8,
    mark_item=b"\xf6",
)
MESSAGEPACK_ITEM = (
    rb"[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8}|"
    rb"\xd4.{2}|\xd5.{3}|\xd6.{5}|\xd7.{9}|\xd8.{17}|"
    + b"|".join(rb"\x%02x.{%d}" % (0xA0 + size, size) for size in range(32))
)
MESSAGEPACK_FORM = Form(
    MESSAGEPACK_ITEM,
    rb"[\x80-\x9f]|[\xdc\xde]..|[\xdd\xdf].{4}",
    bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0))),
    {
        **{first + width: (1 << width, 0) for first in (0xC4, 0xD9) for width in range(3)},
        **{0xC7 + width: (1 << width, 1) for width in range(3)},
    },
    large_map=rb"\xde%b|\xdf%b" % (_above_63(2), _above_63(4)),
    mark=b"\xdd",
    mark_width=4,
    mark_item=bytes([0xC7, 0, MARK_CODE]),
)


def mark_large_maps(data: bytes, form: Form) -> bytes | None:
    """Return the data with arrays in place of large maps, whose keys can be looked at so, or ``None`` if it has none.

    Malformed data passes, as its decoder will say so. Raise `DecodeError` for data that is nested too deeply.
    """
    if form.large_map.search(data) is None:
        return None  # keys collide with those of the same map only
    parts: list[bytes] = []
    at = done = depth = 0
    while at < len(data):
        at = form.to_large_map.match(data, at).end()  # type: ignore[union-attr]
        if found := form.large_map.match(data, at):
            # What has no length is open until a byte 0xFF comes.
            depth = depth + 1 if len(found[0]) == 1 and b"\xff" not in data[done:at] else 0
            if depth > CBOR_DEPTH:
                raise DecodeError("$", "nested too deeply")
            parts += data[done:at], _marked(found[0], form), form.mark_item
            at = done = found.end()
        elif (behind := _behind_long(data, form, at)) is not None:
            at = behind
        else:
            break
    return b"".join((*parts, data[done:])) if parts else None


def _marked(head: bytes, form: Form) -> bytes:
    """Return the head of the array for a map: of one item, and two for each pair."""
    if len(head) == 1:
        return form.mark[:-1] + b"\x9f"
    most = (1 << 8 * form.mark_width) - 1
    return form.mark + min(most, 2 * int.from_bytes(head[1:], "big") + 1).to_bytes(form.mark_width, "big")


def _behind_long(data: bytes, form: Form, at: int) -> int | None:
    """Return the end of the longer string at a place, or ``None`` if there is none."""
    if at >= len(data) or data[at] not in form.long:
        return None
    width, more = form.long[data[at]]
    return min(len(data), at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big") + more)


def limit_containers(data: bytes, form: Form) -> None:
    """Raise `DecodeError` for data of too many arrays and objects, before they are made."""
    size = len(data)
    if size - len(data.translate(None, form.openings)) <= MOST_CONTAINERS:
        return  # in most data there are not so many of these bytes
    at = found = 0
    while found <= MOST_CONTAINERS:
        short = form.short.match(data, at)
        at = at if short is None else short.end()
        if at >= size:
            return
        for count, pattern in form.opened if data[at] in form.openings else ():
            if opened := pattern.match(data, at):
                found, at = found + count, opened.end()
                break
        else:
            behind = _behind_long(data, form, at)
            if behind is None:
                return  # malformed, as the decoder will say
            at = behind
    raise _too_many()


def _too_many() -> DecodeError:
    return DecodeError("$", f"more than {MOST_CONTAINERS} arrays and objects")


# pydantic's models, which msgspec hands over by its hooks


def is_model(kind: Any) -> bool:
    """Return whether ``kind`` is a model or a dataclass of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def holds_model(kind: Any) -> bool:
    """Return whether ``kind`` is a model of pydantic or names one among its arguments, as ``list[Model]`` does."""
    if "pydantic" not in sys.modules:
        return False
    if is_model(kind) or has_constraint(kind):
        return True
    if is_typeddict(kind) and any(map(has_constraint, get_type_hints(kind, include_extras=True).values())):
        return True
    kind = getattr(kind, "__value__", kind)  # of a `type` statement
    return any(holds_model(one) for one in (get_origin(kind), *get_args(kind)) if one is not None and one is not kind)


def has_constraint(kind: Any) -> bool:
    """Return whether ``kind`` has a constraint of pydantic, which msgspec ignores: ``Annotated[int, Field(gt=0)]``."""
    if get_origin(kind) in (Required, NotRequired):
        return has_constraint(get_args(kind)[0])
    if get_origin(kind) is not Annotated:
        return False
    return any(type(one).__module__.partition(".")[0] in ("pydantic", "annotated_types") for one in kind.__metadata__)


@lru_cache(KINDS_KEPT)
def _adapter(kind: Any) -> Any:
    if is_typeddict(kind) and sys.version_info < (3, 12):
        # There pydantic takes those of typing_extensions only, on which it depends.
        made = import_module("typing_extensions").TypedDict
        kind = made(kind.__name__, get_type_hints(kind, include_extras=True), total=kind.__total__)
    return _pydantic().TypeAdapter(kind)


ALL_FAULTS_SIZE = 4096
"""Bytes of data in which a model of pydantic looks for all faults; in more each array and object stops at one."""


def _validator(kind: Any, size: int) -> Any:
    """Return pydantic's validator of a type for data of this size, with bounds for the integers that it hashes."""
    return _bounded_validator(kind, size > ALL_FAULTS_SIZE)


@lru_cache(2 * KINDS_KEPT)
def _bounded_validator(kind: Any, stops: bool) -> Any:
    """Return pydantic's validator of a type. If it ``stops``, then in each array and object at the first fault."""
    adapter = _adapter(kind)
    schema = bound_schema(adapter.core_schema)
    if stops:
        schema = stop_at_faults(schema, _failing_fast())
    if schema is adapter.core_schema:
        return adapter.validator
    make = _pydantic_core().SchemaValidator
    if "_use_prebuilt" not in (make.__text_signature__ or ""):
        return make(schema)
    return make(schema, None, _use_prebuilt=False)  # else it takes the validators that classes have


@cache
def _failing_fast() -> set[str]:
    """Return the containers that this pydantic can leave at the first fault; old ones can't leave all of them so."""
    schemas = _pydantic_core().core_schema
    kinds = ("list", "tuple", "set", "frozenset", "dict")
    return {kind for kind in kinds if "fail_fast" in signature(getattr(schemas, f"{kind}_schema")).parameters}


def _check_model(kind: Any) -> None:
    try:
        _adapter(kind)
    except (_pydantic().errors.PydanticUserError, TypeError, NameError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(f"{type_name(kind)} can't be encoded or decoded: {reason}") from error


def _decode_model(kind: Any, value: object) -> object:
    """Make an object of a type that msgspec does not know: inside of one that it knows."""
    if not is_model(kind):
        return value  # of ``object``: other types were refused when their reader was made
    try:
        return _bounded_validator(kind, True).validate_python(value)
    except _pydantic().ValidationError as error:
        raise decode_error(error) from None


def _schema_of_model(kind: Any) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = _adapter(kind).json_schema()
    except _pydantic().PydanticUserError as error:
        raise TypeError(f"{type_name(kind)} has no JSON Schema: {str(error).partition(chr(10))[0]}") from error
    return schema


def _schema_of_custom(kind: Any) -> dict[str, Any]:
    return _schema_of_model(kind) if is_model(kind) else {"description": "anything"}


def _encode_for_json(value: Any) -> object:
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type_name(type(value))} can't be encoded")


def _encode_with_nan(value: Any) -> object:
    """Return a model with the numbers that pydantic writes as null, unless a serializer of its own may do so."""
    kind: Any = type(value)
    return _encode_for_json(value) if not is_model(kind) or _serializes_for_json(kind) else _encode_for_binary(value)


@lru_cache(KINDS_KEPT)
def _serializes_for_json(kind: Any) -> bool:
    """Return whether a model has serializers for JSON alone."""
    return "'when_used': 'json" in repr(_adapter(kind).core_schema)


def _encode_for_binary(value: Any) -> object:
    if is_model(type(value)):
        return value.model_dump(by_alias=True)  # bytes and dates stay what they are
    if "pydantic" in sys.modules:  # a path, an address or a secret of a model
        kind: Any = type(value)
        try:
            return _adapter(kind).dump_python(value, mode="json")
        except _pydantic().PydanticUserError:
            pass
    raise TypeError(f"{type_name(type(value))} can't be encoded")


def _take_definitions(schema: object, top: bool = True) -> Iterator[dict[str, Any]]:
    """Take the definitions out of the schemas inside of ``schema``: references begin at the top."""
    if isinstance(schema, dict):
        if not top and isinstance(found := schema.get("$defs"), dict):
            yield from _take_definitions(found, False)
            yield schema.pop("$defs")
        for part in list(schema.values()):
            yield from _take_definitions(part, False)
    elif isinstance(schema, list):
        for part in schema:
            yield from _take_definitions(part, False)


def _takes(kind: Any, wanted: type) -> bool:
    """Return whether a value of the type ``wanted`` fits the annotation ``kind``."""
    if kind is Any or kind is object or kind is wanted:
        return True
    if get_origin(kind) in (Union, UnionType):
        return any(_takes(one, wanted) for one in get_args(kind))
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else getattr(kind, "__supertype__", None)
    return inner is not None and _takes(inner, wanted)


# The libraries, each when it is first needed


@cache
def _msgspec() -> Any:
    import msgspec

    return msgspec


@cache
def _inspect() -> Any:
    _msgspec()
    import msgspec.inspect

    return msgspec.inspect


@cache
def _cbor2() -> Any:
    try:
        import cbor2
    except ImportError as error:
        raise ImportError(f"CBOR needs cbor2: {install_command('services')}", name="cbor2") from error
    return cbor2


@cache
def _pydantic() -> Any:
    import pydantic

    return pydantic


@cache
def _pydantic_core() -> Any:
    import pydantic_core

    return pydantic_core
