"""The sign of a side that drains: the KEEPALIVE that says so, the refusals that say so, and all that is no sign."""

from __future__ import annotations

import pytest

from rsocket_trio import ApplicationError, Canceled, Drained, Invalid, Rejected
from rsocket_trio.errors import StreamError
from rsocket_trio.mux.events import PeerDraining, Pong, RequestReceived, StreamFailed
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import (
    REACTIVESOCKET_0_0,
    REACTIVESOCKET_0_1,
    REACTIVESOCKET_0_2,
    RSOCKET_1_0,
    RSOCKET_2_0_DRAFT,
    Dialect,
)
from rsocket_trio.rsocket.stream_table import Stream
from tests.rsocket.pairs import SessionPair

SIGN = b"no new requests: the connection is closing"
KEEPALIVE = bytes.fromhex("00000000 0c00 0000000000000000")
"""KEEPALIVE of RSocket 1.0 and 0.2 on stream 0, without R: type 0x03 << 10, and a position of eight bytes."""
RR = Interaction.REQUEST_RESPONSE
STREAM = Interaction.REQUEST_STREAM

each_dialect = pytest.mark.parametrize(
    "dialect",
    [RSOCKET_1_0, REACTIVESOCKET_0_2, REACTIVESOCKET_0_1, RSOCKET_2_0_DRAFT],
    ids=lambda dialect: dialect.name,
)


def fail(pair: SessionPair, request: RequestReceived, error: StreamError) -> None:
    """Let the server's handler fail."""
    assert isinstance(request.stream, Stream)
    pair.server.commands.send_error(request.stream, error)


def drain(pair: SessionPair) -> None:
    """Let the server drain, and say so."""
    pair.server.drain()
    pair.server.announce_drain()


@pytest.mark.parametrize("dialect", [RSOCKET_1_0, REACTIVESOCKET_0_2], ids=lambda dialect: dialect.name)
def test_the_sign_is_a_keepalive_that_asks_for_no_answer(dialect: Dialect) -> None:
    pair = SessionPair(dialect)
    drain(pair)

    assert [whole(frame) for frame in pair.server.outbox.take()] == [KEEPALIVE + SIGN]


@each_dialect
def test_the_sign_answers_no_ping(dialect: Dialect) -> None:
    pair = SessionPair(dialect)
    pair.client.ping("mine")
    drain(pair)
    saw = pair.move(pair.server)
    assert [type(event) for event in saw] == [PeerDraining]

    assert pair.exchange()[0] == [Pong("mine")]


@each_dialect
def test_a_side_that_drains_itself_takes_an_echo_of_its_sign_for_nothing(dialect: Dialect) -> None:
    pair = SessionPair(dialect)
    drain(pair)
    [sign] = [whole(frame) for frame in pair.server.outbox.take()]

    assert pair.server.receive([sign], pair.now) == []


@each_dialect
def test_a_request_that_the_sign_of_its_own_side_overtakes_is_taken(dialect: Dialect) -> None:
    pair = SessionPair(dialect)
    pair.client.commands.open(RR, Payload(b"x"))
    pair.client.drain()
    pair.client.announce_drain()

    signed, taken = pair.exchange()[1]

    assert isinstance(signed, PeerDraining)
    assert isinstance(taken, RequestReceived)
    assert pair.server.draining


@each_dialect
@pytest.mark.parametrize("interaction", [RR, STREAM], ids=lambda interaction: interaction.value)
def test_no_handler_can_send_the_sign(dialect: Dialect, interaction: Interaction) -> None:
    said: dict[str, StreamError] = {
        "the sign": Rejected(SIGN),
        "the sign as it was heard": Drained(SIGN),
        "the sign, with a code of its own": Rejected._received(0x202, SIGN),
        "another text": Rejected(SIGN + b"!"),
        "another error": Canceled(SIGN),
        "an application's error": ApplicationError(SIGN),
        "a fault": Invalid(SIGN),
    }
    for name, error in said.items():
        pair = SessionPair(dialect)
        credit = None if interaction is RR else 1
        pair.client.commands.open(interaction, Payload(b"x"), credit)
        (request,) = pair.exchange()[1]
        assert isinstance(request, RequestReceived)
        fail(pair, request, error)

        (failed,) = pair.exchange()[0]

        assert isinstance(failed, StreamFailed), name
        assert type(failed.error) is not Drained, name
        assert isinstance(failed.error, StreamError)
        assert isinstance(failed.error, Rejected) == (error.code == 0x202), name
        assert not pair.client.draining, name
        if name.startswith("the sign"):
            assert failed.error.text == "no new requests: another connection is closing"
        else:
            assert failed.error.data == error.data, name


def test_a_text_that_is_cut_to_the_sign_goes_out_with_another() -> None:
    for size in range(64, 80):
        pair = SessionPair(fragment_size=size)
        pair.client.commands.open(RR, Payload(b"x"))
        (request,) = pair.exchange()[1]
        assert isinstance(request, RequestReceived)
        # Behind the sign one character of four bytes, which is left out where it does not fit.
        fail(pair, request, Rejected(SIGN + "\N{ROCKET}".encode() * 20))
        (failed,) = pair.exchange()[0]
        assert isinstance(failed, StreamFailed)
        assert not pair.client.draining


def test_a_requester_that_fails_its_half_with_the_text_gives_no_sign() -> None:
    pair = SessionPair()
    pair.client.commands.open(Interaction.REQUEST_CHANNEL, Payload(b"x"), 1)
    pair.exchange()
    error = bytes.fromhex("00000001 2c00 00000202") + SIGN

    (failed,) = pair.server.receive([error], pair.now)

    assert isinstance(failed, StreamFailed)
    assert type(failed.error) is Rejected
    assert not pair.server.draining


def test_a_keepalive_that_asks_for_an_answer_is_no_sign() -> None:
    pair = SessionPair()
    asking = bytes.fromhex("00000000 0c80 0000000000000000") + SIGN

    assert pair.client.receive([asking], pair.now) == []

    assert not pair.client.draining
    assert [whole(frame) for frame in pair.client.outbox.take()] == [KEEPALIVE + SIGN]


def test_reactivesocket_0_0_has_no_sign() -> None:
    pair = SessionPair(REACTIVESOCKET_0_0)
    pair.server.drain()
    pair.server.announce_drain()
    pair.client.commands.open(RR, Payload(b"x"))

    (failed,) = pair.exchange()[0]

    assert isinstance(failed, StreamFailed)
    assert type(failed.error) is ApplicationError
    assert not pair.client.draining
