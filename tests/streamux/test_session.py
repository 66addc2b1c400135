"""Two sessions without I/O: what each command makes the other side see, and what is left when they fall quiet."""

from __future__ import annotations

import pytest

from rsocket_trio.errors import (
    ApplicationError,
    ConnectionLost,
    Invalid,
    LocalProtocolError,
    NegotiationFailed,
    Rejected,
    RejectedSetup,
    RemoteProtocolError,
    StreamError,
    Unsupported,
)
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    ItemReceived,
    PeerFault,
    Pong,
    RequestReceived,
    SessionEnded,
    SetupAccepted,
    SetupReceived,
    StreamCancelled,
    StreamCompleted,
    StreamFailed,
)
from rsocket_trio.mux.halves import BOTH, NEITHER, RECEIVING, SENDING
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.payload import MetadataPush, Payload
from rsocket_trio.streamux.chunks import HeaderLayout
from rsocket_trio.streamux.exchanges import LOCKED
from rsocket_trio.streamux.negotiation import Terms
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.streamux.session import COMPANY, State
from rsocket_trio.terms import Setup
from tests.streamux.pairs import (
    CHANNEL,
    WHOLE,
    Chunk,
    SessionPair,
    chunks_in,
    ended,
    of_widths,
    request_in,
    requests_in,
    texts_in,
    without_initialize,
)

clause = pytest.mark.clause

# Whole messages


@clause("SMX-MSG-07", "SMX-FLD-05", "SMX-FLD-06")
def test_a_request_and_its_answer_are_one_chunk_each_and_leave_nothing() -> None:
    pair = SessionPair()
    ours, theirs = pair.asked(b"q")
    assert (ours.open, theirs.open, theirs.id) == (RECEIVING, SENDING, ours.id)

    pair.server.commands.send_item(theirs, Payload(b"a"), complete=True)

    assert pair.exchange() == ([ItemReceived(ours, Payload(b"a"), True)], [])
    assert pair.chunks(pair.client) == [Chunk(ours.id, b"q", termination=True)]
    assert pair.chunks(pair.server) == [Chunk(ours.id, b"a", response=True, termination=True)]
    pair.assert_quiet()


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


@clause("SMX-MSG-02", "SMX-MSG-03")
def test_an_empty_response_is_a_success_without_data() -> None:
    pair = SessionPair()
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(), complete=True)

    assert pair.exchange()[0] == [ItemReceived(ours, Payload(), True)]
    assert pair.chunks(pair.server) == [Chunk(ours.id, response=True, termination=True)]
    pair.assert_quiet()


@clause("SMX-MSG-01")
def test_an_empty_termination_completes_a_message_even_with_others_between() -> None:
    pair = SessionPair(whole=True, chunks=False)
    first, second = pair.ask(b"one", CHANNEL), pair.ask(b"two", CHANNEL)
    assert pair.exchange() == ([], [])
    pair.client.commands.send_complete(first)
    pair.client.commands.send_item(second, Payload(), complete=True)
    saw = pair.exchange()[1]

    assert texts_in(saw) == [b"one", b"two"]
    assert pair.chunks(pair.client)[2:] == [Chunk(first.id, termination=True), Chunk(second.id, termination=True)]


@clause("SMX-MSG-01")
def test_an_empty_termination_completes_a_channel_each_way() -> None:
    pair = SessionPair(whole=False)
    ours = pair.ask(b"one", CHANNEL)
    pair.client.commands.send_complete(ours)
    saw = pair.exchange()[1]
    theirs = request_in(saw)
    assert saw[1:] == [ItemReceived(theirs, Payload(b"one"), False), StreamCompleted(theirs)]

    pair.server.commands.send_item(theirs, Payload(b"two"))
    pair.server.commands.send_complete(theirs)

    assert pair.exchange()[0] == [ItemReceived(ours, Payload(b"two"), False), StreamCompleted(ours)]
    pair.assert_quiet()


