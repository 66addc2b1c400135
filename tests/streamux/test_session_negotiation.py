"""Two sessions without I/O: how they meet, what the gate holds, quick init, and what Streamux does not have."""

from __future__ import annotations

import math

import pytest

from rsocket_trio.errors import (
    ConnectionLost,
    NegotiationFailed,
    RejectedSetup,
    Unsupported,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    Pong,
    RequestReceived,
    SessionEnded,
    SetupReceived,
)
from rsocket_trio.mux.stream_state import NEITHER, SENDING, Interaction
from rsocket_trio.payload import MetadataPush, Payload
from rsocket_trio.streamux.negotiation import QUICK_INIT_DELAY
from tests.streamux.pairs import (
    CHANNEL,
    WHOLE,
    SessionPair,
    ended,
    of_widths,
    requests_in,
    texts_in,
    without_initialize,
)

clause = pytest.mark.clause


# Beginning


def test_an_initialize_message_may_come_byte_by_byte_with_chunks_behind_it() -> None:
    pair = SessionPair(client=of_widths(4, 8, qr=True), server=of_widths(4, 8, qa=True), met=False)
    pair.ask(b"q")
    pair.write(pair.client)
    saw = [event for _ in range(len(pair.wires[pair.client])) for event in pair.deliver(pair.client, 1)]

    assert [type(event) for event in saw] == [SetupReceived]
    assert [type(event) for event in pair.server.accept(0)] == [RequestReceived]


@clause("SMX-QI-10")
def test_the_gate_holds_requests_until_the_application_accepts() -> None:
    limits = Limits(held_frames=4)
    pair = SessionPair(client=of_widths(4, 8, qr=True), server=of_widths(4, 8, qa=True), met=False, limits=limits)
    gone = pair.ask(b"gone")
    stays = [pair.ask(b"stays %d" % number) for number in range(2)]
    pair.client.ping("token")
    client_saw, server_saw = pair.exchange()
    assert client_saw == [Pong("token")]  # what needs no application is answered
    assert [type(event) for event in server_saw] == [SetupReceived]
    before = pair.server.is_congested
    pair.client.commands.send_cancel(gone)
    assert pair.exchange() == ([], [])
    assert (before, pair.server.is_congested) == (False, True)

    held = pair.server.accept(0)

    assert [one.open for one in requests_in(held)] == [NEITHER, SENDING, SENDING]
    assert texts_in(held)[1:] == [b"stays 0", b"stays 1"]
    assert pair.server.table.buffered == 2 * len(b"stays 0")
    assert pair.server.accept(0) == []
    assert set(pair.server.table.theirs) == {one.id for one in stays}


def test_what_the_gate_holds_is_bounded_in_bytes_too() -> None:
    limits = Limits(held_size=100)
    pair = SessionPair(client=of_widths(4, 8, qr=True), server=of_widths(4, 8, qa=True), met=False, limits=limits)
    pair.ask(bytes(99))
    pair.exchange()
    assert not pair.server.is_congested
    pair.ask(b"1")
    pair.exchange()

    assert pair.server.is_congested


def test_a_refused_client_is_told_nothing_and_its_requests_are_dropped() -> None:
    pair = SessionPair(client=of_widths(4, 8, qr=True), server=of_widths(4, 8, qa=True), met=False)
    pair.ask(b"q")
    pair.exchange()
    said = pair.said[pair.server]
    refusal = RejectedSetup("not you")

    assert pair.server.refuse(refusal) == [SessionEnded(refusal)]
    pair.write(pair.server)
    assert pair.said[pair.server] == said
    assert pair.server.accept(0) == []
    assert pair.server.error is refusal


@clause("SMX-QI-04", "SMX-INI-01")
@pytest.mark.parametrize("first", ["request", "ping"])
def test_a_quick_initialize_message_waits_for_the_first_request_and_leaves_with_it(first: str) -> None:
    pair = SessionPair(client=of_widths(4, 8, qr=True), server=of_widths(4, 8, qa=True), met=False)
    assert not pair.client.awaits_answer
    assert pair.write(pair.client) == b""
    if first == "request":
        pair.ask(b"q")
    else:
        pair.client.ping("token")
    data = pair.write(pair.client)

    assert data[:5] == pair.client.options._initialize().encode()
    assert len(without_initialize(data)) in (2, 3)
    assert pair.client.deadline > QUICK_INIT_DELAY


