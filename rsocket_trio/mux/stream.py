"""What a connection may know of a stream, whatever session it belongs to."""

from __future__ import annotations

from typing import Any, Protocol

from rsocket_trio.mux.interaction import Interaction


class StreamState(Protocol):
    """What a connection may know of a session's stream.

    ``owner`` is the connection's own: whoever waits for the stream's events, or ``None``. ``open`` are the open
    halves, ``room`` the items that may be sent, ``left`` says that something of it was sent.
    """

    id: int
    interaction: Interaction
    requester: bool
    owner: Any
    room: int
    open: int
    left: bool