@clause("SMX-MSG-08", "SMX-GEN-02", "SMX-FLD-03")
def test_both_sides_use_one_id_at_once_and_answer_in_any_order() -> None:
    pair = SessionPair()
    ours = [pair.ask(b"c%d" % number) for number in range(3)]
    theirs = [pair.ask(b"s%d" % number, of=pair.server) for number in range(3)]
    client_saw, server_saw = pair.exchange()
    assert {one.id for one in ours} == {one.id for one in theirs} == {0, 1, 2}
    for session, saw in ((pair.client, client_saw), (pair.server, server_saw)):
        requests = requests_in(saw)
        for request, data in reversed(list(zip(requests, texts_in(saw), strict=True))):
            session.commands.send_item(request, Payload(b"re " + data), complete=True)

    client_saw, server_saw = pair.exchange()

    assert client_saw == [
        ItemReceived(one, Payload(b"re c%d" % at), True) for at, one in reversed(list(enumerate(ours)))
    ]
    assert server_saw == [
        ItemReceived(one, Payload(b"re s%d" % at), True) for at, one in reversed(list(enumerate(theirs)))
    ]
    pair.assert_quiet()


# Channels


def test_the_chunks_of_a_channel_are_its_items_and_its_request_is_empty() -> None:
    pair = SessionPair()
    ours = pair.ask(b"one", CHANNEL)
    pair.client.commands.send_item(ours, Payload(b"two"))
    pair.client.commands.send_item(ours, Payload(b"three"), complete=True)
    saw = pair.exchange()[1]
    theirs = request_in(saw)

    assert saw == [
        RequestReceived(theirs, Payload(), False),
        ItemReceived(theirs, Payload(b"one"), False),
        ItemReceived(theirs, Payload(b"two"), False),
        ItemReceived(theirs, Payload(b"three"), True),
    ]
    assert (ours.open, theirs.open) == (RECEIVING, SENDING)


@clause("SMX-MSG-04", "SMX-MSG-05")
def test_what_would_be_a_ping_or_a_cancel_is_refused_and_nothing_is_sent() -> None:
    pair = SessionPair()
    with pytest.raises(ValueError, match="it would be a ping"):
        pair.client.commands.open(WHOLE, Payload())
    channel = pair.client.commands.open(CHANNEL, Payload())
    with pytest.raises(ValueError, match="it would be a ping"):
        pair.client.commands.send_complete(channel)
    with pytest.raises(ValueError, match="it would be a ping"):
        pair.client.commands.send_item(channel, Payload(), complete=True)
    with pytest.raises(ValueError, match="it would be a cancel"):
        pair.client.commands.send_item(channel, Payload())

    assert channel.open == BOTH
    assert not pair.client.outbox


def test_a_channel_left_before_its_first_chunk_says_nothing_and_frees_its_id() -> None:
    pair = SessionPair(0, 8)
    channel = pair.client.commands.open(CHANNEL, Payload())
    assert pair.client.is_full

    pair.client.commands.send_cancel(channel)

    assert pair.exchange() == ([], [])
    assert pair.said[pair.client] == b""
    pair.assert_quiet()


@clause("SMX-MSG-09")
def test_a_response_may_begin_before_the_request_is_complete() -> None:
    pair = SessionPair(whole=False)
    ours = pair.ask(b"one", CHANNEL)
    theirs = request_in(pair.exchange()[1])
    pair.server.commands.send_item(theirs, Payload(b"begun"))
    assert pair.exchange()[0] == [ItemReceived(ours, Payload(b"begun"), False)]
    pair.client.commands.send_item(ours, Payload(b"two"), complete=True)
    assert pair.exchange()[1] == [ItemReceived(theirs, Payload(b"two"), True)]
    pair.server.commands.send_complete(theirs)
    assert pair.exchange()[0] == [StreamCompleted(ours)]

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
    assert pair.client.inbound.ignored == len(said) - 1
    pair.assert_quiet()


@clause("SMX-CAN-05")
def test_a_part_of_a_cancelled_response_is_discarded() -> None:
    pair = SessionPair(4, 4)
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(bytes(40)), complete=True)
    pair.move(pair.server, limit=20)
    assert pair.client.table.joining == 15

    pair.client.commands.send_cancel(ours)

    assert pair.client.table.joining == 0
    assert pair.exchange() == ([], [])  # the work was done already
    pair.assert_quiet()


