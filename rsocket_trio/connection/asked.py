"""What do streams and handlers ask of their connection? Each call checks, encodes and wakes who writes; none waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rsocket_trio.connection.faults import Faults
from rsocket_trio.connection.link import Link
from rsocket_trio.connection.opening import Opening
from rsocket_trio.errors import RSocketError, StreamError
from rsocket_trio.mux.halves import RECEIVING, SENDING
from rsocket_trio.mux.session import StreamCommands
from rsocket_trio.mux.stream import StreamState
from rsocket_trio.payload import MetadataPush, Payload


class Asked(ABC):
    """The side of an engine that its streams see."""

    __slots__ = ()

    _commands: StreamCommands
    ended: RSocketError | None
    faults: Faults
    is_suspended: bool
    link: Link | None
    on_growth: Callable[[], object] | None
    opening: Opening

    @abstractmethod
    def end(self, error: RSocketError) -> None:
        """The connection is over."""

    def send_item(self, stream: StreamState, payload: Payload, *, complete: bool = False) -> None:
        """Send one item; there is credit and room for it."""
        self._commands.send_item(stream, payload, complete=complete)
        self.wake()

    def answer(self, stream: StreamState, payload: Payload) -> None:
        """Send a handler's one answer, from the task that ran it; there is room for it."""
        self._commands.send_item(stream, payload, complete=True)
        self.flush()

    def push_on(self, stream: StreamState, push: MetadataPush) -> None:
        """Send metadata for one stream; there is room for it."""
        self._commands.metadata_push(stream, push)
        self.wake()

    def complete_stream(self, stream: StreamState) -> None:
        """Complete this side's half, if it is still open."""
        if stream.open & SENDING and self.ended is None:
            self._commands.send_complete(stream)
            self.wake()

    def fail_stream(self, stream: StreamState, error: StreamError) -> None:
        """End a stream with an error, if this side may still say so; else cancel what the peer sends."""
        if self.ended is not None:
            return
        if stream.open & SENDING:
            fatal = self._commands.send_error(stream, error)
            if fatal is not None:
                self.faults.fatal(fatal)
                self.end(fatal)
                return
        elif stream.open & RECEIVING:
            self._commands.send_cancel(stream)
        self.wake()

    def cancel_stream(self, stream: StreamState) -> None:
        """Cancel a stream, if it has not ended. Never waits and never raises."""
        if self.ended is None:
            self._commands.send_cancel(stream)
            self.opening.next_in_line()  # what had said nothing yet gives its id back at once
            self.wake()

    def request_n(self, stream: StreamState, amount: int) -> None:
        """Grant credit."""
        if self.ended is None:
            self._commands.request_n(stream, amount)
            self.wake()

    def wake(self) -> None:
        """Let the send task run: something was queued."""
        link = self.link
        if self.is_suspended:
            if self.on_growth is not None:
                self.on_growth()
        elif link is not None and not link.is_awake:
            link.wake()

    def flush(self) -> None:
        """As ``wake``, for tasks that are in the middle of nothing: no session is at work, nothing is being ended."""
        link = self.link
        if self.is_suspended or link is None:
            self.wake()
        elif not link.is_awake:
            link.flush()
