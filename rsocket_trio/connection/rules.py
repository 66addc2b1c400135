"""Declares the interface through which a link reports to the connection that it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rsocket_trio.errors import ConnectionLost, RemoteProtocolError


class Rules(Protocol):
    """The properties and events that a link uses. None of these waits."""

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether a pause of reading would not end without another transport."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing more has to be read."""
        ...

    @property
    def is_mid_frame(self) -> bool:
        """Whether the session holds a part of a frame, beyond the transport."""
        ...

    @property
    def progress(self) -> int:
        """A counter that grows while readers take received items."""
        ...

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Act on whole frames."""
        ...

    def on_broken(self, error: RemoteProtocolError) -> None:
        """Handle a framing error: the transport cannot find the next frame."""
        ...

    def on_lost(self, error: ConnectionLost) -> None:
        """Handle the loss of the transport."""
        ...

    def on_written(self) -> None:
        """Handle a write from the outbox."""
        ...