@clause("SMX-CAN-02", "SMX-CAN-07", "SMX-SPU-01", "SMX-CAN-04", "SMX-SPU-02")
def test_a_response_that_crosses_the_cancel_is_dropped_and_unlocks_nothing() -> None:
    pair = SessionPair(0, 8)
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(b"late"), complete=True)
    pair.write(pair.server)
    pair.client.commands.send_cancel(ours)
    assert pair.deliver(pair.server) == []
    assert pair.client.is_full
    assert pair.client.inbound.ignored == 1
    with pytest.raises(LocalProtocolError, match="all 1 request ids are in flight"):
        pair.ask(b"q")

    assert pair.exchange() == ([], [])  # the server knows of no such request any more, and acknowledges all the same
    assert pair.chunks(pair.server)[-1] == Chunk(0, response=True)
    assert pair.ask(b"again").id == 0


@clause("SMX-CAN-04", "SMX-SPU-02")
@pytest.mark.parametrize("request_id", [0, 7, 15])
def test_a_cancel_of_what_never_was_is_acknowledged(request_id: int) -> None:
    pair = SessionPair(4, 4)
    pair.client.outbox.put_urgent(chunk(pair, request_id, b"", 0))

    assert pair.move(pair.client) == []
    pair.write(pair.server)
    assert pair.chunks(pair.server) == [Chunk(request_id, response=True)]


@clause("SMX-CAN-06")
def test_a_cancel_removes_what_is_queued_of_its_request() -> None:
    pair = SessionPair(4, 4, chunks=False)
    ours = pair.ask(bytes(100))
    assert pair.move(pair.client, limit=20) == []
    assert pair.server.table.joining > 0
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


def test_a_second_cancel_does_nothing() -> None:
    pair = SessionPair()
    ours, _ = pair.asked(b"q")
    pair.client.commands.send_cancel(ours)
    pair.client.commands.send_cancel(ours)
    pair.exchange()

    assert pair.chunks(pair.client)[1:] == [Chunk(ours.id)]
    pair.assert_quiet()


def test_a_cancel_that_finds_its_response_still_queued_removes_it() -> None:
    pair = SessionPair()
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(b"answer"), complete=True)
    pair.client.commands.send_cancel(ours)

    assert pair.move(pair.client) == []  # the work was done
    pair.exchange()
    assert pair.chunks(pair.server) == [Chunk(ours.id, response=True)]
    pair.assert_quiet()


# Ids


@clause("SMX-FLD-02", "SMX-FLD-07", "SMX-NEG-08")
@pytest.mark.parametrize("id_bits", [0, 1, 3])
def test_with_all_ids_in_flight_nothing_new_goes_until_one_is_answered(id_bits: int) -> None:
    pair = SessionPair(id_bits, 8)
    ours = [pair.ask(b"q") for _ in range(1 << id_bits)]
    assert sorted(one.id for one in ours) == list(range(1 << id_bits))
    assert pair.client.is_full
    with pytest.raises(LocalProtocolError, match=f"all {1 << id_bits} request ids are in flight"):
        pair.ask(b"one more")
    with pytest.raises(LocalProtocolError, match="are in flight"):
        pair.client.ping(object())
    theirs = requests_in(pair.exchange()[1])

    pair.server.commands.send_item(theirs[-1], Payload(b"a"), complete=True)
    pair.exchange()

    assert pair.client.table.is_full is False
    assert pair.ask(b"one more").id == ours[-1].id


def test_fewer_requests_than_there_are_ids_may_be_allowed() -> None:
    pair = SessionPair(client=of_widths(4, 8, in_flight=2))
    pair.ask(b"1")
    pair.client.ping("token")

    assert pair.client.is_full
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


@clause("SMX-OOB-02", "SMX-OOB-03", "SMX-OOB-04", "SMX-MSG-02")
def test_a_ping_takes_an_id_and_its_ack_gives_it_back() -> None:
    pair = SessionPair(0, 8)
    pair.client.ping("token")
    assert pair.client.is_full

    assert pair.exchange() == ([Pong("token")], [])
    assert pair.chunks(pair.client) == [Chunk(0, termination=True)]
    assert pair.chunks(pair.server) == [Chunk(0, response=True, termination=True)]
    pair.assert_quiet()


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


# What each side counts


