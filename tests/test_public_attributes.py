"""Public objects show what users call: each public attribute has a docstring, or is in that of its class."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap

from tests.blocks import page
from tests.each_row import each_row
from tests.test_docstrings import documentation

PACKAGES = [
    "rsocket_trio",
    *(f"rsocket_trio.{name}" for name in ("services", "metadata", "testing", "replay", "capture", "loadgen")),
]
ERRORS = page("docs/reference/errors.md") + page("docs/reference/replay.md")
"""The pages whose tables are about errors."""


def public_classes() -> dict[str, type]:
    """Return the public classes by package and name, each once."""
    classes: dict[type, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            cls = getattr(module, name)
            if isinstance(cls, type):
                classes.setdefault(cls, f"{package}.{name}")
    return {name: cls for cls, name in classes.items()}


CLASSES = public_classes()


def is_documented(cls: type, name: str) -> bool:
    """Return whether the reference says something of an attribute: by its docstring, or in the words about the class.

    What has no docstring of its own is left out of the reference.
    """
    found = inspect.getattr_static(cls, name, None)
    has_docstring = callable(getattr(found, "__func__", found)) or isinstance(found, property)
    text = documentation(cls) + (re.sub("`+", "``", ERRORS) if issubclass(cls, Exception) else "")
    return (has_docstring and bool(inspect.getdoc(getattr(cls, name)))) or bool(re.search(rf"``{name}\b", text))


def public_attributes(cls: type) -> set[str]:
    """Return what ``dir`` shows of an object without an underscore, but for what classes of other packages define."""
    foreign = {name for base in cls.__mro__ if not base.__module__.startswith("rsocket_trio") for name in vars(base)}
    names = {*dir(cls)}
    for base in cls.__mro__:
        initializer = vars(base).get("__init__")
        if (
            base.__module__.startswith("rsocket_trio")
            and initializer is not None
            and not hasattr(base, "__attrs_attrs__")
        ):
            names |= attributes_set(initializer)
    return {name for name in names if not name.startswith("_")} - foreign


def attributes_set(initializer: object) -> set[str]:
    """Return the attributes of ``self`` that a method sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(initializer)))  # type: ignore[arg-type]  # a function
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


@each_row("name", CLASSES)
def test_every_public_attribute_is_in_the_reference(name: str) -> None:
    cls = CLASSES[name]

    assert {attribute for attribute in public_attributes(cls) if not is_documented(cls, attribute)} == set()
