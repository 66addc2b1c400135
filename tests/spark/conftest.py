"""What tests of sources and sinks share: servers in the same loop, and an end for the thread of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trio

from rsocket_trio import Responder, serve
from rsocket_trio.spark.background import background
from tests.spark.serving import URI


@pytest.fixture
def ends_background() -> Iterator[None]:
    """The Trio thread of this process ends with the test."""
    yield
    background().close()


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
