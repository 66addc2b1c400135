"""A pair of sessions is cut at every frame and goes on: exactly what is missing is sent again, nothing counts twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from rsocket_trio.errors import RejectedResume, RejectedSetup, RemoteProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    CreditGranted,
    Event,
    ItemReceived,
    LeaseReceived,
    PeerDraining,
    Pong,
    RequestReceived,
    SessionEnded,
    SetupReceived,
    StreamCompleted,
    StreamFailed,
    TransportSilent,
)
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.mux.retaining import RetainingOutbox
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import REACTIVESOCKET_0_2, RSOCKET_1_0, RSOCKET_2_0_DRAFT
from rsocket_trio.rsocket.extension_payloads import Resumable, entry_of
from rsocket_trio.rsocket.resumption import LAST_POSITION, Comeback, Resumption, comeback, is_tracked
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import Keepalive, Lease, ResumeOptions
from tests.events import one_by_one
from tests.rsocket.pairs import client_terms

DIALECTS = [RSOCKET_1_0, REACTIVESOCKET_0_2, RSOCKET_2_0_DRAFT]
each = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
by_frames = pytest.mark.parametrize("dialect", DIALECTS[:2], ids=lambda dialect: dialect.name)

TOKEN = b"token"
UNMARKED = (entry_of(Resumable(False), ignore=True),)


class ResumablePair:
    """A client's and a server's session that can go on over another link. ``now`` is the time of both."""

    def __init__(
        self,
        dialect: Dialect = RSOCKET_1_0,
        *,
        lease: bool = False,
        fragment_size: int = 100,
        store_bytes: int = 1 << 20,
        keepalive: Keepalive | None = None,
        give_up: bool = False,
    ) -> None:
        self.now = 0.0
        self.dialect = dialect
        options = ResumeOptions(store_bytes=store_bytes, give_up_when_full=give_up)
        self.client, self.server = (
            Session(dialect, client=client, limits=Limits(), fragment_size=fragment_size, resume=options)
            for client in (True, False)
        )
        self.sent: dict[Session, list[bytes]] = {self.client: [], self.server: []}
        self.saw: dict[Session, list[Event]] = {self.client: [], self.server: []}
        self.tracked: dict[Session, list[bytes]] = {self.client: [], self.server: []}
        """Tracked frames that arrived at this side."""
        self.react: Callable[[Session, Event], None] = lambda side, event: None
        self.server.start_server(grants_leases=lease)
        terms = attrs.evolve(client_terms(lease=lease, keepalive=keepalive), resume_token=TOKEN)
        self.client.start_client(terms, self.now)
        self.exchange()
        (met,) = [event for event in self.saw[self.server] if isinstance(event, SetupReceived)]
        assert met.setup.resume
        self.saw[self.server] += self.server.accept(self.now)
        self.exchange()
        assert self.client.can_resume
        assert self.server.can_resume
        self.forget()

    def forget(self) -> None:
        for side in (self.client, self.server):
            self.sent[side].clear()
            self.saw[side].clear()

    def other(self, side: Session) -> Session:
        return self.server if side is self.client else self.client

    def take(self, side: Session, limit: int = 65536) -> list[bytes]:
        """One write, on its way."""
        frames = [whole(frame) for frame in side.outbox.take(limit)]
        self.sent[side] += frames
        return frames

    def deliver(self, side: Session, frames: list[bytes]) -> None:
        """Frames of this side's arrive."""
        receiver = self.other(side)
        if frames:
            self.tracked[receiver] += [frame for frame in frames if is_tracked(frame)]
            for event in one_by_one(receiver.receive(frames, self.now)):
                self.saw[receiver].append(event)
                self.react(receiver, event)

    def exchange(self, budget: int | None = None) -> int:
        """Everything that waits, frame by frame, or so many frames; the number of those that arrived."""
        arrived = 0
        while True:
            before = arrived
            for side in (self.client, self.server):
                if budget is not None and arrived >= budget:
                    return arrived
                frames = self.take(side, 1)
                self.deliver(side, frames)
                arrived += len(frames)
            if arrived == before:
                return arrived

    def lose(self, writes: int) -> None:
        """What leaves now does not arrive."""
        for side in (self.client, self.server):
            for _ in range(writes):
                self.take(side, 1)

    def suspend(self) -> None:
        """The link is gone, and what is on it."""
        for side in (self.client, self.server):
            self.saw[side] += side.suspend()

    def ask(self) -> bytes:
        return self.client.continuity.ask()

    def let_in(self) -> bytes:
        """The server takes the client back. Its answer."""
        back = comeback(self.dialect, self.ask())
        assert back is not None
        self.server.continuity.check(back)
        self.server.continuity.take(back, self.now)
        (answer,) = self.take(self.server, 1)
        return answer

    def resume(self) -> None:
        """Over another link."""
        self.client.continuity.answered(self.let_in(), self.now)

    def cut(self) -> None:
        self.suspend()
        self.resume()

    def assert_in_step(self) -> None:
        """Both sides agree how far each got, and hold nothing but what may be sent again."""
        client, server = resumption(self.client), resumption(self.server)
        assert client.received == server.store.position
        assert server.received == client.store.position
        for side in (self.client, self.server):
            assert side.is_quiet, side.open_streams()
            assert (side.outbox.size, side.outbox.reply_size) == (0, 0)
            assert not side.outbox


