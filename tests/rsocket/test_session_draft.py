"""Two sessions of the extension draft, back to back and without I/O."""

from __future__ import annotations

import math

import attrs
import pytest

from rsocket_trio.errors import LocalProtocolError, RejectedSetup, Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    ItemReceived,
    LeaseReceived,
    Pong,
    RequestReceived,
    SessionEnded,
    SetupAccepted,
    SetupReceived,
)
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.session import State
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, RSOCKET_2_0_DRAFT
from rsocket_trio.rsocket.extensions.entries import Complexity, KeepaliveTerms, Resumable, entry_of
from rsocket_trio.rsocket.extensions.terms import ExtensionRules, as_entries
from rsocket_trio.rsocket.frames import ExtensionEntry, SetupFrame
from rsocket_trio.rsocket.handshake import setup_frame
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import Keepalive, Lease
from tests.rsocket.pairs import SessionPair, client_terms

RULES = ExtensionRules()
APP = ExtensionEntry("x.app", ignore=True, payload=b"app")
UNLIMITED = Lease(2**31 - 1, (2**31 - 1) / 1000)
clause = pytest.mark.clause


def pair_with_leases() -> SessionPair:
    pair = SessionPair(RSOCKET_2_0_DRAFT, lease=True)
    assert pair.client.state is State.ASKING
    client_saw, server_saw = pair.exchange()
    assert [type(event) for event in client_saw] == [SetupAccepted]
    assert [type(event) for event in server_saw] == [LeaseReceived]
    return pair


@clause("RSX-OK-01", "RSX-LEASE-06")
def test_leases_hold_both_sides_and_count_costs() -> None:
    pair = pair_with_leases()
    assert pair.client.permits is not None
    assert pair.client.permits.remaining(pair.now) == 0
    pair.server.grant(Lease(5, 10), pair.now)
    [granted], _ = pair.exchange()
    assert granted == LeaseReceived()
    dear = as_entries([Complexity(4)])
    assert pair.client.cost(dear) == 4
    assert pair.client.permits.take(pair.now, 4)
    assert not pair.client.permits.take(pair.now, 4)
    assert pair.client.permits.take(pair.now)
    assert pair.server.permits is not None
    assert pair.server.permits.remaining(pair.now) == UNLIMITED.number_of_requests


def test_the_server_is_held_until_it_has_accepted() -> None:  # RSX-OK-01
    pair = SessionPair(RSOCKET_2_0_DRAFT, lease=True, met=False)
    [setup] = pair.move(pair.client)
    assert isinstance(setup, SetupReceived)
    pair.server.ping("early")
    pair.server.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"early"))
    assert pair.server.outbox.take() == []

    pair.server.accept(pair.now, (APP,))

    first, *others = pair.server.outbox.take()
    assert isinstance(first, bytes)
    assert first[4] >> 2 == 0x0F
    assert len(others) == 2


def test_what_was_held_is_dropped_with_a_refusal() -> None:
    pair = SessionPair(RSOCKET_2_0_DRAFT, lease=True, met=False)
    pair.move(pair.client)
    pair.server.ping("early")
    pair.server.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"early"))

    pair.server.refuse(RejectedSetup("no"))

    client_saw, _ = pair.exchange()
    [end] = client_saw
    assert isinstance(end, SessionEnded)
    assert isinstance(end.error, RejectedSetup)
    pair.assert_quiet()


def test_beats_are_entries_and_answered_in_order() -> None:  # RSX-KA-05
    pair = SessionPair(RSOCKET_2_0_DRAFT)
    pair.client.ping("one")
    pair.client.ping("two")

    client_saw, server_saw = pair.exchange()

    assert (client_saw, server_saw) == ([Pong("one"), Pong("two")], [])
    assert pair.client.deadline == 20
    pair.now = 20
    assert pair.client.expire(pair.now) == []
    assert pair.exchange() == ([], [])
    assert pair.client.deadline == 40


def test_without_keepalive_no_deadline_ever_comes() -> None:  # RSX-KA-06
    server = Session(RSOCKET_2_0_DRAFT, client=False, limits=Limits(), fragment_size=1000)
    server.start_server(grants_leases=False)
    bare = attrs.evolve(setup_frame(RSOCKET_2_0_DRAFT, client_terms()), extensions=())
    server.receive([RSOCKET_2_0_DRAFT.codec.encode(bare)], 0.0)

    assert math.isinf(server.deadline)


