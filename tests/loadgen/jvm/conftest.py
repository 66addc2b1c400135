"""Tests with a real Spark: what its session keeps until the end of the run is no leak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.session import tend

pytest_runtest_call = pytest.hookimpl(wrapper=True)(tend)


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """In place of the one for all tests: the session keeps processes and sockets until the end of the run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings that are not ours to mend."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # py4j leaves its sockets to the collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
