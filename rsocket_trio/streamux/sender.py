"""The commands of a Streamux session that send: requests, items, completions, errors, cancels and pings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from rsocket_trio.errors import ConnectionLost, RSocketError, StreamError, Unsupported
from rsocket_trio.mux.outbox import FragmentSource, Outbox
from rsocket_trio.mux.session import StreamCommands
from rsocket_trio.mux.stream_state import (
    NEITHER,
    RECEIVING,
    SEND_COMPLETE,
    SEND_ERROR,
    SEND_NEXT,
    SENDING,
    Interaction,
    applied,
)
from rsocket_trio.payload import MetadataPush, Payload, as_bytes
from rsocket_trio.streamux.chunks import CANCEL, CANCEL_ACK, PING, PING_ACK, RESPONSE, TERMINATION, HeaderLayout
from rsocket_trio.streamux.negotiation import Terms
from rsocket_trio.streamux.request_table import Exchange, RequestTable
from rsocket_trio.streamux_magic import NAME

INTERACTIONS = frozenset({Interaction.REQUEST_RESPONSE, Interaction.REQUEST_CHANNEL})
UNCOPIED_SIZE = 32768
"""Bytes from which a payload is not copied behind its header, but handed to the write as it is."""
ErrorEncoder = Callable[[StreamError], bytes | None]


def check(payload: Payload, request: Interaction | None = None) -> None:
    """Raise ``Unsupported`` for a payload that no chunk can carry, and for a ``request`` that can never be made.

    Raise ``ValueError`` for an empty request_response, which would be a ping (SMX-MSG-04).
    """
    if request is not None and request not in INTERACTIONS:
        raise Unsupported(f"{NAME} has no {request.value}")
    if payload.metadata is not None or payload.metadata_type:
        raise Unsupported(f"{NAME} has no metadata")
    if payload.data_mime is not None or payload.metadata_mime is not None:
        raise Unsupported(f"{NAME} has no MIME types")
    if request is Interaction.REQUEST_RESPONSE and not payload.data:
        raise ValueError(f"an empty request can't be said in {NAME}: it would be a ping")


@attrs.define(eq=False, repr=False)
class ChunkSender(StreamCommands[Exchange]):
    """Commands on requests and responses.

    ``before_first`` is called before the first request or ping: a quick init holds its initialize message until then.
    """

    _table: RequestTable
    _outbox: Outbox
    _fragment_size: int
    _encode_error: ErrorEncoder | None
    before_first: Callable[[], None] | None = None
    _most: int = 0
    _layout: HeaderLayout | None = None

    def agree(self, terms: Terms, layout: HeaderLayout) -> None:
        """Set the negotiated terms. Chunks have at most the negotiated length, and that of this side's fragments."""
        self._layout = layout
        self._most = min(terms.length_cap, self._fragment_size)

    @property
    def is_full(self) -> bool:
        return self._table.is_full  # SMX-FLD-07: it has to wait for an id

    def check_request(self, interaction: Interaction, payload: Payload) -> None:
        check(payload, interaction)

    def open(
        self, interaction: Interaction, payload: Payload, initial_n: int | None = None, *, entries: tuple[Any, ...] = ()
    ) -> Exchange:
        """Open a request: a whole one, or a channel whose first chunk may follow later."""
        check(payload, interaction)
        exchange = self._table.new(interaction)
        if self.before_first is not None:
            self._release()
        if interaction is Interaction.REQUEST_RESPONSE:
            exchange.open = RECEIVING
            self._put(exchange, payload.data, TERMINATION)
        elif payload.data:
            self._put(exchange, payload.data, 0)
        return exchange

    def send_item(self, stream: Exchange, payload: Payload, *, complete: bool = False) -> None:
        """Send a chunk, or as many as the payload takes; with ``complete`` the message ends with it.

        Raise ``ValueError`` for an empty payload that is not the last: it would be a cancel.
        """
        if not stream.open & SENDING:
            applied(SEND_NEXT, stream.open)
        check(payload)
        if payload.data:
            self._put(stream, payload.data, TERMINATION if complete else 0)
            if complete:
                self._table.complete(stream)
        elif complete:
            self.send_complete(stream)
        else:
            raise ValueError(f"an empty chunk can't be said in {NAME}: it would be a cancel")  # SMX-MSG-05

    def send_complete(self, stream: Exchange) -> None:
        """End this side's message with an empty termination (SMX-MSG-01).

        Raise ``ValueError`` for a request that has not begun: it would be a ping.
        """
        applied(SEND_COMPLETE, stream.open)
        if stream.requester and not stream.begun:
            raise ValueError(f"an empty request can't be said in {NAME}: it would be a ping")
        self._outbox.put(stream, self._header(stream, TERMINATION))
        self._table.complete(stream)

    def send_error(self, stream: Exchange, error: StreamError) -> RSocketError | None:
        """End an exchange that failed here. The protocol has no errors, so the application's encoder makes a response.

        Return the error that ends the whole session if there is no response: a cut response must not look complete.
        A request that was refused, and whose answer has not begun, stays unanswered until its requester cancels.
        """
        if stream.requester:
            self.send_cancel(stream)
            return None
        applied(SEND_ERROR, stream.open)
        cause: Exception | None = None
        if self._encode_error is not None and not stream.begun:
            try:
                answer = self._encode_error(error)
                if answer is not None:
                    self.send_item(stream, Payload(as_bytes(answer)), complete=True)
                    self.send_cancel(stream)
                    return None
            except Exception as failure:
                # Raised by the application's encoder: there is no response, and the session ends as without one.
                cause = failure
        self._outbox.discard(stream)
        if stream.open & RECEIVING:
            stream.dropping = True
        stream.open = NEITHER
        self._table.lighten(stream)
        self._table.drop_joined(stream)
        if stream.refused and not stream.begun:
            return None
        fatal = ConnectionLost(f"request {stream.id} failed here, and {NAME} can't say so: {error}")
        fatal.__cause__ = cause
        return fatal

    def send_cancel(self, stream: Exchange) -> None:
        """Cancel the peer's message; does nothing on an exchange that is over.

        A requester's cancel discards the chunks that wait in its queue and locks the id; if nothing of the request had
        left, nothing is sent at all. A responder has no cancel in the protocol: chunks that come are dropped, and a
        request that is not answered yet may stay unanswered.
        """
        if stream.requester:
            if stream.open == NEITHER:
                return
            self._outbox.discard(stream)
            if stream.left:
                self._table.lock(stream)
                self._outbox.put_urgent(self._header(stream, CANCEL))
            else:
                self._table.free(stream)
            return
        stream.refused = bool(stream.open & SENDING)
        if stream.open & RECEIVING:
            stream.open &= ~RECEIVING
            stream.dropping = True
            self._table.drop_joined(stream)

    def metadata_push(self, stream: Exchange, push: MetadataPush) -> None:
        raise Unsupported(f"{NAME} has no metadata")

    def ping(self, token: object) -> None:
        request_id = self._table.new_ping(token)
        if self.before_first is not None:
            self._release()
        self._outbox.put_urgent(self._pack(request_id, PING))

    def ack_ping(self, request_id: int) -> None:
        """Answer a ping, before all waiting chunks (SMX-OOB-03)."""
        self._outbox.put_reply(self._pack(request_id, PING_ACK))

    def ack_cancel(self, request_id: int) -> None:
        """Answer a cancel, known or not (SMX-CAN-04)."""
        self._outbox.put_reply(self._pack(request_id, CANCEL_ACK))

    def _release(self) -> None:
        release, self.before_first = self.before_first, None
        if release is not None:
            release()

    def _pack(self, request_id: int, bits: int) -> bytes:
        assert self._layout is not None
        return self._layout.pack(request_id, 0, bits)

    def _header(self, stream: Exchange, bits: int) -> bytes:
        return self._pack(stream.id, bits if stream.requester else bits | RESPONSE)

    def _put(self, stream: Exchange, data: bytes, bits: int) -> None:
        layout = self._layout
        assert layout is not None
        if not stream.requester:
            bits |= RESPONSE
        stream.begun = True
        size = len(data)
        if size <= self._most:
            header = layout.pack(stream.id, size, bits)
            if size < UNCOPIED_SIZE:
                self._outbox.put(stream, header + data)
            else:
                self._outbox.put(stream, (header, data))
        else:
            self._outbox.put(stream, FragmentSource(layout.cut(stream.id, data, bits, self._most), size))
