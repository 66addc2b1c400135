"""What a link tells its connection, and a recorder, when it is given up or breaks."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence

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


class Rules:
    """A connection that writes down what it hears."""

    is_stuck = is_over = is_mid_frame = False
    progress = 0

    def __init__(self) -> None:
        self.is_congested = False
        self.heard: list[object] = []

    def on_frames(self, frames: Sequence[bytes]) -> None:
        self.heard += frames

    def on_broken(self, error: RemoteProtocolError) -> None:
        self.heard.append(error)

    def on_lost(self, error: ConnectionLost) -> None:
        self.heard.append(str(error))

    def on_written(self) -> None:
        """Of no interest."""


class Looker:
    """Records what it sees of each transport."""

    def __init__(self) -> None:
        self.saw: list[tuple[str, object]] = []

    def opened(self, facts: Facts) -> Looker:
        return self

    def received(self, frames: Sequence[bytes]) -> None:
        self.saw.append(("received", list(frames)))

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        self.saw.append(("sent", list(frames)))

    def closed(self, reason: str) -> None:
        self.saw.append(("closed", reason))

    def over(self, reason: str) -> None:
        self.saw.append(("over", reason))


def outbox() -> Outbox:
    return Outbox(1000, lambda lane: None)


async def test_frames_that_came_with_a_transport_mean_nothing_once_it_is_given_up(autojump_clock: MockClock) -> None:
    stream, _ = trio.testing.memory_stream_pair()
    rules = Rules()
    rules.is_congested = True
    link = Link(ByteStreamTransport(stream), outbox(), rules, [b"the first"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, nursery, contextvars.copy_context())
        await settle()
        # Reading goes on in the very turn in which the client comes back on another transport.
        rules.is_congested = False
        link.resume()
        link.abandon()

    assert rules.heard == []


async def test_a_recorder_hears_of_the_end_behind_all_that_was_read(autojump_clock: MockClock) -> None:
    stream, peer = trio.testing.memory_stream_pair()

    async def break_off() -> None:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError("reset")

    stream.send_stream.send_all_hook = break_off
    looker, rules, queued = Looker(), Rules(), outbox()
    transport = RecordedTransport(ByteStreamTransport(stream), looker, "client")
    transport.begin("rsocket/1.0")
    transport.use_framing(Framing24())
    queued.put_urgent(b"hello!")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Link(transport, queued, rules).run, nursery, contextvars.copy_context())
        await settle()
        await peer.send_all(Framing24().join([b"parted"]))

    broke = "the transport broke: reset"
    assert rules.heard == [b"parted", broke]
    assert looker.saw == [("sent", [b"hello!"]), ("received", [b"parted"]), ("closed", broke)]
