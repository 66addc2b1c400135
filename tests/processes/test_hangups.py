"""A SIGHUP that came too late to be acted on ends nobody."""

from __future__ import annotations

import os
import signal

import trio

from rsocket_trio.processes.supervisor import _hangups


async def test_a_hangup_that_nobody_acted_on_is_forgotten() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with _hangups():
        os.kill(os.getpid(), signal.SIGHUP)
        await trio.lowlevel.checkpoint()

    assert signal.getsignal(signal.SIGHUP) == before


async def test_a_hangup_is_heard() -> None:
    with _hangups() as hangups:
        os.kill(os.getpid(), signal.SIGHUP)
        async for number in hangups:
            assert number == signal.SIGHUP
            break
