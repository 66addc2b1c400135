"""The types that data is read as: whether pydantic or msgspec reads one, and which of its values are hashed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module
from inspect import signature
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

if TYPE_CHECKING:
    from msgspec import inspect
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import SchemaValidator
    from typing_extensions import TypeIs

KINDS_KEPT = 1024
"""Types for which is kept what was made for them."""


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


def holds_model(kind: Any) -> bool:
    """Return whether ``kind`` is a model of pydantic or names one among its arguments, as ``list[Model]`` does."""
    if "pydantic" not in sys.modules:
        return False
    if is_model(kind) or _has_constraint(kind):
        return True
    if is_typeddict(kind) and any(map(_has_constraint, get_type_hints(kind, include_extras=True).values())):
        return True
    kind = getattr(kind, "__value__", kind)  # of a `type` statement
    parts = (get_origin(kind), *get_args(kind))
    return any(holds_model(part) for part in parts if part is not None and part is not kind)


def _has_constraint(kind: object) -> bool:
    """Return whether ``kind`` has a constraint of pydantic, which msgspec ignores: ``Annotated[int, Field(gt=0)]``."""
    if get_origin(kind) in (Required, NotRequired):
        return _has_constraint(get_args(kind)[0])
    if get_origin(kind) is not Annotated:
        return False
    return any(
        type(part).__module__.partition(".")[0] in ("pydantic", "annotated_types") for part in get_args(kind)[1:]
    )


@lru_cache(KINDS_KEPT)
def adapter(kind: Any) -> TypeAdapter[Any]:
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
        raise TypeError(f"{type_name(kind)} can't be encoded or decoded: {reason}") from error


@lru_cache(KINDS_KEPT)
def validator(kind: Any) -> SchemaValidator:
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
    return {kind for kind in kinds if "fail_fast" in signature(getattr(core_schema, f"{kind}_schema")).parameters}


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
    *("StrType", "BytesType", "NoneType", "BoolType", "DateType", "EnumType", "LiteralType", "DecimalType", "UUIDType"),
}
"""The names that msgspec has for types whose values are text where they are hashed, are few, or may be alike anyway."""


@lru_cache(KINDS_KEPT)
def hashed_by_type(kind: Any) -> Hashed:
    """Return what a type hashes. Raise ``TypeError``, which names it, for one that no built-in codec can decode."""
    from msgspec import inspect

    if holds_model(kind):
        adapter(kind)
        return Hashed(only_text=False, numbers=True, maps=False)
    parts = list(type_parts(inspect.type_info(kind)))
    custom = [part.cls for part in parts if isinstance(part, inspect.CustomType) and part.cls is not object]
    for cls in custom:
        if not is_model(cls):
            where = "" if cls is kind else f", in {type_name(kind)}"
            raise TypeError(f"{type_name(cls)} can't be encoded or decoded{where}")
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
    from msgspec import inspect

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