def resumption(session: Session) -> Resumption:
    assert session.continuity.resumption is not None
    return session.continuity.resumption


def items(events: list[Event]) -> list[bytes]:
    return [event.payload.data for event in events if isinstance(event, ItemReceived)]


class Conversation:
    """Of everything a little: a stream, a channel both ways, fragments, a question each way, a note, a cancel."""

    def __init__(self, pair: ResumablePair) -> None:
        self.pair = pair
        pair.react = self.react
        commands = pair.client.commands
        self.stream = commands.open(Interaction.REQUEST_STREAM, Payload(b"stream"), 3)
        self.channel = commands.open(Interaction.REQUEST_CHANNEL, Payload(b"channel"), 2)
        self.long = commands.open(Interaction.REQUEST_RESPONSE, Payload(bytes(250), b"m" * 40))
        commands.open(Interaction.FIRE_AND_FORGET, Payload(b"note"))
        dropped = commands.open(Interaction.REQUEST_RESPONSE, Payload(b"never answered"))
        self.dropped = dropped.id
        self.back = pair.server.commands.open(Interaction.REQUEST_RESPONSE, Payload(b"back"))

    def react(self, side: Session, event: Event) -> None:
        commands, server = side.commands, self.pair.server
        if isinstance(event, RequestReceived):
            if event.payload.data == b"stream":
                for number in range(3):
                    commands.send_item(event.stream, Payload(b"s%d" % number), complete=number == 2)  # type: ignore[arg-type]
            elif event.payload.data == b"channel":
                commands.request_n(event.stream, 2)  # type: ignore[arg-type]
            elif side is server and event.payload.data == bytes(250):
                commands.send_item(event.stream, event.payload, complete=True)  # type: ignore[arg-type]
            elif event.payload.data == b"back":
                commands.send_item(event.stream, Payload(b"here"), complete=True)  # type: ignore[arg-type]
            elif event.payload.data == b"never answered":
                asked = self.pair.client.table.mine.get(self.dropped)
                if asked is not None:
                    self.pair.client.commands.send_cancel(asked)
        elif isinstance(event, CreditGranted) and side is self.pair.client:
            if self.channel.room:
                for number in range(2):
                    commands.send_item(self.channel, Payload(b"c%d" % number), complete=number == 1)
        elif isinstance(event, ItemReceived) and side is server and event.payload.data.startswith(b"c"):
            commands.send_item(event.stream, Payload(b"e" + event.payload.data), complete=event.complete)  # type: ignore[arg-type]

    def check(self) -> None:
        pair = self.pair
        got = items(pair.saw[pair.client])
        assert sorted(got) == sorted([b"s0", b"s1", b"s2", b"ec0", b"ec1", bytes(250)])
        assert [data for data in got if data.startswith(b"s")] == [b"s0", b"s1", b"s2"]
        assert [data for data in got if data.startswith(b"e")] == [b"ec0", b"ec1"]
        theirs = items(pair.saw[pair.server])
        assert [data for data in theirs if data != b"here"] == [b"c0", b"c1"]
        assert len(theirs) == 3
        requests = [event.payload.data for event in pair.saw[pair.server] if isinstance(event, RequestReceived)]
        assert sorted(requests) == sorted([b"stream", b"channel", bytes(250), b"note", b"never answered"])
        assert not [event for side in pair.saw for event in pair.saw[side] if isinstance(event, SessionEnded)]
        pair.assert_in_step()


