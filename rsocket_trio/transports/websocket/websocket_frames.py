"""Cuts the bytes of a WebSocket into binary messages, and encodes messages as bytes.

Nearly every frame is a whole binary message, and one loop cuts those out. Every other frame is judged by itself, at its
header: pieces of messages are joined here, pings and closes go to the protocol of ``websockets``, which supplies the
answers. Masks are laid on by the C code of that library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from websockets.frames import Close, CloseCode
from websockets.protocol import Protocol, Side, State

from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.mux.framing import ALIKE, AT_ONCE, CROWD, PORTION, EncodedFrame, Gathering, count_alike

CONTINUATION, TEXT, WHOLE_BINARY = 0x0, 0x1, 0x82
"""Kinds of frames; the last one is the first byte of a frame that is a whole binary message."""
OPCODES = frozenset({CONTINUATION, TEXT, 0x2, 0x8, 0x9, 0xA})
FINAL, RESERVED, OPCODE, CONTROL = 0x80, 0x70, 0x0F, 0x08
"""The bits of the first byte."""
MASKED = 0x80
IN_TWO, IN_EIGHT = 126, 127
"""Length codes: the real length follows in two, or in eight, bytes of its own."""
LENGTHS = {IN_TWO: (2, IN_TWO), IN_EIGHT: (8, 0x10000)}
"""For those, the bytes of the length, and the least length that needs so many."""
KEY = 4
ENDINGS = frozenset({1000, 1001, 1005, 1006})
"""Close codes that are an end of stream: done, going away, none given, and a connection that just ended."""
PROTOCOL_ERROR, UNSUPPORTED_DATA, ABNORMAL_CLOSURE, POLICY_VIOLATION, TOO_BIG = 1002, 1003, 1006, 1008, 1009
TEXT_REFUSED = "text message: frames are binary messages"
JUDGED = 12
"""Whole messages that take as long as one frame of another kind, an answer to a ping included."""
BY_VIEW = 4096
"""Bytes from which on a masked message is not cut out before its mask is taken off."""
TINY = 32
"""Bytes below which a frame of a message holds next to nothing, unless it is the last."""
TINY_FRAMES = 1024
"""The number of those that a message may have, by default."""

# Short headers are few: looking one up costs less than making it.
HEADERS = tuple(bytes((WHOLE_BINARY, second)) for second in range(256))


masked: Callable[[bytes | memoryview, bytes], bytes]
"""Return data with the mask applied, or removed. The mask has four bytes."""
try:
    from websockets.speedups import apply_mask as masked
except ImportError:  # a platform that the library has no compiled package for
    from websockets.utils import apply_mask as masked


class MessageReader:
    """Reads the messages that one peer sends.

    ``client`` tells which side we are: a client's frames come to it unmasked, a server's masked. ``replies`` are to be
    written in order, between messages of our own; the task that writes them empties the list. An announced length
    allocates nothing until its bytes are here.
    """

    __slots__ = (
        *("_gathering", "_in_message", "_key", "_last", "_max", "_max_tiny"),
        *("_protocol", "_rest", "_size", "_tiny", "client", "closed", "fault", "judged", "missing", "pending"),
        "replies",
    )

    def __init__(self, *, client: bool, max_message: int, max_tiny: int = TINY_FRAMES) -> None:
        self.client = client
        self.replies: list[bytes] = []
        self.closed: Close | None = None
        """The close frame after which nothing is read: that of the peer, or the one sent for its fault."""
        self.fault: RemoteProtocolError | None = None
        """The peer's fault, if ``closed`` is the close frame that was sent for it. It is no error of ``feed``, so that
        earlier messages are delivered.
        """
        self.judged = 0
        """Frames of the last chunk that were no whole binary messages: each takes as long as several of those."""
        self.missing = 0
        """Bytes that are still to come of the message, or the fragment, that began."""
        self.pending = False
        """True if whole frames are left over: the next ``feed`` goes on with them, and needs nothing new for it."""
        self._max = max_message
        self._max_tiny = max_tiny
        self._rest = b""  # a header, or a control frame, that is not complete
        self._gathering = Gathering()  # a message that is not complete
        self._key = b""  # the mask of the next byte of it
        self._protocol: Protocol | None = None  # made for the first control frame or fault
        self._in_message = False  # whether a message in fragments is on its way
        self._last = False  # whether the message ends with the missing bytes
        self._size = self._tiny = 0  # the bytes of it by the headers so far, and its frames that hold next to nothing

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a message was received and its rest was not."""
        return self._in_message or self.missing > 0 or len(self._rest) > 0

    @property
    def is_over(self) -> bool:
        """Return whether both sides sent a close frame, so that no byte comes any more."""
        protocol = self._protocol
        return protocol is not None and protocol.close_sent is not None and protocol.close_rcvd is not None

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the binary messages that this chunk completes. Then see ``replies``, ``refusal`` and ``closed``.

        Of a large chunk with many frames these are the first ones, and others are ``pending``: all that are handed out
        together are acted on while other tasks wait.
        """
        ready: list[bytes] = []
        in_portions = self.pending or len(chunk) > AT_ONCE
        self.pending = False
        offset = self.judged = 0
        if self.missing:
            offset = self.missing
            self._add(chunk, 0, offset, ready)
            if len(chunk) < offset:
                return ready
        elif self._rest:
            chunk, self._rest = self._rest + chunk, b""
        mark, key_size = (0, 0) if self.client else (MASKED, KEY)
        largest, size, from_bytes = self._max, len(chunk), int.from_bytes
        end = min(size, PORTION) if in_portions else size
        last, alike = -1, 0  # no length yet, and no messages of the same length behind each other
        while self.closed is None and (
            (start := offset + 2) <= end
            or (
                end < size
                and len(ready) + JUDGED * self.judged < CROWD
                and start <= (end := min(size, offset + PORTION))
            )
        ):
            length = chunk[offset + 1] - mark
            fast = chunk[offset] == WHOLE_BINARY and 0 <= length <= IN_EIGHT and not self._in_message
            if fast and length >= IN_TWO:
                start, shortest = (offset + 4, IN_TWO) if length == IN_TWO else (offset + 10, 0x10000)
                if start > size:
                    break
                length = from_bytes(chunk[offset + 2 : start], "big")
                fast = length >= shortest
            if not fast or length > largest:
                place = self._judge(chunk, offset, ready)
                if not place:
                    break
                offset = place
                continue
            body = start + key_size
            if body > size:
                break
            if length != last:
                last, alike = length, 0
            elif (alike := alike + 1) == ALIKE:
                stride = body - offset + length
                run = range(body, body + stride * count_alike(chunk, offset, start, stride, end), stride)
                if run:
                    if key_size:
                        ready += [masked(chunk[first : first + length], chunk[first - KEY : first]) for first in run]
                    else:
                        ready += [chunk[first : first + length] for first in run]
                    offset += stride * len(run)
                    continue
            offset = body + length
            if offset > size:
                self.missing, self._key, self._last = length, chunk[start:body], True
                self._add(chunk, body, offset, ready)
                return ready
            if not key_size:
                ready.append(chunk[body:offset])
            elif length < BY_VIEW:
                ready.append(masked(chunk[body:offset], chunk[start:body]))
            else:
                ready.append(masked(memoryview(chunk)[body:offset], chunk[start:body]))
        self._rest = chunk[offset:] if self.closed is None else b""
        self.pending = end < size and bool(self._rest)
        return ready

    def allow(self, more: int) -> None:
        """Raise the size limit of messages by so many bytes."""
        self._max += more

    def goodbye(self, code: int) -> bytes:
        """Return the close frame; empty if one was sent before, or the peer is gone."""
        protocol = self._closing_protocol()
        if self.closed is not None or protocol.state is not State.OPEN:
            return b""
        protocol.send_close(code)
        return b"".join(protocol.data_to_send())

    def end(self) -> None:
        """Note that nothing more comes, however the stream ended."""
        if self.closed is None:
            self.closed = Close(ABNORMAL_CLOSURE, "")

    def _judge(self, chunk: bytes, offset: int, ready: list[bytes]) -> int:
        """Act on the frame that begins here. Return where it ends in this chunk; 0 if too little of it is here.

        A header that breaks a rule ends the connection at once, whatever it announces.
        """
        self.judged += 1
        first, second = chunk[offset], chunk[offset + 1]
        opcode, length = first & OPCODE, second & (MASKED - 1)
        start = offset + 2
        if opcode not in OPCODES:
            return self._fail(f"opcode {opcode} is reserved")
        if opcode & CONTROL and not first & FINAL:
            return self._fail("a control frame is no fragment")
        if length >= IN_TWO:
            if opcode & CONTROL:
                return self._fail("control frame of more than 125 bytes")
            in_bytes, least = LENGTHS[length]
            start += in_bytes
            if start > len(chunk):
                return 0
            length = int.from_bytes(chunk[offset + 2 : start], "big")
            if length < least:
                return self._fail(f"length {length} in {in_bytes} bytes, although fewer hold it")
            if length >> 63:
                return self._fail("length with its top bit set")
        if first & RESERVED:
            return self._fail(f"reserved bits 0x{first & RESERVED:X} are set, without an extension")
        if bool(second & MASKED) is self.client:
            return self._fail("masked frame of a server" if self.client else "unmasked frame of a client")
        if opcode == TEXT:
            return self._fail(TEXT_REFUSED, UNSUPPORTED_DATA)
        body = start if self.client else start + KEY
        if body > len(chunk):
            return 0
        end = body + length
        if opcode & CONTROL:
            if end > len(chunk):
                return 0
            self._control(chunk[offset:end])
            return end
        if (opcode == CONTINUATION) is not self._in_message:
            return self._fail("a message begins within another" if opcode else "a continuation without a beginning")
        self._key, self.missing = chunk[start:body], length
        self._in_message = True
        self._last = bool(first & FINAL)
        self._size += length
        self._tiny += length < TINY and not self._last
        if self._size > self._max:
            return self._fail(f"message of more than {self._max} bytes", TOO_BIG)
        if self._tiny > self._max_tiny:
            return self._fail(f"message of more than {self._max_tiny} frames below {TINY} bytes", POLICY_VIOLATION)
        self._add(chunk, body, end, ready)
        return end

    def _add(self, chunk: bytes, start: int, end: int, ready: list[bytes]) -> None:
        """Take a piece of a message, and deliver the message that it completes."""
        key, view = self._key, memoryview(chunk)[start:end]
        piece = masked(view, key) if key else bytes(view)
        self._key = turned(key, len(view))  # the next piece goes on with the mask where this one ends
        self.missing -= len(piece)
        if self.missing or not self._last:
            self._gathering.add(piece, self.missing)
            return
        ready.append(self._gathering.complete(piece))
        self._in_message = False
        self._size = self._tiny = 0

    def _control(self, frame: bytes) -> None:
        """Have a control frame answered, unless a close frame was sent before. Stop reading at the peer's."""
        protocol = self._closing_protocol()
        answers = protocol.state is State.OPEN
        protocol.receive_data(frame)
        protocol.events_received()
        frames = protocol.data_to_send()
        if answers:
            self.replies += filter(None, frames)  # an empty one asks for the end of the stream, which ``finish`` sends
        if protocol.parser_exc is not None:
            self._close(protocol.close_sent, is_fault=answers)
        else:
            self._close(protocol.close_rcvd, is_fault=False)

    def _fail(self, reason: str, code: int = PROTOCOL_ERROR) -> int:
        """Stop reading for a fault of the peer. It gets the reason, unless a close frame was sent before. Return 0."""
        protocol = self._closing_protocol()
        answers = protocol.state is State.OPEN
        protocol.fail(code, reason)
        self.replies += filter(None, protocol.data_to_send())
        self._close(Close(code, reason), is_fault=answers)
        return 0

    def _close(self, closed: Close | None, *, is_fault: bool) -> None:
        """Read nothing behind this close frame, if it is one."""
        if closed is None:
            return
        self.closed = closed
        if is_fault:
            self.fault = RemoteProtocolError(f"WebSocket: {readable(closed.reason)} ({int(closed.code)})")
        self.missing, self._in_message, self._gathering = 0, False, Gathering()

    def _closing_protocol(self) -> Protocol:
        """Return the protocol that answers pings and speaks the closing handshake."""
        if self._protocol is None:
            self._protocol = Protocol(Side.CLIENT if self.client else Side.SERVER)
        return self._protocol


