"""Wraps a transport so that every frame, or its bytes, is shown on stderr, one line each way.

Metadata that may hold credentials is masked in the bytes as well; a line shows no metadata at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import attrs

from rsocket_trio.cli.exit_codes import complain
from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.masking import may_hold_credentials, names_credentials
from rsocket_trio.metadata.mime import NO_MIME
from rsocket_trio.mux.framing import EncodedFrame, Framing, whole
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import ExtFrame, PayloadFrame, RequestFrame, SetupFrame
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.connect_timeout import ConnectTimeout

SHOWN = 64
"""Bytes of data that a line shows."""
ROW = 16
"""Bytes in a row of a hex dump."""
SENT = "->"
RECEIVED = "<-"
MASK = "**"
"""A byte that is not shown."""
NOTHING = range(0)


@attrs.frozen
class Watch:
    """Selects the output for each frame: a line, the line with its bytes, a dump of the bytes."""

    frames: bool = False
    hex: bool = False
    dump: bool = False

    def __bool__(self) -> bool:
        return self.frames or self.hex or self.dump


class WatchedTransport:
    """A transport around another one that shows each frame as it passes."""

    send_at_once = None
    is_idle = False

    def __init__(
        self,
        transport: Transport,
        dialect: Dialect | None,
        watch: Watch,
        show: Callable[[str], None] = complain,
        *,
        length: int = 0,
        secrets: Secrets | None = None,
    ) -> None:
        """Wrap a transport; each of its frames comes behind ``length`` bytes that do not belong to it.

        A resumed session shares the ``secrets`` of its transports: a payload may go over several of them.
        """
        self.handshake = transport.handshake
        self._transport = transport
        self._dialect = dialect
        self._watch = watch
        self._show = show
        self._length = length
        self._secrets = secrets or Secrets()

    @property
    def is_message_based(self) -> bool:
        """Return whether each message is one frame."""
        return self._transport.is_message_based

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a frame was received and its rest was not."""
        return self._transport.mid_frame

    @property
    def has_unread(self) -> bool:
        """Return whether the transport holds bytes that ``receive`` has not returned."""
        return getattr(self._transport, "has_unread", False)

    @property
    def granted(self) -> Callable[[ConnectTimeout], Awaitable[Handshake]] | None:
        """Waits for the server's answer that grants the transport; ``None`` if it needs none."""
        return getattr(self._transport, "granted", None)

    def use_framing(self, framing: Framing) -> None:
        """Cut received bytes into frames this way from now on."""
        self._transport.use_framing(framing)

    async def peek(self) -> tuple[bytes, bool]:
        """Return the first bytes so far, and whether no more can come. ``receive`` shows them."""
        return await self._transport.peek()

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Show all frames, then write them."""
        for frame in frames:
            self._tell(SENT, whole(frame))
        await self._transport.send(frames)

    async def receive(self) -> Sequence[bytes]:
        """Return the next frames, after showing them."""
        frames = await self._transport.receive()
        for frame in frames:
            self._tell(RECEIVED, frame)
        return frames

    async def finish(self, code: int = 1000) -> None:
        """Announce the end of sending, and wait for the peer to do the same."""
        await self._transport.finish(code)

    def cut(self) -> bool:
        """Close at once, if that takes no waiting. Return whether it closed."""
        return self._transport.cut()

    async def aclose(self) -> None:
        """Close at once."""
        await self._transport.aclose()

    def _tell(self, arrow: str, frame: bytes) -> None:
        watch, length = self._watch, self._length
        hidden = NOTHING
        if watch.hex or watch.dump:
            found = self._secrets.find(self._dialect, arrow, frame[length:])
            hidden = range(length + found.start, length + found.stop)
        if watch.frames or watch.hex:
            line = f"{arrow} {described(self._dialect, frame[length:])}"
            self._show(f"{line} {hexed(frame, hidden)}" if watch.hex else line)
        if watch.dump:
            for row in dumped(frame, hidden):
                self._show(f"{arrow} {row}")


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
        began = place in self._fragmented
        if frame.follows:
            self._fragmented.add(place)
        else:
            self._fragmented.discard(place)
        return began or frame.follows


def described(dialect: Dialect | None, data: bytes) -> str:
    """Return a frame as a line: its type, stream and fields. Metadata, which may be secret, appears by size only.

    Without a dialect (Streamux, whose chunks only its session can cut) the line gives the size only.
    """
    if dialect is None:
        return f"{len(data)} bytes"
    try:
        frame = dialect.codec.decode(data)
    except RemoteProtocolError as error:
        return f"undecodable, {error}"
    words = [dialect.codec.name_of(frame), f"stream {frame.stream_id}"]
    for field in attrs.fields(type(frame)):
        name, content = field.name, getattr(frame, field.name)
        if name in {"stream_id", "interaction"} or (not content and content == field.default) or content is False:
            continue
        if isinstance(content, Payload):
            if content.metadata is not None:
                words.append(f"metadata of {len(content.metadata)} bytes")
            words.append(_data(content.data))
        elif name == "data":
            words.append(_data(content))
        elif isinstance(content, bytes):
            words.append(f"{name} of {len(content)} bytes")
        elif content is True:
            words.append(name)
        elif name == "code":
            words.append(f"code 0x{content:X}")
        else:
            words.append(f"{name} {content:g}" if isinstance(content, float) else f"{name} {content}")
    return ", ".join(word for word in words if word)


def dumped(data: bytes, hidden: range = NOTHING) -> Iterator[str]:
    """Yield rows of sixteen bytes: the offset, the bytes in hex, and the printable ASCII characters.

    The bytes at ``hidden`` offsets are masked.
    """
    for offset in range(0, len(data), ROW):
        row = range(offset, min(offset + ROW, len(data)))
        pairs = " ".join(MASK if at in hidden else f"{data[at]:02x}" for at in row)
        letters = "".join("*" if at in hidden else chr(data[at]) if 0x20 <= data[at] < 0x7F else "." for at in row)
        yield f"{offset:06x}  {pairs:<{3 * ROW}} {letters}"


def hexed(data: bytes, hidden: range = NOTHING) -> str:
    """Return ``data`` in hexadecimal digits; the bytes at ``hidden`` offsets are masked."""
    return data[: hidden.start].hex() + MASK * len(hidden) + data[hidden.stop :].hex()


def _data(data: bytes) -> str:
    if len(data) <= SHOWN:
        return f"'{readable(data)}'" if data else ""
    return f"'{readable(data[:SHOWN])}'... {len(data)} bytes"
