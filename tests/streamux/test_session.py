"""Two sessions without I/O: what each command makes the other side see, and what is left when they fall quiet."""

from __future__ import annotations

import pytest

from rsocket_trio.errors import (
    LocalProtocolError,
)
from rsocket_trio.mux.events import (
    ItemReceived,
    Pong,
    StreamCancelled,
)
from rsocket_trio.mux.stream_state import NEITHER
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.request_table import LOCKED
from tests.streamux.pairs import (
    CHANNEL,
    Chunk,
    SessionPair,
    of_widths,
    request_in,
)

clause = pytest.mark.clause


# Whole messages


@clause("SMX-FLD-01", "SMX-MSG-06")
@pytest.mark.parametrize("size", [14, 15, 16, 30, 31, 100])
def test_large_messages_travel_in_chunks_of_the_negotiated_length_and_arrive_whole(size: int) -> None:
    pair = SessionPair(4, 4, chunks=False)
    question, answer = bytes(range(size)), bytes(reversed(range(size)))
    ours, theirs = pair.asked(question)
    pair.server.commands.send_item(theirs, Payload(answer), complete=True)

    assert pair.exchange()[0] == [ItemReceived(ours, Payload(answer), True)]
    for side in (pair.client, pair.server):
        lengths = [len(chunk.payload) for chunk in pair.chunks(side)]
        assert lengths == [15] * ((size - 1) // 15) + [size - (size - 1) // 15 * 15]
    pair.assert_quiet()


def test_chunks_are_no_larger_than_this_sides_fragments() -> None:
    pair = SessionPair(4, 14, fragment_size=10, chunks=False)
    pair.asked(bytes(25))

    assert [len(chunk.payload) for chunk in pair.chunks(pair.client)] == [10, 10, 5]


# Channels


def test_a_channel_left_before_its_first_chunk_says_nothing_and_frees_its_id() -> None:
    pair = SessionPair(0, 8)
    channel = pair.client.commands.open(CHANNEL, Payload())
    assert pair.client.commands.is_full

    pair.client.commands.send_cancel(channel)

    assert pair.exchange() == ([], [])
    assert pair.said[pair.client] == b""
    pair.assert_quiet()


@clause("SMX-MSG-09")
def test_a_response_that_ends_first_has_the_requester_cancel_the_rest_which_frees_the_id_on_its_ack() -> None:
    pair = SessionPair(whole=False)
    ours = pair.ask(b"one", CHANNEL)
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.send_item(theirs, Payload(b"enough"), complete=True)
    pair.server.commands.send_cancel(theirs)
    assert pair.move(pair.server) == [ItemReceived(ours, Payload(b"enough"), True)]
    assert (ours.open, pair.client.table.mine) == (NEITHER, {ours.id: LOCKED})
    with pytest.raises(LocalProtocolError):
        pair.client.commands.send_item(ours, Payload(b"two"))

    assert pair.exchange() == ([], [])
    assert pair.chunks(pair.client)[1:] == [Chunk(ours.id)]
    assert pair.chunks(pair.server)[1:] == [Chunk(ours.id, response=True)]
    pair.assert_quiet()


@clause("SMX-MSG-09")
def test_a_response_that_meets_queued_chunks_of_its_request_discards_them() -> None:
    pair = SessionPair(4, 4, whole=False, chunks=True)
    ours = pair.ask(bytes(100))
    theirs = request_in(pair.move(pair.client, limit=20))
    pair.server.commands.send_item(theirs, Payload(b"enough"), complete=True)
    pair.server.commands.send_cancel(theirs)
    assert pair.move(pair.server) == [ItemReceived(ours, Payload(b"enough"), True)]

    assert pair.exchange() == ([], [])
    assert len(pair.chunks(pair.client)) < 100 // 15
    assert pair.chunks(pair.client)[-1] == Chunk(ours.id)
    pair.assert_quiet()


def test_the_rest_of_a_request_that_was_answered_already_is_dropped_however_it_ends() -> None:
    pair = SessionPair(whole=False)
    ours = pair.ask(b"one", CHANNEL)
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.send_item(theirs, Payload(b"enough"), complete=True)
    pair.server.commands.send_cancel(theirs)
    pair.write(pair.server)
    pair.client.commands.send_item(ours, Payload(b"two"))
    pair.client.commands.send_complete(ours)
    assert pair.move(pair.client) == []  # both sides had done before they heard of each other

    assert pair.exchange() == ([ItemReceived(ours, Payload(b"enough"), True)], [])
    assert Chunk(ours.id) not in pair.chunks(pair.client)
    pair.assert_quiet()


# Cancelling


@clause("SMX-CAN-01", "SMX-CAN-02", "SMX-CAN-03", "SMX-OOB-02")
def test_a_cancel_stops_the_work_discards_what_was_queued_for_it_and_is_acknowledged() -> None:
    pair = SessionPair(4, 4)
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(bytes(100)), complete=False)
    pair.write(pair.server, limit=20)
    pair.client.commands.send_cancel(ours)
    assert pair.client.table.mine == {ours.id: LOCKED}
    assert pair.move(pair.client) == [StreamCancelled(theirs)]
    assert (theirs.open, pair.server.table.theirs, pair.server.outbox.size) == (NEITHER, {}, 0)

    assert pair.exchange() == ([], [])
    said = pair.chunks(pair.server)
    assert [len(chunk.payload) for chunk in said] == [15] * (len(said) - 1) + [0]
    assert not any(chunk.termination for chunk in said)  # SMX-CAN-05
    assert said[-1] == Chunk(ours.id, response=True)
    assert pair.client.receiver.ignored == len(said) - 1
    pair.assert_quiet()