def test_requests_that_handlers_have_are_counted_until_they_are_answered() -> None:
    pair = SessionPair(limits=Limits(reassembly_size=150))
    _, first = pair.asked(bytes(100))
    assert (pair.server.table.in_hand, pair.server.is_congested) == (100, False)
    ours, second = pair.asked(bytes(60))
    assert (pair.server.table.in_hand, pair.server.is_congested) == (160, True)
    pair.server.commands.send_item(first, Payload(b"a"), complete=True)
    assert (pair.server.table.in_hand, pair.server.is_congested) == (60, False)
    pair.client.commands.send_cancel(ours)
    assert pair.exchange()[1] == [StreamCancelled(second)]

    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_a_message_above_the_limit_is_refused_and_its_rest_dropped() -> None:
    pair = SessionPair(4, 4, chunks=False, limits=Limits(payload_size=50))
    good, large = pair.ask(bytes(50)), pair.ask(bytes(51))
    saw = pair.exchange()[1]
    (theirs,) = requests_in(saw)
    assert texts_in(saw) == [bytes(50)]
    assert [event.text for event in saw if isinstance(event, PeerFault)] == [
        f"message of more than 50 bytes on id {large.id}"
    ]
    assert pair.server.error is None
    pair.server.commands.send_item(theirs, Payload(b"a"), complete=True)
    assert pair.exchange()[0] == [ItemReceived(good, Payload(b"a"), True)]

    # Nobody can be told; the requester gives up in its own time.
    pair.client.commands.send_cancel(large)
    pair.exchange()
    pair.assert_quiet()


@clause("SMX-MSG-10")
@pytest.mark.parametrize("size", [51, 100, 150])
def test_a_refused_message_is_answered_by_the_applications_word(size: int) -> None:
    def encode(error: StreamError) -> bytes:
        assert isinstance(error, Invalid)
        return error.data

    server = of_widths(4, 4, qa=True, encode_error=encode)
    pair = SessionPair(client=of_widths(4, 4), server=server, chunks=False, limits=Limits(payload_size=50))
    ours = pair.ask(bytes(size))
    client_saw, server_saw = pair.exchange()

    assert [type(event) for event in server_saw] == [PeerFault]
    assert isinstance(client_saw[0], ItemReceived)
    assert client_saw[0].payload.text[:51] == f"message of more than 50 bytes on id {ours.id}"[:51]
    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_a_response_above_the_limit_fails_its_request_only() -> None:
    pair = SessionPair(4, 4, limits=Limits(payload_size=50))
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_item(theirs, Payload(bytes(80)), complete=True)
    (saw,) = pair.exchange()[0]

    assert isinstance(saw, StreamFailed)
    assert (saw.stream, str(saw.error)) == (ours, f"message of more than 50 bytes on id {ours.id}")
    assert type(saw.error) is RemoteProtocolError
    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_unfinished_messages_are_bounded_together() -> None:
    pair = SessionPair(4, 4, chunks=False, limits=Limits(reassembly_size=40))
    first, second = pair.ask(bytes(30), CHANNEL), pair.ask(bytes(30), CHANNEL)
    saw = pair.exchange()[1]

    assert [event.text for event in saw if isinstance(event, PeerFault)] == [
        "more than 40 bytes in unfinished messages"
    ]
    assert pair.server.table.joining == 30
    for one in (first, second):
        pair.client.commands.send_cancel(one)
    pair.exchange()
    pair.assert_quiet()


@clause("SMX-MSG-10")
def test_one_request_too_many_ends_the_session() -> None:
    pair = SessionPair(limits=Limits(streams=2))
    for _ in range(3):
        pair.ask(b"q")

    assert "request id 2 is one too many: 2 requests are open already" in ended(pair.exchange()[1])


# What a peer must not do


def chunk(pair: SessionPair, request_id: int, payload: bytes, bits: int) -> bytes:
    assert pair.client.terms is not None
    return HeaderLayout(pair.client.terms).pack(request_id, len(payload), bits) + payload


SPURIOUS = [
    ("SMX-SPU-03", (3, b"x", 3), "response to request id 3, which is not in flight"),
    ("SMX-SPU-03", (3, b"x", 2), "response to request id 3, which is not in flight"),
    ("SMX-SPU-03", (3, b"", 3), "response to request id 3, which is not in flight"),
    ("SMX-SPU-03", (3, b"", 2), "cancel ack for request id 3, which was not canceled"),
    ("SMX-SPU-03", (5, b"", 2), "cancel ack for request id 5, which was not canceled"),
    ("SMX-SPU-03", (6, b"x", 3), "response of 1 bytes to the ping of id 6"),
    ("SMX-SPU-03", (6, b"", 2), "cancel ack for request id 6, which was not canceled"),
    ("SMX-SPU-04", (9, b"x", 0), "request chunk on id 9, whose request is complete and not answered yet"),
    ("SMX-SPU-04", (9, b"x", 1), "request chunk on id 9, whose request is complete and not answered yet"),
    ("SMX-SPU-04", (9, b"", 1), "request chunk on id 9, whose request is complete and not answered yet"),
]