@each
def test_a_conversation_without_a_cut(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    conversation = Conversation(pair)
    assert pair.exchange() > 15
    conversation.check()


@each
def test_a_pair_that_is_cut_at_any_frame_goes_on(dialect: Dialect) -> None:
    whole_length = 1
    length = 0
    while length < whole_length:
        pair = ResumablePair(dialect)
        conversation = Conversation(pair)
        arrived = pair.exchange(length)
        pair.lose(3)
        lost = {side: pair.sent[side] for side in pair.sent}
        received = {side: list(pair.tracked[side]) for side in pair.tracked}
        for side in lost:
            pair.sent[side] = []
        pair.cut()
        # Exactly what is missing is sent again, as it was.
        for side in (pair.client, pair.server):
            sent = [frame for frame in lost[side] if resumption(side).tracks(frame)]
            missing = sent[len(received[pair.other(side)]) :]
            again = [whole(frame) for frame in side.outbox.take(sum(map(len, missing)))] if missing else []
            assert again == missing
            pair.deliver(side, again)
        pair.exchange()
        conversation.check()
        if arrived < length:
            break
        length += 1
        whole_length = length + 1
    assert length > 15


@each
@pytest.mark.parametrize("seed", range(25))
def test_a_pair_that_is_cut_again_and_again_goes_on(dialect: Dialect, seed: int) -> None:
    rng = random.Random(seed)
    pair = ResumablePair(dialect)
    conversations = Conversation(pair)
    for _ in range(30):
        pair.exchange(rng.randrange(6))
        pair.lose(rng.randrange(4))
        pair.suspend()
        while rng.random() < 0.5:
            pair.let_in()  # the answer is lost
            pair.server.suspend()
        pair.resume()
    pair.exchange()
    conversations.check()


@each
def test_what_arrived_is_what_was_sent_byte_for_byte(dialect: Dialect) -> None:
    plain = ResumablePair(dialect)
    Conversation(plain)
    plain.exchange()
    cut = ResumablePair(dialect)
    Conversation(cut)
    while cut.exchange(3) >= 3:
        cut.lose(2)
        cut.cut()
    for one, other in ((plain.client, cut.client), (plain.server, cut.server)):
        assert sorted(plain.tracked[one]) == sorted(cut.tracked[other])


# Positions, counted by hand

HEX = {
    "REQUEST_RESPONSE": ("00000001 1000 71", 7),
    "REQUEST_RESPONSE with metadata": ("00000001 1100 000001 6d 71", 11),
    "REQUEST_FNF": ("00000003 1400", 6),
    "REQUEST_STREAM": ("00000005 1800 00000001 71", 11),
    "REQUEST_CHANNEL": ("00000007 1c00 00000001", 10),
    "REQUEST_N": ("00000007 2000 00000005", 10),
    "CANCEL": ("00000001 2400", 6),
    "PAYLOAD": ("00000007 2820 6974656d", 10),
    "PAYLOAD, a fragment": ("00000007 28a0 6974", 8),
    "PAYLOAD, the end": ("00000007 2840", 6),
    "ERROR on a stream": ("00000007 2c00 00000201 6e6f", 12),
    "CANCEL of no stream": ("000003e9 2400", 6),
    "SETUP": ("00000000 0400 0001 0000 00004e20 00015f90 00 00", 0),
    "LEASE": ("00000000 0800 000003e8 00000001", 0),
    "KEEPALIVE": ("00000000 0c00 0000000000000000 6869", 0),
    "METADATA_PUSH": ("00000000 3100 6d", 0),
    "RESUME_OK": ("00000000 3800 0000000000000000", 0),
    "EXT": ("00000000 fe00 00000007", 0),
    "EXT on a stream": ("00000001 fe00 00000007", 0),
    "a type that nobody knows": ("00000001 aa00", 0),
    "REQUEST_N on stream 0": ("00000000 2000 00000001", 0),
}


@by_frames
@pytest.mark.clause("RS10-RSM-04", "RS10-RSM-05", "RS02-RSM-06", "RS02-RSM-07")
@pytest.mark.parametrize("name", HEX)
def test_a_position_counts_the_bytes_of_this_frame(dialect: Dialect, name: str) -> None:
    text, size = HEX[name]
    if dialect is REACTIVESOCKET_0_2 and name == "METADATA_PUSH":
        text = "00000000 3100 000001 6d"
    frame = bytes.fromhex(text)
    assert is_tracked(frame) == (size > 0)
    for pair_side in ("server", "client"):
        pair = ResumablePair(dialect)
        side = getattr(pair, pair_side)
        before = resumption(side).received
        side.receive([frame], pair.now)
        assert resumption(side).received - before == size
        assert side.error is None


@each
def test_what_is_too_short_for_a_type_does_not_count(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    resumption(pair.server).count([b"", b"\0\0\0\1", b"\0\0\0"])
    assert resumption(pair.server).received == 0


@by_frames
@pytest.mark.clause("RS10-RSM-06", "RS02-RSM-05", "RS02-RSM-11")
def test_a_client_that_received_nothing_asks_from_0_on(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    version = "00010000" if dialect is RSOCKET_1_0 else "00000002"
    pair.suspend()

    assert pair.ask() == bytes.fromhex(f"00000000 3400 {version} 0005") + TOKEN + bytes(16)
    assert pair.let_in() == bytes.fromhex("00000000 3800 0000000000000000")


@by_frames
@pytest.mark.clause("RS10-RSM-06", "RS10-RSM-11", "RS02-RSM-11")
def test_the_positions_of_a_resume_and_its_answer(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"123"))
    pair.server.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"12345"))
    pair.exchange()
    pair.suspend()

    assert pair.ask()[-16:] == (11).to_bytes(8, "big") + (0).to_bytes(8, "big")
    assert pair.let_in()[-8:] == (9).to_bytes(8, "big")


