"""What tests of the analyses share: the small capture that is written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rsocket_trio.analytics.answers import Answer


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


@pytest.fixture(scope="session")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capture of ``handwritten.py``, in JSON lines."""
    from tests.analytics.handwritten import TABLES_BY_HAND
    from tests.analytics.writing import write_jsonl

    return write_jsonl(tmp_path_factory.mktemp("by_hand"), TABLES_BY_HAND)


@pytest.fixture(scope="session")
def told(spark: SparkSession, by_hand: Path) -> Mapping[str, Answer]:
    """All answers about it."""
    from rsocket_trio.analytics.answers import answers

    return {answer.view: answer for answer in answers(spark, by_hand)}
