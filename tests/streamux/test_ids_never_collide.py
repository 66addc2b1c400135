"""Two sessions that request of each other in any order, their bytes cut anywhere, against what each side believes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rsocket_trio.mux.events import (
    Event,
    ItemReceived,
    Pong,
    RequestReceived,
    StreamCancelled,
    StreamCompleted,
)
from rsocket_trio.mux.stream_state import RECEIVING, SENDING
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.request_table import Exchange
from rsocket_trio.streamux.session import Session
from tests.each_row import ALL_CASES
from tests.events import one_by_one
from tests.streamux.pairs import CHANNEL, WHOLE, Chunk, SessionPair

DATA = st.binary(min_size=1, max_size=40)
SIDES = st.sampled_from(["client", "server"])
PICK = st.integers(0, 10**6)


@attrs.define(eq=False)
class Asked:
    """A request as its requester knows it; ``answered`` is what its responder said once it was done."""

    exchange: Exchange
    sent: bytes = b""
    got: bytes = b""
    done: bool = False
    cancelled: bool = False


@attrs.define(eq=False)
class Given:
    """A request as its responder knows it."""

    exchange: Exchange
    got: bytes = b""
    complete: bool = False
    said: bytes = b""
    done: bool = False
    cancelled: bool = False


@attrs.define(eq=False)
class Belief:
    """What one side has asked and was asked."""

    session: Session
    asked: list[Asked] = attrs.field(factory=list)
    given: list[Given] = attrs.field(factory=list)
    pings: int = 0
    pongs: int = 0


class TwoSessions(RuleBasedStateMachine):
    """Every rule is something that an application may do, or a piece of the bytes that arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.sides: dict[str, Belief] = {}

    @initialize(id_bits=st.sampled_from([0, 1, 2, 4, 8]), length_bits=st.sampled_from([8, 3, 1]), chunks=st.booleans())
    def meet(self, id_bits: int, length_bits: int, chunks: bool) -> None:
        self.pair = SessionPair(id_bits, length_bits, whole=not chunks, chunks=chunks, first_id=lambda cap: cap // 2)
        self.cap = 1 << id_bits
        self.sides = {"client": Belief(self.pair.client), "server": Belief(self.pair.server)}

    # What applications do

    @rule(side=SIDES, data=DATA)
    def ask(self, side: str, data: bytes) -> None:
        belief = self.sides[side]
        if not belief.session.commands.is_full:
            belief.asked.append(Asked(belief.session.commands.open(WHOLE, Payload(data)), data))

    @rule(side=SIDES, data=st.binary(max_size=3))
    def open_a_channel(self, side: str, data: bytes) -> None:
        belief = self.sides[side]
        if not belief.session.commands.is_full:
            belief.asked.append(Asked(belief.session.commands.open(CHANNEL, Payload(data)), data))

    @rule(side=SIDES, pick=PICK, data=DATA, complete=st.booleans())
    def send_a_chunk(self, side: str, pick: int, data: bytes, complete: bool) -> None:
        belief = self.sides[side]
        one = chosen(belief.asked, pick, lambda one: bool(one.exchange.open & SENDING))
        if one is not None:
            belief.session.commands.send_item(one.exchange, Payload(data), complete=complete)
            one.sent += data

    @rule(side=SIDES, pick=PICK)
    def complete_a_request(self, side: str, pick: int) -> None:
        belief = self.sides[side]
        one = chosen(belief.asked, pick, lambda one: bool(one.exchange.open & SENDING and one.sent))
        if one is not None:
            belief.session.commands.send_complete(one.exchange)

    @rule(side=SIDES, pick=PICK, data=st.binary(max_size=40), complete=st.booleans())
    def respond(self, side: str, pick: int, data: bytes, complete: bool) -> None:
        belief = self.sides[side]
        one = chosen(belief.given, pick, lambda one: bool(one.exchange.open & SENDING))
        if one is None or not (data or complete):
            return
        belief.session.commands.send_item(one.exchange, Payload(data), complete=complete)
        one.said += data
        one.done = complete
        if complete and one.exchange.open & RECEIVING:
            belief.session.commands.send_cancel(one.exchange)

    @rule(side=SIDES, pick=PICK)
    def cancel(self, side: str, pick: int) -> None:
        belief = self.sides[side]
        one = chosen(belief.asked, pick, lambda one: not one.done and not one.cancelled)
        if one is not None:
            belief.session.commands.send_cancel(one.exchange)
            one.cancelled = True

    @rule(side=SIDES)
    def ping(self, side: str) -> None:
        belief = self.sides[side]
        if not belief.session.commands.is_full:
            belief.session.ping(belief)
            belief.pings += 1

    # What the wire does

    @rule(side=SIDES, limit=st.sampled_from([1, 10, 100, 65536]))
    def write(self, side: str, limit: int) -> None:
        self.pair.write(self.sides[side].session, limit)

    @rule(side=SIDES, size=st.integers(1, 60))
    def deliver(self, side: str, size: int) -> None:
        sender = self.sides[side].session
        other = "server" if side == "client" else "client"
        self.believe(self.sides[other], self.pair.deliver(sender, size))

    @rule()
    def carry(self) -> None:
        """All that either side has said so far arrives."""
        for side, other in (("client", "server"), ("server", "client")):
            sender = self.sides[side].session
            self.pair.write(sender)
            self.believe(self.sides[other], self.pair.deliver(sender))

    def believe(self, belief: Belief, events: list[Event]) -> None:
        for event in one_by_one(events):
            if isinstance(event, RequestReceived):
                exchange = event.stream
                assert isinstance(exchange, Exchange)
                belief.given.append(Given(exchange, event.payload.data, exchange.interaction is WHOLE))
            elif isinstance(event, ItemReceived):
                one = owner_of(belief, event.stream)
                one.got += event.payload.data
                note_end(one, event.complete)
            elif isinstance(event, StreamCompleted):
                note_end(owner_of(belief, event.stream), True)
            elif isinstance(event, StreamCancelled):
                # A request that was still to become whole was never told of.
                for given in [given for given in belief.given if given.exchange is event.stream]:
                    assert not given.cancelled
                    given.cancelled = True
            else:
                assert isinstance(event, Pong), event
                assert event.token is belief
                belief.pongs += 1

    # What always holds

    @invariant()
    def no_session_has_ended(self) -> None:
        for belief in self.sides.values():
            assert belief.session.error is None

    @invariant()
    def no_id_is_used_twice(self) -> None:
        for belief in self.sides.values():
            open_ids = [one.exchange.id for one in belief.asked if one.exchange.open]
            assert len(open_ids) == len(set(open_ids))
            assert set(open_ids) <= set(belief.session.table.mine)
            assert len(belief.session.table.mine) <= self.cap
            assert all(0 <= request_id < self.cap for request_id in belief.session.table.mine)

    def teardown(self) -> None:
        if not self.sides:
            return
        # Everybody finishes: what is open is answered, what was never begun is left.
        self.settle()
        for belief in self.sides.values():
            for one in belief.asked:
                if one.exchange.open & SENDING:
                    if one.sent:
                        belief.session.commands.send_complete(one.exchange)
                    else:
                        belief.session.commands.send_cancel(one.exchange)
                        one.cancelled = True
        self.settle()
        for belief in self.sides.values():
            for given in belief.given:
                if given.exchange.open & SENDING:
                    belief.session.commands.send_item(given.exchange, Payload(b"done"), complete=True)
                    given.said += b"done"
                    given.done = True
        self.settle()
        for belief in self.sides.values():
            assert belief.pongs == belief.pings
            for one in belief.asked:
                assert one.done or one.cancelled
            self.compare(belief, self.sides["server" if belief is self.sides["client"] else "client"])
        self.every_cancel_was_acknowledged_once()
        self.pair.assert_quiet()

    def settle(self) -> None:
        pair = self.pair
        while pair.wires[pair.client] or pair.wires[pair.server] or pair.client.outbox or pair.server.outbox:
            self.believe(self.sides["server"], pair.move(pair.client))
            self.believe(self.sides["client"], pair.move(pair.server))

    def compare(self, asking: Belief, answering: Belief) -> None:
        """Each request that was answered has exactly the bytes that its responder said, and the other way round."""
        by_id: dict[int, list[Given]] = {}
        for given in answering.given:
            by_id.setdefault(given.exchange.id, []).append(given)
        for one in asking.asked:
            if not one.done:
                continue
            # Requests of one id follow each other: this one's is the first that fits, and none before it is looked at.
            there = by_id[one.exchange.id]
            while there:
                given = there.pop(0)
                heard = one.sent == given.got if given.complete else one.sent.startswith(given.got)
                if given.done and given.said == one.got and heard:
                    break
            else:
                raise AssertionError(f"nobody answered {one}")

    def every_cancel_was_acknowledged_once(self) -> None:
        for one, other in ((self.pair.client, self.pair.server), (self.pair.server, self.pair.client)):
            cancels = [chunk.request_id for chunk in self.pair.chunks(one) if is_cancel(chunk)]
            acks = [chunk.request_id for chunk in self.pair.chunks(other) if is_cancel(chunk, response=True)]
            assert cancels == acks


def is_cancel(chunk: Chunk, *, response: bool = False) -> bool:
    return not chunk.payload and not chunk.termination and chunk.response is response


def chosen(found: list[Any], pick: int, wanted: Callable[[Any], bool]) -> Any:
    """One of those that are wanted, if there is one."""
    fitting = [one for one in found if wanted(one)]
    return fitting[pick % len(fitting)] if fitting else None


def owner_of(belief: Belief, stream: object) -> Asked | Given:
    both: list[Asked | Given] = [*belief.asked, *belief.given]
    (one,) = [one for one in both if one.exchange is stream]
    return one


def note_end(one: Asked | Given, complete: bool) -> None:
    if isinstance(one, Asked):
        assert not one.done
        assert not one.cancelled
        one.done = complete
    else:
        assert not one.complete
        one.complete = complete


TestTwoSessions = TwoSessions.TestCase
TestTwoSessions.settings = settings(max_examples=100 if ALL_CASES else 30, stateful_step_count=80, deadline=None)
