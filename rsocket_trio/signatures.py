"""Keyword arguments that are declared once: a ``TypedDict`` holds the names, the types and the defaults.

Each key is declared as ``Annotated[type, default]``. A function takes them as ``**options: Unpack[TheDict]``, which the
type checker knows, and ``shows_options`` gives it the signature that ``help`` and ``inspect`` show.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T", bound=Mapping[str, object])


def shows_options(function: F) -> F:
    """Give a function with ``**options: Unpack[TheDict]`` a signature that names each option, its type and default.

    The options stand between the function's own positional and keyword arguments. If ``TheDict`` is generic, its
    arguments, which are names, stand in the types.
    """
    signature = inspect.signature(function)
    *own, variable = signature.parameters.values()
    name, _, arguments = str(variable.annotation).removeprefix("Unpack[").removesuffix("]").partition("[")
    declaration: Any = eval(name, sys.modules[function.__module__].__dict__)
    types = [generic.__name__ for generic in getattr(declaration, "__parameters__", ())]
    stand_for = dict(zip(types, arguments.removesuffix("]").split(", "), strict=True)) if types else {}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=stand_for.get(kind, kind))
        for name, (kind, default) in declared(declaration).items()
    ]
    keywords = [parameter for parameter in own if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    parameters = [*own[: len(own) - len(keywords)], *options, *keywords]
    vars(function)["__signature__"] = signature.replace(parameters=parameters)
    vars(function)["__options__"] = {parameter.name: parameter.default for parameter in options}
    return function


def completed(function: Callable[..., object], options: T) -> T:
    """Return the options that a function was given, with the defaults of all others.

    Raise ``TypeError`` for an unknown name, with the text that Python has for it.
    """
    defaults: dict[str, object] = vars(function)["__options__"]
    complete: Any = {**defaults, **options}
    if len(complete) > len(defaults):
        unknown = next(name for name in complete if name not in defaults)
        raise TypeError(f"{function.__name__}() got an unexpected keyword argument {unknown!r}")
    result: T = complete
    return result


@cache
def declared(declaration: type) -> dict[str, tuple[str, object]]:
    """Return the type, as it is written, and the default of each option of a ``TypedDict``."""
    options: dict[str, tuple[str, object]] = {}
    for name, reference in declaration.__annotations__.items():
        home = sys.modules[reference.__forward_module__ or declaration.__module__].__dict__
        node = ast.parse(reference.__forward_arg__, mode="eval").body
        assert isinstance(node, ast.Subscript)
        assert isinstance(node.slice, ast.Tuple)
        kind, default = node.slice.elts
        options[name] = ast.unparse(kind), eval(ast.unparse(default), home)
    return options
