"""Two sessions that resume, and a link between them that is cut where a test says so."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    CreditGranted,
    Event,
    ItemReceived,
    RequestReceived,
    SessionEnded,
    SetupReceived,
)
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_2, RSOCKET_1_0, RSOCKET_2_0_DRAFT, Dialect
from rsocket_trio.rsocket.extensions.entries import Resumable, entry_of
from rsocket_trio.rsocket.resume_protocol import ResumeHandshake, is_tracked, resume_request
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import Keepalive, ResumeOptions
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
    ) -> None:
        self.now = 0.0
        self.dialect = dialect
        options = ResumeOptions(store_bytes=store_bytes)
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
        return self.client.resume_handshake.ask()

    def let_in(self) -> bytes:
        """The server takes the client back. Its answer."""
        back = resume_request(self.dialect, self.ask())
        assert back is not None
        self.server.resume_handshake.check(back)
        self.server.resume_handshake.take(back, self.now)
        (answer,) = self.take(self.server, 1)
        return answer

    def resume(self) -> None:
        """Over another link."""
        self.client.resume_handshake.answered(self.let_in(), self.now)

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


def resumption(session: Session) -> ResumeHandshake:
    return session.resume_handshake


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
