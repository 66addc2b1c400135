"""What a link tells its connection, and a recorder, when it is given up or breaks."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any, cast

import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio.connection.link import Link
from rsocket_trio.connection.recording import RecordedTransport
from rsocket_trio.errors import ConnectionLost, RemoteProtocolError
from rsocket_trio.mux.framing import EncodedFrame, Framing24
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.recording import Facts
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from tests.connection.pairs import settle


class Owner:
    """A connection that writes down what it hears, and its session."""

    is_stuck = is_over = is_mid_frame = False
    client = False
    attention = True
    progress = 0

    def __init__(self) -> None:
        self.outbox = Outbox(1000, lambda lane: None)
        self.is_congested = False
        self.heard: list[object] = []

    def after_read(self, frames: Sequence[bytes]) -> bool:
        self.heard += frames
        return True

    def on_broken(self, error: RemoteProtocolError) -> None:
        self.heard.append(error)

    def on_lost(self, error: ConnectionLost) -> None:
        self.heard.append(str(error))

    def after_write(self) -> None:
        """Of no interest."""

    pause_reading = resume_reading = after_write


class Looker:
    """Records what it sees of each transport."""

    def __init__(self) -> None:
        self.saw: list[tuple[str, object]] = []

    def _opened(self, facts: Facts) -> Looker:
        return self

    def received(self, frames: Sequence[bytes]) -> None:
        self.saw.append(("received", list(frames)))

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        self.saw.append(("sent", list(frames)))

    def closed(self, reason: str) -> None:
        self.saw.append(("closed", reason))

    def over(self, reason: str) -> None:
        self.saw.append(("over", reason))


async def test_frames_that_came_with_a_transport_mean_nothing_once_it_is_given_up(autojump_clock: MockClock) -> None:
    stream, _ = trio.testing.memory_stream_pair()
    owner = Owner()
    owner.is_congested = True
    link = Link(ByteStreamTransport(stream), cast("Any", owner), owner, [b"the first"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, nursery, contextvars.copy_context())
        await settle()
        # Reading goes on in the very turn in which the client comes back on another transport.
        owner.is_congested = False
        link.resume()
        link.abandon()

    assert owner.heard == []


async def test_a_recorder_hears_of_the_end_behind_all_that_was_read(autojump_clock: MockClock) -> None:
    stream, peer = trio.testing.memory_stream_pair()

    async def break_off() -> None:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError("reset")

    stream.send_stream.send_all_hook = break_off
    looker, owner = Looker(), Owner()
    transport = RecordedTransport(ByteStreamTransport(stream), looker, "client", "rsocket/1.0")
    transport.use_framing(Framing24())
    owner.outbox.put_urgent(b"hello!")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Link(transport, cast("Any", owner), owner).run, nursery, contextvars.copy_context())
        await settle()
        await peer.send_all(Framing24().join([b"parted"]))

    broke = "the transport broke: reset"
    assert owner.heard == [b"parted", broke]
    assert looker.saw == [("sent", [b"hello!"]), ("received", [b"parted"]), ("closed", broke)]
