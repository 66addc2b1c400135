"""A table as a decorator: what ``pytest.mark.parametrize`` has a test for each row of, one test tries row by row.

The fixtures of the test are made once, but that each row has a folder, a log and patches of its own.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, Final

import pytest

from tests.rows import Rows, shows

ALL_CASES: Final = "RSOCKET_TRIO_ALL_CASES" in os.environ
"""True if all is played that ``make test`` leaves to ``make gate``, ``make cluster`` and ``make peers``."""
whole = pytest.mark.skipif(not ALL_CASES, reason="make gate plays it")
"""Marks a test that costs much, and shows little more than the others."""


def some(rows: Iterable[Any], count: int) -> list[Any]:
    """Return so many of the rows, spread over them, the first included; all of them where all cases are played."""
    found = list(rows)
    return found if ALL_CASES or count >= len(found) else [found[len(found) * n // count] for n in range(count)]


def each_row(names: str | Sequence[str], rows: Iterable[Any], ids: Any = None) -> Callable[[Any], Any]:
    """Have a test try all rows. It takes what ``parametrize`` takes."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table: list[tuple[str, dict[str, Any]]] = []
    clauses: list[Iterable[str]] = []
    for number, (given, known_as) in enumerate(named(list(rows), ids)):
        values = getattr(given, "values", given) if hasattr(given, "marks") else given
        values = list(values) if len(keys) > 1 or hasattr(given, "marks") else [values]
        name = str(getattr(given, "id", None) or known_as or f"{number}: {', '.join(map(repr, values))}"[:80])
        table.append((name, dict(zip(keys, values, strict=True))))
        for mark in getattr(given, "marks", ()):
            assert mark.name == "clause", f"a row can't be marked {mark.name}"
            clauses.append(mark.args)

    def decorate(test: Any) -> Any:
        async def run_async(**fixtures: Any) -> None:
            with Rows() as row:
                for number, (name, values) in enumerate(table):
                    with row(name), of_a_row(number, fixtures) as own:
                        await test(**own, **values)

        def run(**fixtures: Any) -> None:
            with Rows() as row:
                for number, (name, values) in enumerate(table):
                    with row(name), of_a_row(number, fixtures) as own:
                        test(**own, **values)

        tried: Any = update_wrapper(run_async if inspect.iscoroutinefunction(test) else run, test)
        wanted = inspect.signature(test)
        others = [each for each in wanted.parameters.values() if each.name not in keys]
        del tried.__wrapped__
        tried.__signature__ = wanted.replace(parameters=others)
        return shows(clauses)(tried) if clauses else tried

    return decorate


@contextmanager
def of_a_row(number: int, fixtures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The fixtures for one row: its own folder, an empty log, and patches that end with it."""
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / f"row{number}"
        own["tmp_path"].mkdir()
    if "caplog" in own:
        own["caplog"].clear()
    if "monkeypatch" not in own:
        yield own
        return
    with own["monkeypatch"].context() as patches:
        own["monkeypatch"] = patches
        yield own


def named(rows: list[Any], ids: Any) -> Iterable[tuple[Any, object]]:
    """Each row with its name, if it has one: of a list or mapping, or made of the row."""
    if ids is None:
        return [(row, None) for row in rows]
    if callable(ids):
        return [(row, ids(row)) if not isinstance(row, tuple) else (row, None) for row in rows]
    return list(zip(rows, ids, strict=True))