def test_entries_that_cannot_be_said_change_nothing() -> None:
    pair = SessionPair(RSOCKET_2_0_DRAFT)
    with pytest.raises(LocalProtocolError):
        pair.client.commands.open(Interaction.REQUEST_RESPONSE, Payload(), entries=(APP, APP))
    with pytest.raises(LocalProtocolError):
        pair.client.entries((), ignore=True)
    pair.assert_quiet()
    other = SessionPair(RSOCKET_1_0)
    with pytest.raises(Unsupported):
        other.client.commands.open(Interaction.REQUEST_RESPONSE, Payload(), entries=(APP,))
    with pytest.raises(Unsupported):
        other.client.entries((APP,), ignore=True)
    with pytest.raises(Unsupported):
        other.client.cost((APP,))
    other.assert_quiet()


@pytest.mark.parametrize("size", [0, 1, 63, 64, 200, 400, 743, 744, 745, 999, 1000, 1001, 5000, 40_000])
@pytest.mark.parametrize("mime", [None, 5, "a/b", "t" * 127])
def test_payloads_arrive_with_their_types_whatever_their_size(size: int, mime: int | str | None) -> None:  # RSX-MIME-05
    sent = Payload(b"d" * size, b"m" * (size // 3), data_mime=mime, metadata_mime=mime)
    for fragment_size in (64, 300, 1000, 65536):
        pair = SessionPair(RSOCKET_2_0_DRAFT, fragment_size=fragment_size)
        pair.client.commands.open(Interaction.REQUEST_RESPONSE, sent, entries=(APP,))
        _, [request] = pair.exchange()
        assert isinstance(request, RequestReceived)
        assert (request.payload, request.entries) == (sent, (APP,))
        pair.server.commands.send_item(pair.server.table.theirs[1], sent, complete=True)
        [item], _ = pair.exchange()
        assert isinstance(item, ItemReceived)
        assert item.payload == sent
        pair.assert_quiet()


@pytest.mark.parametrize("mime", [None, "a/b", "t" * 127])
def test_no_frame_is_larger_than_the_fragment_size(mime: str | None) -> None:
    for size in range(640, 760):
        pair = SessionPair(RSOCKET_2_0_DRAFT, fragment_size=700)
        payload = Payload(b"d" * size, b"m", data_mime=mime, metadata_mime=mime)
        pair.client.commands.open(Interaction.REQUEST_STREAM, payload, 1, entries=(APP,))
        for frame in pair.client.outbox.take():
            assert len(whole(frame)) <= 700


# What SETUP and SETUP_OK say


def said(*entries: ExtensionEntry, ack: bool = True) -> SetupFrame:
    frame = setup_frame(RSOCKET_2_0_DRAFT, client_terms())
    return attrs.evolve(frame, extensions=entries, ack=ack)


def test_the_terms_of_entries_are_stated_like_any_others() -> None:
    frame = RULES.stated(said(*RULES.asked(Keepalive(0.5, 2), lease=True)))

    assert (frame.keepalive_interval, frame.max_lifetime, frame.lease, frame.resume_token) == (0.5, 2, True, None)
    assert RULES.stated(said()).max_lifetime == 0


def test_a_grant_repeats_the_keepalive_terms_without_a_surplus() -> None:  # RSX-KA-03
    terms = entry_of(KeepaliveTerms(0.5, 2), ignore=True, ack=True)
    longer = attrs.evolve(terms, payload=terms.payload + b"more")

    assert RULES.grants(said(longer), grants_leases=False) == (attrs.evolve(terms, ack=False),)
    assert RULES.grants(said(attrs.evolve(terms, ack=False)), grants_leases=False) == ()


def test_a_request_costs_one_permit_unless_it_says_otherwise() -> None:  # RSX-LEASE-05
    assert [RULES.cost_of(()), RULES.cost_of((APP,)), RULES.cost_of((entry_of(Resumable()),))] == [1, 1, 1]
    assert RULES.cost_of((APP, entry_of(Complexity(7)))) == 7
    assert not RULES.misdirected((APP,))


def test_an_applications_entry_may_always_be_ignored() -> None:  # RSX-TLV-09
    assert as_entries([ExtensionEntry("x.app", payload=b"app"), Complexity(2)]) == (APP, entry_of(Complexity(2)))
    with pytest.raises(LocalProtocolError, match="no extension says bytes"):
        as_entries([b"app"])
