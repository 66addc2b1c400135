"""Which of the tasks that wait a step of the duty cycle tries."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rsocket_trio.transports.aeron import duty_cycle
from rsocket_trio.transports.aeron.duty_cycle import DutyCycle

CONNECTIONS = 100


def idle() -> DutyCycle:
    """The duty cycle of a driver that has something to do in each step, and nothing for those who wait."""
    return DutyCycle(lambda: True, lambda: False)


async def test_of_many_connections_those_are_tried_that_something_came_for(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty_cycle, "SPINS", 0)
    monkeypatch.setattr(duty_cycle, "LOOK_INTERVAL", 1000)
    duty = idle()
    positions = [[0] for _ in range(CONNECTIONS)]
    tried: list[int] = []
    over: set[int] = set()

    async def wait(number: int) -> None:
        def attempt() -> bool:
            tried.append(number)
            return number in over

        await duty.until(attempt, watched=positions[number])

    for number in range(CONNECTIONS):
        nursery.start_soon(wait, number)
    await wait_all_tasks_blocked()
    duty.step()  # the first tries all
    tried.clear()

    duty.step()
    assert tried == []
    positions[7][0] += 64
    positions[93][0] += 64
    over.add(7)
    duty.step()
    assert sorted(tried) == [7, 93]
    tried.clear()
    await wait_all_tasks_blocked()
    duty.step()
    assert tried == []

    duty._look_due = 0
    duty.step()
    assert sorted(tried) == [number for number in range(CONNECTIONS) if number != 7]  # peers may have ended
    nursery.cancel_scope.cancel()


async def test_what_a_cancelled_task_waited_for_is_tried_no_more(nursery: trio.Nursery) -> None:
    duty = idle()
    tried = 0

    async def wait(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        def attempt() -> bool:
            nonlocal tried
            tried += 1
            return False

        with trio.CancelScope() as scope:
            task_status.started(scope)
            await duty.until(attempt, hurried=True)

    scope = await nursery.start(wait)
    await wait_all_tasks_blocked()
    scope.cancel()
    tried = 0
    duty.step()  # as another task may, before the one that was cancelled runs
    await wait_all_tasks_blocked()
    assert tried == 0
    assert duty.hurried == 0
