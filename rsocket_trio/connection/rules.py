"""What does a link ask of the connection that it serves?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rsocket_trio.errors import ConnectionLost, RemoteProtocolError


class Rules(Protocol):
    """What a link asks of the connection that it serves. None of these waits."""

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether that pause would not end: only another transport helps."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read."""
        ...

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame is here that the transport knows nothing of."""
        ...

    @property
    def progress(self) -> int:
        """Grows while what was received is taken by its readers."""
        ...

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Whole frames came."""
        ...

    def on_broken(self, error: RemoteProtocolError) -> None:
        """The transport can't find the next frame."""
        ...

    def on_lost(self, error: ConnectionLost) -> None:
        """The transport is gone."""
        ...

    def on_written(self) -> None:
        """Something left the outbox."""
        ...
