"""What must not grow back: class names that stand for several things, places that the type checker does not see, and
names of values that say nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import rsocket_trio

PACKAGE = Path(rsocket_trio.__file__).parent
MAX_NAMES_TWICE = 16
"""Names of classes that occur twice or more."""
MAX_UNCHECKED = 5.0
"""Any, cast and type: ignore for each 1,000 lines."""
VAGUE = frozenset({"found", "one", "each", "wanted", "given", "said", "told"})
MAX_VAGUE = 68
"""Variables, parameters and attributes that have one of these words as their name, by the places that set them."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text()
        yield text, ast.parse(text)


def unchecked(text: str, tree: ast.Module) -> int:
    """How often a module goes around the type checker."""
    names = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    calls = sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast"
        for node in ast.walk(tree)
    )
    return names["Any"] + calls + text.count("# type: ignore")


def values_set(tree: ast.Module) -> Iterator[str]:
    """The names of values that a module sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_few_names_of_classes_occur_twice() -> None:
    names = Counter(node.name for _, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    twice = sorted(name for name, count in names.items() if count > 1)

    assert len(twice) <= MAX_NAMES_TWICE, twice


def test_few_places_are_hidden_from_the_type_checker() -> None:
    counts = [(unchecked(text, tree), text.count("\n")) for text, tree in modules()]
    share = 1000 * sum(count for count, _ in counts) / sum(lines for _, lines in counts)

    assert share <= MAX_UNCHECKED


def test_few_values_have_a_name_that_says_nothing() -> None:
    vague = Counter(name for _, tree in modules() for name in values_set(tree) if name in VAGUE)

    assert vague.total() <= MAX_VAGUE, vague
