"""A pair of sessions against a plain model: whatever two applications do, and however slowly the wires are.

The model knows two ends of each stream and what each may still do; the sessions know frames, fragments and credit.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rsocket_trio.errors import ApplicationError, RemoteProtocolError
from rsocket_trio.mux.events import (
    CreditGranted,
    Event,
    ItemReceived,
    RequestReceived,
    SendingCancelled,
    StreamCancelled,
    StreamCompleted,
    StreamFailed,
)
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import NEITHER, RECEIVING, SENDING, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.session import Session
from rsocket_trio.rsocket.stream_table import Stream
from tests.events import one_by_one
from tests.rsocket.pairs import SessionPair
from tests.rsocket.test_vectors import FILES

SINGLE: Final = (Interaction.REQUEST_RESPONSE, Interaction.FIRE_AND_FORGET)
CHANNEL: Final = Interaction.REQUEST_CHANNEL
ON_STREAMS: Final = (ItemReceived, StreamCompleted, StreamFailed, StreamCancelled, SendingCancelled, CreditGranted)
"""Events beside requests that a session may report of two applications that keep the rules."""
SIZES: Final = st.sampled_from((1, 20, 63, 64, 65, 200, 700))
"""Bytes of payloads: in one frame and in many."""
ANY: Final = st.integers(0, 2**16)
"""The index of one of those that there are."""


@attrs.define(eq=False)
class End:
    """The moves that are left to one side of a stream, and those that it made."""

    session: Session
    stream: Stream
    requester: bool
    sending: bool
    receiving: bool
    granted: int = 0
    """Items that this end ever allowed the other to send."""
    sent: list[Payload] = attrs.field(factory=list)
    got: list[Payload] = attrs.field(factory=list)
    heard_end: bool = False
    """True once the other side's last word came."""
    other: End | None = None

    def close(self) -> None:
        """Nothing more, either way."""
        self.sending = self.receiving = False


