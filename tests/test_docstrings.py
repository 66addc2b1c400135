"""Public names are in the reference, which is made of their docstrings, and these name every parameter."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_origin

import pytest

from tests.blocks import ROOT
from tests.missing import give_up

PACKAGES = {
    "rsocket_trio": None,
    "rsocket_trio.analytics": "pyspark",
    "rsocket_trio.capture": None,
    "rsocket_trio.loadgen": None,
    "rsocket_trio.metadata": None,
    "rsocket_trio.observe": None,
    "rsocket_trio.replay": None,
    "rsocket_trio.services": None,
    "rsocket_trio.spark": "pyspark",
    "rsocket_trio.testing": None,
}
"""Each package with public names, and the library without which it can't be imported."""
PAGES = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
DIRECTIVES = re.findall(r"^\.\. auto(?:class|data|exception|function):: ([\w.]+)", PAGES, re.MULTILINE)
"""The names whose docstrings are on the pages of the site."""
ROWS = {
    name
    for path in (ROOT / "docs" / "reference").glob("*.md")
    for cell in re.findall(r"^\| ([^|]+) \|", path.read_text("utf-8"), re.MULTILINE)
    for name in re.findall(r"`(\w+)`", cell)
}
"""The names that a row of a table is about: errors with their codes, codecs, MIME types."""
MADE_BY_THE_LIBRARY = {
    *("Call", "Channel", "Chunks", "Connection", "Incoming", "Outgoing", "Pool", "ReconnectingClient"),
    *("Receiving", "SimulatedStream", "Stream", "Subscription", "TypedChannel"),
}
"""Classes that users get and do not make: the arguments of their ``__init__`` are no part of the public API."""
FOR_TESTS_AND_SPEED = {"filesystem", "head", "one"}
"""Parameters that no user gives: a file system that fails on purpose, and constants that are looked up faster so."""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_documented_with_its_parameters(package: str) -> None:
    needed = PACKAGES[package]
    if needed is not None and importlib.util.find_spec(needed) is None:
        give_up(f"{needed} is not installed")
    module = importlib.import_module(package)
    wrong = []
    for name in module.__all__:
        for path, thing in public_parts(name, getattr(module, name)):
            text = documentation(thing)
            missing = [one for one in parameters(thing, path) if not re.search(rf"``{one}\b", text)]
            if not text or missing:
                wrong.append(f"{path}: {', '.join(missing) or 'no docstring'}")

    assert wrong == []


def loaded(path: str) -> Any:
    """Return what has this name in a package."""
    package, _, name = path.rpartition(".")
    return getattr(importlib.import_module(package), name)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    needed = PACKAGES[package]
    if needed is not None and importlib.util.find_spec(needed) is None:
        give_up(f"{needed} is not installed")
    module = importlib.import_module(package)
    # The same thing can be public in two packages.
    shown = [loaded(path) for path in DIRECTIVES if is_importable(path)]

    assert [
        name for name in module.__all__ if name not in ROWS and not any(one is getattr(module, name) for one in shown)
    ] == []


def test_no_docstring_is_shown_twice() -> None:
    assert sorted(DIRECTIVES) == sorted({*DIRECTIVES})


def is_importable(path: str) -> bool:
    """Return whether the libraries are here that the package of a name needs."""
    needed = PACKAGES.get(path.rpartition(".")[0])
    return needed is None or importlib.util.find_spec(needed) is not None


def public_parts(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield a public thing and, of a class, its methods and properties."""
    if not callable(thing) or get_origin(thing) is Literal:
        return
    yield name, thing
    if inspect.isclass(thing):
        for part in sorted(own_names(thing)):
            found = inspect.getattr_static(thing, part)
            function = getattr(found, "__func__", found)
            if not part.startswith("_") and (inspect.isfunction(function) or isinstance(found, property)):
                yield f"{name}.{part}", getattr(thing, part)


def documentation(thing: Any) -> str:
    """Return the docstring of a thing; of a class, those of its bases and its attributes as well."""
    if not inspect.isclass(thing):
        return inspect.getdoc(thing) or ""
    texts = []
    for cls in thing.__mro__:
        if cls.__module__.startswith("rsocket_trio") and cls.__doc__:
            texts += [cls.__doc__, getattr(vars(cls).get("__init__"), "__doc__", "") or "", *attribute_docs(cls)]
    return "\n".join(texts)


def attribute_docs(cls: type) -> Iterator[str]:
    """Yield the name of each attribute of a class that a string behind it documents."""
    for node in classes().get(inspect.getdoc(cls) or "", ()):
        for field, text in pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text(text):
                yield f"``{field.target.id}``"


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Return the classes of the package by their docstrings: ``__module__`` does not say where they are defined."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in (ROOT / "rsocket_trio").rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(str(ast.get_docstring(node)), []).append(node)
    return found


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def parameters(thing: Any, path: str) -> list[str]:
    """Return the names that a user may give: the ``**`` of a ``TypedDict`` stands for its names elsewhere."""
    plain_error = inspect.isclass(thing) and "__init__" not in own_names(thing) and issubclass(thing, Exception)
    if path in MADE_BY_THE_LIBRARY or plain_error or not callable(thing):
        return []
    found = inspect.signature(thing).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in found if one.name not in {"self", *FOR_TESTS_AND_SPEED} and one.kind not in variable]


def own_names(cls: type) -> set[str]:
    return {name for base in cls.__mro__ if base.__module__.startswith("rsocket_trio") for name in vars(base)}