@each
@pytest.mark.clause("RS10-RSM-07")
def test_positions_end(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    resumption(pair.server).received = LAST_POSITION - (11 if dialect.entries else 6)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b""))
    pair.exchange()
    assert pair.server.error is None
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b""))
    pair.exchange()

    assert "the last is 9223372036854775807" in str(pair.server.error)
    ended = [event for event in pair.saw[pair.client] if isinstance(event, SessionEnded)]
    assert len(ended) == 1
    assert "9223372036854775807" in str(ended[0].error)


# Keepalives


@by_frames
@pytest.mark.clause("RS10-RSM-22", "RS02-RSM-21")
def test_keepalives_trim_what_both_sides_keep(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"123"))
    pair.server.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"12345"))
    pair.exchange()
    assert [resumption(side).store.size for side in (pair.client, pair.server)] == [9, 11]
    pair.client.ping("?")
    pair.exchange()

    assert [resumption(side).store.size for side in (pair.client, pair.server)] == [0, 0]
    assert pair.saw[pair.client][-1] == Pong("?")
    pair.suspend()
    assert pair.ask()[-16:] == (11).to_bytes(8, "big") + (9).to_bytes(8, "big")
    pair.resume()
    pair.exchange()
    pair.assert_in_step()


@each
@pytest.mark.clause("RS10-RSM-22", "RS02-RSM-21")
@pytest.mark.parametrize("position", [0, 13, 14, 36, 2**63 - 1])
def test_a_position_out_of_range_is_ignored(dialect: Dialect, position: int) -> None:
    pair = ResumablePair(dialect)
    filling = b"" if dialect.entries else b"12345"  # as long as the mark of a stream
    for data in (b"123", b"1234567890"):
        pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(data + filling))
    pair.exchange()
    client = resumption(pair.client)
    client.confirmed(14)
    client.confirmed(position)

    assert (client.store.first, client.store.position) == (14, 35)