class Machine(RuleBasedStateMachine):
    """Rules are what applications and wires do; ``dialect`` is which rules their sessions know."""

    dialect: Dialect = RSOCKET_1_0

    @initialize(fragment_size=st.sampled_from((64, 100, 1000)))
    def meet(self, fragment_size: int) -> None:
        self.pair = SessionPair(self.dialect, fragment_size=fragment_size)
        self.sessions = (self.pair.client, self.pair.server)
        self.wires: dict[Session, list[bytes]] = {session: [] for session in self.sessions}
        self.ends: dict[Stream, End] = {}
        self.requests: dict[bytes, tuple[End | None, Payload]] = {}
        self.arrived: list[bytes] = []
        self.count = 0

    # What applications do

    @rule(
        side=st.integers(0, 1),
        interaction=st.sampled_from(Interaction),
        size=SIZES,
        amount=st.sampled_from((1, 2, 5, 2**31 - 1)),
    )
    def open(self, side: int, interaction: Interaction, size: int, amount: int) -> None:
        if interaction not in self.dialect.interactions:
            return
        session, payload = self.sessions[side], self.payload(size)
        number = None if interaction in SINGLE else amount
        stream = session.commands.open(interaction, payload, number)
        end = None
        if interaction is not Interaction.FIRE_AND_FORGET:
            end = End(session, stream, True, interaction is CHANNEL, True, 1 if number is None else number)
            self.ends[stream] = end
        self.requests[payload.data] = end, payload

    @precondition(lambda self: self.senders)
    @rule(which=ANY, sizes=st.lists(SIZES, min_size=1, max_size=5), last=st.booleans())
    def send(self, which: int, sizes: list[int], last: bool) -> None:
        """As many of these items as there is credit for."""
        end = pick(which, self.senders)
        sizes = sizes[: end.stream.room]
        if end.stream.interaction is Interaction.REQUEST_RESPONSE:
            sizes, last = sizes[:1], True
        for left, size in zip(range(len(sizes) - 1, -1, -1), sizes, strict=True):
            payload = self.payload(size)
            end.session.commands.send_item(end.stream, payload, complete=last and not left)
            end.sent.append(payload)
        if last:
            self.said_last(end)

    @precondition(lambda self: self.ends)
    @rule(which=ANY, how=st.sampled_from(("complete", "fail", "cancel")))
    def finish(self, which: int, how: str) -> None:
        end = pick(which, list(self.ends.values()))
        if how == "complete" and end.sending and end.stream.interaction is not Interaction.REQUEST_RESPONSE:
            end.session.commands.send_complete(end.stream)
            self.said_last(end)
        elif how == "fail" and end.sending:
            end.session.commands.send_error(end.stream, ApplicationError("failed"))
            end.close()
        elif how == "cancel" and end.receiving:
            end.session.commands.send_cancel(end.stream)
            if end.requester:
                end.close()
            elif self.dialect.half_close:
                end.receiving = False

    @precondition(lambda self: self.readers)
    @rule(which=ANY, amount=st.sampled_from((1, 3, 2**31 - 1)))
    def grant(self, which: int, amount: int) -> None:
        end = pick(which, self.readers)
        end.session.commands.request_n(end.stream, amount)
        end.granted += amount

    @property
    def senders(self) -> list[End]:
        """Those who may send an item now."""
        return [end for end in self.ends.values() if end.sending and end.stream.room > 0]

    @property
    def readers(self) -> list[End]:
        """Those who may ask for more."""
        single = Interaction.REQUEST_RESPONSE
        return [end for end in self.ends.values() if end.receiving and end.stream.interaction is not single]

    # What the wires do

    @rule(side=st.integers(0, 1), limit=st.sampled_from((1, 200, 65536)))
    def write(self, side: int, limit: int) -> None:
        sender = self.sessions[side]
        self.wires[sender] += [whole(frame) for frame in sender.outbox.take(limit)]

    @rule(side=st.integers(0, 1), count=st.sampled_from((1, 2, 5, 1000)))
    def deliver(self, side: int, count: int) -> None:
        sender, receiver = self.sessions[side], self.sessions[1 - side]
        frames, self.wires[sender] = self.wires[sender][:count], self.wires[sender][count:]
        if frames:
            for event in one_by_one(receiver.receive(frames, self.pair.now)):
                self.happened(receiver, event)

    @rule(side=st.integers(0, 1))
    def travel(self, side: int) -> None:
        """All that one side has to say arrives."""
        self.write(side, 10**6)
        self.deliver(side, 10**6)

    @rule()
    def settle(self) -> None:
        """Everything arrives. Then both sides hold the same streams, and nothing is missing."""
        while any(self.wires.values()) or any(session.outbox for session in self.sessions):
            for side in (0, 1):
                self.write(side, 65536)
                self.deliver(side, 1000)
        client, server = (session.table for session in self.sessions)
        assert client.mine.keys() == server.theirs.keys()
        assert server.mine.keys() == client.theirs.keys()
        assert client.reassembling == server.reassembling == 0
        for end in self.ends.values():
            self.check_settled(end)
        sent = [data for data, (end, _) in self.requests.items() if end is None]
        assert sorted(data for data in self.arrived if data in sent) == sorted(sent)

    # What the model makes of it

    def happened(self, receiver: Session, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self.requested(receiver, event)
            return
        assert isinstance(event, ON_STREAMS), event
        assert isinstance(event.stream, Stream)
        end = self.ends[event.stream]
        match event:
            case ItemReceived():
                assert end.receiving, "an item for nobody"
                end.got.append(event.payload)
                if event.complete:
                    self.heard_last(end)
            case StreamCompleted():
                self.heard_last(end)
            case StreamFailed():
                assert not isinstance(event.error, RemoteProtocolError), event.error
                end.close()
            case StreamCancelled():
                assert not end.requester
                end.close()
            case SendingCancelled():
                assert end.requester
                end.sending = False
            case CreditGranted():
                assert end.sending, "credit for nothing"

    def requested(self, receiver: Session, event: RequestReceived) -> None:
        data = event.payload.data
        requester, payload = self.requests[data]
        assert event.payload == payload
        assert data not in self.arrived, "a request that came twice"
        self.arrived.append(data)
        if requester is not None:
            assert isinstance(event.stream, Stream)
            end = End(receiver, event.stream, False, True, event.stream.interaction is CHANNEL, other=requester)
            requester.other = end
            self.ends[event.stream] = end

    def said_last(self, end: End) -> None:
        end.sending = False
        if not end.requester and not self.dialect.half_close:
            end.receiving = False

    def heard_last(self, end: End) -> None:
        assert end.receiving, "an end of what was over"
        end.receiving, end.heard_end = False, True
        if end.requester and not self.dialect.half_close:
            end.sending = False

    # What must hold

    @invariant()
    def both_know_what_they_may_do(self) -> None:
        for end in self.ends.values():
            assert end.stream.open == SENDING * end.sending | RECEIVING * end.receiving, end
            # REQUEST_RESPONSE has a credit of one that no frame says.
            if end.other is not None:
                assert len(end.sent) <= end.other.granted, "more was sent than was granted"
                assert end.got == end.other.sent[: len(end.got)], "an item was lost, doubled, changed or out of order"
            if end.receiving:
                assert end.stream.granted == end.granted - len(end.got), "credit that was not used up"
            if end.sending and end.other is not None:
                assert len(end.sent) + end.stream.room <= end.other.granted, "credit from nowhere"

    def check_settled(self, end: End) -> None:
        table = end.session.table.mine if end.requester else end.session.table.theirs
        assert end.stream.open or table.get(end.stream.id) is not end.stream, "a stream that is over is kept"
        other = end.other
        if other is None:
            assert end.stream.open == NEITHER, "a request that never came"
            return
        assert (end.sending, end.receiving) == (other.receiving, other.sending), "the two ends differ"
        if end.receiving or end.heard_end:
            assert end.got == other.sent, "an item never came"
        if end.sending:
            assert end.stream.room == other.granted - len(end.sent), "credit was lost"

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        self.settle()
        for end in list(self.ends.values()):
            if end.requester and (end.sending or end.receiving):
                end.session.commands.send_cancel(end.stream)
                end.close()
        self.settle()
        self.pair.assert_quiet()

    # Helpers

    def payload(self, size: int) -> Payload:
        """A payload like no other; every third one has metadata."""
        self.count += 1
        data = b"%d " % self.count
        metadata = b"m" * (size // 2) if self.count % 3 == 0 else None
        return Payload(data.ljust(size, b"."), metadata)


def pick(which: int, ends: list[End]) -> End:
    """One of them."""
    return ends[which % len(ends)]


MACHINES: Final[dict[str, type[Machine]]] = {
    dialect.name: type(f"Machine_{name[:-4]}", (Machine,), {"dialect": dialect}) for name, dialect in FILES.items()
}


def run_machine(name: str, examples: int, steps: int, **options: Any) -> None:
    """So many examples of so many steps at most for one dialect."""
    terms = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **options,
    )
    run_state_machine_as_test(MACHINES[name], settings=terms)
