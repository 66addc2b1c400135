"""The Trio thread of a process: what it makes reaches another thread, and its end reaches the thread."""

from __future__ import annotations

import os
import threading

import pytest
import trio

from rsocket_trio.spark import background as module
from rsocket_trio.spark.background import Job, Queue, background

pytestmark = pytest.mark.usefixtures("ends_background")
PATIENCE = 10.0


async def count_to_500(queue: Queue[int]) -> None:
    for one in range(500):
        await queue.put(one, 1)


def taken(job: Job[int, None]) -> list[int]:
    """All items of a job, which is closed then."""
    found = list(iter(job.take, None))
    job.close()
    return found


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
