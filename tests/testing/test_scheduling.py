"""Runs that repeat: the seed decides the order of tasks, and a Trio that cannot do it is named."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio.testing import deterministic_scheduling, scheduling, simulate


async def order_of_tasks() -> list[int]:
    order = []

    async def note(number: int) -> None:
        await trio.lowlevel.checkpoint()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(note, number)
    return order


def test_a_seed_gives_one_order_and_another_seed_another() -> None:
    orders = [simulate(order_of_tasks, seed=seed) for seed in (1, 1, 2, 3)]

    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
    assert sorted(orders[0]) == list(range(10))


async def test_it_may_begin_inside_of_a_run() -> None:
    with deterministic_scheduling(5):
        first = await order_of_tasks()
    with deterministic_scheduling(5):
        assert await order_of_tasks() == first


def test_what_it_changes_of_trio_is_changed_back() -> None:
    scheduler = scheduling._scheduler()
    before = scheduling.SWITCH, getattr(scheduler, scheduling.SWITCH), scheduler._r.getstate()  # type: ignore[attr-defined]
    with pytest.raises(KeyError), deterministic_scheduling(1):
        raise KeyError

    assert before == (scheduling.SWITCH, getattr(scheduler, scheduling.SWITCH), scheduler._r.getstate())  # type: ignore[attr-defined]


def test_hours_take_no_time_and_for_ever_is_noticed() -> None:
    simulate(trio.sleep, 3000)

    with pytest.raises(trio.TooSlowError):
        simulate(trio.sleep_forever)
    with pytest.raises(trio.TooSlowError):
        simulate(trio.sleep, 3, longest=2)


@pytest.mark.parametrize("name", ["SWITCH", "SHUFFLER"])
def test_a_trio_without_the_private_names_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, name, "_gone")

    with pytest.raises(RuntimeError, match=rf"Trio {trio.__version__} has no usable trio\._core\._run\._gone"):
        simulate(trio.sleep, 1)
