"""Bounds the integers that become keys and members of sets: a peer could send any number of them with one hash.

Python's hash of an integer is its remainder by 2**61 - 1. Up to 64 bits a handful of integers share a hash; beyond,
any number does, and a set or a dictionary of n such integers costs n squared. They are refused before they are hashed:

* in types of msgspec by a pass over the data that makes lists where the type has sets, and skips what leads to none
  (`form_without_hashes`). Only types that hash integers need it, and only data with a long one (`LONG_INTEGER`);
* in models of pydantic by bounds on the integers in their schema (`bound_schema`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, ForwardRef, Literal, Union
from uuid import UUID

MAX_BITS = 64
TOO_LARGE = f"integer of more than {MAX_BITS} bits in a set or as a key"
UNHASHABLE = "array or object in a set or as a key"
LONG_INTEGER = re.compile(rb"[0-9]{20}|\\u003[0-9]")
"""What JSON with such an integer has: 20 digits in a row, or a digit of a key that is written as an escape."""


ALIKE = (list, tuple, dict, Decimal, UUID)
"""Types of what a set of anything does not take: any number of such values may have one hash."""


class Member:
    """Stands for a member of a set in a form without hashes."""


class UntypedMember(Member):
    """Stands for a member of a set of anything."""


class Key:
    """Stands for a key that is the text of an integer in a form without hashes."""


STAND_INS = {kind: kind() for kind in (Member, UntypedMember, Key)}


def check_hashed(kind: Any, value: object) -> Any:
    """Return a stand-in of type ``kind``. Raise ``ValueError`` if ``value`` is too large an integer, or holds one.

    ``value`` is what a format has for the member or the key.
    """
    if kind is UntypedMember:
        check_untyped(value)
    elif kind is Member:
        check_integers(value)
    elif isinstance(value, str) and len(value) > 19 and value.removeprefix("-").isdecimal():
        check_integers(int(value))
    return STAND_INS[kind]


def check_integers(value: Any) -> None:
    """Raise ``ValueError`` if ``value`` is an integer that is too large to be hashed, or a list with one."""
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError(TOO_LARGE)
    elif isinstance(value, list | tuple):
        for part in value:
            check_integers(part)


def check_untyped(value: Any) -> Any:
    """Return ``value``, a member of a set of anything. Raise ``ValueError`` if others may have its hash."""
    if isinstance(value, ALIKE):
        kind = type(value)
        reason = UNHASHABLE if kind in (list, tuple, dict) else f"{kind.__name__} in a set of anything"
        raise ValueError(reason)  # noqa: TRY004 - of the data
    check_integers(value)
    return value


# Types of msgspec, as its module ``inspect`` describes them


@cache
def _msgspec() -> Any:
    import msgspec.inspect

    return msgspec


def _inspect() -> Any:
    return _msgspec().inspect


def type_parts(info: Any) -> Iterator[Any]:
    """Yield every type that a type of msgspec's description is made of, and itself."""
    waiting, seen = [info], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for value in (getattr(part, name) for name in part.__struct_fields__):
            some = value if isinstance(value, tuple) else (value,)
            waiting.extend(one for one in some if isinstance(one, _inspect().Type | _inspect().Field))


def key_types(info: Any) -> set[str]:
    """Return the names of the types that dictionaries of a type have as keys, or in their keys: ``{"StrType"}``."""
    maps = (_inspect().DictType, _inspect().FrozenDictType)
    keys = (part.key_type for part in type_parts(info) if isinstance(part, maps))
    return {_name(part) for key in keys for part in type_parts(key)}


def member_types(info: Any) -> set[str]:
    """Return the names of the types that sets of a type have as members, or in their members."""
    sets = (_inspect().SetType, _inspect().FrozenSetType)
    members = (part.item_type for part in type_parts(info) if isinstance(part, sets))
    return {_name(part) for member in members for part in type_parts(member)}


def _name(info: Any) -> str:
    return "AnyType" if _is_untyped(info) else type(info).__name__


def has_untyped_set(info: Any) -> bool:
    """Return whether a type has a set of anything."""
    sets = (_inspect().SetType, _inspect().FrozenSetType)
    return any(isinstance(part, sets) and _is_untyped(part.item_type) for part in type_parts(info))


def _is_untyped(info: Any) -> bool:
    return isinstance(info, _inspect().AnyType) or (isinstance(info, _inspect().CustomType) and info.cls is object)


