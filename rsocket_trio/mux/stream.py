"""The state of a stream that a connection may use, the same for the sessions of every protocol."""

from __future__ import annotations

from typing import Any, Protocol

from rsocket_trio.mux.interaction import Interaction


class StreamState(Protocol):
    """The state of a session's stream that a connection may use.

    ``owner`` belongs to the connection: the object that waits for the stream's events, or ``None``. ``open`` are the
    open halves, ``room`` the items that may be sent, ``left`` says that a frame of it was sent.
    """

    id: int
    interaction: Interaction
    requester: bool
    owner: Any
    room: int
    open: int
    left: bool
