"""A pytest plugin that writes down which test shows which clause."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


class Clauses:
    """The clauses that tests name, and the tests."""

    def __init__(self) -> None:
        self.tests: dict[str, list[pytest.Item]] = defaultdict(list)
        self.breadths: dict[str, int] = {}
        """The number of clauses that a test names: a test that names only one tells most about it."""
        self.broken: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            names = [name for marker in item.iter_markers("clause") for name in marker.args]
            self.breadths[item.nodeid] = len(names)
            for name in dict.fromkeys(names):
                self.tests[name].append(item)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(report.nodeid)

    @property
    def shown(self) -> dict[str, list[str]]:
        """Each clause that is named, with the names of its tests, those first that name the fewest clauses."""
        return {
            name: [said(item, name) for item in sorted(items, key=lambda item: self.breadths[item.nodeid])]
            for name, items in self.tests.items()
        }


def said(item: pytest.Item, clause: str) -> str:
    """The sentence that a test's name is; with the row, where the row of a table names the clause."""
    name = str(getattr(item, "originalname", None) or item.name).removeprefix("test_").replace("_", " ")
    row = getattr(item, "callspec", None)
    if row is not None and any(mark.name == "clause" and clause in mark.args for mark in row.marks):
        name += f" ({row.id})"
    return f"{item.path.relative_to(TESTS).as_posix()}: {name}"
