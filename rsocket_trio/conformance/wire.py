"""The tester's end of a connection: frames as bytes over any transport, a record of what passed, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from rsocket_trio.conformance.notation import Fragments, FramePattern, Headers, Notation
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.framing import Framing
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.error_text import WrongProtocol

LONGEST = 64 * 1024 * 1024
"""Bytes of what came and is no whole frame yet that are kept: a server that talks nonsense ends its case."""
KEPT = 40
"""Frames of the record that are kept. A case that exchanges more tells of the first and the last ones."""

HEADER: Final = 6
"""Bytes of stream id, type and flags."""


@attrs.frozen
class Passed:
    """One frame that passed: ``sent`` by the tester, or received; or bytes that are no frame; or an event between."""

    sent: bool
    data: bytes
    is_frame: bool = True
    event: str = ""
    """The event on the connection, if the entry is no frame and no bytes."""


class StepFailure(Exception):
    """The peer did not do what the step says."""


class Ended(StepFailure):
    """The peer ended the connection; ``rest`` is what came of a frame that is not whole."""

    def __init__(self, rest: bytes, reason: str) -> None:
        super().__init__(reason)
        self.rest = rest


GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class WireEnd:
    """The tester's end of one connection. ``record`` may be that of all connections of a case."""

    def __init__(self, transport: Transport, notation: Notation) -> None:
        self._transport = transport
        self.notation = notation.connected()
        self.rest = b""
        """The received bytes that are no whole frame yet."""
        self._frames: list[bytes] = []
        self.record: list[Passed] = []
        self.first = b""
        """The bytes that came first, as one read gave them, or the first message."""
        self.wrong_protocol = ""
        """The protocol in which a server answered that is of other transports, and the scheme to try."""
        # Frames are cut here, from the documents: the transport cuts nothing.
        transport.use_framing(Framing())

    @property
    def has_messages(self) -> bool:
        return self._transport.is_message_based

    def _note(self, passed: Passed) -> None:
        self.record.append(passed)
        if len(self.record) > KEPT:
            del self.record[KEPT // 2]

    async def send(self, *frames: bytes) -> None:
        """Send these frames, in one write where the transport has no messages."""
        for frame in frames:
            self._note(Passed(True, frame))
            self.notation.sent(frame)
        if self._transport.is_message_based:
            await self._write(frames)
        else:
            await self._write([b"".join(self.notation.with_length(frame) for frame in frames)])

    async def send_raw(self, data: bytes) -> None:
        self._note(Passed(True, data, is_frame=False))
        self.notation.sent(data)
        await self._write([data])

    async def cut(self) -> None:
        """End the connection without a word. What was not read is lost."""
        await self._transport.aclose()

    async def half_close(self) -> None:
        """Say that nothing more is sent."""
        # Messages have no half.
        say = getattr(self._transport, "send_eof", self._transport.finish)
        # The peer may be first to end the connection.
        with trio.move_on_after(1), suppress(*GONE):
            await say()

    async def _write(self, chunks: Sequence[bytes]) -> None:
        # The peer may have ended the connection already, which is what the case finds when it reads.
        with suppress(*GONE):
            await self._transport.send(chunks)

    async def receive(self) -> bytes:
        """Return the next frame. Raise ``Ended`` where none comes any more."""
        while True:
            if self._frames:
                frame = self._frames.pop(0)
                self._note(Passed(False, frame))
                return frame
            if self.rest and self.notation.negotiates:
                # What came before the tester's own offer can be cut once that was sent.
                self._frames, self.rest = self.notation.cut(self.rest)
                if self._frames:
                    continue
            await self._read()

    async def _read(self) -> None:
        try:
            chunks = await self._transport.receive()
        except (*GONE, RemoteProtocolError) as error:
            chunks, reason = (), f"the connection broke: {error}"
            self.wrong_protocol = str(error) if isinstance(error, WrongProtocol) else ""
        else:
            reason = "the peer closed the connection"
        if not chunks:
            if self.rest:
                self._note(Passed(False, self.rest, is_frame=False))
            raise Ended(self.rest, reason)
        if self._transport.is_message_based and not self.notation.negotiates:
            self.first = self.first or chunks[0]
            self._frames += chunks
            return
        self.first = self.first or b"".join(chunks)
        frames, self.rest = self.notation.cut(self.rest + b"".join(chunks))
        self._frames += frames
        if len(self.rest) > LONGEST:
            raise Ended(self.rest[:64], f"{len(self.rest)} bytes came that are no whole frame")


@attrs.define(eq=False)
class Positions:
    """The tester's count. REQUEST frames, REQUEST_N, CANCEL, PAYLOAD and ERROR of streams count, without their length.

    With ``resumable`` that is true of the streams alone that one of these requests opens.
    """

    resumable: tuple[FramePattern, ...] = ()
    sent: int = 0
    _came: list[bytes] = attrs.field(factory=list)
    _streams: set[bytes] = attrs.field(factory=set)

    @property
    def received(self) -> int:
        """Return the bytes that came, but for those that are said to be lost."""
        return sum(map(len, self._came))

    def note_sent(self, frame: bytes) -> None:
        self.sent += len(frame) * self._counts(frame)

    def note_received(self, frame: bytes) -> None:
        if self._counts(frame):
            self._came.append(frame)

    def lose(self, frame: FramePattern, headers: Headers) -> tuple[list[bytes], Fragments]:
        """Count the first such frame and those behind it as lost; a frame may have come in fragments.

        Return the lost ones, and the fragments that are not lost. Raise ``LookupError`` if no such frame came.
        """
        fragments = Fragments(headers)
        for came in self._came:
            whole = fragments.take(came)
            if whole is not None and frame.fits(whole):
                break
        else:
            raise LookupError("no such frame came")
        place = fragments.began_at
        lost = self._came[place:]
        del self._came[place:]
        rest = Fragments(headers)
        for came in self._came:
            rest.take(came)
        return lost, rest

    def _counts(self, frame: bytes) -> bool:
        kind = frame[4] >> 4 if len(frame) >= HEADER else 0
        stream = frame[:4]
        # Types 0x04 to 0x07 are requests, and those from there through 0x0B the others that count.
        if kind not in (1, 2) or not any(stream):
            return False
        if kind == 1 and any(mark.fits(frame) for mark in self.resumable):
            self._streams.add(stream)
        return not self.resumable or stream in self._streams
