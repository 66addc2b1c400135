"""Between Spark's thread and a task of the background: order, bounds, ends and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from rsocket_trio.spark.background import background, close_background
from rsocket_trio.spark.feeding import Feed

PATIENCE = 10.0


@pytest.fixture(autouse=True)
def ends_background() -> Iterator[None]:
    yield
    close_background()


async def collect(feed: Feed[int, list[int]]) -> list[int]:
    found = []
    while (item := await feed.take()) is not None:
        found.append(item)
    return found


def test_items_come_in_order_and_the_result_goes_back() -> None:
    feed = Feed(background(), collect, 10)
    for number in range(1, 1000):
        feed.put(number, 1)

    assert feed.finish() == list(range(1, 1000))
    feed.close()


def test_a_task_without_items_ends_as_well() -> None:
    assert Feed(background(), collect, 10).finish() == []


def test_who_puts_waits_while_too_much_lies_there() -> None:
    released = threading.Event()

    async def wait_first(feed: Feed[int, list[int]]) -> list[int]:
        await trio.to_thread.run_sync(released.wait)
        return await collect(feed)

    feed = Feed(background(), wait_first, 10)
    put = threading.Semaphore(0)

    def fill() -> None:
        for number in range(1, 21):
            feed.put(number, 3)
            put.release()

    filling = threading.Thread(target=fill)
    filling.start()
    # Four of weight three are more than ten: the fifth has to wait.
    for _ in range(4):
        assert put.acquire(timeout=PATIENCE)
    assert not put.acquire(timeout=0.2)
    released.set()
    filling.join(PATIENCE)

    assert feed.finish() == list(range(1, 21))


@pytest.mark.parametrize("waits", ["in put", "in finish"])
def test_what_the_task_raises_is_raised_to_who_puts(waits: str) -> None:
    async def fail(feed: Feed[int, list[int]]) -> list[int]:
        await feed.take()
        raise ValueError("broken")

    feed = Feed(background(), fail, 1)

    def use() -> None:
        if waits == "in finish":
            feed.put(1, 1)
            feed.finish()
        while True:
            feed.put(1, 1)

    with pytest.raises(ValueError, match="broken"):
        use()
    with pytest.raises(RuntimeError, match="the task has failed before"):
        feed.finish()
    feed.close()


def test_closing_cancels_the_task_and_waits_for_its_goodbye() -> None:
    said: list[str] = []

    async def stay(feed: Feed[int, list[int]]) -> list[int]:
        try:
            return await collect(feed)
        finally:
            said.append("goodbye")

    feed = Feed(background(), stay, 10)
    feed.put(1, 1)
    feed.close()

    assert said == ["goodbye"]
    with pytest.raises(RuntimeError, match="the task was cancelled"):
        feed.put(2, 1)


def test_a_background_that_ends_takes_nobody_with_it() -> None:
    started = threading.Event()

    async def stay(feed: Feed[int, list[int]]) -> list[int]:
        started.set()
        return await collect(feed)

    feed = Feed(background(), stay, 10)
    assert started.wait(PATIENCE)
    close_background()

    with pytest.raises(RuntimeError, match="the background thread was closed"):
        feed.put(1, 1)
