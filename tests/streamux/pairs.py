"""Two Streamux sessions back to back, without I/O: what one puts into its outbox the other receives as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import attrs

from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, RequestReceived, SessionEnded, SetupAccepted, SetupReceived
from rsocket_trio.mux.framing import Framing
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.chunks import RESPONSE, TERMINATION, HeaderLayout
from rsocket_trio.streamux.negotiation import StreamuxOptions, Terms
from rsocket_trio.streamux.request_table import Exchange
from rsocket_trio.streamux.session import Session

WHOLE, CHANNEL = Interaction.REQUEST_RESPONSE, Interaction.REQUEST_CHANNEL


def of_widths(id_bits: int, length_bits: int, **others: Any) -> StreamuxOptions:
    """Options that agree on these widths with any peer's that can."""
    fixed = {"min_id": min(id_bits, 15), "max_id": id_bits, "rec_id": id_bits}
    lengths = {"min_len": min(length_bits, 15), "max_len": length_bits, "rec_len": length_bits}
    return StreamuxOptions(**{**fixed, **lengths, **others})


@attrs.frozen
class ChunkHeader:
    """The header of a chunk. ``length`` counts the payload only."""

    request_id: int
    length: int
    response: bool
    termination: bool

    def encode(self, layout: HeaderLayout) -> bytes:
        flags = (RESPONSE if self.response else 0) | (TERMINATION if self.termination else 0)
        return layout.pack(self.request_id, self.length, flags)

    @classmethod
    def decode(cls, layout: HeaderLayout, data: bytes) -> Self:
        number = int.from_bytes(data[: layout.size], "little")
        layout.check(number)
        length = number >> 2 & layout.length_mask
        return cls(number >> layout.id_shift, length, bool(number & RESPONSE), bool(number & TERMINATION))


@attrs.frozen
class Chunk:
    """One chunk as it went over the wire."""

    request_id: int
    payload: bytes = b""
    response: bool = False
    termination: bool = False


def chunks_in(terms: Terms, data: bytes) -> list[Chunk]:
    """The chunks that bytes hold, cut by no code of a session's."""
    layout = HeaderLayout(terms)
    chunks: list[Chunk] = []
    while data:
        header = ChunkHeader.decode(layout, data)
        payload = data[layout.size : layout.size + header.length]
        assert len(payload) == header.length, "the bytes end inside a chunk"
        chunks.append(Chunk(header.request_id, payload, header.response, header.termination))
        data = data[layout.size + header.length :]
    return chunks


class SessionPair:
    """A client's and a server's session that have met, unless ``met`` is false.

    Bytes that one of them wrote wait in ``wires`` until they are delivered, all or in parts; ``said`` is all that
    went over the wire, by its sender.
    """

    def __init__(
        self,
        id_bits: int = 4,
        length_bits: int = 8,
        *,
        client: StreamuxOptions | None = None,
        server: StreamuxOptions | None = None,
        limits: Limits | None = None,
        fragment_size: int = 65536,
        whole: bool = True,
        chunks: bool = True,
        first_id: Callable[[int], int] = lambda cap: 0,
        met: bool = True,
    ) -> None:
        self.now = 0.0
        common: dict[str, Any] = {
            "limits": Limits() if limits is None else limits,
            "fragment_size": fragment_size,
            "whole": whole,
            "chunks": chunks,
            "randbelow": first_id,
        }
        self.client = Session(client or of_widths(id_bits, length_bits), client=True, **common)
        self.server = Session(server or of_widths(id_bits, length_bits, qa=True), client=False, **common)
        self.wires = {self.client: b"", self.server: b""}
        self.said = {self.client: b"", self.server: b""}
        self.client.start(self.now)
        self.server.start(self.now)
        if met:
            client_saw, server_saw = self.exchange()
            assert [type(event) for event in client_saw] == [SetupAccepted]
            assert [type(event) for event in server_saw] == [SetupReceived]
            assert self.server.accept(self.now) == []
            self.said = {self.client: b"", self.server: b""}

    def other(self, session: Session) -> Session:
        return self.server if session is self.client else self.client

    def write(self, sender: Session, limit: int = 65536) -> bytes:
        """One write: its bytes are on the way now."""
        data = Framing().join(sender.outbox.take(limit))
        self.wires[sender] += data
        self.said[sender] += data
        return data

    def deliver(self, sender: Session, size: int | None = None) -> list[Event]:
        """Return what the other side sees of bytes that are on the way: all of them, or the first so many."""
        wire = self.wires[sender]
        size = len(wire) if size is None else size
        self.wires[sender] = wire[size:]
        return self.other(sender).receive([wire[:size]], self.now) if wire[:size] else []

    def move(self, sender: Session, limit: int = 65536) -> list[Event]:
        """Return what the other side sees of one write."""
        self.write(sender, limit)
        return self.deliver(sender)

    def exchange(self) -> tuple[list[Event], list[Event]]:
        """Everything that waits, both ways, until nothing does: what the client saw, and what the server saw."""
        client_saw: list[Event] = []
        server_saw: list[Event] = []
        while self.wires[self.client] or self.wires[self.server] or self.client.outbox or self.server.outbox:
            server_saw += self.move(self.client)
            client_saw += self.move(self.server)
        return client_saw, server_saw

    def ask(self, data: bytes, interaction: Interaction = WHOLE, *, of: Session | None = None) -> Exchange:
        """A request, of the client unless it is said otherwise."""
        return (of or self.client).commands.open(interaction, Payload(data))

    def asked(self, data: bytes, interaction: Interaction = WHOLE) -> tuple[Exchange, Exchange]:
        """A request of the client's that has arrived, on both sides."""
        ours = self.ask(data, interaction)
        return ours, request_in(self.exchange()[1])

    def chunks(self, sender: Session) -> list[Chunk]:
        """The chunks that this side has written since the two met."""
        assert sender.terms is not None
        return chunks_in(sender.terms, self.said[sender])

    def assert_quiet(self) -> None:
        """Neither side holds anything: no id, no counter, no byte."""
        for session in (self.client, self.server):
            table, outbox = session.table, session.outbox
            assert session.is_quiet
            assert not session.is_mid_frame
            assert (table.mine, table.theirs, table.live) == ({}, {}, [])
            assert (table.reassembling, table.buffered) == (0, 0)
            assert (outbox.size, outbox.reply_size, outbox.reply_frames, bool(outbox)) == (0, 0, 0, False)
            assert session.error is None


def request_in(events: list[Event]) -> Exchange:
    """The request that the first of these events brings."""
    event = events[0]
    assert isinstance(event, RequestReceived), events
    assert isinstance(event.stream, Exchange)
    return event.stream


def requests_in(events: list[Event]) -> list[Exchange]:
    """All requests that these events bring."""
    requests = [event.stream for event in events if isinstance(event, RequestReceived)]
    return [one for one in requests if isinstance(one, Exchange)]


def texts_in(events: list[Event]) -> list[bytes]:
    """Return what they ask."""
    return [event.payload.data for event in events if isinstance(event, RequestReceived)]


def ended(events: list[Event]) -> str:
    """Return why the session is over."""
    (event,) = [event for event in events if isinstance(event, SessionEnded)]
    return str(event.error)
