"""The Trio thread of a process: what it makes reaches another thread, and its end reaches the thread."""

from __future__ import annotations

import os
import threading

import pytest
import trio

from rsocket_trio.spark import background as module
from rsocket_trio.spark.background import Background, Job, Queue, background, close_background

pytestmark = pytest.mark.usefixtures("ends_background")
PATIENCE = 10.0


async def count_to_500(queue: Queue[int]) -> None:
    for one in range(500):
        await queue.put(one, 1)


async def collect(queue: Queue[int]) -> list[int]:
    found = []
    while (item := await queue.take()) is not None:
        found.append(item)
    return found


def taken(job: Job[int, None]) -> list[int]:
    """All items of a job, which is closed then."""
    found = list(iter(job.take, None))
    job.close()
    return found


def test_there_is_one_thread_for_a_process() -> None:
    assert background() is background()
    assert background().is_alive


def test_a_thread_of_another_process_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = background()
    # As it is in a fork: the object is there, its thread is not.
    monkeypatch.setattr(os, "getpid", lambda: parents.pid + 1)

    assert not parents.is_alive
    fresh = background()
    assert fresh is not parents
    assert fresh.pid == parents.pid + 1

    fresh.close()
    monkeypatch.undo()
    module._here = parents  # for what ends it


def test_a_thread_that_was_closed_is_replaced() -> None:
    first = background()
    close_background()

    assert not first.is_alive
    assert background() is not first


def test_what_a_function_returns_or_raises_comes_back() -> None:
    async def fail() -> None:
        raise KeyError("no")

    async def ask() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert background().run(ask) == 7
    with pytest.raises(KeyError, match="no"):
        background().run(fail)


def test_what_a_started_function_raises_is_logged_and_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError("nobody catches this")

    here = background()
    here.start(fail)
    here.run(trio.testing.wait_all_tasks_blocked)

    assert "nobody catches this" in caplog.text
    assert background() is here
    assert taken(Job(here, count_to_500, 10)) == list(range(500))


# Items that a task makes


@pytest.mark.parametrize("limit", [1, 3, 10_000])
def test_items_come_in_order_and_then_the_end(limit: int) -> None:
    job = Job(background(), count_to_500, limit)

    assert taken(job) == list(range(500))
    assert job.take() is None


def test_an_error_comes_behind_the_items_before_it() -> None:
    async def produce(queue: Queue[int]) -> None:
        await queue.put(1, 1)
        raise ValueError("broken")

    job = Job(background(), produce, 10)

    assert job.take() == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            job.take()
    job.close()


def test_a_slow_reader_holds_the_producer_back() -> None:
    made: list[int] = []

    async def produce(queue: Queue[int]) -> None:
        for one in range(100):
            made.append(one)
            await queue.put(one, 10)

    here = background()
    job = Job(here, produce, 30)
    here.run(trio.testing.wait_all_tasks_blocked)
    assert len(made) == 3

    assert job.take() == 0
    here.run(trio.testing.wait_all_tasks_blocked)
    assert len(made) == 4
    job.close()


def test_an_item_heavier_than_the_limit_is_taken_all_the_same() -> None:
    async def produce(queue: Queue[int]) -> None:
        await queue.put(1, 1000)
        await queue.put(2, 1)

    assert taken(Job(background(), produce, 5)) == [1, 2]


def test_a_reader_may_wait_for_a_time_only() -> None:
    async def produce(queue: Queue[int]) -> None:
        await trio.sleep_forever()

    job = Job(background(), produce, 1)

    for seconds in (0, 0.01):
        with pytest.raises(TimeoutError):
            job.take(seconds)
    job.close()


def test_to_close_cancels_the_task_and_waits_for_it() -> None:
    ended: list[str] = []

    async def produce(queue: Queue[int]) -> None:
        try:
            await queue.put(1, 1)
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    job = Job(background(), produce, 10)
    assert job.take() == 1
    job.close()
    job.close()

    assert ended == ["cancelled"]


def test_a_thread_that_is_closed_ends_the_jobs_that_are_read() -> None:
    async def produce(queue: Queue[int]) -> None:
        await trio.sleep_forever()

    here = background()
    job = Job(here, produce, 1)
    waiting = threading.Thread(target=here.close)
    waiting.start()

    with pytest.raises(RuntimeError):
        job.take(PATIENCE)
    waiting.join()
    job.close()


# Items for a task


def test_items_for_a_task_come_in_order_and_its_result_goes_back() -> None:
    job = Job(background(), collect, 10)
    for number in range(1000):
        job.put(number, 1)

    assert job.finish() == list(range(1000))
    job.close()


def test_a_task_without_items_ends_as_well() -> None:
    assert Job(background(), collect, 10).finish() == []


@pytest.mark.parametrize("waits", ["in put", "in finish"])
def test_what_the_task_raises_is_raised_to_who_puts(waits: str) -> None:
    async def fail(queue: Queue[int]) -> None:
        await queue.take()
        raise ValueError("broken")

    job = Job(background(), fail, 1)

    def use() -> None:
        if waits == "in finish":
            job.put(1, 1)
            job.finish()
        while True:
            job.put(1, 1)

    with pytest.raises(ValueError, match="broken"):
        use()
    job.close()


def test_nothing_is_put_for_a_task_that_was_cancelled() -> None:
    job = Job(background(), collect, 10)
    job.put(1, 1)
    job.close()

    with pytest.raises(RuntimeError, match="the task was cancelled"):
        job.put(2, 1)


def test_the_thread_does_not_keep_the_process_alive() -> None:
    here = Background()

    assert here._thread.daemon
    here.close()