@each
def test_a_lost_ping_is_sent_again_and_answered_once(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.client.ping("lost")
    assert len(pair.take(pair.client)) == 1
    pair.suspend()
    pair.client.ping("meanwhile")
    pair.resume()
    pair.exchange()

    assert [event for event in pair.saw[pair.client] if isinstance(event, Pong)] == [Pong("lost"), Pong("meanwhile")]
    pair.assert_in_step()


@each
@pytest.mark.clause("RS10-KA-07")
def test_silence_counts_from_the_new_link_on(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, keepalive=Keepalive(2, 10))
    pair.now = 10.0
    assert [type(event) for event in pair.client.expire(pair.now)] == [TransportSilent]
    assert pair.client.error is None
    pair.suspend()
    assert pair.client.deadline == pair.server.deadline == float("inf")
    assert pair.client.expire(pair.now) == pair.server.expire(pair.now) == []
    pair.now = 100.0
    pair.resume()

    assert pair.client.deadline == 102
    assert pair.server.deadline == 110
    assert pair.client.expire(102) == []
    assert len(pair.take(pair.client)) == 1


# Leases


@each
@pytest.mark.clause("RS10-RSM-21", "RS02-RSM-20", "RS02-RSM-03")
def test_leases_begin_anew(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, lease=True)
    pair.server.grant(Lease(3, 60), pair.now)
    pair.exchange()
    permits = pair.client.permits
    assert permits is not None
    assert permits.remaining(pair.now) == 3
    assert permits.take(pair.now)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"x"))
    pair.exchange()
    pair.now = 20.0
    pair.suspend()
    answer = pair.let_in()
    assert pair.client.permits is not None
    pair.client.continuity.answered(answer, pair.now)
    assert pair.client.permits.remaining(pair.now) == 0
    pair.forget()
    pair.exchange()

    assert LeaseReceived() in pair.saw[pair.client]
    assert (pair.client.permits.remaining(pair.now), pair.client.permits.expires_in(pair.now)) == (2, 40)
    assert pair.server.permits is not None
    assert pair.server.permits.remaining(pair.now) > 1000  # the client's own, without a policy


@each
def test_a_lease_that_is_over_is_not_granted_again(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, lease=True)
    pair.server.grant(Lease(3, 5), pair.now)
    pair.exchange()
    pair.now = 6.0
    pair.cut()
    pair.forget()
    pair.exchange()

    assert LeaseReceived() not in pair.saw[pair.client]
    assert pair.client.permits is not None
    assert pair.client.permits.remaining(pair.now) == 0


# What is refused


def back_of(pair: ResumablePair, **changes: Any) -> Comeback:
    found = comeback(pair.dialect, pair.ask())
    assert found is not None
    return attrs.evolve(found, **changes)


