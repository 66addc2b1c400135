"""Public objects show what users call: the reference names each public attribute of a public class."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap

from tests.blocks import ROOT
from tests.each_row import each_row

PACKAGES = [
    "rsocket_trio",
    *(f"rsocket_trio.{name}" for name in ("services", "metadata", "testing", "replay", "capture", "loadgen")),
]


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


def sections(text: str) -> list[tuple[str, str]]:
    """Return the headings of a page with what is below each: a title heads its whole page."""
    headings = list(re.finditer(r"^(#+) (.*)$", text, re.MULTILINE))
    found = []
    for index, heading in enumerate(headings):
        below = headings[index + 1 :] if heading[1] != "#" else []
        found.append((heading[2], text[heading.end() : below[0].start() if below else len(text)]))
    return found


PAGES = [
    re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL) for path in ROOT.glob("docs/reference/*.md")
]
SECTIONS = [section for text in PAGES for section in sections(text)]


def words_about(name: str) -> set[str]:
    """Return the words in code of the section with this name, or else of the sections that name the class."""
    code = {text: " ".join(re.findall(r"`[^`]+`", text)) for _, text in SECTIONS}
    texts = [text for heading, text in SECTIONS if heading == name]
    texts = texts or [text for text, words in code.items() if re.search(rf"\b{name}\b", words)]
    return {word for text in texts for word in re.findall(r"\w+", code[text])}


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
    names = {one.rpartition(".")[2] for one, base in CLASSES.items() if base in cls.__mro__}
    explained = {word for about in names for word in words_about(about)}

    assert public_attributes(cls) - explained == set()
