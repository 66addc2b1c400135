"""Keyword arguments that are declared once: a ``TypedDict`` holds the names, the types and the defaults.

Each key is declared as ``Annotated[type, default]``. A function takes them as ``**options: Unpack[TheDict]``, which the
type checker knows, and ``shows_options`` gives it the signature that ``help`` and ``inspect`` show.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


def shows_options(function: F) -> F:
    """Give a function with ``**options: Unpack[TheDict]`` a signature that names each option, its type and default.

    The options stand between the function's own positional and keyword arguments. If ``TheDict`` is generic, its
    arguments stand in the types.
    """
    signature = inspect.signature(function)
    *own, variable = signature.parameters.values()
    written = ast.parse(str(variable.annotation), mode="eval").body
    assert variable.kind is inspect.Parameter.VAR_KEYWORD
    assert isinstance(written, ast.Subscript)
    given: list[str] = []
    name = written.slice
    if isinstance(name, ast.Subscript):
        arguments = name.slice.elts if isinstance(name.slice, ast.Tuple) else [name.slice]
        given, name = [ast.unparse(each) for each in arguments], name.value
    declaration: Any = eval(ast.unparse(name), sys.modules[function.__module__].__dict__)
    names = [each.__name__ for each in getattr(declaration, "__parameters__", ())]
    stand_for = dict(zip(names, given, strict=True))
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=stand_for.get(kind, kind))
        for name, (kind, default) in declared(declaration).items()
    ]
    shown: Any = function
    keywords = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
    shown.__signature__ = signature.replace(parameters=[*own[: len(own) - len(keywords)], *options, *keywords])
    shown.__complete__ = _completing(function.__name__, declared(declaration))
    return function


def completed(function: Callable[..., object], options: T) -> T:
    """Return the options that a function was given, with the defaults of all others.

    Raise ``TypeError`` for an unknown name, with the text that Python has for it.
    """
    given: Any = options
    complete: Callable[..., Any] = function.__complete__  # type: ignore[attr-defined]
    result: T = complete(**given)
    return result


def _completing(name: str, options: dict[str, tuple[str, object]]) -> Callable[..., dict[str, object]]:
    """Return a function of this name that returns its keyword arguments with the defaults of all others.

    It is compiled, so that Python itself refuses an unknown name, with the text and the suggestion of its version.
    """
    defaults = {each: default for each, (_, default) in options.items()}
    scope: dict[str, Any] = {"_defaults": defaults}
    arguments = ", ".join(f"{each}=_defaults[{each!r}]" for each in options)
    exec(f"def {name}(*, {arguments}): return locals()", scope)
    function: Callable[..., dict[str, object]] = scope[name]
    return function


@cache
def declared(declaration: Any) -> dict[str, tuple[str, object]]:
    """Return the type, as it is written, and the default of each option of a ``TypedDict``."""
    found: dict[str, tuple[str, object]] = {}
    for name, reference in declaration.__annotations__.items():
        home = sys.modules[reference.__forward_module__ or declaration.__module__].__dict__
        node = ast.parse(reference.__forward_arg__, mode="eval").body
        assert isinstance(node, ast.Subscript)
        assert isinstance(node.slice, ast.Tuple)
        kind, default = node.slice.elts
        found[name] = ast.unparse(kind), eval(ast.unparse(default), home)
    return found
