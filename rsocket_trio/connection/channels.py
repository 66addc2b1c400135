"""Streams that carry items both ways, as either side holds them."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import trio

from rsocket_trio.connection.sending import Sender
from rsocket_trio.connection.streams import Incoming
from rsocket_trio.errors import LocalProtocolError, RSocketError
from rsocket_trio.mux.stream_state import RECEIVING, SENDING, Interaction
from rsocket_trio.payload import Payload, PayloadLike
from rsocket_trio.rsocket.extensions.blocks import Entry

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.mux.stream_state import StreamState


class Channel(Incoming):
    """Both directions of a channel: iterate to receive, ``send`` to send; each half ends by itself.

    ``request`` is the payload that opened the channel; iterating yields those that follow it.
    """

    __slots__ = ("_sender",)

    _sender: Sender | None

    def __init__(
        self,
        engine: Engine,
        interaction: Interaction,
        request: Payload,
        credit: int,
        *,
        refill: bool,
        entries: tuple[Entry, ...] = (),
    ) -> None:
        super().__init__(engine, interaction, request, credit, refill=refill, entries=entries)
        self._sender = None

    @property
    def room(self) -> int:
        """How many items the peer's credit allows right now, without waiting."""
        return self._sending().room

    async def wait_room(self, beyond: int = 0) -> int:
        """Wait until the peer's credit allows more than ``beyond`` items, and return how many it allows: ``room``.

        For those who hand demand on in place of buffering: what the peer granted is what they ask of others. Waits for
        credit alone, not for room in the outbox. Raises as ``send`` does when nothing more can be sent. Where the
        protocol has no credit (Streamux) ``room`` is always 2^31-1.
        """
        return await self._sending().wait_room(beyond)

    def send(self, payload: PayloadLike) -> Coroutine[Any, Any, None]:
        """Send one item, waiting for the peer's credit and for room in the connection's outbox.

        When cancelled meanwhile, nothing was sent. Raises ``Canceled`` after the peer cancelled this half,
        ``LocalProtocolError`` after ``send_eof``, ``ConnectionLost`` or ``ConnectionClosed`` when the connection is
        gone.
        """
        # No coroutine of its own: there is one for every item.
        sender = self._sender
        return self._sending().send(payload) if sender is None else sender.send(payload)

    async def send_many(self, payloads: Iterable[PayloadLike]) -> None:
        """Send items in order, for less than so many calls of ``send`` cost; as ``Outgoing.send_many``."""
        await self._sending().send_many(payloads)

    async def wait_send_closed(self) -> None:
        """Wait until nothing more can be sent: completed by this side, cancelled or ended by the peer.

        For those who send rarely and want to hear at once that nobody listens.
        """
        await self._sending().wait_closed()

    async def send_eof(self) -> None:
        """Say that this side sends nothing more; receiving goes on. Does nothing the second time."""
        sender = self._sending()
        await trio.lowlevel.checkpoint()
        if not sender.completed:
            self._engine.check_open()
            stream = self._opened()[0]
            self._engine.complete_stream(stream)
            sender.completed = True
            sender.on_credit()
            if stream.owner is not None:
                stream.owner.on_eof()

    def on_item(self, payload: Payload, complete: bool) -> None:
        self._opened()[1].put(payload, complete)
        if complete:
            # Where this ends both halves, whoever waits to send has to hear of it.
            self.on_credit()

    def on_complete(self) -> None:
        super().on_complete()
        self.on_credit()

    def on_error(self, error: RSocketError) -> None:
        super().on_error(error)
        self._sending().error = error
        self.on_credit()

    def on_credit(self) -> None:
        self._sending().on_credit()

    def _attach(self, stream: StreamState) -> None:
        super()._attach(stream)
        self._sender = Sender(self._engine, stream)

    def _leave(self, stream: StreamState, *, clean: bool) -> None:
        if clean and stream.open == SENDING:
            self._engine.complete_stream(stream)
        else:
            self._engine.cancel_stream(stream)
        sender = self._sending()
        sender.completed = True
        sender.on_credit()

    def _sending(self) -> Sender:
        if self._sender is None:
            raise LocalProtocolError("the channel is not open: use it under 'async with'")
        return self._sender


class AcceptedChannel(Channel):
    """A channel as its responder holds it: open from the start."""

    __slots__ = ()

    def __init__(self, engine: Engine, stream: StreamState, request: Payload, credit: int, *, refill: bool) -> None:
        super().__init__(engine, stream.interaction, request, credit, refill=refill)
        self._attach(stream)
        if stream.open & RECEIVING:
            engine.request_n(stream, credit)  # RS10-SEQ-07
        else:
            self.on_complete()
