"""Conversations with a Streamux session without I/O: chunks that are right, nearly right, and wrong by turns."""

from __future__ import annotations

from random import Random
from typing import Final

from qa.fuzz.conversation import LENGTH, Conversation
from qa.fuzz.mutation import mutate
from rsocket_trio.errors import ConnectionLost, LocalProtocolError, Rejected, StreamError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import Framing
from rsocket_trio.mux.session import State
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.chunks import HeaderLayout
from rsocket_trio.streamux.negotiation import Initialize, StreamuxOptions
from rsocket_trio.streamux.request_table import Exchange
from rsocket_trio.streamux.session import Session
from tests.streamux.pairs import ChunkHeader, chunks_in

TIGHT: Final = Limits(payload_size=300, reassembly_size=500, streams=4, reply_frames=8, held_frames=4)
PEER: Final = Initialize(min_id=0, max_id=29, rec_id=31, min_len=1, max_len=30, rec_len=31, qa=True)


def sorry(error: StreamError) -> bytes | None:
    """Return how the application answers a request that failed."""
    return b"sorry"


class StreamuxTalk(Conversation[Exchange]):
    """One conversation in chunks."""

    session: Session
    impossible = (LocalProtocolError, ValueError)
    pauses = (0.001, 0.1, 11.0)

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        client = random.random() < 0.5
        options = StreamuxOptions(
            qr=client and random.random() < 0.3,
            qa=not client,
            rec_id=random.choice((0, 1, 4, 14)),
            rec_len=random.choice((1, 5, 8, 16)),
            in_flight=random.choice((3, 1000)),
            spurious=random.choice(("end", "report", "report")),
            encode_error=random.choice((None, sorry)),
        )
        self.session = Session(
            options,
            client=client,
            limits=random.choice((TIGHT, Limits())),
            fragment_size=random.choice((64, 1000)),
            whole=random.random() < 0.7,
            chunks=random.random() < 0.7,
            randbelow=random.randrange,
        )
        self.session.start(0.0)

    def run(self) -> None:
        random = self.random
        first = PEER.encode()
        self.hear(first if random.random() < 0.95 else mutate(random, (first,)))
        for _ in range(random.choice(LENGTH)):
            self.hear(self.peers_chunk())
            if random.random() < 0.6:
                self.act()
            self.check()
        self.drain()
        assert self.session.cut_off(ConnectionLost("the peer went")) is not None

    # The peer

    def peers_chunk(self) -> bytes:
        """A chunk of a request that is open, or about to be; as it should be, or not quite."""
        random, terms, table = self.random, self.session.terms, self.session.table
        if terms is None:
            return random.randbytes(3)
        ids = [*table.mine, *table.theirs]
        request_id = random.choice(ids) if ids and random.random() < 0.7 else random.randrange(4) % terms.id_cap
        payload = bytes(min(random.choice((0, 0, 1, 1, 30, 200)), terms.length_cap))
        response = request_id in table.mine if random.random() < 0.9 else random.random() < 0.5
        header = ChunkHeader(request_id, len(payload), response, random.random() < 0.4)
        data = header.encode(HeaderLayout(terms)) + payload
        return mutate(random, (data,)) if random.random() < 0.05 else data

    def hear(self, data: bytes) -> None:
        """The session hears these bytes, in one piece or in two."""
        self.received.append(data)
        cut = self.random.randrange(len(data) + 1)
        for pieces in ([data],) if self.random.random() < 0.5 else ([data[:cut]], [data[cut:]]):
            self.saw(self.session.receive([piece for piece in pieces if piece], self.now))

    # The application

    def idle_streams(self) -> list[Exchange]:
        return [one for one in self.session.open_streams() if one.open and (one.requester or not one.joined)]

    def open(self) -> None:
        interaction = self.random.choice((Interaction.REQUEST_RESPONSE, Interaction.REQUEST_CHANNEL))
        self.session.commands.open(interaction, self.payload())

    def payload(self) -> Payload:
        return Payload(bytes(self.random.choice((0, 1, 60, 500))))

    def send(self, exchange: Exchange) -> None:
        self.session.commands.send_item(exchange, self.payload(), complete=self.random.random() < 0.4)

    def fail(self, exchange: Exchange) -> None:
        fatal = self.session.commands.send_error(exchange, Rejected("no"))
        if fatal is not None:
            self.session.close(fatal)
            self.ended = True

    def write(self) -> None:
        self.session.outbox.take(self.random.choice((1, 100, 65536)))

    # What must hold

    def check(self) -> None:
        """At any time: the sums are the sums of what they count, and every request that is kept has a reason."""
        table = self.session.table
        exchanges = [*table.theirs.values(), *(one for one in table.mine.values() if isinstance(one, Exchange))]
        joining = sum(one.joined.size for one in exchanges if one.joined is not None)
        assert table.reassembling == joining, f"{table.reassembling} bytes counted in messages, {joining} held"
        buffered = sum(one.weight for one in table.theirs.values())
        assert table.buffered == buffered, f"{table.buffered} bytes counted in hand, {buffered} held"
        assert joining <= self.session.limits.reassembly_size
        assert len(table.theirs) <= self.session.limits.streams
        for one in exchanges:
            # A refused request for which there is no answer keeps its id until its requester cancels.
            unanswered = not one.requester and not one.ended
            assert one.open or one.dropping or one.head or unanswered, f"{one!r} is over, and still kept"

    def drain(self) -> None:
        """Once all has left: what was written is chunks, nothing waits, and no exchange that has ended is kept."""
        outbox, terms = self.session.outbox, self.session.terms
        while frames := outbox.take(65536):
            data = Framing().join(frames)
            if terms is not None and self.session.state is State.OPEN and not data.startswith(b"\x01"):
                chunks_in(terms, data)
        self.check_empty()
        self.check()


StreamuxTalk.on_streams = (
    StreamuxTalk.send,
    StreamuxTalk.send,
    StreamuxTalk.fail,
    lambda talk, exchange: talk.session.commands.send_complete(exchange),
    lambda talk, exchange: talk.session.commands.send_cancel(exchange),
    lambda talk, exchange: talk.session.commands.request_n(exchange, 5),
)
StreamuxTalk.on_connection = (
    StreamuxTalk.open,
    StreamuxTalk.open,
    StreamuxTalk.write,
    StreamuxTalk.write,
    StreamuxTalk.wait,
    lambda talk: talk.session.ping(None),
    lambda talk: talk.session.drain() if talk.random.random() < 0.1 else None,
)