@clause("SMX-CAN-05")
def test_a_part_of_a_cancelled_response_is_discarded() -> None:
    pair = SessionPair(4, 4)
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(bytes(40)), complete=True)
    pair.move(pair.server, limit=20)
    assert pair.client.table.reassembling == 15

    pair.client.commands.send_cancel(ours)

    assert pair.client.table.reassembling == 0
    assert pair.exchange() == ([], [])  # the work was done already
    pair.assert_quiet()


@clause("SMX-CAN-06")
def test_a_cancel_removes_what_is_queued_of_its_request() -> None:
    pair = SessionPair(4, 4, chunks=False)
    ours = pair.ask(bytes(100))
    assert pair.move(pair.client, limit=20) == []
    assert pair.server.table.reassembling > 0
    pair.client.commands.send_cancel(ours)
    assert pair.client.outbox.size == 0

    saw = pair.exchange()[1]

    assert [type(event) for event in saw] == [StreamCancelled]
    assert pair.chunks(pair.client)[-1] == Chunk(ours.id)
    pair.assert_quiet()


def test_a_request_cancelled_before_it_left_says_nothing_and_frees_its_id() -> None:
    pair = SessionPair(0, 4)
    ours = pair.ask(bytes(100))
    pair.client.commands.send_cancel(ours)
    pair.client.commands.send_cancel(ours)

    assert pair.exchange() == ([], [])
    assert pair.said[pair.client] == b""
    assert pair.ask(b"next").id == 0


# Ids


def test_fewer_requests_than_there_are_ids_may_be_allowed() -> None:
    pair = SessionPair(client=of_widths(4, 8, in_flight=2))
    pair.ask(b"1")
    pair.client.ping("token")

    assert pair.client.commands.is_full
    with pytest.raises(LocalProtocolError, match="all 2 request ids are in flight"):
        pair.ask(b"3")


@clause("SMX-FLD-04")
def test_the_first_id_is_drawn_from_the_whole_range_and_the_others_follow_it() -> None:
    drawn: list[int] = []

    def randbelow(cap: int) -> int:
        drawn.append(cap)
        return 14

    pair = SessionPair(4, 8, first_id=randbelow)

    assert drawn == [16, 16]
    assert [pair.ask(b"q").id for _ in range(4)] == [14, 15, 0, 1]


# Out of band


@clause("SMX-OOB-04")
def test_acks_of_several_pings_are_told_by_their_ids() -> None:
    pair = SessionPair()
    for number in range(3):
        pair.server.ping(number)
    pair.move(pair.server)
    acks = pair.write(pair.client)
    assert len(acks) == 3 * 2
    pair.wires[pair.client] = acks[4:] + acks[2:4] + acks[:2]

    assert pair.exchange()[1] == [Pong(2), Pong(1), Pong(0)]
    pair.assert_quiet()


@clause("SMX-OOB-01", "SMX-OOB-03", "SMX-OOB-05")
def test_out_of_band_messages_overtake_others_at_the_border_of_a_chunk() -> None:
    pair = SessionPair(4, 4)
    first, second = pair.ask(bytes(60)), pair.ask(b"to be cancelled")
    pair.write(pair.client, limit=40)
    pair.server.ping("server's")
    pair.move(pair.server)
    pair.client.ping("client's")
    pair.client.commands.send_cancel(second)

    pair.write(pair.client)
    said = pair.chunks(pair.client)
    at = next(number for number, one in enumerate(said) if not one.payload)

    assert said[:at] == [Chunk(first.id, bytes(15)), Chunk(second.id, b"to be cancelled", termination=True)]
    assert said[at : at + 3] == [
        Chunk(2, termination=True),
        Chunk(second.id),
        Chunk(0, response=True, termination=True),
    ]
    assert [one.request_id for one in said[at + 3 :]] == [first.id] * 3


@clause("SMX-MSG-06")
def test_the_chunks_of_two_messages_take_turns() -> None:
    pair = SessionPair(4, 4)
    first, second = pair.ask(bytes(60)), pair.ask(bytes(45))
    pair.write(pair.client)

    ids = [chunk.request_id for chunk in pair.chunks(pair.client)]

    assert ids == [first.id, second.id] * 3 + [first.id]