def form_without_hashes(info: Any, *, text_keys: bool, rest: Any) -> Any:
    """Return a type for data of another type that raises for integers that are too large to be hashed there.

    ``info`` describes the other type, and `check_hashed` is the ``dec_hook`` of the returned one, whose values are of
    no use: it has lists for sets, and leaves out what leads to no set or key. With ``text_keys`` keys are text, as in
    JSON; else they have been checked before. ``rest`` is a type of which no objects are made, for all other parts.
    Return ``None`` if the other type hashes no integers.
    """
    return _Forms(text_keys, rest).form(info)


INTEGERS = {"IntType", "AnyType", "CustomType"}
"""The names that msgspec has for the types that an integer fits as it is: ``object`` is a custom type."""
SCALARS = {
    "NoneType": None, "BoolType": bool, "IntType": int, "FloatType": float, "StrType": str, "BytesType": bytes,
    "ByteArrayType": bytearray, "MemoryViewType": memoryview, "DateTimeType": datetime, "DateType": date,
    "TimeType": time, "TimeDeltaType": timedelta, "UUIDType": UUID, "DecimalType": Decimal,
}  # fmt: skip
"""The types that msgspec has these names for."""


class _Forms:
    """Makes forms without hashes. It keeps the classes that it makes, for types may contain themselves."""

    def __init__(self, text_keys: bool, rest: Any) -> None:
        inspect = _inspect()
        self._text_keys = text_keys
        self._rest = rest
        self._sets = (inspect.SetType, inspect.FrozenSetType)
        self._maps = (inspect.DictType, inspect.FrozenDictType)
        self._lists = (inspect.ListType, inspect.VarTupleType)
        self._names: dict[int, str] = {}
        self._classes: dict[str, Any] = {}

    def form(self, info: Any) -> Any:
        """Return the form of a type, or ``None`` if it hashes no integers."""
        if not self._leads(info):
            return None
        form = self._form(info)
        for made in self._classes.values():
            for name, other in self._classes.items():
                setattr(made, name, other)  # where msgspec looks for names in fields
        return form

    def _leads(self, info: Any) -> bool:
        return any(map(self._hashes_integers, type_parts(info)))

    def _hashes_integers(self, info: Any) -> bool:
        if isinstance(info, self._sets):
            return not INTEGERS.isdisjoint(type(part).__name__ for part in type_parts(info.item_type))
        if not (self._text_keys and isinstance(info, self._maps)):
            return False
        names = {type(part).__name__ for part in type_parts(info.key_type)}
        return "IntType" in names and "StrType" not in names  # where text is taken, it stays text

    def _form(self, info: Any) -> Any:
        """Return the form of a type that leads to a set or to a key, or what stands for any other one."""
        inspect = _inspect()
        if not self._leads(info):
            return self._rest
        if isinstance(info, inspect.Metadata):
            return self._form(info.type)
        if isinstance(info, self._sets):
            return self._list(UntypedMember if _is_untyped(info.item_type) else Member)
        if isinstance(info, self._maps):
            return self._map(Key if self._hashes_integers(info) else Any, self._form(info.value_type))
        if isinstance(info, self._lists):
            return self._list(self._form(info.item_type))
        if isinstance(info, inspect.TupleType):
            return self._tuple(info)
        if isinstance(info, inspect.UnionType):
            return Union[tuple(map(self._form_in_union, info.types))]  # noqa: UP007 - made of a tuple
        return self._form_of_class(info)

    def _form_in_union(self, info: Any) -> Any:
        """Return the form of a member of a union, which has to be told apart from the others."""
        inspect = _inspect()
        if isinstance(info, inspect.Metadata):
            return self._form_in_union(info.type)
        if isinstance(info, inspect.EnumType):
            return info.cls
        if isinstance(info, inspect.LiteralType):
            return Literal[info.values]
        if self._leads(info):
            return self._form(info)
        if isinstance(info, inspect.TupleType):
            return self._tuple(info)
        if isinstance(info, self._maps):
            return self._map(Any, self._rest)
        if isinstance(info, (*self._sets, *self._lists)):
            return self._list(self._rest)
        name = type(info).__name__
        return SCALARS[name] if name in SCALARS else self._form_of_class(info)

    def _map(self, key: Any, value: Any) -> Any:
        return dict[key, value]

    def _list(self, item: Any) -> Any:
        return list[item]

    def _tuple(self, info: Any) -> Any:
        return tuple[tuple(map(self._form, info.item_types))]  # type: ignore[misc]

    def _form_of_class(self, info: Any) -> Any:
        """Return the form of a class with fields: a structure of those that lead to a set or to a key."""
        if name := self._names.get(id(info)):
            return self._classes.get(name) or ForwardRef(name)
        name = self._names[id(info)] = f"Form{len(self._names)}"
        as_array = isinstance(info, _inspect().NamedTupleType) or getattr(info, "array_like", False)
        fields = [field for field in info.fields if as_array or self._leads(field.type)]
        tag = getattr(info, "tag", None)
        self._classes[name] = _msgspec().defstruct(
            name,
            [(f"field{number}", self._form(field.type), None) for number, field in enumerate(fields)],
            rename={f"field{number}": field.encode_name for number, field in enumerate(fields)},
            array_like=as_array,
            tag=tag,
            tag_field=None if tag is None else info.tag_field,
        )
        return self._classes[name]


