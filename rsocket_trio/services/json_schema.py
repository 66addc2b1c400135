"""The types that codecs take, checked as a handler is registered, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rsocket_trio.data_types import adapter, hashed_by_type, holds_model, is_model, type_name

TEXT_KINDS = (
    "AnyType", "BoolType", "BytesType", "DateTimeType", "DateType", "DecimalType", "EnumType", "FloatType", "IntType",
    "LiteralType", "StrType", "TimeDeltaType", "TimeType", "UUIDType",
)  # fmt: skip
"""The names that msgspec has for the types that one text can be converted to."""


CANT = "can't be encoded or decoded"


def check_type(kind: Any) -> None:
    """Refuse a type that no built-in codec can encode or decode.

    ``kind`` is an annotation. Raise ``TypeError``, which names the type, for a plain class, a function and the like,
    wherever they stand in ``kind``, and for unions whose members can't be told apart.
    """
    try:
        hashed_by_type(kind)
    except (TypeError, NameError) as error:
        text = str(error)
        reason = text if CANT in text else f"{type_name(kind)} {CANT}: {text}"
        raise TypeError(reason) from error


def check_text_type(kind: Any) -> None:
    """Refuse a type that no text can be converted to by ``convert_text``. Raise ``TypeError``, which names it."""
    if kind is str:
        return
    check_type(kind)
    from msgspec import inspect

    info = inspect.type_info(kind)
    while isinstance(info, inspect.Metadata):
        info = info.type
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    if not any(type(part).__name__ in TEXT_KINDS for part in parts):
        raise TypeError(f"{type_name(kind)} can't be made of a text")


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type as JSON shows it, with the classes that it is made of in ``$defs``.

    ``kind`` is an annotation. Raise ``TypeError`` for a type that `check_type` refuses, and for a model of pydantic
    that has no schema.
    """
    check_type(kind)
    import msgspec

    schema = _of_model(kind) if holds_model(kind) else msgspec.json.schema(kind, schema_hook=_of_custom)
    nested: dict[str, Any] = {}
    for definitions in _take_definitions(schema):
        for name, definition in definitions.items():
            nested.setdefault(name, definition)
    if nested:
        schema["$defs"] = {**schema.get("$defs", {}), **nested}
    return schema


def _of_model(kind: Any) -> dict[str, Any]:
    from pydantic import PydanticUserError

    try:
        return adapter(kind).json_schema()
    except PydanticUserError as error:
        raise TypeError(f"{type_name(kind)} has no JSON Schema: {str(error).partition(chr(10))[0]}") from error


def _of_custom(kind: type) -> dict[str, Any]:
    return _of_model(kind) if is_model(kind) else {"description": "anything"}


def _take_definitions(schema: object, top: bool = True) -> Iterator[dict[str, Any]]:
    """Take the definitions out of the schemas inside of ``schema``: references begin at the top."""
    if isinstance(schema, dict):
        if not top and isinstance(schema.get("$defs"), dict):
            definitions = schema.pop("$defs")
            yield from _take_definitions(definitions, False)
            yield definitions
        for part in list(schema.values()):
            yield from _take_definitions(part, False)
    elif isinstance(schema, list):
        for part in schema:
            yield from _take_definitions(part, False)
