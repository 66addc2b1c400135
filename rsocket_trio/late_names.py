"""Loads the public names of a package when they are first asked for, each from the module that defines it.

A package declares its names as ``homes``: for each module, relative to ``rsocket_trio``, what it gives, written as in
an import: ``"Name"``, or ``"Name as Other"``.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as type checkers take it; the command line begins here, and to import typing takes long
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def load_name(package: str, homes: Mapping[str, Sequence[str]], name: str) -> object:
    """Return the public ``name`` of ``package``. Bind it there, with all others whose modules are loaded then.

    Raise ``AttributeError`` for a name that is none of them.
    """
    from importlib import import_module

    rows = list(_rows(homes))
    home = next((home for home, _, public in rows if public == name), None)
    if home is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    import_module(f"rsocket_trio.{home}")
    bound = vars(sys.modules[package])
    for home, attribute, public in rows:
        module = sys.modules.get(f"rsocket_trio.{home}")
        if hasattr(module, attribute):  # another thread may be loading it right now
            bound[public] = getattr(module, attribute)
    loaded: object = bound[name]
    return loaded


def public_names(package: str, homes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of ``package`` for ``dir``: the public ones, and what every module has."""
    return sorted({*vars(sys.modules[package]), *(public for _, _, public in _rows(homes))})


def _rows(homes: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the module of each name, its name there, and the public one."""
    for home, names in homes.items():
        for written in names:
            attribute, _, other = written.partition(" as ")
            yield home, attribute, other or attribute
