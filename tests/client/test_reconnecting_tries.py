"""When does a client that outlives its connections try again?"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Backoff,
    ConnectionLost,
    ResumeOptions,
    connect_forever,
)
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.protocols import STREAMUX
from rsocket_trio.rsocket.frames import ExtensionEntry
from rsocket_trio.transports.memory import listen_memory
from tests.client.reconnecting import DELAYS, EXACT, URI, Told, service
from tests.connection.pairs import settle


async def test_pauses_double_up_to_the_longest(autojump_clock: MockClock) -> None:
    told = Told()
    with trio.move_on_after(sum(DELAYS) + 1):
        async with connect_forever(URI, backoff=EXACT, on_state=told):
            await trio.sleep_forever()

    assert told.tries[0] == 0
    assert told.pauses == DELAYS
    assert told.states == ["connecting"] * 10 + ["closed"]


async def test_jitter_shortens_each_pause_and_by_no_more_than_it_says(autojump_clock: MockClock) -> None:
    told = Told()
    with trio.move_on_after(30):
        async with connect_forever(URI, backoff=Backoff(first_delay=1, longest_delay=1, jitter=0.25), on_state=told):
            await trio.sleep_forever()

    assert len(told.pauses) >= 29
    assert all(0.75 <= pause <= 1 for pause in told.pauses)
    assert len(set(told.pauses)) > 20


def test_a_delay_is_a_matter_of_tries_and_chance() -> None:
    backoff = Backoff(first_delay=1, longest_delay=100, jitter=0.5)

    assert [backoff.delay(tries, 0.0) for tries in (0, 1, 6, 7, 10**6)] == [1, 2, 64, 100, 100]
    assert [backoff.delay(1, chance) for chance in (0.0, 0.5, 1.0)] == [2, 1.5, 1]
    assert ResumeOptions(first_delay=1, longest_delay=100, jitter=0.5).delay(1, 0.5) == 1.5


@pytest.mark.parametrize("field", ["first_delay", "longest_delay", "jitter"])
def test_a_retry_is_checked_when_it_is_made(field: str) -> None:
    wrong: Any = "soon"
    with pytest.raises(ValueError, match=rf"Backoff\.{field} of -1"):
        Backoff(**{field: -1})
    with pytest.raises(TypeError, match=rf"Backoff\.{field} is a number"):
        Backoff(**{field: wrong})


async def test_a_server_that_hangs_up_at_once_is_not_hammered(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, backoff=EXACT, on_state=told):
        for pause in (0.0, *DELAYS[:5]):
            await trio.sleep(pause)
            await settle()
            running.cut()
        await settle()

    assert told.pauses == DELAYS[:5]


async def test_after_a_connection_that_held_the_pauses_begin_anew(autojump_clock: MockClock) -> None:
    told = Told()
    async with service() as running, connect_forever(URI, backoff=EXACT, on_state=told) as client:
        for held in (1, 1, 11, 10):
            await client.connected()
            await trio.sleep(held)
            running.cut()
            await settle()
        await client.connected()

    assert told.pauses == [1.1, 1.2, 11.1, 10.2]


async def test_a_try_that_is_not_answered_is_given_up(autojump_clock: MockClock) -> None:
    told = Told()
    mute = listen_memory("service")
    with trio.move_on_after(10):
        async with connect_forever(
            URI,
            dialect=STREAMUX,
            backoff=Backoff(first_delay=1, jitter=0),
            connect_timeout=2,
            wait=False,
            on_state=told,
        ) as client:
            await trio.sleep(6)
            with pytest.raises(ConnectionLost, match=f"{URI}: the initialize message was not answered within 2 s"):
                await client.ping()
    await mute.aclose()

    assert told.states == ["connecting", "connecting", "closed"]


async def test_a_connection_in_the_very_turn_in_which_the_time_is_over_is_used_and_stays(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    on_answered = Engine.on_answered
    told = Told()

    def answered_late(self: Engine, entries: tuple[ExtensionEntry, ...]) -> None:
        on_answered(self, entries)
        if self.session.client and len(told.tries) == 1:
            autojump_clock.jump(2)  # a turn that takes longer than connecting may

    monkeypatch.setattr(Engine, "on_answered", answered_late)
    async with service(), connect_forever(URI, dialect=STREAMUX, connect_timeout=2, on_state=told) as client:
        await client.connected()
        await trio.sleep(3)
        await client.ping()
        assert told.states == ["connecting", "connected"]
