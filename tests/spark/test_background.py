"""The Trio thread of a process: what it makes reaches another thread, and its end reaches the thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
import trio

from rsocket_trio.spark import background as module
from rsocket_trio.spark.background import Background, Conveyor, Taker, background, close_background

pytestmark = pytest.mark.usefixtures("ends_background")
PATIENCE = 10.0


def counting(number: int) -> Callable[[Taker[int]], object]:
    async def produce(conveyor: Taker[int]) -> None:
        for one in range(number):
            await conveyor.put(one, 1)

    return produce


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


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
    assert list(here.iterate(counting(3), 10)) == [0, 1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [1, 3, 10_000])
def test_items_come_in_order_and_then_the_end(limit: int) -> None:
    stream = background().iterate(counting(500), limit)  # type: ignore[arg-type]

    assert list(stream) == list(range(500))
    with pytest.raises(StopIteration):
        stream.take()
    stream.close()


def test_an_error_comes_behind_the_items_before_it() -> None:
    async def produce(conveyor: Taker[int]) -> None:
        await conveyor.put(1, 1)
        raise ValueError("broken")

    stream = background().iterate(produce, 10)

    assert stream.take() == 1
    with pytest.raises(ValueError, match="broken"):
        stream.take()
    with pytest.raises(StopIteration):
        stream.take()
    stream.close()


def test_a_slow_reader_holds_the_producer_back() -> None:
    made: list[int] = []

    async def produce(conveyor: Taker[int]) -> None:
        for one in range(100):
            made.append(one)
            await conveyor.put(one, 10)

    stream = background().iterate(produce, 30)
    assert eventually(lambda: len(made) == 3)
    time.sleep(0.02)
    assert len(made) == 3

    assert stream.take() == 0
    assert eventually(lambda: len(made) == 4)
    stream.close()


def test_an_item_heavier_than_the_limit_is_taken_all_the_same() -> None:
    async def produce(conveyor: Taker[str]) -> None:
        await conveyor.put("heavy", 1000)
        await conveyor.put("light", 1)

    assert list(background().iterate(produce, 5)) == ["heavy", "light"]


def test_a_reader_may_wait_for_a_time_only() -> None:
    async def produce(conveyor: Taker[int]) -> None:
        await trio.sleep_forever()

    stream = background().iterate(produce, 1)

    with pytest.raises(TimeoutError):
        stream.take(0.01)
    stream.close()


def test_to_close_cancels_the_producer_and_waits_for_it() -> None:
    said: list[str] = []

    async def produce(conveyor: Taker[int]) -> None:
        try:
            await conveyor.put(1, 1)
            await trio.sleep_forever()
        finally:
            said.append("cancelled")

    stream = background().iterate(produce, 10)
    assert stream.take() == 1
    stream.close()
    stream.close()

    assert said == ["cancelled"]


def test_a_thread_that_is_closed_ends_the_streams_that_are_read() -> None:
    async def produce(conveyor: Taker[int]) -> None:
        await trio.sleep_forever()

    here = background()
    stream = here.iterate(produce, 1)
    waiting = threading.Thread(target=here.close)
    waiting.start()

    with pytest.raises(RuntimeError, match="background thread was closed"):
        stream.take(PATIENCE)
    waiting.join()
    stream.close()


def test_the_thread_does_not_keep_the_process_alive() -> None:
    here = Background()

    assert here._thread.daemon
    here.close()


def test_a_conveyor_can_be_used_without_a_background() -> None:
    conveyor: Conveyor[int] = Conveyor(5)
    conveyor.end(None)

    with pytest.raises(StopIteration):
        conveyor.take(None)
