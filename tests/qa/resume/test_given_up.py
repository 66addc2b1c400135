"""A transport that was given up has no more say, even if something came over it in the same moment."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from rsocket_trio.connection.link import Link
from rsocket_trio.errors import ConnectionLost, RejectedResume, RemoteProtocolError
from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.retransmission import RetainingOutbox
from rsocket_trio.mux.stream_state import StreamQueue
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_2, RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.resume_protocol import ResumeHandshake, ResumeRequest
from rsocket_trio.rsocket.stream_table import StreamTable
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.byte_stream import ByteStreamTransport


class Owner:
    """A connection that only listens, and its session."""

    is_congested = is_mid_frame = is_stuck = False
    ended = None
    client = False
    attention = True
    progress = 0

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.outbox = Outbox(1000, lambda lane: None)

    def after_read(self, frames: Sequence[bytes]) -> bool:
        self.came += frames
        return True

    def on_broken(self, error: RemoteProtocolError) -> None:
        raise AssertionError

    def on_lost(self, error: ConnectionLost) -> None:
        raise AssertionError

    def after_write(self) -> None:
        pass

    pause_reading = after_write


class Ready(ByteStreamTransport):
    """A transport over which one frame comes when it is told to."""

    send_at_once = None
    is_idle = False

    def __init__(self, *, cuts: bool = True) -> None:
        self.comes = trio.Event()
        self.sent: list[EncodedFrame] = []
        self._cuts = cuts
        self._stream = trio.testing.memory_stream_pair()[0]

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        self.sent += frames
        await trio.lowlevel.checkpoint()

    async def receive(self) -> list[bytes]:
        await self.comes.wait()
        return [b"frame"]

    async def finish(self, code: int = 0) -> None:
        await trio.lowlevel.checkpoint()

    def cut(self) -> bool:
        return self._cuts


@pytest.mark.parametrize("given_up", [True, False])
async def test_frames_that_were_ready_when_a_link_was_given_up_are_not_counted(given_up: bool) -> None:
    # The client was told a position without them when it came back on another transport, and sends them again.
    owner, transport = Owner(), Ready()
    link = Link(transport, cast("Any", owner), cast("Any", owner))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, nursery, contextvars.copy_context())
        await trio.testing.wait_all_tasks_blocked()

        transport.comes.set()
        if given_up:
            link.abandon()
        else:
            link.stop()

    assert bool(owner.came) is not given_up


@pytest.mark.parametrize("cuts", [True, False])
async def test_the_send_task_of_a_link_that_was_given_up_ends(cuts: bool) -> None:
    transport, owner = Ready(cuts=cuts), Owner()
    outbox = owner.outbox
    link = Link(transport, cast("Any", owner), cast("Any", owner))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, nursery, contextvars.copy_context())
        outbox.put(StreamQueue(), b"frame")
        await trio.testing.wait_all_tasks_blocked()
        assert transport.sent == [b"frame"]
        assert len(nursery.child_tasks) == 2

        link.abandon()
        await trio.testing.wait_all_tasks_blocked()

        assert len(nursery.child_tasks) == 0


@pytest.mark.parametrize(
    ("dialect", "version", "is_taken"),
    [
        (RSOCKET_1_0, (1, 0), True),
        (RSOCKET_1_0, (0, 1), True),  # rsocket-js
        (RSOCKET_1_0, (0, 2), False),
        (REACTIVESOCKET_0_2, (0, 2), True),
        (REACTIVESOCKET_0_2, (0, 1), False),
        (REACTIVESOCKET_0_2, (2, 0), False),
    ],
)
def test_a_resume_says_the_version_of_its_session(dialect: Dialect, version: tuple[int, int], is_taken: bool) -> None:
    outbox = RetainingOutbox(1000, lambda lane: None, half_full=lambda: b"")
    table = StreamTable(dialect, client=False)
    resumption = ResumeHandshake(dialect, ResumeOptions(), table, outbox, lambda now: None, lambda code, data: data)
    resumption._agree()
    back = ResumeRequest(b"token", version, 0)

    if is_taken:
        resumption.check(back)
    else:
        with pytest.raises(RejectedResume, match=r"version \d\.\d is not that of the session"):
            resumption.check(back)
