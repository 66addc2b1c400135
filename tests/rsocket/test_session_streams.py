"""Two sessions without I/O: what each command makes the other side see, and what is left when they fall quiet."""

from __future__ import annotations

import pytest

from rsocket_trio.errors import (
    ApplicationError,
    LocalProtocolError,
    Rejected,
)
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
from rsocket_trio.mux.stream_state import BOTH, NEITHER, RECEIVING, SENDING, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_2, RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.stream_table import Stream
from tests.each_row import ALL_CASES
from tests.rsocket.pairs import SessionPair

RR, FNF = Interaction.REQUEST_RESPONSE, Interaction.FIRE_AND_FORGET
STREAM, CHANNEL = Interaction.REQUEST_STREAM, Interaction.REQUEST_CHANNEL
DIALECTS = (RSOCKET_1_0, REACTIVESOCKET_0_2)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def request_in(events: list[Event]) -> Stream:
    (event,) = events
    assert isinstance(event, RequestReceived)
    assert isinstance(event.stream, Stream)
    return event.stream


def test_a_cancel_overtakes_what_was_queued_for_it() -> None:
    pair = SessionPair()
    asked = pair.client.commands.open(STREAM, Payload(b"ticks"), 2)
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.send_item(theirs, Payload(b"one"))
    pair.client.commands.send_cancel(asked)

    server_saw = pair.move(pair.client)
    client_saw = pair.move(pair.server)

    assert (client_saw, server_saw) == ([], [StreamCancelled(theirs)])
    pair.assert_quiet()


def test_what_waits_when_the_peer_cancels_its_half_is_never_sent_but_credit_is() -> None:
    pair = SessionPair()
    asked = pair.client.commands.open(CHANNEL, Payload(), 1)
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.request_n(theirs, 5)
    pair.exchange()
    for data in (b"one", b"two" * 1000):  # the second in fragments
        pair.client.commands.send_item(asked, Payload(data))
    pair.client.commands.request_n(asked, 3)
    pair.server.commands.send_cancel(theirs)
    assert pair.move(pair.server) == [SendingCancelled(asked)]

    frames = [whole(frame) for frame in pair.client.outbox.take()]
    assert frames == [bytes.fromhex("00000001 2000 00000003")]
    assert not pair.client.outbox
    assert pair.client.outbox.size == 0


@pytest.mark.parametrize("interaction", [RR, STREAM, CHANNEL])
def test_a_request_that_is_cancelled_before_it_left_is_never_sent(interaction: Interaction) -> None:
    pair = SessionPair()
    stream = pair.client.commands.open(interaction, Payload(b"x" * 5000), None if interaction is RR else 1)
    pair.client.commands.request_n(stream, 5)
    pair.client.commands.send_cancel(stream)

    assert pair.exchange() == ([], [])
    pair.assert_quiet()


def test_a_request_that_is_cancelled_amid_its_fragments_is_cancelled_at_the_peer_too() -> None:
    pair = SessionPair(fragment_size=64)
    stream = pair.client.commands.open(RR, Payload(b"x" * 5000))
    assert pair.move(pair.client, limit=100) == []
    assert len(pair.server.table.theirs) == 1
    pair.client.commands.send_cancel(stream)

    assert pair.exchange() == ([], [])
    pair.assert_quiet()


def test_credit_stays_behind_its_unsent_request_and_adds_up() -> None:
    pair = SessionPair()
    stream = pair.client.commands.open(STREAM, Payload(b"x"), 3)
    pair.client.commands.request_n(stream, 2)
    pair.client.commands.request_n(stream, 4)

    _, server_saw = pair.exchange()

    assert [type(event) for event in server_saw] == [RequestReceived, CreditGranted]
    assert request_in(server_saw[:1]).room == 9


def test_credit_that_cannot_be_said_in_one_frame_is_said_in_two() -> None:
    pair = SessionPair()
    stream = pair.client.commands.open(STREAM, Payload(b"x"), 2**31 - 1)
    pair.client.commands.request_n(stream, 2**31 - 1)
    pair.client.commands.request_n(stream, 2**31 - 1)

    theirs = request_in(pair.exchange()[1][:1])

    assert theirs.room == 3 * (2**31 - 1)


@pytest.mark.parametrize(("dialect", "left"), [(RSOCKET_1_0, SENDING), (REACTIVESOCKET_0_2, NEITHER)])
def test_the_responders_complete_closes_what_the_dialect_says(dialect: Dialect, left: int) -> None:
    pair = SessionPair(dialect)
    asked = pair.client.commands.open(CHANNEL, Payload(), 5)
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.send_complete(theirs)

    assert pair.exchange()[0] == [StreamCompleted(asked)]
    assert asked.open == left
    assert bool(theirs.open) == bool(left)


