"""SETUP comes first; every frame becomes an event, an answer or an error; keepalives, leases and ends."""

from __future__ import annotations

import math
import struct

import pytest

from rsocket_trio.errors import (
    ConnectionClosed,
    RejectedSetup,
    RemoteProtocolError,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import RequestReceived, SetupReceived
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.session import State
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import DIALECTS, REACTIVESOCKET_0_2, RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.session import Session
from rsocket_trio.rsocket.stream_sender import checked_fragment_size
from rsocket_trio.terms import Lease
from tests.each_row import each_row
from tests.rsocket.pairs import SessionPair

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
    assert [pair.server.state] == [State.NEW]
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


def test_what_comes_after_the_end_is_ignored() -> None:
    pair = SessionPair()
    pair.client.close()

    assert isinstance(pair.client.error, ConnectionClosed)
    assert pair.client.receive([raw(0x2A), raw(3, 0x80, 0, bytes(8))], 1.0) == []
    assert pair.client.expire(1000.0) == []
    assert pair.client.broken(RemoteProtocolError("x")) == []
    assert pair.client.deadline == math.inf


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
