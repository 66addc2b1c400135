"""The Spark that this package runs in: the versions that are needed, and the form in which errors reach its user."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, ParamSpec, TypeVar

from rsocket_trio.extras import install_command

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LEAST: Final[Mapping[str, tuple[int, int]]] = {"pyspark": (4, 2), "pyarrow": (18, 0)}
"""The oldest version of each package that will do."""
INSTALL: Final = install_command("spark")


def require_versions(least: Mapping[str, tuple[int, int]] = LEAST) -> None:
    """Raise ``ImportError`` that names the package and this interpreter, unless each package is new enough.

    ``least`` is the oldest version of each package: its first two numbers. A package that is missing is a
    ``ModuleNotFoundError``.
    """
    for name, needed in least.items():
        try:
            found = str(getattr(import_module(name), "__version__", "of an unknown version"))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            found = "none"
        numbers = version_numbers(found)
        if numbers is None or numbers < needed:
            problem = f"needs {name} {needed[0]}.{needed[1]} or newer, {sys.executable} has {found}: {INSTALL}"
            # Outside of the handler: the error stands alone.
            hide_traceback()
            kind = ModuleNotFoundError if found == "none" else ImportError
            raise kind(f"rsocket_trio.spark {problem}", name=name)


def version_numbers(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version, ``None`` if it does not begin with such."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def hide_traceback() -> None:
    """Have Spark show the error that is about to end this worker without a traceback. Elsewhere do nothing.

    A worker of Spark's ends with the first error that reaches it, so this changes no other error.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


# Errors


class Explained(Exception):
    """The base of errors whose message says everything: a user of Spark gets it as one line, without a traceback."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.__module__ = "rsocket_trio.spark"  # the name that the user can import


def in_one_line(method: Callable[P, R]) -> Callable[P, R]:
    """Have the explained errors of a method that Spark calls reach the user as one line."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except Explained as error:
            raise _bare(error) from None

    return call


def rows_in_one_line(rows: Iterator[T]) -> Iterator[T]:
    """Yield the rows; have their explained errors reach the user as one line. Closing this closes ``rows``."""
    try:
        yield from rows
    except Explained as error:
        raise _bare(error) from None


def _bare(error: Explained) -> Explained:
    hide_traceback()
    return error.with_traceback(None)
