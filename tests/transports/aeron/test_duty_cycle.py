"""Which of the tasks that wait a step of the duty cycle tries."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rsocket_trio.transports.aeron import duty_cycle
from rsocket_trio.transports.aeron.duty_cycle import DutyCycle

CONNECTIONS = 100


class Idle:
    """A driver and a client that have something to do in each step, and nothing for those who wait."""

    fault: str | None = None

    def drive(self) -> bool:
        return True

    def attend_client(self) -> bool:
        return False


async def test_of_many_connections_those_are_tried_that_something_came_for(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty_cycle, "SPINS", 0)
    monkeypatch.setattr(duty_cycle, "LONGEST_BLIND_REST", 1000)
    monkeypatch.setattr(duty_cycle, "SHORTEST_REST", 1000)  # no step but those of this test
    monkeypatch.setattr(duty_cycle, "BLIND_SPINS", 0)
    monkeypatch.setattr(duty_cycle, "CLIENT_INTERVAL", 1000)
    duty = DutyCycle(Idle())
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
    duty.step()  # the first is the client's, too
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

    monkeypatch.setattr(duty_cycle, "CLIENT_INTERVAL", 0)
    duty._client_due = 0
    for _ in range(duty_cycle.ROUNDS):
        duty.step()
    assert sorted(tried) == [number for number in range(CONNECTIONS) if number != 7]  # peers may have ended
    nursery.cancel_scope.cancel()


async def test_a_result_that_comes_after_the_cancellation_of_its_task_is_undone(nursery: trio.Nursery) -> None:
    duty = DutyCycle(Idle())
    is_there = False
    undone: list[str] = []

    def steps() -> Generator[None, None, str]:
        while not is_there:
            yield
        return "a connection"

    async def wait(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await duty.complete(steps(), undone.append)

    scope = await nursery.start(wait)
    await trio.sleep(0.01)
    scope.cancel()
    is_there = True
    duty.step()  # as another task may, before the one that was cancelled runs
    assert undone == []
    await wait_all_tasks_blocked()
    assert undone == ["a connection"]
    assert duty.hurried == 0
