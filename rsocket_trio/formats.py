"""The formats of objects, as msgspec, cbor2 and pydantic read and write them, within the bounds for hostile data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache, lru_cache, partial
from io import BytesIO
from typing import Any, Final, TypeAlias

import msgspec

from rsocket_trio.data_types import KINDS_KEPT, adapter, hashed_by_type, holds_model, is_model, type_name, validator
from rsocket_trio.extras import install_command
from rsocket_trio.hostile_data import CBOR_FORM, CHECKED_SIZE, MESSAGEPACK_FORM, Tables, limit_json_containers

Reader: TypeAlias = Callable[[bytes], object]
"""Returns the object that data holds; raises errors of its library."""
SELF_DESCRIBED = b"\xd9\xd9\xf7"
"""The tag that says of what follows that it is CBOR."""
MAX_INTEGER_SIZE = 1785
"""Bytes of an integer in CBOR, about the 4,300 digits that others may have: to read n of them costs n squared."""
EXPONENTS = range(-4300, 129)
"""Exponents of a decimal: pydantic may make an integer of one, which costs a large exponent squared."""


# JSON and MessagePack


def write_json(value: object) -> bytes:
    data = _json.encode(value)
    if data.find(b"null") >= 0:  # ``in`` takes three times as long, as it tries an integer first
        built = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_for_json)
        try:
            json.dumps(built, allow_nan=False)  # msgspec writes null for NaN
        except ValueError as error:
            raise ValueError("NaN and the infinities have no JSON") from error
    return data


@lru_cache(KINDS_KEPT)
def json_reader(kind: object) -> Reader:
    hashes_numbers, is_pydantic = hashed_by_type(kind).numbers, holds_model(kind)
    untyped = msgspec.json.Decoder().decode
    typed: Reader | None = None if is_pydantic else msgspec.json.Decoder(kind, dec_hook=_decode_model).decode
    read = typed or validator(kind).validate_json

    def read_checked(data: bytes) -> object:
        checks = hashes_numbers and len(data) > CHECKED_SIZE
        if is_pydantic or checks:
            limit_json_containers(data)
            value = untyped(data)  # refuses NaN and large numbers, which pydantic takes
            if checks:
                Tables().check_objects(value)
        return read(data)

    return read_checked if hashes_numbers else read


@lru_cache(KINDS_KEPT)
def messagepack_reader(kind: object) -> Reader:
    hashed = hashed_by_type(kind)
    untyped = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode

    def read_model(data: bytes) -> object:
        return validator(kind).validate_python(untyped(data))

    read: Reader = read_model
    if not holds_model(kind):
        read = msgspec.msgpack.Decoder(kind, dec_hook=_decode_model, ext_hook=_refuse_extension).decode

    def read_items(count: int, items: bytes) -> Sequence[object]:
        values: Sequence[object] = untyped(b"\xdd" + count.to_bytes(4, "big") + items)
        return values

    def read_checked(data: bytes) -> object:
        if len(data) > CHECKED_SIZE:
            tables = Tables(map_keys=hashed.maps)
            tables.check_heads(data, MESSAGEPACK_FORM, read_items)
            if hashed.numbers and not hashed.maps:
                tables.check_objects(untyped(data))
        return read(data)

    return read if hashed.only_text else read_checked


def _refuse_extension(code: int, _data: memoryview) -> None:
    raise ValueError(f"MessagePack extension {code}")


# CBOR


def write_cbor(value: object) -> bytes:
    return _dumps()(msgspec.to_builtins(value, builtin_types=(bytes, bytearray), enc_hook=_encode_for_binary))


@lru_cache(KINDS_KEPT)
def cbor_reader(kind: object) -> Reader:
    hashed = hashed_by_type(kind)
    is_pydantic = holds_model(kind)

    def read(data: bytes) -> object:
        checks = len(data) > CHECKED_SIZE
        tables = Tables(map_keys=hashed.maps)
        if checks:
            tables.check_heads(data, CBOR_FORM, None if hashed.only_text else _cbor_items)
        value = _cbor_value(data, only_text=checks and hashed.only_text)
        if checks and hashed.numbers:
            tables.check_objects(value)
        if is_pydantic:
            return validator(kind).validate_python(value)
        return msgspec.convert(value, kind, dec_hook=_decode_model)

    return read


def _cbor_items(_count: int, items: bytes) -> Sequence[object]:
    values = _cbor_value(b"\x9f" + items + b"\xff", only_text=False)
    assert isinstance(values, list)
    return values


@cache
def _dumps() -> Callable[[object], bytes]:
    try:
        import cbor2
    except ImportError as error:
        raise ImportError(f"CBOR needs cbor2: {install_command('services')}", name="cbor2") from error
    return cbor2.dumps


def _cbor_value(data: bytes, *, only_text: bool) -> object:
    """Return the value of ``data``. With ``only_text`` all keys are text or bytes.

    Raise ``ValueError`` for malformed data, for tags that are not read, and for keys that occur twice.
    """
    _dumps()  # says what to install
    import cbor2

    decoder = cbor2.CBORDecoder(
        BytesIO(data.removeprefix(SELF_DESCRIBED)),
        strict_hashable_types=only_text,
        semantic_decoders=TAGS,
        tag_hook=lambda tag, in_key: _refuse_tag(tag.tag, tag.value, in_key),
        allow_duplicate_keys=False,
    )
    try:
        value: object = decoder.decode()
    except cbor2.CBORDecodeError as error:
        if isinstance(error.__cause__, RecursionError | UnicodeDecodeError | DataRefused):
            raise error.__cause__ from None
        raise ValueError(f"CBOR is malformed: {error}") from error
    try:
        decoder.read(1)
    except cbor2.CBORDecodeEOF:
        return value
    raise ValueError("CBOR is malformed: trailing bytes")


class DataRefused(ValueError):
    """A tag that is not read, or a value beyond the bounds."""


def _refuse_tag(number: int, _value: object, _in_key: bool) -> object:
    raise DataRefused(f"CBOR tag {number}")


def _integer(data: object, _in_key: bool) -> int:
    """Return the integer of tag 2."""
    if not isinstance(data, bytes):
        raise DataRefused("CBOR is malformed: a big integer is a byte string")
    if len(data) > MAX_INTEGER_SIZE:
        raise DataRefused(f"integer of more than {MAX_INTEGER_SIZE} bytes")
    return int.from_bytes(data)


def _decimal(parts: object, _in_key: bool) -> Decimal:
    """Return the decimal of tag 4: its exponent and its digits as an integer."""
    match parts:
        case [int(exponent), int(digits)]:
            if exponent not in EXPONENTS:
                raise DataRefused(f"decimal with an exponent beyond {EXPONENTS[0]} to {EXPONENTS[-1]}")
            return Decimal(f"{digits}E{exponent}")
    raise DataRefused("CBOR is malformed: a decimal is two integers")


REFUSED_TAGS = (5, 25, 28, 29, 30, 35, 36, 52, 54, 256, 258, 260, 261, 43000)
"""Tags that cbor2 makes objects for, except dates (0, 1, 100, 1004), big integers (2, 3), decimals (4) and UUIDs (37).

