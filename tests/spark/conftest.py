"""What tests of sources and sinks share: the session, servers in the same loop, and an end for the thread of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from rsocket_trio import Responder, serve
from rsocket_trio.spark.background import background, close_background
from tests.spark.serving import URI
from tests.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark, started once for all tests that ask for it."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def ends_background() -> Iterator[None]:
    """The Trio thread of this process ends with the test."""
    yield
    close_background()


@pytest.fixture
def serving(ends_background: None) -> Callable[[Responder], None]:
    """Serves in the thread of the background, for tests that call readers as Spark does: without a loop."""

    def start(responder: Responder) -> None:
        here = background()
        ready = trio.Event()

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(serve, responder, [URI], grace=0))
                ready.set()

        here.start(run)
        here.run(ready.wait)

    return start