def test_the_responders_cancel_closes_the_requesters_sending_and_keeps_its_credit() -> None:
    pair = SessionPair(fragment_size=64)
    asked = pair.client.commands.open(CHANNEL, Payload(), 1)
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.request_n(theirs, 5)
    pair.exchange()
    pair.client.commands.send_item(asked, Payload(b"x" * 900))
    pair.move(pair.client, limit=100)
    assert pair.server.table.reassembling > 0
    pair.server.commands.send_cancel(theirs)
    assert pair.server.table.reassembling == 0
    pair.client.commands.request_n(asked, 3)

    assert pair.move(pair.server) == [SendingCancelled(asked)]
    assert pair.exchange() == ([], [CreditGranted(theirs)])
    assert (asked.open, theirs.open, theirs.room) == (RECEIVING, SENDING, 4)
    with pytest.raises(LocalProtocolError):
        pair.client.commands.send_item(asked, Payload(b"x"))
    pair.server.commands.send_complete(theirs)
    pair.exchange()
    pair.assert_quiet()


REFUSED = [
    ("an item without credit", lambda commands, stream: commands.send_item(stream, Payload(b"x")), BOTH, 0),
    ("an item after complete", lambda commands, stream: commands.send_item(stream, Payload(b"x")), RECEIVING, 9),
    ("complete twice", lambda commands, stream: commands.send_complete(stream), RECEIVING, 9),
    ("an error after complete", lambda commands, stream: commands.send_error(stream, Rejected("x")), RECEIVING, 9),
]


@pytest.mark.parametrize(("what", "command", "halves", "room"), REFUSED, ids=lambda value: str(value)[:24])
def test_a_command_that_the_stream_forbids_changes_nothing(what: str, command: object, halves: int, room: int) -> None:
    assert callable(command)
    pair = SessionPair()
    stream = pair.client.commands.open(CHANNEL, Payload(), 1)
    pair.exchange()
    stream.open, stream.room = halves, room

    with pytest.raises(LocalProtocolError):
        command(pair.client.commands, stream)

    assert (stream.open, stream.room) == (halves, room)
    assert not pair.client.outbox


def test_the_last_id_of_0_2_leaves_the_connection_usable() -> None:
    pair = SessionPair(REACTIVESOCKET_0_2)
    pair.client.table.ids.start_at(2**31 - 1)
    asked = pair.client.commands.open(RR, Payload(b"last"))
    with pytest.raises(LocalProtocolError):
        pair.client.commands.open(RR, Payload(b"one more"))

    theirs = request_in(pair.exchange()[1])
    pair.server.commands.send_item(theirs, Payload(b"a"), complete=True)

    assert pair.exchange()[0] == [ItemReceived(asked, Payload(b"a"), True)]
    pair.assert_quiet()


def test_an_id_whose_last_frame_has_not_left_is_not_given_out_again() -> None:
    pair = SessionPair()
    pair.client.table.ids.start_at(2**31 - 1)
    stream = pair.client.commands.open(CHANNEL, Payload(), 1)
    pair.exchange()
    pair.client.commands.send_error(stream, Rejected("x"))
    pair.client.table.ids.start_at(2**31 - 1)

    assert pair.client.commands.open(RR, Payload()).id == 1


def test_a_thousand_streams_of_100_kb_in_fragments_pass_and_the_sum_is_given_back() -> None:
    pair = SessionPair(fragment_size=16_384)
    for _ in range(1000):
        pair.client.commands.open(FNF, Payload(b"x" * 100_000))
    seen = 0
    while pair.client.outbox:
        seen += len(pair.move(pair.client))
    assert seen == 1000
    pair.assert_quiet()


def test_9999_streams_may_be_open_and_one_more_each_time_one_ends() -> None:
    pair = SessionPair()
    for _ in range(9_999):
        pair.client.commands.open(STREAM, Payload(), 1)
    streams = [event.stream for event in pair.exchange()[1] if isinstance(event, RequestReceived)]
    assert len(streams) == 9_999
    for _ in range(20_000 if ALL_CASES else 2_000):
        pair.client.commands.open(STREAM, Payload(), 1)
        client_saw, server_saw = pair.exchange()
        assert client_saw == []
        streams.append(request_in(server_saw))
        oldest = streams.pop(0)
        assert isinstance(oldest, Stream)
        pair.server.commands.send_complete(oldest)
        (ended,) = pair.exchange()[0]
        assert isinstance(ended, StreamCompleted)


@each_dialect
def test_error_text_above_the_fragment_size_is_cut(dialect: Dialect) -> None:
    pair = SessionPair(dialect, fragment_size=64)
    pair.client.commands.open(RR, Payload())
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.send_error(theirs, ApplicationError("x" * 500))

    (failed,) = pair.exchange()[0]

    assert isinstance(failed, StreamFailed)
    assert isinstance(failed.error, ApplicationError)
    assert failed.error.data == b"x" * 54