As they are converted, shared references (28, 29) could outgrow all memory.
"""
TAGS: Final[Mapping[int, Callable[[object, bool], object]]] = {
    **{number: partial(_refuse_tag, number) for number in REFUSED_TAGS},
    2: _integer,
    3: lambda data, in_key: -1 - _integer(data, in_key),
    4: _decimal,
}


# pydantic's models, which msgspec hands over by its hooks


def _decode_model(kind: type, value: object) -> object:
    """Make an object of a type that msgspec does not know: inside of one that it knows."""
    if kind is object:
        return value
    try:
        return validator(kind).validate_python(value)
    except ValueError as error:
        raise ValueError("no model") from error  # msgspec takes the text of this


def _encode_for_json(value: Any) -> object:
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type_name(type(value))} can't be encoded")


def _encode_for_binary(value: Any) -> object:
    kind: object = type(value)
    if is_model(kind):
        return value.model_dump(by_alias=True)  # bytes and dates stay what they are
    if "pydantic" in sys.modules:  # a path, an address or a secret of a model
        with suppress(TypeError):
            return adapter(kind).dump_python(value, mode="json")
    raise TypeError(f"{type_name(kind)} can't be encoded")


_json = msgspec.json.Encoder(enc_hook=_encode_for_json)
write_messagepack = msgspec.msgpack.Encoder(enc_hook=_encode_for_binary).encode