@clause("SMX-QI-04")
def test_a_quick_initialize_message_goes_alone_when_nothing_else_comes_soon_or_the_peer_has_spoken() -> None:
    options = {"client": of_widths(4, 8, qr=True), "server": of_widths(4, 8, qa=True)}
    pair = SessionPair(**options, met=False)  # type: ignore[arg-type]
    assert pair.client.deadline == QUICK_INIT_DELAY
    assert pair.client.expire(QUICK_INIT_DELAY / 2) == []
    assert pair.write(pair.client) == b""
    assert pair.client.expire(QUICK_INIT_DELAY) == []
    assert len(pair.write(pair.client)) == 5
    assert pair.client.expire(QUICK_INIT_DELAY) == []
    assert pair.write(pair.client) == b""

    pair = SessionPair(**options, met=False)  # type: ignore[arg-type]
    assert pair.move(pair.server) == []
    assert len(pair.write(pair.client)) == 5


@clause("SMX-NEG-02", "SMX-NEG-04")
def test_sides_without_common_terms_end_with_the_field_named() -> None:
    pair = SessionPair(client=of_widths(4, 8), server=of_widths(6, 8), met=False)
    client_saw, server_saw = pair.exchange()

    for saw in (client_saw, server_saw):
        assert ended(saw).startswith("min_id of 6 against max_id of 4")
    assert pair.client.error is not None


def test_a_peer_whose_offer_is_wrong_is_named() -> None:
    pair = SessionPair(met=False)

    assert ended(pair.server.receive([b"\x01\x00\x00\x00\x00"], 0)).startswith("the peer's min_len of 0")


@clause("SMX-SPU-05")
def test_the_end_inside_of_the_initialize_message_is_a_failed_negotiation() -> None:
    pair = SessionPair(met=False)
    pair.server.receive([b"\x01\x06"], 0)
    error = pair.server.cut_off(ConnectionLost("gone"))

    assert type(error) is NegotiationFailed
    assert str(error) == "gone after 2 of the 5 bytes of its initialize message"


def test_a_client_that_has_begun_waits_for_the_initialize_message_no_longer_than_for_any_set_up() -> None:
    pair = SessionPair(client=of_widths(4, 8, qr=True), met=False, limits=Limits(setup_timeout=3.0))
    pair.client.expire(QUICK_INIT_DELAY)
    assert pair.client.deadline == 3.0
    assert pair.client.expire(2.9) == []
    assert ended(pair.client.expire(3.0)) == "no initialize message came for 3 s"


def test_a_client_that_waits_for_the_initialize_message_is_bounded_by_the_time_of_connecting() -> None:
    pair = SessionPair(client=of_widths(4, 8), met=False, limits=Limits(setup_timeout=3.0))
    assert pair.client.deadline == math.inf


# What there is not


def test_what_streamux_lacks_is_unsupported_and_nothing_is_sent() -> None:
    pair = SessionPair()
    session = pair.client
    ours = pair.ask(b"one", CHANNEL)
    pair.exchange()
    pair.said[session] = b""
    for lacking in (Interaction.REQUEST_STREAM, Interaction.FIRE_AND_FORGET, Interaction.REQUEST_SUBSCRIPTION):
        with pytest.raises(Unsupported, match=lacking.value):
            session.commands.open(lacking, Payload(b"x"))
    for payload, what in (
        (Payload(b"x", b""), "metadata"),
        (Payload(b"x", metadata_type=1), "metadata"),
        (Payload(b"x", data_mime="a/b"), "MIME types"),
        (Payload(b"x", metadata_mime=3), "MIME types"),
    ):
        with pytest.raises(Unsupported, match=what):
            session.commands.open(WHOLE, payload)
        with pytest.raises(Unsupported, match=what):
            session.commands.send_item(ours, payload)
    with pytest.raises(Unsupported, match="metadata"):
        session.commands.metadata_push(ours, MetadataPush(b"x", 0))
    with pytest.raises(Unsupported, match="metadata"):
        session.metadata_push(b"x")
    with pytest.raises(Unsupported, match="extension entries"):
        session.entries((), ignore=True)
    assert not session.dialect.routes

    assert set(session.table.mine) == {ours.id}
    assert pair.exchange() == ([], [])
    assert pair.said[session] == b""


def test_an_over_session_ignores_all_that_comes() -> None:
    pair = SessionPair()
    pair.ask(b"q")
    pair.write(pair.client)
    pair.server.close()

    assert pair.deliver(pair.client) == []
    assert str(pair.server.error) == "the connection was closed by this side"
