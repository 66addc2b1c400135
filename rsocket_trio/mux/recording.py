"""The interface of recorders, which see each frame of a connection and never make it wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.values import value


@value
class Facts:
    """The facts of a transport connection that are known when its first frame passes.

    ``side`` is ``client`` or ``server``, ``transport`` the scheme (``tcp``, ``ws`` ...), ``peer_address`` the remote
    address.
    """

    side: str
    dialect: str
    transport: str = "stream"
    peer_address: str = ""


class Recorder(Protocol):
    """Observes one transport connection. No method waits, and none raises.

    Received frames are seen before the connection acts on them, sent ones before they are written.
    """

    def received(self, frames: Sequence[bytes]) -> None:
        """See whole frames that arrived; in Streamux, chunks of bytes."""
        ...

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        """These frames leave in one write."""
        ...

    def closed(self, reason: str) -> None:
        """The transport is closed, or lost. Its session may go on over another one."""
        ...

    def over(self, reason: str) -> None:
        """The session that began on this transport goes on over no other; all its streams have ended."""
        ...


class Recording(Protocol):
    """Makes the recorders: one for each transport connection, also for those that resume a session."""

    def _opened(self, facts: Facts) -> Recorder:
        """Return the recorder of a transport connection that is about to carry its first frame."""
        ...
