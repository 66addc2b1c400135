"""The types of whole payloads: text and bytes are the payload itself, all others are objects of a codec."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Never, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin

from rsocket_trio.codecs import Codec, DecodeError, decode_text
from rsocket_trio.data_types import KINDS_KEPT, type_name
from rsocket_trio.payload import PAYLOAD_LIKE

NONE = type(None)
Read: TypeAlias = Callable[[bytes], Any]


class Encode:
    """An argument of a contract's method that is an object by its type: ``argument`` is encoded even if it is text."""

    __slots__ = ("argument",)

    def __init__(self, argument: object) -> None:
        self.argument = argument


def text_type(kind: Any) -> Any:
    """Return ``str`` with the constraints of ``kind``, if that takes text as a whole payload; ``None`` if it does not.

    Text are ``str``, ``str | None``, and both within ``Annotated`` and ``NewType``. Unions with other types, enums and
    ``Literal`` are objects.
    """
    if kind is str:
        return str
    if get_origin(kind) is Annotated:
        text = text_type(get_args(kind)[0])
        return None if text is None else Annotated[(text, *kind.__metadata__)]
    others = _members(kind) - {NONE}
    return text_type(others.pop()) if len(others) == 1 and others != {kind} else None


def is_bytes(kind: Any) -> bool:
    """Return whether ``kind`` is ``bytes``, or ``bytes | None``: the data as it is, without a codec."""
    return kind is bytes or _members(kind) == {bytes, NONE}


def admits_none(kind: Any) -> bool:
    """Return whether ``kind`` is ``None``, or a union with it."""
    if get_origin(kind) is Annotated:
        return admits_none(get_args(kind)[0])
    members = _members(kind)
    return NONE in members or any(admits_none(member) for member in members - {kind})


def _members(kind: Any) -> set[Any]:
    """Return the members of a union; the type itself for another one, or the type that it is a name of."""
    if get_origin(kind) in (Union, UnionType):
        return set(get_args(kind))
    if isinstance(kind, type):
        return {kind}
    # Of a NewType, and of a `type` statement.
    return {getattr(kind, "__supertype__", getattr(kind, "__value__", kind))}


def is_object_type(kind: Any) -> bool:
    """Return whether answers and items of this type are objects of a codec, whatever their values.

    Those of other types are data as it is where the value is a payload, bytes or text, and objects where it is not.
    """
    if get_origin(kind) in (Union, UnionType):
        return any(map(is_object_type, get_args(kind)))
    if kind in (inspect.Parameter.empty, Any, object, NONE, NoReturn, Never) or isinstance(kind, TypeVar):
        return False
    if isinstance(kind, type):
        return not issubclass(kind, PAYLOAD_LIKE) or issubclass(kind, Enum)
    return text_type(kind) is None


@lru_cache(KINDS_KEPT)
def _reader(kind: Any) -> Read | None:
    if is_bytes(kind):
        return (lambda data: data or None) if admits_none(kind) else bytes
    text = text_type(kind)
    if text is None:
        return None
    admits = admits_none(kind)
    return lambda data: None if admits and not data else decode_text(data, text)


def reader_of(kind: Any) -> Read | None:
    """Return the function that reads the data of a payload as ``kind``; ``None`` where a codec has to read it."""
    try:
        return _reader(kind)
    except TypeError:
        return None  # not hashable: a type for a codec of the application's own


def decode_object(codec: Codec, data: bytes, kind: Any) -> Any:
    """Return the data of a payload as an object of type ``kind``, for which there is no ``reader_of``.

    Empty data is ``None`` where ``kind`` admits it, unless the codec reads it as something. Raise ``DecodeError``, or
    another ``ValueError`` of the codec, for data that does not fit.
    """
    try:
        return codec.decode(data, kind)
    except ValueError:
        if data:
            raise
    if admits_none(kind):
        return None
    raise DecodeError("$", f"no data, expected {_plain_name(kind)}")


def _plain_name(kind: Any) -> str:
    """Return the name of a type without its constraints."""
    return _plain_name(get_args(kind)[0]) if get_origin(kind) is Annotated else type_name(kind)
