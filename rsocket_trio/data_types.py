"""The types that data is read as: whether pydantic or msgspec reads one, and which of its values are hashed."""

from __future__ import annotations

import inspect as functions
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module
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

from msgspec import inspect

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import SchemaValidator
    from typing_extensions import TypeIs

KINDS_KEPT = 1024
"""Types for which is kept what was made for them."""
CANT = "can't be encoded or decoded"


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
    *("StrType", "BytesType", "NoneType", "BoolType", "DateType", "EnumType", "LiteralType", "DecimalType", "UUIDType"),
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
