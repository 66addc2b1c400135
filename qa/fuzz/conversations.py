"""Conversations with a session without I/O: a peer that is right, nearly right, and wrong by turns.

The application on our side does what applications do, at any moment. Whatever happens, the session only reports
events, writes frames that its dialect has, and keeps no stream and no byte longer than it needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from qa.fuzz.conversation import LENGTH, Conversation
from qa.fuzz.mutation import mutate
from qa.fuzz.spoken import NAMES, STREAMUX, TEMPERS, some_frame, some_setup
from qa.fuzz.streamux_conversations import StreamuxTalk
from qa.fuzz.targets import Finding
from rsocket_trio.errors import LocalProtocolError, Rejected, RemoteProtocolError, Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, StreamCancelled, StreamFailed
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.session import State
from rsocket_trio.mux.stream_state import NEITHER, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import CancelFrame
from rsocket_trio.rsocket.session import Session
from rsocket_trio.rsocket.stream_table import REMEMBERED, Stream
from rsocket_trio.terms import Lease
from tests.rsocket.pairs import client_terms

TIGHT: Final = Limits(
    payload_size=300,
    reassembly_size=500,
    tiny_fragments=4,
    streams=4,
    cancels=6,
    held_frames=4,
    reply_frames=8,
    outbox_size=2000,
    setup_size=300,
)
"""Limits that a conversation of this length meets."""
ROOMY: Final = Limits()
BY_NUMBER: Final = (Interaction.REQUEST_STREAM, Interaction.REQUEST_SUBSCRIPTION, Interaction.REQUEST_CHANNEL)


class Talk(Conversation[Stream]):
    """One conversation in frames."""

    session: Session
    impossible = (LocalProtocolError, Unsupported)
    pauses = (0.1, 20.0, 89.0)

    def __init__(self, dialect: Dialect, random: Random) -> None:
        super().__init__(random)
        self.dialect = dialect
        self.lease = random.random() < 0.3
        self.temper = random.choice(TEMPERS)
        client = random.random() < 0.5
        limits = random.choice((TIGHT, ROOMY))
        self.session = Session(dialect, client=client, limits=limits, fragment_size=random.choice((64, 100, 1000)))
        if client:
            self.session.start_client(client_terms(lease=self.lease), 0.0)
        else:
            self.session.start_server(grants_leases=self.lease)

    def run(self) -> None:
        random = self.random
        if random.random() < 0.97:
            if not self.session.client:
                first = self.setup()
                self.hear(mutate(random, (first,)) if random.random() < self.temper else first)
            elif self.session.state is State.ASKING:
                self.hear(self.answer())
        for _ in range(random.choice(LENGTH)):
            self.hear(*(self.peers_frame() for _ in range(random.choice((1, 1, 1, 3)))))
            if random.random() < 0.6:
                self.act()
            self.check()
        if random.random() < 0.3:
            self.saw(self.session.broken(RemoteProtocolError("no frame begins here")))
        self.drain()

    # The peer

    def setup(self) -> bytes:
        """A SETUP that this server takes."""
        return some_setup(self.dialect, lease=self.lease)

    def answer(self) -> bytes:
        """Return the answer of a server that grants everything that this client asks for."""
        server = Session(self.dialect, client=False, limits=ROOMY, fragment_size=1000)
        server.start_server(grants_leases=self.lease)
        server.receive([self.setup()], 0.0)
        server.accept(0.0)
        return whole(server.outbox.take(65536)[0])

    def peers_frame(self) -> bytes:
        """A frame for a stream that is open, or about to be; as it should be, or not quite."""
        table = self.session.table
        ids = [*table.mine, *table.theirs]

        def stream_id(kind: str) -> int:
            known = ids and self.random.random() < (0.2 if kind == "request" else 0.9)
            return self.random.choice(ids) if known else self.random.randrange(20)

        return some_frame(self.dialect, self.temper, self.random, stream_id)

    def hear(self, *frames: bytes) -> None:
        """The session hears of these frames at once."""
        self.received += frames
        self.saw(self.session.receive(frames, self.now))

    def saw(self, events: list[Event]) -> None:
        super().saw(events)
        for event in events:
            if isinstance(event, StreamCancelled | StreamFailed):
                assert isinstance(event.stream, Stream)
                assert event.stream.head is None, f"{event.stream!r} is over, and still sends"

    # The application

    def idle_streams(self) -> list[Stream]:
        return [stream for stream in self.session.open_streams() if stream.open and stream.request is None]

    def open(self) -> None:
        interaction = self.random.choice(list(Interaction))
        amount = self.random.choice((1, 2, 2**31 - 1)) if interaction in BY_NUMBER else None
        self.session.commands.open(interaction, self.payload(), amount)

    def payload(self) -> Payload:
        size = self.random.choice((0, 1, 60, 500, 40_000 if self.random.random() < 0.05 else 10))
        return Payload(bytes(size), bytes(self.random.choice((0, 5, 200))) if self.random.random() < 0.4 else None)

    def send(self, stream: Any) -> None:
        complete = self.random.random() < 0.3
        self.session.commands.send_item(stream, self.payload(), complete=complete)

    def write(self) -> None:
        """One write, whose frames the peer understands."""
        for frame in self.session.outbox.take(self.random.choice((1, 100, 65536))):
            self.dialect.codec.decode(whole(frame))

    # What must hold

    def check(self) -> None:
        """At any time: every stream that is kept has a reason, and the sum of all fragments is their sum."""
        table = self.session.table
        streams = [*table.mine.values(), *table.theirs.values()]
        for stream in streams:
            reason = stream.open != NEITHER or stream.request is not None or stream.head is not None
            assert reason, f"{stream!r} is over, and still kept"
            assert stream.granted >= 0, f"{stream!r} was sent more than it granted"
            assert stream.room >= 0, f"{stream!r} sent more than it was granted"
        held = sum(stream.assembly.size for stream in streams if stream.assembly is not None)
        assert table.reassembling == held, f"{table.reassembling} bytes counted in fragments, {held} held"
        assert held <= self.session.limits.reassembly_size
        assert len(table.late) <= REMEMBERED

    def drain(self) -> None:
        """Once all has left: nothing waits, and no stream that has ended is kept."""
        outbox = self.session.outbox
        while frames := outbox.take(65536):
            for frame in frames:
                self.dialect.codec.decode(whole(frame))
        self.check_empty()
        for stream in self.session.open_streams():
            assert stream.open != NEITHER or stream.request is not None, f"{stream!r} is over, and still kept"
        self.check()
        self.part()

    def part(self) -> None:
        """Nothing is left once both sides have cancelled all streams."""
        for stream in self.session.open_streams():
            if stream.requester:
                self.session.commands.send_cancel(stream)
            elif stream.id not in self.session.table.mine:
                self.now += 1000  # the peer may cancel as often as it likes, slowly
                self.hear(self.dialect.codec.encode(CancelFrame(stream.id)))
        while self.session.outbox.take(65536):
            pass
        if self.session.state is State.OPEN and self.dialect.ids_have_parity:
            assert self.session.is_quiet, f"{self.session.open_streams()} are kept"
            assert self.session.table.reassembling == 0


Talk.on_streams = (
    Talk.send,
    Talk.send,
    lambda talk, stream: talk.session.commands.send_complete(stream),
    lambda talk, stream: talk.session.commands.send_error(stream, Rejected("no")),
    lambda talk, stream: talk.session.commands.send_cancel(stream),
    lambda talk, stream: talk.session.commands.request_n(stream, talk.random.choice((1, 5, 2**31 - 1))),
)
Talk.on_connection = (
    Talk.open,
    Talk.open,
    Talk.open,
    Talk.write,
    Talk.write,
    Talk.wait,
    lambda talk: talk.session.ping(None),
    lambda talk: talk.session.grant(Lease(3, 10.0), talk.now),
    lambda talk: talk.session.metadata_push(b"news"),
    lambda talk: talk.session.drain() if talk.random.random() < 0.1 else None,
    lambda talk: talk.session.announce_close(last=True) if talk.random.random() < 0.1 else None,
)


def talks(runs: int, seed: int) -> Iterator[tuple[str, Talk | StreamuxTalk]]:
    """So many conversations, of all dialects by turns. Each has a seed of its own, which repeats it alone."""
    names = (*NAMES, STREAMUX)
    for number in range(runs):
        name = names[number % len(names)]
        own = f"{seed} {number}"
        if name == STREAMUX:
            yield own, StreamuxTalk(Random(own))
        else:
            yield own, Talk(NAMES[name], Random(own))


def converse(runs: int, seed: int) -> Iterator[Finding]:
    """Hold so many conversations. Return the number of findings."""
    for own, talk in talks(runs, seed):
        try:
            talk.run()
        except Exception as error:
            raise_at = f"conversation {own!r} of {talk.session.dialect.name}, client {talk.session.client}: {error!r}"
            finding = Finding(raise_at, "heard", b"".join(talk.received))
            finding.__cause__ = error
            yield finding


def converse_all(runs: int, seed: int) -> bool:
    """The long run. Return whether nothing was found."""
    start = time.perf_counter()
    findings = 0
    for finding in converse(runs, seed):
        findings += 1
        print(f"    {finding}", flush=True)
        if findings == 10:
            break
    print(f"conversations {runs:,}  {time.perf_counter() - start:.1f} s  {findings or 'no'} findings", flush=True)
    return not findings
