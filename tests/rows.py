"""Tables within one test: every row is tried, and one failure lists all rows that fail.

A row is an item of its own only where it is worth one: pytest spends about 2 ms and some objects on every item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from types import TracebackType
from typing import Any, Self

import pytest


class Rows:
    """Try the rows of a table: ``with Rows() as row: ... with row("its name"): assert ...``.

    The block raises an ``ExceptionGroup`` with an exception for each row that failed, which has the row's name as a
    note. It fails as well if there was no row. Rows that skip are named by one skip, if no row failed.
    """

    def __init__(self) -> None:
        self._tried = 0
        self._failures: list[Exception] = []
        self._skips: list[str] = []

    @contextmanager
    def __call__(self, name: object) -> Iterator[None]:
        """Try one row. A ``Cancelled`` passes through: it is not the row's."""
        self._tried += 1
        try:
            yield
        except pytest.skip.Exception as skip:
            self._skips.append(f"{name}: {skip}")
        except pytest.fail.Exception as failure:
            self._failures.append(RowFailure(f"row {name}: {failure}"))
        except Exception as error:
            error.add_note(f"row {name}")
            self._failures.append(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Exception):
            return
        if isinstance(error, Exception):
            self._failures.append(error)
        if self._failures:
            failures, self._failures = self._failures, []
            raise ExceptionGroup(f"{len(failures)} of {self._tried} rows fail", failures) from None
        assert self._tried, "there was no row"
        if self._skips:
            pytest.skip("; ".join(self._skips))


class RowFailure(AssertionError):
    """A row called ``pytest.fail``, whose exception a group can't hold."""


def shows(clauses: Iterable[Iterable[str]]) -> Callable[[Any], Any]:
    """Mark a test with the clauses that each of its rows shows: by one mark, for each further one copies all before."""
    return pytest.mark.clause(*chain.from_iterable(clauses))
