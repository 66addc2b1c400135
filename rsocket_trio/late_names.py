"""Loads the public names of a package when they are first asked for, each from the module that defines it.

A package declares its names as ``homes``: for each module, relative to ``rsocket_trio``, what it gives, written as in
an import: ``"Name, Name as Other"``.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as type checkers take it; the command line begins here, and to import typing takes long
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def public_names(homes: Mapping[str, str]) -> Iterator[str]:
    """Return the public names of a package, in order."""
    return (public for _, _, public in _rows(homes))


def loaders(
    package: str, homes: Mapping[str, str], *, as_own: bool = False
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of ``package``.

    A name that is loaded is bound there, with all others whose modules are loaded then; with ``as_own`` its classes say
    that they live there, in errors and documentation.
    """
    bound = vars(sys.modules[package])

    def load_name(name: str) -> object:
        from importlib import import_module

        home = next((home for home, _, public in _rows(homes) if public == name), None)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import_module(f"rsocket_trio.{home}")
        for home, attribute, public in _rows(homes):
            thing = getattr(sys.modules.get(f"rsocket_trio.{home}"), attribute, None)
            if thing is not None:  # another thread may be loading it right now
                bound[public] = thing
                if as_own and isinstance(thing, type):
                    thing.__module__ = package
        loaded: object = bound[name]
        return loaded

    return load_name, lambda: sorted({*bound, *public_names(homes)})


def _rows(homes: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the module of each name, its name there, and the public one."""
    for home, names in homes.items():
        for written in names.split(", "):
            attribute, _, other = written.partition(" as ")
            yield home, attribute, other or attribute
