"""The protocol that streams and handlers use of their connection."""

from __future__ import annotations

from typing import Protocol

from rsocket_trio.connection.fault_log import FaultLog
from rsocket_trio.connection.inbox import ReceiveBudget
from rsocket_trio.connection.request_queue import RequestQueue, Wakeable
from rsocket_trio.errors import RSocketError, StreamError
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream_state import StreamState
from rsocket_trio.payload import MetadataPush, Payload


class StreamPort(Protocol):
    """The side of a connection that streams and handlers see. None of its methods waits."""

    ended: RSocketError | None
    """The error that ended the connection, or ``None``."""
    faults: FaultLog
    receive_budget: ReceiveBudget
    request_queue: RequestQueue
    session: Session

    @property
    def link(self) -> Wakeable:
        """The link of the current transport; its send task is woken after something was queued."""
        ...

    def check_open(self) -> None:
        """Raise ``ConnectionLost`` or ``ConnectionClosed`` if nothing can be asked of the peer any more."""
        ...

    def send_item(self, stream: StreamState, payload: Payload, *, complete: bool = False) -> None:
        """Send one item; the caller has checked credit and room."""
        ...

    def answer(self, stream: StreamState, payload: Payload) -> None:
        """Send a handler's one answer, from the task that ran the handler; the caller has checked the room."""
        ...

    def push_on(self, stream: StreamState, push: MetadataPush) -> None:
        """Send metadata for one stream; the caller has checked the room."""
        ...

    def complete_stream(self, stream: StreamState) -> None:
        """Complete this side's half, if it is still open."""
        ...

    def fail_stream(self, stream: StreamState, error: StreamError) -> None:
        """End a stream with an error if this side's half is open; else cancel the peer's half."""
        ...

    def cancel_stream(self, stream: StreamState) -> None:
        """Cancel a stream, if it has not ended. Never waits and never raises."""
        ...

    def count_dropped(self) -> None:
        """Count a message that was refused."""
        ...

    def request_n(self, stream: StreamState, amount: int) -> None:
        """Grant credit."""
        ...
