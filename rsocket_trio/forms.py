"""Which forms of functions does each decorator take, and how is each called?"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from rsocket_trio.values import value

Function: TypeAlias = Callable[..., Any]


class Kind(enum.Enum):
    """How a handler is called."""

    INLINE = "plain function"
    ASYNC = "async function"
    GENERATOR = "async generator"
    PUSH = "async function with an outgoing side"


@value
class Handler:
    """A registered function. ``credit`` is what a channel's handler grants its requester."""

    function: Function
    kind: Kind
    credit: int = 256
    refill: bool = True


# What each decorator takes: the kinds by their number of arguments.
# fmt: off
FORMS: dict[str, dict[tuple[str, int], Kind]] = {
    "request_response":     {("async function", 1): Kind.ASYNC, ("plain function", 1): Kind.INLINE},
    "fire_and_forget":      {("async function", 1): Kind.ASYNC, ("plain function", 1): Kind.INLINE},
    "request_stream":       {("async generator", 1): Kind.GENERATOR, ("async function", 2): Kind.PUSH},
    "request_subscription": {("async generator", 1): Kind.GENERATOR, ("async function", 2): Kind.PUSH},
    "request_channel":      {("async function", 1): Kind.ASYNC},
    "metadata_push":        {("async function", 1): Kind.ASYNC, ("plain function", 1): Kind.INLINE},
    "setup":                {("async function", 2): Kind.ASYNC, ("plain function", 2): Kind.INLINE},
    "lease":                {("async generator", 1): Kind.GENERATOR},
    "extension":            {("plain function", 2): Kind.INLINE},
    "extension_entry":      {("plain function", 2): Kind.INLINE},
}
ARGUMENTS = {
    "request_stream": {1: "(request)", 2: "(request, out)"},
    "request_subscription": {1: "(request)", 2: "(request, out)"},
    "request_channel": {1: "(channel)"},
    "metadata_push": {1: "(metadata)"},
    "setup": {2: "(setup, connection)"},
    "lease": {1: "(setup)"},
    "extension": {2: "(stream_id, body)"},
    "extension_entry": {2: "(point, content)"},
}
# fmt: on


def checked(decorator: str, function: object) -> Handler:
    """The function with its kind. Raises ``TypeError`` naming both if the decorator does not take that kind."""
    if not callable(function):
        raise TypeError(f"{decorator} decorates a function, not {type(function).__name__}")
    shape = _shape(function)
    forms = FORMS[decorator]
    for (wanted, arguments), kind in forms.items():
        if shape == wanted and _takes(function, arguments):
            return Handler(function, kind)
    hints = ARGUMENTS.get(decorator, {})
    allowed = " or ".join(
        f"a{'n' if name[0] == 'a' else ''} {name} {hints.get(count, '(request)')}" for name, count in forms
    )
    found = f"a{'n' if shape[0] == 'a' else ''} {shape}"
    raise TypeError(f"{decorator} takes {allowed}; {_function_name(function)}{_signature(function)} is {found}")


def _shape(function: Callable[..., object]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = function.__call__  # type: ignore[operator]
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.iscoroutinefunction(function):
        return "async function"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "class" if inspect.isclass(function) else "plain function"


def _takes(function: Callable[..., object], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        # Some built-in functions have no signature to look at: their call will tell.
        return True
    return True


def _signature(function: Callable[..., object]) -> str:
    try:
        return f"({', '.join(inspect.signature(function).parameters)})"
    except (TypeError, ValueError):
        return "(...)"


def _function_name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def name_of_function(handler: Handler) -> str:
    """What errors call it."""
    return _function_name(handler.function)