@each
@pytest.mark.clause("RS10-RSM-19", "RS02-RSM-18", "RSX-RES-08")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": (3, 9)}, "version 3.9"),
        ({"last_received_server_position": 1}, "position 1 "),
        ({"last_received_server_position": 2**63 - 1}, "position 9223372036854775807 "),
        ({"first_available_client_position": 10_000}, "10000"),
        ({"mimes": ("a/b", "c/d")}, "MIME"),
    ],
)
def test_what_a_client_cannot_go_on_from_is_refused(dialect: Dialect, changes: dict[str, object], why: str) -> None:
    pair = ResumablePair(dialect)
    Conversation(pair)
    pair.exchange()
    pair.suspend()
    pair.server.continuity.check(back_of(pair))

    with pytest.raises(RejectedResume, match=why):
        pair.server.continuity.check(back_of(pair, **changes))


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
        pair.server.continuity.take(back_of(pair), pair.now)
        (answer,) = pair.take(pair.server, 1)
        if position in starts:
            pair.client.continuity.answered(answer, pair.now)
        else:
            with pytest.raises(RemoteProtocolError, match=f"position {position} "):
                pair.client.continuity.answered(answer, pair.now)


@each
def test_who_has_agreed_on_nothing_has_nothing_to_go_on_with(dialect: Dialect) -> None:
    options = ResumeOptions()
    server = Session(dialect, client=False, limits=Limits(), fragment_size=100, resume=options)
    with pytest.raises(RejectedResume, match="unknown"):
        server.continuity.check(Comeback(TOKEN, (dialect.major, dialect.minor), 0))
    assert not server.can_resume


@each
def test_a_token_that_is_in_use_is_refused(dialect: Dialect) -> None:
    options = ResumeOptions()
    client, server = (
        Session(dialect, client=side, limits=Limits(), fragment_size=100, resume=options) for side in (True, False)
    )
    server.start_server(grants_leases=False)
    server.continuity.claim = lambda token: token != TOKEN
    client.start_client(attrs.evolve(client_terms(), resume_token=TOKEN), 0)
    (ended,) = server.receive([whole(frame) for frame in client.outbox.take()], 0)

    assert isinstance(ended, SessionEnded)
    assert isinstance(ended.error, RejectedSetup)
    assert not server.can_resume


@each
def test_other_first_frames_are_nobodys_who_comes_back(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    for text in ("", "00", "00000000 3400", "00000000 0400", "00000001 1000", "00000000 3800 0000000000000000"):
        assert comeback(dialect, bytes.fromhex(text)) is None
    assert comeback(dialect, pair.ask()) is not None
    assert comeback(dialect, b"\0\0\0\1" + pair.ask()[4:]) is None


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


@each
def test_who_gave_up_goes_on_counting_and_saying_so(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, store_bytes=1024, give_up=True)
    for _ in range(50):
        pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(bytes(80)))
    frames: list[bytes] = []
    while taken := pair.take(pair.client):
        frames += taken
    assert sum(map(is_tracked, frames)) == 50
    assert (pair.client.can_resume, pair.client.gave_up_resuming) == (False, True)
    pair.deliver(pair.client, frames)
    pair.exchange()
    for _ in range(50):
        pair.server.commands.open(Interaction.FIRE_AND_FORGET, Payload(bytes(80)))
        pair.exchange()

    assert pair.server.can_resume
    assert sum(isinstance(event, RequestReceived) for event in pair.saw[pair.client]) == 50
    assert resumption(pair.client).received == resumption(pair.server).store.position
    with pytest.raises(RejectedResume):
        pair.client.continuity.check(Comeback(TOKEN, (dialect.major, dialect.minor), 0))


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


def test_frames_kept_are_those_of_the_outbox() -> None:
    pair = ResumablePair()
    assert isinstance(pair.client.outbox, RetainingOutbox)
    assert pair.client.outbox.store is resumption(pair.client).store


@by_frames
def test_an_answer_that_frees_nothing_is_no_reason_to_ask_again(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, store_bytes=1024)
    resumption, outbox = pair.server.continuity.resumption, pair.server.outbox
    assert resumption is not None
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

    pair.client.continuity.answered(pair.let_in(), pair.now)
    pair.exchange()

    assert PeerDraining() in pair.saw[pair.client]


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
        assert client.continuity.resumption is not None
        positions.append(client.continuity.resumption.received)
        assert positions[-1] == len(frames[-1])

    assert positions[0] == positions[1]
