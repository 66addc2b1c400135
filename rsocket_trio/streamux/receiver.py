"""The rules for received Streamux chunks: each becomes an event, an answer or a fault, or is ignored."""

from __future__ import annotations

import attrs

from rsocket_trio.errors import DRAIN_SIGN, Invalid, Rejected, RemoteProtocolError, StreamError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import (
    Event,
    ItemReceived,
    ItemsReceived,
    PeerFault,
    Pong,
    RequestReceived,
    StreamCancelled,
    StreamCompleted,
    StreamFailed,
)
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.reassembly import Reassembly
from rsocket_trio.mux.stream_state import NEITHER, RECEIVING, SENDING, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.streamux.chunks import RESPONSE, TERMINATION
from rsocket_trio.streamux.request_table import LOCKED, Exchange, Ping, RequestTable
from rsocket_trio.streamux.sender import ChunkSender

EMPTY = Payload()
LARGE_CHUNK = 4096
"""Bytes of a message's first chunk from which its chunks are kept as they are until the last one came."""


@attrs.define(eq=False, repr=False)
class ChunkReceiver:
    """The rules for received chunks. Events are collected in ``events``.

    ``full`` is the length from which a chunk counts as cut from a larger message. ``whole`` and ``chunks`` tell for
    which kinds of requests there are handlers. ``detached`` counts handlers that
    still run although their requests are over. ``ignored`` counts chunks without effect.
    """

    _limits: Limits
    _table: RequestTable
    _sender: ChunkSender
    _outbox: Outbox
    _whole: bool
    _chunks: bool
    _lenient: bool
    full: int = 0
    events: list[Event] = attrs.Factory(list)
    detached: int = 0
    ignored: int = 0

    # Whole chunks, and those that come in parts

    def on_chunk(self, request_id: int, bits: int, payload: bytes) -> None:
        last = bits & TERMINATION
        if bits & RESPONSE:
            request = self._response_to(request_id, len(payload), last)
            if request is not None and self._deliver(request, payload, last) and last:
                self._answered(request)
            return
        exchange = self._table.theirs.get(request_id)
        if exchange is None and payload:
            exchange = self._new_request(request_id, payload, last)
            if exchange is None:
                return
        elif exchange is None or not exchange.open & RECEIVING or not (payload or last):
            self._on_other(request_id, exchange, payload, last)
            return
        if self._deliver(exchange, payload, last) and last:
            exchange.open &= ~RECEIVING
            if exchange.open == NEITHER:
                self._end_if_sent(exchange)

    def on_run(self, request_id: int, bits: int, payloads: list[bytes]) -> None:
        exchange = (self._table.mine if bits & RESPONSE else self._table.theirs).get(request_id)
        if (
            type(exchange) is Exchange
            and exchange.interaction is Interaction.REQUEST_CHANNEL
            and not bits & TERMINATION
            and (exchange.left if bits & RESPONSE else exchange.open & RECEIVING)
        ):
            self.events.append(ItemsReceived(exchange, [Payload(payload) for payload in payloads]))
            return
        for payload in payloads:
            self.on_chunk(request_id, bits, payload)

    def begin_chunk(self, request_id: int, length: int, bits: int) -> bool:
        """Return whether to keep the payload of a chunk that begins here. Report a spurious chunk at once."""
        if bits & RESPONSE:
            return self._response_to(request_id, length, bits & TERMINATION) is not None
        exchange = self._table.theirs.get(request_id)
        if exchange is None:
            return True
        if not exchange.open & RECEIVING:
            if not exchange.dropping:
                self._reused(exchange, bits & TERMINATION)
            return False
        return True

    def on_skipped(self, request_id: int, bits: int) -> None:
        """Handle the end of a chunk that was not wanted: it may end a dropped request."""
        exchange = None if bits & RESPONSE else self._table.theirs.get(request_id)
        if exchange is not None and exchange.dropping and bits & TERMINATION:
            self._dropped(exchange)

    # Responses to this side's requests

    def _response_to(self, request_id: int, length: int, last: int) -> Exchange | None:
        """Return the request of a response chunk; ``None`` if the chunk's payload is not needed."""
        occupant = self._table.mine.get(request_id)
        ack = not (length or last)
        if type(occupant) is Exchange and occupant.left and not ack:
            return occupant
        if occupant is LOCKED:
            if ack:
                self._table.release(request_id)  # SMX-CAN-02
            else:
                self.ignored += 1  # SMX-SPU-01, SMX-CAN-07
        elif ack:
            self._spurious(f"cancel ack for request id {request_id}, which was not canceled")
        elif isinstance(occupant, Ping):
            if length:
                self._spurious(f"response of {length} bytes to the ping of id {request_id}")
            else:
                self._table.release(request_id)
                self.events.append(Pong(occupant.token))
        else:
            self._spurious(f"response to request id {request_id}, which is not in flight")
        return None

    def _answered(self, exchange: Exchange) -> None:
        """End a request whose response is whole. Cancel it if it is not sent completely yet (SMX-MSG-09)."""
        if exchange.open & SENDING or exchange.head is not None:
            self._sender.send_cancel(exchange)
        else:
            self._table.free(exchange)

    # Requests of the peer's

    def _new_request(self, request_id: int, payload: bytes, last: int) -> Exchange | None:
        """Return the request that this chunk begins; ``None`` if it is refused. Raise ``RemoteProtocolError`` if it is
        one too many."""
        table, limit = self._table, self._limits.streams
        if len(table.theirs) >= limit or self.detached >= limit:
            raise RemoteProtocolError(f"request id {request_id} is one too many: {limit} requests are open already")
        if self._chunks and not (self._whole and (last or len(payload) >= self.full)):
            interaction = Interaction.REQUEST_CHANNEL
        else:
            interaction = Interaction.REQUEST_RESPONSE
        table.theirs[request_id] = exchange = Exchange(request_id, interaction, requester=False)
        if table.draining:
            self._refuse(exchange, Rejected(DRAIN_SIGN), last)
            return None
        if interaction is Interaction.REQUEST_CHANNEL:
            self.events.append(RequestReceived(exchange, EMPTY, False))
        return exchange

    def _on_other(self, request_id: int, exchange: Exchange | None, payload: bytes, last: int) -> None:
        """Handle a chunk that neither begins nor goes on with a request: a cancel, a ping, or one without effect."""
        if not (payload or last):
            self._cancelled(request_id, exchange)
        elif exchange is None:
            self._sender.ack_ping(request_id)  # SMX-OOB-02: the only chunk of its id
        elif not exchange.dropping:
            self._reused(exchange, last)
        elif last:
            self._dropped(exchange)

    def _cancelled(self, request_id: int, exchange: Exchange | None) -> None:
        """Cancel a request, discard its queued chunks, and ack the cancel in any case (SMX-CAN-03, -04)."""
        if exchange is not None:
            live = exchange.open != NEITHER
            self._outbox.discard(exchange)
            self._table.over(exchange)
            if live:
                self.events.append(StreamCancelled(exchange))
        self._sender.ack_cancel(request_id)

    def _reused(self, exchange: Exchange, last: int) -> None:
        """Report a re-used id (SMX-SPU-04). If the session goes on, the id stays taken until that use of it ends."""
        self._spurious(f"request chunk on id {exchange.id}, whose request is complete and not answered yet")
        exchange.dropping = not last

    def _dropped(self, exchange: Exchange) -> None:
        exchange.dropping = False
        self._end_if_sent(exchange)

    def _end_if_sent(self, exchange: Exchange) -> None:
        """End a request whose whole response has left; else the outbox does it, with the last chunk."""
        if exchange.open == NEITHER and exchange.ended and exchange.head is None:
            self._table.over(exchange)

    # Messages, of requests and of responses

    def _deliver(self, exchange: Exchange, payload: bytes, last: int) -> bool:
        """Report what a chunk completes: a whole message, or an item of a channel. Return whether it was delivered.

        A chunk of a message that is delivered as a whole is kept until the last one came.
        """
        if exchange.interaction is not Interaction.REQUEST_RESPONSE:
            if payload:
                self.events.append(ItemReceived(exchange, Payload(payload), bool(last)))
            else:
                self.events.append(StreamCompleted(exchange))
            return True
        if not last or exchange.joined is not None or len(payload) > self._limits.payload_size:
            joined = self._join(exchange, payload, last)
            if joined is None:
                return False
            payload = joined
        if exchange.requester:
            self.events.append(ItemReceived(exchange, Payload(payload), True))
        else:
            exchange.weight = len(payload)
            self._table.buffered += exchange.weight
            self.events.append(RequestReceived(exchange, Payload(payload), True))
        return True

    def _join(self, exchange: Exchange, payload: bytes, last: int) -> bytes | None:
        """Return the whole message once its last chunk came. Refuse one that becomes too large, and drop its rest."""
        joined, table, limits = exchange.joined, self._table, self._limits
        if joined is None:
            exchange.joined = joined = Reassembly(copies=len(payload) < LARGE_CHUNK)
        table.reassembling += len(payload)
        joined.add(payload)
        if joined.size > limits.payload_size:
            self._too_large(exchange, f"message of more than {limits.payload_size} bytes on id {exchange.id}", last)
        elif table.reassembling > limits.reassembly_size:
            self._too_large(exchange, f"more than {limits.reassembly_size} bytes in unfinished messages", last)
        elif last:
            whole = joined.join()
            table.drop_joined(exchange)
            return whole
        return None

    def _too_large(self, exchange: Exchange, text: str, last: int) -> None:
        if exchange.requester:
            self.events.append(StreamFailed(exchange, RemoteProtocolError(text)))
            if last:
                self._answered(exchange)
            else:
                self._sender.send_cancel(exchange)
        else:
            self.events.append(PeerFault(text))
            self._refuse(exchange, Invalid(text), last)

    def _refuse(self, exchange: Exchange, error: StreamError, last: int) -> None:
        """Answer a request that no handler sees if the application encodes the error; else leave it unanswered."""
        self._sender.send_cancel(exchange)
        self._sender.send_error(exchange, error)
        if last:
            self._dropped(exchange)

    def _spurious(self, text: str) -> None:
        """End the session, or only report the fault if the options say so (SMX-SPU-03)."""
        if not self._lenient:
            raise RemoteProtocolError(text)
        self.ignored += 1
        self.events.append(PeerFault(text))
