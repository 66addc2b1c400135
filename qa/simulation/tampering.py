"""Links that do what no link may: the judge must notice each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import attrs

from qa.simulation.plans import Call, Plan
from qa.simulation.scenario import Scenario
from rsocket_trio import Limits
from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.testing import Faults, SimulatedStream
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from tests.conformance import raw

ITEMS = 400
SPOILED = 200
"""The frame that something happens to."""
AGAIN = 10
"""Frames in front of it that a retransmission brings again."""


@attrs.define
class Tampering:
    """Tamper with one frame after the other. ``kept`` are those that went by."""

    spoil: Callable[[Tampering, bytes], list[bytes]]
    kept: list[bytes] = attrs.field(factory=list)

    def pass_on(self, frame: bytes) -> list[bytes]:
        self.kept.append(frame)
        return self.spoil(self, frame)

    @property
    def number(self) -> int:
        return len(self.kept) - 1


def drop(link: Tampering, frame: bytes) -> list[bytes]:
    return [] if link.number == SPOILED else [frame]


def duplicate(link: Tampering, frame: bytes) -> list[bytes]:
    return [frame, frame] if link.number == SPOILED else [frame]


def swap(link: Tampering, frame: bytes) -> list[bytes]:
    if link.number == SPOILED:
        return []
    return [frame, link.kept[SPOILED]] if link.number == SPOILED + 1 else [frame]


def deliver_twice(link: Tampering, frame: bytes) -> list[bytes]:
    return [frame, *link.kept[-AGAIN:]] if link.number == SPOILED else [frame]


def leave_alone(link: Tampering, frame: bytes) -> list[bytes]:
    return [frame]


class TamperedTransport(ByteStreamTransport):
    """A transport that tampers with the frames it is told to write."""

    def __init__(self, stream: SimulatedStream, tampering: Tampering) -> None:
        super().__init__(stream)
        self._tampering = tampering

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        passed: list[EncodedFrame] = []
        for frame in map(whole, frames):
            is_item = raw.parsed(frame).type == raw.PAYLOAD
            passed += self._tampering.pass_on(frame) if is_item else [frame]
        await super().send(passed)


class TamperedScenario(Scenario):
    """One stream of many items, over a link that tampers with them."""

    def __init__(self, spoil: Callable[[Tampering, bytes], list[bytes]]) -> None:
        hello = Call(number=0, kind="response", caller="client", begins=0.0, down=(0,))
        stream = Call(number=1, kind="stream", caller="client", begins=0.0, down=(20,) * ITEMS, credit=2 * ITEMS)
        plan = Plan(
            dialect="rsocket/1.0",
            calls=(hello, stream),
            faults=Faults(),
            fragment_size=65536,
            channel_credit=256,
            limits=Limits(),
            leases=None,
            streamux=None,
            resumes=False,
            may_lose=False,
        )
        super().__init__(plan, Random(0))
        self._spoil = spoil

    def server_end(self, stream: SimulatedStream) -> TamperedTransport:
        return TamperedTransport(stream, Tampering(self._spoil))