def spurious_pair(spurious: str) -> SessionPair:
    """The server has a request on id 5 and a ping on id 6, and the client an unanswered one on id 9."""
    start = {"client": 9, "server": 5}
    server = of_widths(4, 8, qa=True, spurious=spurious)
    ids = iter([start["server"], start["client"]])
    pair = SessionPair(client=of_widths(4, 8), server=server, first_id=lambda cap: next(ids))
    assert pair.ask(b"q").id == 9
    assert pair.ask(b"q", of=pair.server).id == 5
    pair.server.ping("token")
    pair.write(pair.server)
    pair.move(pair.client)
    return pair


@pytest.mark.parametrize(
    ("sent", "text"), [pytest.param(sent, text, marks=clause(name), id=text) for name, sent, text in SPURIOUS]
)
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])
def test_what_nothing_explains_ends_the_session_or_is_reported(
    sent: tuple[int, bytes, int], text: str, parts: bool
) -> None:
    for spurious in ("end", "report"):
        pair = spurious_pair(spurious)
        data = chunk(pair, *sent)
        pieces = [data[at : at + 1] for at in range(len(data))] if parts else [data]
        saw = [event for piece in pieces for event in pair.server.receive([piece], 0)]

        if spurious == "end":
            assert ended(saw) == f"the peer broke the protocol: {text}"
            assert pair.server.receive([data], 0) == []
        else:
            assert saw == [PeerFault(text)]
            assert pair.server.error is None
            assert set(pair.server.table.mine) == {5, 6}
            assert set(pair.server.table.theirs) == {9}


@clause("SMX-HDR-03")
def test_unused_bits_end_the_session() -> None:
    pair = SessionPair(4, 7)

    assert "upper 3 bits are unused" in ended(pair.server.receive([b"\x00\x20"], 0))


@clause("SMX-MSG-10")
def test_a_chunk_above_the_limit_ends_the_session_after_what_came_before_it() -> None:
    pair = SessionPair(limits=Limits(frame_size=100))
    saw = pair.server.receive([chunk(pair, 1, b"good", 1) + chunk(pair, 2, bytes(101), 1)], 0)

    assert isinstance(saw[0], RequestReceived)
    assert "chunk of 101 bytes on request id 2, limit 100" in ended(saw)


@clause("SMX-SPU-05")
@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "gone"),
        (1, "gone inside a chunk header: 1 of 2 bytes came"),
        (5, "gone inside a chunk of request id 1: 3 of 4"),
    ],
)
def test_the_end_inside_of_a_chunk_says_so(size: int, text: str) -> None:
    pair = SessionPair()
    assert pair.server.receive([chunk(pair, 1, b"torn", 1)[:size]], 0) == []

    assert str(pair.server.cut_off(ConnectionLost("gone"))).startswith(text)
    assert pair.server.is_mid_frame == (size > 0)


# Which handler


@pytest.mark.parametrize(
    ("requests", "whole", "chunks", "kinds"),
    [
        # a whole message of one chunk, one that begins with a full chunk, one that begins with a small one
        ("auto", True, True, (WHOLE, WHOLE, CHANNEL)),
        ("whole", True, True, (WHOLE, WHOLE, WHOLE)),
        ("chunks", True, True, (CHANNEL, CHANNEL, CHANNEL)),
        ("auto", True, False, (WHOLE, WHOLE, WHOLE)),
        ("auto", False, True, (CHANNEL, CHANNEL, CHANNEL)),
        ("whole", False, True, (CHANNEL, CHANNEL, CHANNEL)),
        ("chunks", True, False, (WHOLE, WHOLE, WHOLE)),
        ("auto", False, False, (WHOLE, WHOLE, WHOLE)),
    ],
)
def test_the_kind_of_a_request_is_told_by_its_first_chunk_and_by_the_handlers(
    requests: str, whole: bool, chunks: bool, kinds: tuple[Interaction, ...]
) -> None:
    server = of_widths(4, 4, qa=True, requests=requests)
    pair = SessionPair(client=of_widths(4, 4), server=server, whole=whole, chunks=chunks)
    pair.ask(b"small")
    pair.ask(bytes(20))
    channel = pair.ask(b"begins", CHANNEL)
    pair.client.commands.send_item(channel, Payload(b"ends"), complete=True)
    saw = pair.exchange()[1]

    assert tuple(one.interaction for one in sorted(requests_in(saw), key=lambda one: one.id)) == kinds


