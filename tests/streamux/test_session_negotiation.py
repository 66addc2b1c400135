"""Two sessions without I/O: how they meet, what the gate holds, quick init, and what Streamux does not have."""

from __future__ import annotations

import math

import pytest

from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    Pong,
    RequestReceived,
    SetupReceived,
)
from rsocket_trio.mux.stream_state import NEITHER, SENDING
from rsocket_trio.streamux.negotiation import QUICK_INIT_DELAY
from tests.streamux.pairs import (
    SessionPair,
    ended,
    of_widths,
    requests_in,
    texts_in,
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


def test_an_over_session_ignores_all_that_comes() -> None:
    pair = SessionPair()
    pair.ask(b"q")
    pair.write(pair.client)
    pair.server.close()

    assert pair.deliver(pair.client) == []
    assert str(pair.server.error) == "the connection was closed by this side"