# Models of pydantic, by the schema that it has for them

MAX_HASHED = 2**MAX_BITS - 1
INNER_SCHEMAS = {
    "schema", "items_schema", "keys_schema", "values_schema", "extras_schema", "fields", "choices", "definitions",
    "json_schema", "python_schema", "lax_schema", "strict_schema", "steps", "arguments_schema",
}  # fmt: skip
"""The names under which a schema has others: alone, in a list, or in a dictionary."""
OBJECTS = {"model", "dataclass", "typed-dict"}
"""Schemas whose parts are hashed by the application's classes, or not at all."""


def stop_at_faults(schema: Any, kinds: Collection[str]) -> Any:
    """Return the schema of a type, with which each container of these kinds stops at its first fault.

    A fault has a copy of all keys on its path: n faults below a long key would cost their product.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(stop_at_faults(part, kinds) for part in schema)
    if not isinstance(schema, dict):
        return schema
    inner = {name: stop_at_faults(part, kinds) if name in INNER_SCHEMAS else part for name, part in schema.items()}
    if isinstance(schema.get("type"), str):
        return {**inner, "fail_fast": True} if schema["type"] in kinds else inner
    return {name: stop_at_faults(part, kinds) for name, part in schema.items()}


TEXTS = ("str", "bytes")


def hashes_numbers(schema: Any) -> bool:
    """Return whether a type has sets, or keys other than text and bytes."""
    if isinstance(schema, list | tuple):
        return any(map(hashes_numbers, schema))
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if kind in ("set", "frozenset", "json"):
        return True
    if kind in ("dict", "ordered-dict", "counter") and schema.get("keys_schema", schema)["type"] not in TEXTS:
        return True
    inner = INNER_SCHEMAS & schema.keys() if isinstance(kind, str) else schema.keys()
    return any(hashes_numbers(schema[name]) for name in inner)


def bound_schema(schema: Any) -> Any:
    """Return the schema of a type with bounds for the integers that it hashes, or ``schema`` itself for none."""
    return _bound(schema, False, {})


def _bound(schema: Any, hashed: bool, definitions: dict[str, Any]) -> Any:
    """Return a schema with bounds. With ``hashed`` its values are keys or members of sets, or parts of those."""
    kind = schema["type"]
    if kind == "definitions":
        definitions = {**definitions, **{part["ref"]: part for part in schema["definitions"]}}
    if hashed and kind == "int":
        return {
            **schema,
            "le": min(schema.get("le", MAX_HASHED), MAX_HASHED),
            "ge": max(schema.get("ge", -MAX_HASHED), -MAX_HASHED),
        }
    if hashed and kind == "any":
        return {"type": "function-after", "function": {"type": "no-info", "function": check_untyped}, "schema": schema}
    if hashed and kind == "definition-ref":
        # What is defined may stand in other places as well. A second definition would need another name.
        part = definitions.get(schema["schema_ref"], schema)
        inner = {name: value for name, value in definitions.items() if value is not part}  # it may contain itself
        bound = schema if part is schema else _bound(part, True, inner)
        return schema if bound is part else {name: value for name, value in bound.items() if name != "ref"}
    changed = {}
    for name in INNER_SCHEMAS & schema.keys():
        is_hashed = name == "keys_schema" or kind in ("set", "frozenset") or (hashed and kind not in OBJECTS)
        inner = _bound_inner(schema[name], is_hashed, definitions)
        if inner is not schema[name]:
            changed[name] = inner
    return {**schema, **changed} if changed else schema


def _bound_inner(part: Any, hashed: bool, definitions: dict[str, Any]) -> Any:
    """Return one schema, or a list, a tuple or a dictionary of them, with bounds, or ``part`` itself for none."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            return _bound(part, hashed, definitions)
        bound: Any = {name: _bound_inner(value, hashed, definitions) for name, value in part.items()}
        return bound if any(bound[name] is not part[name] for name in part) else part
    if isinstance(part, list | tuple):
        bound = type(part)(_bound_inner(value, hashed, definitions) for value in part)
        return bound if any(new is not old for new, old in zip(bound, part, strict=True)) else part
    return part
