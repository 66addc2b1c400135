"""Wraps a transport so that every frame, or its bytes, is shown on stderr, one line each way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from rsocket_trio.cli.exit_codes import complain
from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.mux.framing import EncodedFrame, Framing, whole
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.transports.base import Transport

SHOWN = 64
"""Bytes of data that a line shows."""
ROW = 16
"""Bytes in a row of a hex dump."""
SENT = "->"
RECEIVED = "<-"


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
    ) -> None:
        """Wrap a transport; each of its frames comes behind ``length`` bytes that do not belong to it."""
        self.handshake = transport.handshake
        self._transport = transport
        self._dialect = dialect
        self._watch = watch
        self._show = show
        self._length = length

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
        if self._watch.frames or self._watch.hex:
            line = f"{arrow} {described(self._dialect, frame[self._length :])}"
            self._show(f"{line} {frame.hex()}" if self._watch.hex else line)
        if self._watch.dump:
            for row in dumped(frame):
                self._show(f"{arrow} {row}")


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


def dumped(data: bytes) -> Iterator[str]:
    """Yield rows of sixteen bytes: the offset, the bytes in hex, and the printable ASCII characters."""
    for offset in range(0, len(data), ROW):
        row = data[offset : offset + ROW]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{offset:06x}  {row.hex(' '):<{3 * ROW}} {letters}"


def _data(data: bytes) -> str:
    if len(data) <= SHOWN:
        return f"'{readable(data)}'" if data else ""
    return f"'{readable(data[:SHOWN])}'... {len(data)} bytes"