def parts(frames: Sequence[EncodedFrame], keys: bytes = b"") -> list[bytes | memoryview]:
    """Return the bytes of all frames, a binary message each, not joined; ``keys`` are four random bytes for each."""
    pieces: list[bytes | memoryview] = []
    mark, turn = (MASKED, 0) if keys else (0, 0)
    for frame in frames:
        pieces.append(header(len(frame) if isinstance(frame, bytes) else sum(map(len, frame)), mark))
        if not keys:
            if isinstance(frame, bytes):
                pieces.append(frame)
            else:
                pieces += frame
            continue
        key = keys[turn : turn + KEY]
        turn += KEY
        pieces.append(key)
        if isinstance(frame, bytes):
            pieces.append(masked(frame, key))
            continue
        for piece in frame:
            pieces.append(masked(piece, key))
            key = turned(key, len(piece))
    return pieces


def header(length: int, mark: int) -> bytes:
    """Return the header of a binary message up to its key; ``mark`` is ``MASKED`` if there is one."""
    if length < IN_TWO:
        return HEADERS[mark | length]
    if length < 0x10000:
        return bytes((WHOLE_BINARY, mark | IN_TWO)) + length.to_bytes(2, "big")
    return bytes((WHOLE_BINARY, mark | IN_EIGHT)) + length.to_bytes(8, "big")


def join(frames: Sequence[EncodedFrame], keys: bytes = b"") -> bytes:
    """Return the bytes of all frames, a binary message each. A client masks each with four random bytes of ``keys``."""
    if len(frames) == 1 and type(frames[0]) is bytes:
        frame = frames[0]
        if keys:
            return header(len(frame), MASKED) + keys + masked(frame, keys)
        return header(len(frame), 0) + frame
    if not keys and len(frames) >= ALIKE and len({*map(len, frames)}) == 1 and {*map(type, frames)} == {bytes}:
        prefix = header(len(frames[0]), 0)
        return prefix + prefix.join(frames)  # type: ignore[arg-type]
    return b"".join(parts(frames, keys))


def close_text(code: int, reason: str | None) -> str:
    """Return the text of the error of a WebSocket that was closed."""
    name = CloseCode(code).name if code in set(CloseCode) else "UNKNOWN"
    return f"the WebSocket was closed with {int(code)} {readable(reason or name)}"


def turned(key: bytes, size: int) -> bytes:
    """Return the mask of what follows so many bytes."""
    turn = size % KEY
    return key[turn:] + key[:turn]