# Failing


def refusing(error: StreamError) -> bytes:
    return b"no: " + error.data


def test_a_failed_request_is_answered_by_the_applications_encoder() -> None:
    pair = SessionPair(client=of_widths(4, 8), server=of_widths(4, 8, qa=True, encode_error=refusing))
    ours, theirs = pair.asked(b"q")

    assert pair.server.commands.send_error(theirs, ApplicationError("broken")) is None
    assert pair.exchange() == ([ItemReceived(ours, Payload(b"no: broken"), True)], [])
    pair.assert_quiet()


def test_a_failed_channel_whose_request_goes_on_is_answered_and_the_rest_dropped() -> None:
    options = of_widths(4, 8, qa=True, encode_error=refusing)
    pair = SessionPair(client=of_widths(4, 8), server=options, whole=False)
    ours = pair.ask(b"one", CHANNEL)
    theirs = request_in(pair.exchange()[1])

    assert pair.server.commands.send_error(theirs, ApplicationError("broken")) is None
    assert pair.exchange() == ([ItemReceived(ours, Payload(b"no: broken"), True)], [])
    pair.assert_quiet()


@pytest.mark.parametrize("begun", [False, True])
def test_without_a_word_for_it_a_failure_is_the_end_and_the_response_is_not_completed(begun: bool) -> None:
    encode = refusing if begun else None
    pair = SessionPair(client=of_widths(4, 8), server=of_widths(4, 8, qa=True, encode_error=encode), whole=False)
    pair.ask(b"one", CHANNEL)
    theirs = request_in(pair.exchange()[1])
    if begun:
        pair.server.commands.send_item(theirs, Payload(b"part"))

    fatal = pair.server.commands.send_error(theirs, ApplicationError("broken"))

    assert type(fatal) is ConnectionLost
    assert str(fatal) == "request 0 failed here, and streamux/1 can't say so: broken"
    pair.write(pair.server)
    assert not any(one.termination for one in pair.chunks(pair.server))


def test_a_requester_that_fails_its_channel_cancels_it() -> None:
    pair = SessionPair(whole=False)
    ours = pair.ask(b"one", CHANNEL)
    theirs = request_in(pair.exchange()[1])

    assert pair.client.commands.send_error(ours, ApplicationError("broken")) is None
    assert pair.exchange() == ([], [StreamCancelled(theirs)])
    pair.assert_quiet()


def test_while_draining_new_requests_are_refused_and_open_ones_finish() -> None:
    pair = SessionPair(client=of_widths(4, 8), server=of_widths(4, 8, qa=True, encode_error=refusing))
    first, theirs = pair.asked(b"first")
    pair.server.drain()
    second = pair.ask(b"second")
    assert pair.exchange() == (
        [ItemReceived(second, Payload(b"no: no new requests: the connection is closing"), True)],
        [],
    )
    assert not pair.server.is_quiet
    pair.server.commands.send_item(theirs, Payload(b"a"), complete=True)
    assert not pair.server.is_quiet  # the answer has not left

    assert pair.exchange()[0] == [ItemReceived(first, Payload(b"a"), True)]
    pair.assert_quiet()


def test_while_draining_a_refused_request_without_a_word_for_it_is_left_to_its_requester() -> None:
    pair = SessionPair()
    pair.server.drain()
    ours = pair.ask(b"q")
    assert pair.exchange() == ([], [])
    assert pair.server.is_quiet
    pair.client.commands.send_cancel(ours)
    pair.exchange()

    pair.assert_quiet()


# Beginning


