"""SETUP comes first; every frame becomes an event, an answer or an error; keepalives, leases and ends."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsocket_trio.errors import (
    ConnectionClosed,
    ConnectionLost,
    RejectedSetup,
    RemoteProtocolError,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import LeaseReceived, PeerDraining, Pong, RequestReceived, SessionEnded, SetupReceived
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.session import State
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import DIALECTS, REACTIVESOCKET_0_2, RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.session import Session
from rsocket_trio.rsocket.stream_sender import checked_fragment_size
from rsocket_trio.terms import Keepalive, Lease
from tests.each_row import ALL_CASES, each_row
from tests.rsocket.pairs import SessionPair, client_terms

each_dialect = pytest.mark.parametrize("dialect", [RSOCKET_1_0, REACTIVESOCKET_0_2], ids=lambda dialect: dialect.name)
RR = Interaction.REQUEST_RESPONSE


def taken(session: Session) -> list[bytes]:
    return [whole(frame) for frame in session.outbox.take()]


def raw(kind: int, flags: int = 0, stream_id: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">IH", stream_id, kind << 10 | flags) + body


@each_dialect
def test_nothing_overtakes_setup(dialect: Dialect) -> None:
    pair = SessionPair(dialect, met=False)
    pair.client.ping(object())
    pair.client.metadata_push(b"m")
    pair.client.commands.open(RR, Payload(b"x"))

    first = taken(pair.client)[0]

    assert struct.unpack_from(">IH", first) == (0, 1 << 10)


@each_dialect
def test_a_setup_waits_for_the_application(dialect: Dialect) -> None:
    pair = SessionPair(dialect, met=False)
    assert pair.server.awaits_setup
    pair.client.commands.open(RR, Payload(b"x"))

    _, server_saw = pair.exchange()

    (event,) = server_saw
    assert isinstance(event, SetupReceived)
    assert event.setup.payload == Payload(b"hello")
    assert event.setup.dialect == dialect.name
    assert (event.setup.keepalive_interval, event.setup.max_lifetime) == (20, 90)
    assert pair.server.state is State.GATED
    (held,) = pair.server.accept(1.0)
    assert isinstance(held, RequestReceived)
    assert pair.server.accept(2.0) == []
    assert pair.server.refuse(RejectedSetup("too late")) == []


@each_dialect
@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "refused"])
def test_nothing_of_the_handshake_is_kept_once_a_connection_is_open_or_over(dialect: Dialect, accepted: bool) -> None:
    pair = SessionPair(dialect, met=False, limits=Limits(held_frames=1))
    pair.client.commands.open(RR, Payload(b"x"))
    pair.exchange()
    assert pair.server._handshake is not None
    assert pair.server.is_congested

    if accepted:
        pair.server.accept(0.0)
    else:
        pair.server.refuse(RejectedSetup("no"))
    pair.exchange()

    assert [session._handshake for session in (pair.client, pair.server)] == [None, None]
    assert not pair.server.is_congested


def test_a_refusal_ends_both_sides_with_the_reason() -> None:
    pair = SessionPair(met=False)
    pair.client.commands.open(RR, Payload(b"x"))
    pair.exchange()

    (ended,) = pair.server.refuse(RejectedSetup("not you"))
    assert isinstance(ended, SessionEnded)
    (heard,) = pair.exchange()[0]

    assert isinstance(heard, SessionEnded)
    assert isinstance(heard.error, RejectedSetup)
    assert heard.error.text == "not you"
    assert pair.server.accept(1.0) == []


def test_what_comes_after_the_end_is_ignored() -> None:
    pair = SessionPair()
    pair.client.close()

    assert isinstance(pair.client.error, ConnectionClosed)
    assert pair.client.receive([raw(0x2A), raw(3, 0x80, 0, bytes(8))], 1.0) == []
    assert pair.client.expire(1000.0) == []
    assert pair.client.broken(RemoteProtocolError("x")) == []
    assert pair.client.deadline == math.inf


def test_pings_are_answered_in_order() -> None:
    pair = SessionPair()
    pair.server.ping("one")
    pair.server.ping("two")
    pair.client.ping("three")

    client_saw, server_saw = pair.exchange()

    assert client_saw == [Pong("three")]
    assert server_saw == [Pong("one"), Pong("two")]


def test_a_peer_that_drains_takes_no_requests() -> None:
    pair = SessionPair()
    pair.server.drain()
    pair.server.announce_close(last=False)
    client_saw, _ = pair.exchange()
    assert client_saw == [PeerDraining(closing=True)]

    pair.client.commands.open(RR, Payload(b"x"))
    (failed,) = pair.exchange()[0]

    assert "closing" in str(failed)
    pair.assert_quiet()


def test_a_silent_peer_is_dead_exactly_at_the_lifetime() -> None:
    pair = SessionPair(keepalive=Keepalive(20, 50))
    pair.server.receive([raw(9, 0, 77)], 10.0)
    assert pair.server.deadline == 60.0
    assert pair.server.expire(59.999) == []

    (ended,) = pair.server.expire(60.0)

    assert isinstance(ended, SessionEnded)
    assert isinstance(ended.error, ConnectionLost)
    assert pair.server.expire(61.0) == []


def test_a_client_beats_once_an_interval_and_a_server_never() -> None:
    pair = SessionPair(keepalive=Keepalive(2, 50))
    assert pair.client.deadline == 2.0
    assert pair.server.deadline == 50.0
    for now in (2.0, 4.0, 6.0):
        assert pair.client.expire(now - 0.001) == []
        assert not pair.client.outbox
        assert pair.client.expire(now) == []
        assert taken(pair.client) == [raw(3, 0x80, 0, bytes(8))]


def test_requests_beyond_a_lease_are_rejected_and_a_new_lease_replaces_the_old() -> None:
    pair = SessionPair(lease=True)
    pair.server.grant(Lease(2, 10), 0.0)
    assert pair.exchange()[0] == [LeaseReceived()]
    permits = pair.client.permits
    assert permits is not None
    assert (permits.remaining(0.0), permits.expires_in(4.0)) == (2, 6.0)
    for _ in range(3):
        pair.client.commands.open(RR, Payload())
    client_saw, server_saw = pair.exchange()
    assert (len(server_saw), len(client_saw)) == (2, 1)
    pair.server.grant(Lease(1, 10), 0.0)
    pair.exchange()
    pair.now = 10.0
    pair.client.commands.open(RR, Payload())
    client_saw, server_saw = pair.exchange()
    assert (len(server_saw), len(client_saw)) == (0, 1)


@each_row("dialect", DIALECTS.values(), ids=list(DIALECTS))
@each_row("grants", ["server", "client"])
def test_requests_that_cross_a_lease_are_admitted_by_the_one_before(dialect: Dialect, grants: str) -> None:
    pair = SessionPair(dialect, lease=True)
    granting, asking = (pair.server, pair.client) if grants == "server" else (pair.client, pair.server)
    pair.exchange()
    granting.grant(Lease(2, 10), 0.0)
    pair.exchange()
    for _ in range(2):
        asking.commands.open(RR, Payload())
    granting.grant(Lease(1, 10), 0.0)
    pair.move(granting)  # the LEASE arrives first, and both requests are on their way
    assert asking.permits is not None
    assert asking.permits.remaining(0.0) == 1
    for _ in range(2):
        asking.commands.open(RR, Payload())
    saw = pair.exchange()[grants == "server"]

    assert sum(isinstance(event, RequestReceived) for event in saw) == 3


@each_row("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_the_side_that_received_leases_keeps_to_the_last_one(dialect: Dialect) -> None:
    pair = SessionPair(dialect, lease=True)
    pair.exchange()
    for number in 5, 1:
        for granting in pair.server, pair.client:
            granting.grant(Lease(number, 10), 0.0)
        pair.exchange()
    for session in pair.client, pair.server:
        permits = session.permits
        assert permits is not None
        assert [permits.take(0.0) for _ in range(2)] == [True, False]


def test_without_an_agreement_a_lease_is_neither_sent_nor_taken() -> None:
    pair = SessionPair()
    pair.server.grant(Lease(2, 10), 0.0)
    assert not pair.server.outbox
    assert pair.client.permits is None
    assert pair.client.receive([raw(2, 0, 0, struct.pack(">II", 1000, 5))], 0.0) == []


@pytest.mark.parametrize("size", [63, 0, -1, 2**24])
def test_a_fragment_size_that_cannot_work_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=str(size)):
        checked_fragment_size(size, 2**24 - 1)


# Whatever comes


def arena(dialect: Dialect, *, client: bool, lease: bool) -> Session:
    """A session amid everything: a stream of its own of each kind, and one of the peer's."""
    limits = Limits(
        payload_size=200, reassembly_size=300, tiny_fragments=4, streams=6, cancels=5, reply_frames=50, setup_size=500
    )
    session = Session(dialect, client=client, limits=limits, fragment_size=64)
    if client:
        session.start_client(client_terms(lease=lease), 0.0)
    else:
        session.start_server(grants_leases=lease)
        other = Session(dialect, client=True, limits=limits, fragment_size=64)
        other.start_client(client_terms(lease=lease), 0.0)
        session.receive(taken(other), 0.0)
        session.accept(0.0)
    commands = session.commands
    commands.open(RR, Payload(b"x" * 300))
    commands.open(Interaction.REQUEST_STREAM, Payload(b"x"), 2)
    channel = commands.open(Interaction.REQUEST_CHANNEL, Payload(b"x"), 2)
    session.outbox.take()
    commands.request_n(channel, 3)
    peers = 2 if client else 1
    session.receive([raw(4, 0x80, peers, b"half"), raw(7, 0, peers + 2, bytes(3) + b"\x05")], 0.0)
    return session


