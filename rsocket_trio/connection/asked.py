"""Holds the engine calls of streams and handlers, which encode frames and wake the send task without waiting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rsocket_trio.connection.fault_log import FaultLog
from rsocket_trio.connection.link import Link
from rsocket_trio.connection.request_queue import RequestQueue
from rsocket_trio.errors import RSocketError, StreamError
from rsocket_trio.mux.session import StreamCommands
from rsocket_trio.mux.stream_state import RECEIVING, SENDING, StreamState
from rsocket_trio.payload import MetadataPush, Payload


class Asked(ABC):
    """The engine interface for streams and handlers."""

    __slots__ = ()

    _commands: StreamCommands
    ended: RSocketError | None
    faults: FaultLog
    is_suspended: bool
    link: Link | None
    on_growth: Callable[[], object] | None
    request_queue: RequestQueue

    @abstractmethod
    def end(self, error: RSocketError) -> None:
        """End the connection with this error."""

    def send_item(self, stream: StreamState, payload: Payload, *, complete: bool = False) -> None:
        """Send one item; the caller has checked credit and room."""
        self._commands.send_item(stream, payload, complete=complete)
        self.wake()

    def answer(self, stream: StreamState, payload: Payload) -> None:
        """Send a handler's one answer, from the task that ran the handler; the caller has checked the room."""
        self._commands.send_item(stream, payload, complete=True)
        self.flush()

    def push_on(self, stream: StreamState, push: MetadataPush) -> None:
        """Send metadata for one stream; the caller has checked the room."""
        self._commands.metadata_push(stream, push)
        self.wake()

    def complete_stream(self, stream: StreamState) -> None:
        """Complete this side's half, if it is still open."""
        if stream.open & SENDING and self.ended is None:
            self._commands.send_complete(stream)
            self.wake()

    def fail_stream(self, stream: StreamState, error: StreamError) -> None:
        """End a stream with an error if this side's half is open; else cancel the peer's half."""
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
            self.request_queue.grant_next()  # a stream that sent no frame yet gives its id back at once
            self.wake()

    def request_n(self, stream: StreamState, amount: int) -> None:
        """Grant credit."""
        if self.ended is None:
            self._commands.request_n(stream, amount)
            self.wake()

    def wake(self) -> None:
        """Wake the send task, after something was queued."""
        link = self.link
        if self.is_suspended:
            if self.on_growth is not None:
                self.on_growth()
        elif link is not None and not link.is_awake:
            link.wake()

    def flush(self) -> None:
        """Like ``wake``, for tasks outside of any session call and of the end of a connection."""
        link = self.link
        if self.is_suspended or link is None:
            self.wake()
        elif not link.is_awake:
            link.flush()
