"""The formats of objects, as msgspec, cbor2 and pydantic read and write them, within the bounds for hostile data.

The types that data is read as come first: whether pydantic or msgspec reads one, and which of its values are hashed.
"""

from __future__ import annotations

import inspect as functions
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache, lru_cache, partial
from importlib import import_module
from io import BytesIO
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    NotRequired,
    Required,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from msgspec import inspect

from rsocket_trio.extras import install_command
from rsocket_trio.hostile_data import CBOR_FORM, CHECKED_SIZE, MESSAGEPACK_FORM, Tables, limit_json_containers

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import SchemaValidator
    from typing_extensions import TypeIs

KINDS_KEPT = 1024
"""Types for which is kept what was made for them."""
CANT = "can't be encoded or decoded"
Reader: TypeAlias = Callable[[bytes], object]
"""Returns the object that data holds; raises errors of its library."""
SELF_DESCRIBED = b"\xd9\xd9\xf7"
"""The tag that says of what follows that it is CBOR."""
MAX_INTEGER_SIZE = 1785
"""Bytes of an integer in CBOR, about the 4,300 digits that others may have: to read n of them costs n squared."""
EXPONENTS = range(-4300, 129)
"""Exponents of a decimal: pydantic may make an integer of one, which costs a large exponent squared."""


def type_name(kind: object) -> str:
    """Return the name of an annotation for messages: ``Order``, ``list[shop.Order]``, ``int | None``."""
    if isinstance(kind, type) and get_origin(kind) is None:
        return kind.__qualname__
    return repr(kind).replace("typing.", "")


# pydantic's models


def is_model(kind: object) -> bool:
    """Return whether ``kind`` is a model or a dataclass of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def is_model_error(error: object) -> TypeIs[ValidationError]:
    """Return whether ``error`` is the one that pydantic raises for data that does not fit."""
    return "pydantic" in sys.modules and isinstance(error, sys.modules["pydantic"].ValidationError)


def holds_model(kind: object) -> bool:
    """Return whether ``kind`` is a model of pydantic or names one among its arguments, as ``list[Model]`` does."""
    if "pydantic" not in sys.modules:
        return False
    if is_model(kind) or _has_constraint(kind):
        return True
    if is_typeddict(kind):
        return any(map(_has_constraint, get_type_hints(kind, include_extras=True).values()))
    kind = getattr(kind, "__value__", kind)  # of a `type` statement
    return any(holds_model(part) for part in (get_origin(kind), *get_args(kind)) if part not in (None, kind))


def _has_constraint(kind: object) -> bool:
    """Return whether ``kind`` has a constraint of pydantic, which msgspec ignores: ``Annotated[int, Field(gt=0)]``."""
    if get_origin(kind) in (Required, NotRequired):
        return _has_constraint(get_args(kind)[0])
    if get_origin(kind) is not Annotated:
        return False
    return any(type(part).__module__.partition(".")[0] in ("pydantic", "annotated_types") for part in get_args(kind))


@lru_cache(KINDS_KEPT)
def adapter(kind: Any) -> TypeAdapter[object]:
    """Return what pydantic has for a type. Raise ``TypeError``, which names it, for one that it does not take."""
    from pydantic import PydanticUserError, TypeAdapter

    if is_typeddict(kind) and sys.version_info < (3, 12):
        # There pydantic takes those of typing_extensions only, on which it depends.
        make: Any = import_module("typing_extensions").TypedDict
        kind = make(kind.__name__, get_type_hints(kind, include_extras=True), total=kind.__total__)
    try:
        return TypeAdapter(kind)
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(f"{type_name(kind)} {CANT}: {reason}") from error


def schema_of_model(kind: object) -> dict[str, Any]:
    """Return the JSON Schema that pydantic has for a type. Raise ``TypeError`` if it has none."""
    from pydantic import PydanticUserError

    try:
        return adapter(kind).json_schema()
    except PydanticUserError as error:
        raise TypeError(f"{type_name(kind)} has no JSON Schema: {str(error).partition(chr(10))[0]}") from error


@lru_cache(KINDS_KEPT)
def validator(kind: object) -> SchemaValidator:
    """Return pydantic's validator of a type that leaves each array and dictionary at its first fault.

    A fault has a copy of all keys on its path: n faults below a long key would cost their product.
    """
    from pydantic_core import SchemaValidator

    schema = _stop_at_faults(adapter(kind).core_schema)
    if "_use_prebuilt" not in (SchemaValidator.__text_signature__ or ""):
        return SchemaValidator(schema)
    return SchemaValidator(schema, None, _use_prebuilt=False)  # else it takes the validators that classes have


INNER_SCHEMAS = {
    "schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "fields", "choices", "definitions",
    "json_schema", "python_schema", "lax_schema", "strict_schema", "steps", "arguments_schema",
}  # fmt: skip
"""The names under which a schema has others: alone, in a list, or in a dictionary."""


def _stop_at_faults(schema: Any) -> Any:
    """Return a schema, or several in a list or by name, with which each container stops at its first fault."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_stop_at_faults, schema))
    if not isinstance(schema, dict):
        return schema
    if not isinstance(schema.get("type"), str):
        return {name: _stop_at_faults(part) for name, part in schema.items()}
    inner = {name: _stop_at_faults(schema[name]) for name in INNER_SCHEMAS & schema.keys()}
    return {**schema, **inner, "fail_fast": True} if schema["type"] in _failing_fast() else {**schema, **inner}