@clause("SMX-INI-01", "SMX-INI-02", "SMX-NEG-02")
def test_each_side_says_its_initialize_message_once_and_first() -> None:
    pair = SessionPair(met=False)
    assert (pair.client.awaits_answer, pair.server.awaits_setup) == (True, True)
    assert pair.exchange() == ([SetupAccepted(())], [SetupReceived(Setup(dialect="streamux/1"))])
    assert (pair.client.state, pair.server.state) == (State.OPEN, State.GATED)
    assert pair.server.accept(0) == []
    pair.ask(b"q")
    pair.ask(b"q", of=pair.server)
    pair.exchange()

    for side in (pair.client, pair.server):
        assert pair.said[side][:5] == side.options.initialize().encode()
        assert len(chunks_in(Terms(4, 8), without_initialize(pair.said[side]))) == 1


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
    assert pair.server.table.in_hand == 2 * len(b"stays 0")
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

    assert data[:5] == pair.client.options.initialize().encode()
    assert len(without_initialize(data)) in (2, 3)
    assert pair.client.deadline > COMPANY


@clause("SMX-QI-04")
def test_a_quick_initialize_message_goes_alone_when_nothing_else_comes_soon_or_the_peer_has_spoken() -> None:
    options = {"client": of_widths(4, 8, qr=True), "server": of_widths(4, 8, qa=True)}
    pair = SessionPair(**options, met=False)  # type: ignore[arg-type]
    assert pair.client.deadline == COMPANY
    assert pair.client.expire(COMPANY / 2) == []
    assert pair.write(pair.client) == b""
    assert pair.client.expire(COMPANY) == []
    assert len(pair.write(pair.client)) == 5
    assert pair.client.expire(COMPANY) == []
    assert pair.write(pair.client) == b""

    pair = SessionPair(**options, met=False)  # type: ignore[arg-type]
    assert pair.move(pair.server) == []
    assert len(pair.write(pair.client)) == 5


@clause("SMX-QI-06", "SMX-QI-07", "SMX-NEG-02")
def test_a_quick_init_that_fails_is_seen_by_both_sides_and_what_was_sent_is_ignored() -> None:
    pair = SessionPair(client=of_widths(4, 8, qr=True), server=of_widths(4, 8), met=False)
    ours = pair.ask(b"q")
    client_saw, server_saw = pair.exchange()

    for saw in (client_saw, server_saw):
        (event,) = saw
        assert isinstance(event, SessionEnded)
        assert type(event.error) is NegotiationFailed
        assert "the quick init is not allowed" in str(event.error)
    assert pair.client.open_streams() == [ours]
    assert len(pair.said[pair.server]) == 5


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


def test_a_client_waits_for_the_initialize_message_no_longer_than_for_any_set_up() -> None:
    for client in (of_widths(4, 8), of_widths(4, 8, qr=True)):
        pair = SessionPair(client=client, met=False, limits=Limits(setup_timeout=3.0))
        pair.client.expire(COMPANY)
        assert pair.client.deadline == 3.0
        assert pair.client.expire(2.9) == []
        assert ended(pair.client.expire(3.0)) == "no initialize message came for 3 s"


def test_both_sides_draw_no_id_before_they_have_met() -> None:
    pair = SessionPair(met=False)

    assert pair.client.is_full
    assert pair.server.is_full


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
    with pytest.raises(Unsupported, match="entries"):
        session.commands.open(WHOLE, Payload(b"x"), entries=(object(),))
    with pytest.raises(Unsupported, match="metadata"):
        session.commands.metadata_push(ours, MetadataPush(b"x", 0))
    with pytest.raises(Unsupported, match="metadata"):
        session.metadata_push(b"x")
    with pytest.raises(Unsupported, match="routes"):
        session.check_route()

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


def test_options_say_their_initialize_message() -> None:
    options = StreamuxOptions(qa=True, min_id=2, max_id=9, rec_id=31, min_len=3, max_len=20, rec_len=10)
    message = options.initialize()

    assert (message.qr, message.qa, message.range_of("id"), message.range_of("len")) == (
        False,
        True,
        (2, 9, 31),
        (3, 20, 10),
    )


def test_a_refusal_may_be_any_stream_error() -> None:
    pair = SessionPair(client=of_widths(4, 8), server=of_widths(4, 8, qa=True, encode_error=refusing))
    ours, theirs = pair.asked(b"q")
    pair.server.commands.send_error(theirs, Rejected("busy"))

    assert pair.exchange()[0] == [ItemReceived(ours, Payload(b"no: busy"), True)]
