"""Who may look on while frames pass: what a connection tells of itself, and nothing that it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.values import value


@value
class Facts:
    """What is known of a transport connection when its first frame passes.

    ``side`` is ``client`` or ``server``, ``transport`` the scheme (``tcp``, ``ws`` ...), ``peer`` the remote address.
    """

    side: str
    dialect: str
    transport: str = "stream"
    peer: str = ""


class Recorder(Protocol):
    """Looks on at one transport connection. None of these waits, and none raises.

    What was received is seen before the connection acts on it, what is sent before it is written.
    """

    def received(self, frames: Sequence[bytes]) -> None:
        """Whole frames came; in Streamux, bytes."""
        ...

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        """These frames leave in one write."""
        ...

    def closed(self, reason: str) -> None:
        """The transport is closed, or lost. Its session may go on over another one."""
        ...

    def over(self, reason: str) -> None:
        """The session that began on this transport goes on over no other; whatever was open in it has ended."""
        ...


class Recording(Protocol):
    """Where recorders come from: one for each transport connection, those that resume a session as well."""

    def opened(self, facts: Facts) -> Recorder:
        """A transport connection is about to carry its first frame."""
        ...
