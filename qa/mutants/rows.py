"""The faults of rows.toml, each easy to overlook, and the tests that must find them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import attrs


@attrs.frozen
class Mutant:
    """A fault: in ``function``, wherever in the package it stands, the text ``old`` becomes ``new``.

    ``function`` is a qualified name, as in ``Class.method``. One function of that name has the text, and has it once.
    Of the test files at least one must fail then.
    """

    name: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...]


GROUPS: Final = tomllib.loads(Path(__file__).with_name("rows.toml").read_text("utf-8"))["group"]
MUTANTS: Final = tuple(
    Mutant(name, function, old, new, tuple(group["tests"]))
    for group in GROUPS
    for name, (function, old, new) in group["faults"].items()
)
