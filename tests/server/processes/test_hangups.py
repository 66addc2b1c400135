"""A SIGHUP that came too late to be acted on ends nobody."""

from __future__ import annotations

import signal

from rsocket_trio.server.processes.supervisor import _hangups


async def test_a_hangup_that_nobody_acted_on_is_forgotten() -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with _hangups():
        signal.raise_signal(signal.SIGHUP)

    assert signal.getsignal(signal.SIGHUP) == before


async def test_a_hangup_is_heard() -> None:
    async with _hangups() as hangups:
        signal.raise_signal(signal.SIGHUP)
        async for number in hangups:
            assert number == signal.SIGHUP
            break
