"""Shows every frame of a connection on stderr, one line each way.

Metadata that may hold credentials is masked in the bytes as well; a line shows no metadata at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from rsocket_trio.cli.exit_codes import complain
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.masking import may_hold_credentials, names_credentials
from rsocket_trio.metadata.mime import NO_MIME
from rsocket_trio.mux.framing import EncodedFrame, Facts, Recorder, Recording, whole
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frame_lines import frame_line
from rsocket_trio.rsocket.frames import ExtFrame, PayloadFrame, RequestFrame, SetupFrame

SENT = "->"
RECEIVED = "<-"
MASK = "**"
"""A byte that is not shown."""
NOTHING = range(0)


class Secrets:
    """Finds the bytes of a connection's frames that may be credentials: metadata, whole or in fragments."""

    def __init__(self) -> None:
        self._mime: str | int | None = None
        self._fragmented: set[tuple[str, int]] = set()

    def find(self, dialect: Dialect | None, arrow: str, data: bytes) -> range:
        """Return the offsets of the bytes of a frame that are not to be shown; ``arrow`` is its direction.

        A fragment of metadata does not tell what it is a fragment of, so it is hidden whatever it holds.
        """
        try:
            frame = None if dialect is None else dialect.codec.decode(data)
        except RemoteProtocolError:
            frame = None
        content: Any = getattr(frame, "payload", frame)
        metadata = getattr(content, "metadata", None)
        if isinstance(frame, SetupFrame):
            self._mime = frame.metadata_mime
        is_part = isinstance(frame, RequestFrame | PayloadFrame) and self._is_part(arrow, frame)
        if not metadata:
            # There is none, or it is somewhere in an opaque body.
            opaque = frame is None or isinstance(frame, ExtFrame)
            return range(len(data)) if opaque and names_credentials(data) else NOTHING
        mime = getattr(content, "metadata_mime", None)
        if not is_part and not may_hold_credentials(metadata, self._mime if mime in NO_MIME else mime):
            return NOTHING
        # In every layout data is last, and metadata right before it.
        stop = len(data) - len(getattr(content, "data", b""))
        start = stop - len(metadata)
        return range(start, stop) if data[start:stop] == metadata else range(len(data))

    def _is_part(self, arrow: str, frame: RequestFrame | PayloadFrame) -> bool:
        """Return whether a frame holds a fragment, also the last one of its payload."""
        place = arrow, frame.stream_id
        if frame.follows:
            self._fragmented.add(place)
        elif place in self._fragmented:
            self._fragmented.remove(place)
            return True
        return frame.follows


@attrs.frozen
class Watcher:
    """A recording that shows each frame as it passes, with its bytes if ``in_hex``, and passes it on to ``capture``.

    A resumed session shares the ``secrets`` of its transports: a payload may go over several of them.
    """

    dialect: Dialect | None
    in_hex: bool = False
    capture: Recording | None = None
    secrets: Secrets = attrs.field(factory=Secrets)
    beside: Recorder | None = None
    """The recorder of ``capture`` for this transport."""

    def _opened(self, facts: Facts) -> Watcher:
        return self if self.capture is None else attrs.evolve(self, beside=self.capture._opened(facts))

    def received(self, frames: Sequence[bytes]) -> None:
        """Show received frames."""
        if self.beside is not None:
            self.beside.received(frames)
        for frame in frames:
            self._show(RECEIVED, frame)

    def sent(self, frames: Sequence[EncodedFrame]) -> None:
        """Show frames before they are written."""
        if self.beside is not None:
            self.beside.sent(frames)
        for frame in frames:
            self._show(SENT, whole(frame))

    def closed(self, reason: str) -> None:
        """Show nothing: the command reports the end."""
        if self.beside is not None:
            self.beside.closed(reason)

    def over(self, reason: str) -> None:
        """Show nothing."""
        if self.beside is not None:
            self.beside.over(reason)

    def _show(self, arrow: str, frame: bytes) -> None:
        # Streamux has no dialect here: only its session can cut its chunks.
        words = f"{len(frame)} bytes" if self.dialect is None else frame_line(self.dialect, frame)
        line = f"{arrow} {words}"
        if self.in_hex:
            line += f" {hexed(frame, self.secrets.find(self.dialect, arrow, frame))}"
        complain(line)


def hexed(data: bytes, hidden: range = NOTHING) -> str:
    """Return ``data`` in hexadecimal digits; the bytes at ``hidden`` offsets are masked."""
    return data[: hidden.start].hex() + MASK * len(hidden) + data[hidden.stop :].hex()