kinds = st.integers(0, 15) | st.just(0x3F) | st.integers(0, 63)
flags = st.integers(0, 1023) | st.sampled_from([0, 0x20, 0x40, 0x60, 0x80, 0xA0, 0x120, 0x1A0, 0x200, 0x100])
ids = st.integers(0, 8) | st.sampled_from([2**31 - 1, 2**31, 2**32 - 1])
numbers = st.sampled_from([0, 1, 2, 3, 0x101, 0x102, 0x201, 2**31 - 1, 2**31, 2**32 - 1])
bodies = (
    st.binary(max_size=80)
    | st.builds(lambda number, rest: struct.pack(">I", number) + rest, numbers, st.binary(max_size=30))
    | st.builds(lambda size, rest: size.to_bytes(3, "big") + rest, st.integers(0, 40), st.binary(max_size=40))
)
frames = st.builds(raw, kinds, flags, ids, bodies) | st.binary(max_size=40)


@each_dialect
@pytest.mark.parametrize("client", [True, False], ids=["client", "server"])
@settings(max_examples=400 if ALL_CASES else 60, deadline=None, derandomize=True)
@given(received=st.lists(frames, min_size=1, max_size=12), lease=st.booleans())
def test_no_frame_makes_a_session_raise_or_leaves_anything_behind(
    dialect: Dialect, client: bool, received: list[bytes], lease: bool
) -> None:
    session = arena(dialect, client=client, lease=lease)

    for now, one in enumerate(received, 1):
        for event in session.receive([one], float(now)):
            if isinstance(event, SessionEnded):
                assert session.state is State.OVER
    said = taken(session)

    table, limits = session.table, session.limits
    assert len(table.theirs) <= limits.streams
    assembling = [stream.assembly.size for stream in session.open_streams() if stream.assembly is not None]
    assert table.reassembling == sum(assembling) <= limits.reassembly_size
    assert all(stream.open or stream.request or stream.ended for stream in session.open_streams())
    assert all(len(one) >= 6 for one in said)
    if session.state is State.OPEN:
        before = len(taken(session))
        assert before == 0
        session.receive([raw(3, 0x80, 0, bytes(8) + b"alive")], 100.0)
        assert raw(3, 0, 0, bytes(8) + b"alive") in taken(session)
        for stream in session.open_streams():
            if stream.requester:
                session.commands.send_cancel(stream)
            else:
                session.receive([raw(9, 0, stream.id)], 1000.0 + stream.id)
        while session.outbox:
            session.outbox.take()
        assert session.is_quiet
        assert table.reassembling == 0