@cache
def _failing_fast() -> set[str]:
    """Return the containers that this pydantic can leave at the first fault; old ones can't leave all of them so."""
    from pydantic_core import core_schema

    kinds = ("list", "tuple", "set", "frozenset", "dict")
    return {
        kind for kind in kinds if "fail_fast" in functions.signature(getattr(core_schema, f"{kind}_schema")).parameters
    }


# What is hashed


class Hashed(NamedTuple):
    """The keys and members of sets of a type, and of the types that it is made of."""

    only_text: bool
    """All are text or bytes, and nothing is decoded without a type."""
    numbers: bool
    """Some may be numbers, times or others whose hashes a peer foresees: those that a type names, and of models any."""
    maps: bool
    """The type names some that are maps."""


NOT_FORESEEN = {
    *("StrType", "BytesType", "NoneType", "BoolType", "DateType", "EnumType", "LiteralType", "DecimalType", "UUIDType")
}
"""The names that msgspec has for types whose values are text where they are hashed, are few, or may be alike anyway."""


@lru_cache(KINDS_KEPT)
def hashed_by_type(kind: object) -> Hashed:
    """Return what a type hashes. Raise ``TypeError``, which names it, for one that no built-in codec can decode:

    a plain class, a function and the like, wherever they stand in it, and unions whose members can't be told apart.
    """
    try:
        is_pydantic = holds_model(kind)
        parts = [] if is_pydantic else list(type_parts(inspect.type_info(kind)))
    except (TypeError, NameError) as error:
        raise TypeError(f"{type_name(kind)} {CANT}: {error}") from error
    if is_pydantic:
        adapter(kind)
        return Hashed(only_text=False, numbers=True, maps=False)
    custom = [part.cls for part in parts if isinstance(part, inspect.CustomType) and part.cls is not object]
    for cls in custom:
        if not is_model(cls):
            where = "" if cls is kind else f", in {type_name(kind)}"
            raise TypeError(f"{type_name(cls)} {CANT}{where}")
    hashed: list[inspect.Type] = []
    for part in parts:
        if isinstance(part, inspect.DictType | inspect.FrozenDictType):
            hashed.append(part.key_type)
        elif isinstance(part, inspect.SetType | inspect.FrozenSetType):
            hashed.append(part.item_type)
    names = {type(inner).__name__ for part in hashed for inner in type_parts(part)}
    untyped = any(isinstance(part, inspect.AnyType | inspect.CustomType) for part in parts)
    return Hashed(
        only_text=not untyped and names <= {"StrType", "BytesType"},
        numbers=bool(custom) or not names <= NOT_FORESEEN,
        maps=not names.isdisjoint({"StructType", "DataclassType", "TypedDictType"}),
    )


def type_parts(info: inspect.Type) -> Iterator[inspect.Type]:
    """Yield every type that a type of msgspec's description is made of, and itself."""
    waiting: list[object] = [info]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting += part
        elif isinstance(part, inspect.Type | inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, inspect.Type):
                yield part
            waiting += [getattr(part, name) for name in part.__struct_fields__]


TEXT_KINDS = {
    "AnyType", "BoolType", "BytesType", "DateTimeType", "DateType", "DecimalType", "EnumType", "FloatType", "IntType",
    "LiteralType", "StrType", "TimeDeltaType", "TimeType", "UUIDType",
}  # fmt: skip
"""The names that msgspec has for the types that one text can be converted to."""


def check_text_type(kind: object) -> None:
    """Refuse a type that no text can be converted to by ``convert_text``. Raise ``TypeError``, which names it."""
    hashed_by_type(kind)
    info = inspect.type_info(kind)
    while isinstance(info, inspect.Metadata):
        info = info.type
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    if not any(type(part).__name__ in TEXT_KINDS for part in parts):
        raise TypeError(f"{type_name(kind)} can't be made of a text")


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
