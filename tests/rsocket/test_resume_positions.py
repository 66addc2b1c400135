"""What resumption refuses, how much it keeps, and which streams it leaves out."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from rsocket_trio.errors import RejectedResume, RemoteProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    Event,
    PeerDraining,
    RequestReceived,
    StreamCompleted,
    StreamFailed,
)
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.retransmission import RetainingOutbox
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import RSOCKET_2_0_DRAFT, Dialect
from rsocket_trio.rsocket.resume_protocol import ResumeHandshake, ResumeRequest, is_tracked, resume_request
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import ResumeOptions
from tests.rsocket.pairs import client_terms
from tests.rsocket.resumable import (
    TOKEN,
    UNMARKED,
    ResumablePair,
    by_frames,
    each,
    items,
    resumption,
)

# What is refused


def back_of(pair: ResumablePair, **changes: Any) -> ResumeRequest:
    found = resume_request(pair.dialect, pair.ask())
    assert found is not None
    return attrs.evolve(found, **changes)


@each
@pytest.mark.clause("RS02-RSM-25", "RSX-RES-09", "RS10-RSM-24")
def test_a_client_serves_exactly_the_beginnings_of_frames_that_it_keeps(dialect: Dialect) -> None:
    mark = 5 if dialect.entries else 0
    starts = {9 + mark, 19 + 2 * mark, 30 + 3 * mark}
    for position in range(50):
        pair = ResumablePair(dialect)
        for data in (b"123", b"1234", b"12345"):
            pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(data))
        pair.exchange()
        resumption(pair.client).confirmed(9 + mark)
        pair.suspend()
        resumption(pair.server).received = position
        pair.server.resume_handshake.take(back_of(pair), pair.now)
        (answer,) = pair.take(pair.server, 1)
        if position in starts:
            pair.client.resume_handshake.answered(answer, pair.now)
        else:
            with pytest.raises(RemoteProtocolError, match=f"position {position} "):
                pair.client.resume_handshake.answered(answer, pair.now)


@each
def test_a_server_takes_back_no_client_that_lost_frames(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"123"))
    pair.exchange()
    received = resumption(pair.server).received
    pair.suspend()

    resumption(pair.server).check(back_of(pair, first_available_client_position=received))
    with pytest.raises(RejectedResume, match=f"first position {received + 1} is beyond {received}"):
        resumption(pair.server).check(back_of(pair, first_available_client_position=received + 1))


@each
def test_who_has_agreed_on_nothing_has_nothing_to_go_on_with(dialect: Dialect) -> None:
    options = ResumeOptions()
    server = Session(dialect, client=False, limits=Limits(), fragment_size=100, resume=options)
    with pytest.raises(RejectedResume, match="unknown"):
        server.resume_handshake.check(ResumeRequest(TOKEN, (dialect.major, dialect.minor), 0))
    assert not server.can_resume


@each
def test_other_first_frames_are_nobodys_who_comes_back(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    for text in ("", "00", "00000000 3400", "00000000 0400", "00000001 1000", "00000000 3800 0000000000000000"):
        assert resume_request(dialect, bytes.fromhex(text)) is None
    assert resume_request(dialect, pair.ask()) is not None
    assert resume_request(dialect, b"\0\0\0\1" + pair.ask()[4:]) is None


# The store


@each
@pytest.mark.clause("RS10-RSM-25")
def test_a_full_store_stalls_until_the_peer_has_something(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, store_bytes=1024)
    for _ in range(50):
        pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(bytes(80)))
    first: list[bytes] = []
    while frames := pair.take(pair.client):
        first += frames
    store = resumption(pair.client).store
    assert store.room < 100
    assert sum(not is_tracked(frame) for frame in first) == 1  # it asks once how far the peer is
    pair.deliver(pair.client, first)
    pair.exchange()

    requests = [event for event in pair.saw[pair.server] if isinstance(event, RequestReceived)]
    assert len(requests) == 50
    assert store.size <= 1024


# The extension draft


@pytest.mark.clause("RSX-RES-06", "RSX-RES-07")
def test_streams_without_a_mark_do_not_count_and_end_with_their_link() -> None:
    pair = ResumablePair(RSOCKET_2_0_DRAFT)
    commands = pair.client.commands
    marked = commands.open(Interaction.REQUEST_STREAM, Payload(b"1"), 5)
    plain = commands.open(Interaction.REQUEST_STREAM, Payload(b"2"), 5, entries=UNMARKED)
    pair.exchange()
    assert resumption(pair.server).received == 6 + 4 + 5 + 1
    theirs = {event.payload.data: event.stream for event in pair.saw[pair.server] if isinstance(event, RequestReceived)}
    for stream in theirs.values():
        pair.server.commands.send_item(stream, Payload(b"item"))  # type: ignore[arg-type]
    commands.request_n(marked, 1)
    commands.request_n(plain, 1)
    pair.exchange()
    assert resumption(pair.server).received == 16 + 10
    assert resumption(pair.client).received == 10
    pair.forget()
    pair.server.commands.send_item(theirs[b"1"], Payload(b"kept"))  # type: ignore[arg-type]
    pair.server.commands.send_item(theirs[b"2"], Payload(b"lost"))  # type: ignore[arg-type]
    pair.cut()
    pair.exchange()

    failed = [event for side in pair.saw for event in pair.saw[side] if isinstance(event, StreamFailed)]
    assert [event.stream for event in failed] == [plain, theirs[b"2"]]
    assert items(pair.saw[pair.client]) == [b"kept"]
    pair.server.commands.send_complete(theirs[b"1"])  # type: ignore[arg-type]
    pair.exchange()
    assert StreamCompleted(marked) in pair.saw[pair.client]
    pair.assert_in_step()


@pytest.mark.clause("RSX-RES-07")
@pytest.mark.parametrize("seed", range(10))
def test_positions_agree_whatever_is_marked(seed: int) -> None:
    rng = random.Random(seed)
    pair = ResumablePair(RSOCKET_2_0_DRAFT)

    def answer(side: Session, event: Event) -> None:
        if isinstance(event, RequestReceived) and event.stream.interaction is not Interaction.FIRE_AND_FORGET:
            side.commands.send_item(event.stream, event.payload, complete=True)  # type: ignore[arg-type]

    pair.react = answer
    for number in range(200):
        side = rng.choice((pair.client, pair.server))
        kind = rng.choice((Interaction.REQUEST_RESPONSE, Interaction.FIRE_AND_FORGET))
        entries = rng.choice(((), UNMARKED))
        side.commands.open(kind, Payload(bytes(rng.randrange(300)), b"%d" % number), entries=entries)
        pair.exchange(rng.randrange(8))
        mine = [stream for stream in side.table.mine.values() if stream.open]
        if mine and rng.random() < 0.3:
            side.commands.send_cancel(rng.choice(mine))
        if rng.random() < 0.1:
            pair.lose(rng.randrange(5))
            pair.cut()
    pair.exchange()
    pair.assert_in_step()


@pytest.mark.clause("RSX-RES-07")
def test_what_was_to_be_said_of_an_unmarked_stream_goes_with_its_link() -> None:
    pair = ResumablePair(RSOCKET_2_0_DRAFT)
    commands = pair.client.commands
    asked = commands.open(Interaction.REQUEST_RESPONSE, Payload(b"unmarked"), entries=UNMARKED)
    commands.open(Interaction.FIRE_AND_FORGET, Payload(bytes(300)), entries=UNMARKED)
    pair.lose(2)  # the request, and the first fragment of what wants no answer
    commands.send_cancel(asked)
    late = commands.open(Interaction.FIRE_AND_FORGET, Payload(b"has not left yet"), entries=UNMARKED)
    pair.cut()
    pair.forget()
    pair.exchange()

    (seen,) = [event for event in pair.saw[pair.server] if isinstance(event, RequestReceived)]
    assert (seen.stream.id, seen.payload.data) == (late.id, b"has not left yet")
    assert len(pair.sent[pair.client]) == 1
    pair.assert_in_step()


@pytest.mark.clause("RSX-RES-05")
def test_each_quarter_of_the_store_is_reported_once() -> None:
    pair = ResumablePair(RSOCKET_2_0_DRAFT, store_bytes=4096, fragment_size=1024)
    reported = []
    for _ in range(40):
        pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(bytes(245)))  # 256 bytes
        pair.exchange()
        reported.append(len(pair.sent[pair.server]))
    expected = [turn // 4 for turn in range(1, 41)]
    assert reported == expected
    assert resumption(pair.client).store.size == 0


@pytest.mark.clause("RSX-RES-07")
def test_a_request_of_the_draft_that_cannot_be_read_counts_alike_on_both_sides() -> None:
    pair = ResumablePair(RSOCKET_2_0_DRAFT)
    unread = bytes.fromhex("00000001 1200 d5 00")  # an entry that nobody knows and that must be understood
    resumption(pair.server).count([unread])
    assert resumption(pair.server).received == len(unread)


@by_frames
def test_an_answer_that_frees_nothing_is_no_reason_to_ask_again(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, store_bytes=1024)
    resumption, outbox = pair.server.resume_handshake, pair.server.outbox
    assert isinstance(outbox, RetainingOutbox)
    outbox.asked = True

    resumption.confirmed(0)
    assert outbox.asked

    stream = pair.client.commands.open(Interaction.REQUEST_RESPONSE, Payload(b"x"))
    pair.exchange()
    pair.server.commands.send_item(pair.server.table.theirs[stream.id], Payload(b"y"), complete=True)
    pair.exchange()
    resumption.confirmed(resumption.store.position)
    assert not outbox.asked


@each
def test_a_close_that_was_announced_is_said_anew_on_the_next_link(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.server.drain()
    pair.server.announce_close(last=False)
    pair.lose(1)
    pair.suspend()

    pair.client.resume_handshake.answered(pair.let_in(), pair.now)
    pair.exchange()

    assert PeerDraining(closing=True) in pair.saw[pair.client]


def test_what_comes_in_one_read_with_the_answer_to_the_setup_counts_as_if_it_came_alone() -> None:
    positions = []
    for together in (False, True):
        pair = ResumablePair(RSOCKET_2_0_DRAFT)
        options = ResumeOptions()
        client = Session(RSOCKET_2_0_DRAFT, client=True, limits=Limits(), fragment_size=100, resume=options)
        server = Session(RSOCKET_2_0_DRAFT, client=False, limits=Limits(), fragment_size=100, resume=options)
        server.start_server(grants_leases=False)
        client.start_client(attrs.evolve(client_terms(), resume_token=TOKEN), pair.now)
        server.receive([whole(frame) for frame in client.outbox.take()], pair.now)
        server.accept(pair.now)
        ignorable = bytes.fromhex("00000000 fa00")  # a type that nobody knows, which may be ignored
        frames = [ignorable, *(whole(frame) for frame in server.outbox.take())]
        server.commands.open(Interaction.REQUEST_RESPONSE, Payload(b"request"))
        frames += [whole(frame) for frame in server.outbox.take()]
        for read in [frames] if together else [[frame] for frame in frames]:
            client.receive(read, pair.now)
        positions.append(client.resume_handshake.received)
        assert positions[-1] == len(frames[-1])

    assert positions[0] == positions[1]


def remembered(side: ResumeHandshake) -> int:
    """Requests that may still get an answer."""
    return len(side._asked or ())


@each
def test_requests_that_are_confirmed_or_answered_are_not_remembered(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    client, commands = resumption(pair.client), pair.client.commands
    asked = [commands.open(Interaction.REQUEST_RESPONSE, Payload(b"q")) for _ in range(3)]
    commands.open(Interaction.FIRE_AND_FORGET, Payload(b"q"))
    pair.exchange()
    assert remembered(client) == 3
    pair.server.commands.send_item(pair.server.table.theirs[asked[1].id], Payload(b"a"), complete=True)
    pair.exchange()
    size = client.store.position // 4
    assert (remembered(client), client.answered_to) == (2, 2 * size)
    client.confirmed(size)
    assert remembered(client) == 1
    pair.client.resume_handshake.close()
    assert remembered(client) == 0


@by_frames
def test_only_what_the_asked_side_says_is_an_answer(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.client.commands.open(Interaction.REQUEST_STREAM, Payload(b"q"), 1)
    pair.exchange()
    pair.client.receive([bytes.fromhex("00000001 1000 71"), bytes.fromhex("00000003 2820 71")], pair.now)
    assert resumption(pair.client).answered_to == 0
    pair.client.receive([bytes.fromhex("00000001 2820 71")], pair.now)
    assert resumption(pair.client).answered_to == 11