@each_dialect
@settings(max_examples=300 if ALL_CASES else 60, deadline=None, derandomize=True)
@given(frames)
def test_no_first_frame_makes_a_server_raise(dialect: Dialect, first: bytes) -> None:
    session = Session(dialect, client=False, limits=Limits(), fragment_size=64)
    session.start_server(grants_leases=False)

    events = session.receive([first], 0.0)

    assert len(events) == 1
    assert isinstance(events[0], SetupReceived | SessionEnded)
    if isinstance(events[0], SessionEnded):
        (said,) = taken(session)
        assert said[:6] == raw(0x0B)
        assert 1 <= int.from_bytes(said[6:10], "big") <= 4


@each_dialect
@settings(max_examples=200 if ALL_CASES else 60, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_setup_with_some_bytes_changed_is_taken_or_refused(dialect: Dialect, data: st.DataObject) -> None:
    other = Session(dialect, client=True, limits=Limits(), fragment_size=64)
    other.start_client(client_terms(), 0.0)
    frame = bytearray(taken(other)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    session = Session(dialect, client=False, limits=Limits(), fragment_size=64)
    session.start_server(grants_leases=False)

    (event,) = session.receive([bytes(frame[: data.draw(st.integers(1, len(frame)))])], 0.0)

    assert isinstance(event, SetupReceived | SessionEnded)
