"""The fixtures of tests in a real Spark: servers in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rsocket_trio.spark import register
from tests.spark.jvm.servers import SourceServer
from tests.spark.session import tend
from tests.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytest_runtest_call = pytest.hookimpl(wrapper=True)(tend)


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """In place of the one for all tests: the session keeps processes and sockets until the end of the run."""


@pytest.fixture
def start_server() -> Iterator[Callable[..., SourceServer]]:
    """Starts servers that end with the test."""
    started: list[SourceServer] = []

    def start(*rows: int, **options: Any) -> SourceServer:
        started.append(SourceServer(*rows, **options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def server(start_server: Callable[..., SourceServer]) -> SourceServer:
    """A server with two partitions of 1000 rows each."""
    return start_server(1000, 1000)


@pytest.fixture
def sink(spark: SparkSession) -> Iterator[Sink]:
    """A server that takes rows."""
    register(spark)
    started = Sink(partitions=2)
    yield started
    started.stop()
