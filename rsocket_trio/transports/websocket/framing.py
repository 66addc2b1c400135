"""Cuts the bytes of a WebSocket into binary messages, and encodes messages as bytes.

Nearly every frame is a whole binary message, and this module cuts those out itself. It passes every other frame to
wsproto byte by byte: pings, closes, text, fragments and frames that break the rules. wsproto judges them and supplies
the answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.mux.framing import EncodedFrame, Gathering, whole

BINARY = 0x82
"""The first byte of a frame that is a whole binary message."""
FINAL, CONTROL = 0x80, 0x08
MASKED = 0x80
IN_TWO, IN_EIGHT = 126, 127
"""Length codes: the real length follows in two, or in eight, bytes of its own."""
KEY = 4
BY_STRIDES = 1024
"""Bytes from which on masking each fourth of them in turn is quicker than all as one number: twice, at 64 KiB."""
ENDINGS = frozenset({1000, 1001, 1005, 1006})
"""Close codes that are an end of stream: done, going away, none given, and a connection that just ended."""
UNSUPPORTED_DATA, ABNORMAL_CLOSURE, POLICY_VIOLATION, TOO_BIG = 1003, 1006, 1008, 1009
TINY = 32
"""Bytes below which a frame of a message holds next to nothing, unless it is the last."""
TINY_FRAMES = 1024
"""The number of those that a message may have, by default."""
MOST_FRAMES = 65536
"""The frames that a message may have: each costs as much as a dozen messages that are whole. A sender that cuts the
largest message into pieces of 256 bytes stays below."""

# Short headers are few: looking one up costs less than making it.
PLAIN_HEADERS = tuple(bytes((BINARY, length)) for length in range(IN_TWO))
MASKED_HEADERS = tuple(bytes((BINARY, MASKED | length)) for length in range(IN_TWO))
XORED = tuple(bytes(byte ^ key for byte in range(256)) for key in range(256))


class MessageReader:
    """Reads the messages that one peer sends.

    ``client`` tells which side we are: a client's frames come to it unmasked, a server's masked. ``replies`` are to be
    written in order, between messages of our own; the task that writes them empties the list. An announced length
    allocates nothing until its bytes are here.
    """

    __slots__ = (
        *("_count", "_fast", "_foreign", "_fragments", "_gathering", "_judge", "_key", "_max", "_max_tiny", "_rest"),
        *("_size", "_tiny", "_told", "_unfinished", "client", "closed", "fault", "judged", "missing", "refusal"),
        "replies",
    )

    def __init__(self, *, client: bool, max_message: int, max_tiny: int = TINY_FRAMES) -> None:
        self.client = client
        self.replies: list[bytes] = []
        self.closed: CloseConnection | None = None
        """The close event after which nothing is read: that of the peer, or the one sent for its fault."""
        self.fault: RemoteProtocolError | None = None
        """The peer's fault, if ``closed`` is the close event that was sent for it."""
        self.refusal: RemoteProtocolError | None = None
        """The error after which nothing is delivered. ``feed`` does not raise it, so no earlier message is lost."""
        self.judged = 0
        """Frames of the last chunk that wsproto handled: each takes as long as a dozen others."""
        self.missing = 0
        """Bytes that are still to come of the binary message that began."""
        self._max = max_message
        self._max_tiny = max_tiny
        self._rest = b""  # a header that is not complete
        self._gathering = Gathering()  # a message that is not complete
        self._key = b""  # the mask of the next byte of it
        self._judge: Connection | None = None  # made for the first frame that is unusual
        self._foreign = 0  # bytes to come of a frame that wsproto handles
        self._told = 0  # bytes of an incomplete header that wsproto was given already
        self._fast = True  # whether a message may begin here and is delivered
        self._unfinished = False  # whether a message in fragments is on its way
        self._fragments = bytearray()  # the received part of it
        self._size = 0  # the size of that part, kept or not
        self._count = self._tiny = 0  # frames of it, and those that hold next to nothing and are not the last

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a message was received and its rest was not."""
        return self._unfinished or self.missing > 0 or self._foreign > 0 or len(self._rest) > 0

    @property
    def is_over(self) -> bool:
        """Return whether both sides sent a close frame, so that no byte comes any more."""
        return self._judge is not None and self._judge.state is ConnectionState.CLOSED

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the binary messages that this chunk completes. Then see ``replies``, ``refusal`` and ``closed``."""
        ready: list[bytes] = []
        offset = self.judged = 0
        if self.missing:
            offset = self.missing
            if len(chunk) < offset:
                self._gather(chunk)
                return ready
            ready.append(self._gathering.complete(self._unmasked(chunk[:offset])))
            self.missing = 0
        elif self._foreign:
            offset = self._pass_on(chunk, 0, ready)
        elif self._rest:
            chunk, self._rest = self._rest + chunk, b""
        mark, key_size = (0, 0) if self.client else (MASKED, KEY)
        largest, size, from_bytes = self._max, len(chunk), int.from_bytes
        while self.closed is None and (start := offset + 2) <= size:
            length = chunk[offset + 1] - mark
            fast = chunk[offset] == BINARY and 0 <= length <= IN_EIGHT and self._fast
            if fast and length >= IN_TWO:
                start, shortest = (offset + 4, IN_TWO) if length == IN_TWO else (offset + 10, 0x10000)
                if start > size:
                    break
                length = from_bytes(chunk[offset + 2 : start], "big")
                fast = length >= shortest
            if not fast or length > largest:
                offset = self._judged(chunk, offset, ready)
                if self._told:
                    break
                continue
            body = start + key_size
            if body > size:
                break
            offset = body + length
            if offset > size:
                self.missing, self._key = length, chunk[start:body]
                self._gather(chunk[body:])
                return ready
            data = chunk[body:offset]
            ready.append(masked(data, chunk[start:body]) if key_size else data)
        self._rest = chunk[offset:] if self.closed is None else b""
        return ready

    def allow(self, more: int) -> None:
        """Raise the size limit of messages by so many bytes."""
        self._max += more

    def goodbye(self, code: int) -> bytes:
        """Return the close frame; empty if one was sent before, or the peer is gone."""
        judge = self._wsproto()
        if self.closed is not None or judge.state is not ConnectionState.OPEN:
            return b""
        return bytes(judge.send(CloseConnection(code)))

    def end(self) -> None:
        """Note that nothing more comes, however the stream ended."""
        if self.closed is None:
            self.closed = CloseConnection(ABNORMAL_CLOSURE)

    def _gather(self, chunk: bytes) -> None:
        """Keep a chunk that does not complete the message it belongs to."""
        self.missing -= len(chunk)
        self._gathering.add(self._unmasked(chunk), self.missing)

    def _unmasked(self, piece: bytes) -> bytes:
        """Return the next piece of a message unmasked; the next piece goes on with the mask where this one ends."""
        key, turn = self._key, len(piece) % KEY
        if not key:
            return piece
        self._key = key[turn:] + key[:turn]
        return masked(piece, key)

    def _judged(self, chunk: bytes, offset: int, ready: list[bytes]) -> int:
        """Give wsproto the frame that begins here, or the part that is here. Return where it ends."""
        self.judged += 1
        told, self._told = self._told, 0
        header, length = measure(chunk, offset)
        if not header:
            # wsproto may reject it from its first bytes already.
            self._hear(chunk[offset + told :], ready)
            self._told, self._fast = len(chunk) - offset, False
            return offset
        self._foreign = header + length - told
        if chunk[offset] & CONTROL:
            return self._pass_on(chunk, offset + told, ready)
        # wsproto finds other faults of a header, and reports them first.
        body = offset + header
        self._hear(chunk[offset + told : body], ready)
        self._foreign = length
        if self.closed is None and (too_much := self._count_frame(chunk[offset], length)) is not None:
            self._close(too_much)
        return body if self.closed is not None else self._pass_on(chunk, body, ready)

    def _count_frame(self, first: int, length: int) -> CloseConnection | None:
        """Count a frame of a message, before its body is read. Return the reason to refuse it, or ``None``.

        ``first`` is the frame's first byte, ``length`` that of its body.
        """
        if self._size + length > self._max:
            return CloseConnection(TOO_BIG, f"message of more than {self._max} bytes")
        self._count += 1
        self._tiny += length < TINY and not first & FINAL
        if self._tiny > self._max_tiny:
            reason = f"message of more than {self._max_tiny} frames below {TINY} bytes"
            return CloseConnection(POLICY_VIOLATION, reason)
        if self._count > MOST_FRAMES:
            return CloseConnection(POLICY_VIOLATION, f"message of more than {MOST_FRAMES} frames")
        return None

    def _pass_on(self, chunk: bytes, offset: int, ready: list[bytes]) -> int:
        """Give wsproto the part of its frame that is here. Return where that ends."""
        part = chunk[offset : offset + self._foreign]
        self._foreign -= len(part)
        self._hear(part, ready)
        return offset + len(part)

    def _hear(self, data: bytes, ready: list[bytes]) -> None:
        """Give these bytes to wsproto, and handle its events."""
        judge = self._wsproto()
        judge.receive_data(data)
        for event in judge.events():
            if isinstance(event, BytesMessage | TextMessage):
                self._take(event, ready)
            elif isinstance(event, Ping):
                if judge.state is ConnectionState.OPEN:
                    self.replies.append(bytes(judge.send(event.response())))
            elif isinstance(event, CloseConnection):
                self._close(event)
            if self.closed is not None:
                return
        self._fast = not self._unfinished and self.refusal is None

    def _take(self, part: BytesMessage | TextMessage, ready: list[bytes]) -> None:
        """Take a message, or a part of it. Of a text message only the size is kept."""
        self._size += len(part.data)
        if isinstance(part, BytesMessage) and self.refusal is None:
            self._fragments += part.data
        self._unfinished = not part.message_finished
        if self._unfinished:
            return
        if self.refusal is None:
            if isinstance(part, TextMessage):
                self.refusal = text_refused(self._size)
            else:
                ready.append(bytes(self._fragments))
        self._fragments, self._size, self._count, self._tiny = bytearray(), 0, 0, 0

    def _close(self, event: CloseConnection) -> None:
        """Stop reading. The peer gets an answer, or the reason of its fault, unless a close frame was sent before."""
        judge = self._wsproto()
        self.closed = event
        if judge.state is ConnectionState.OPEN:
            self.fault = RemoteProtocolError(f"WebSocket: {readable(event.reason or '')} ({int(event.code)})")
        self._foreign = 0
        if judge.state in {ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING}:
            self.replies.append(bytes(judge.send(event.response())))

    def _wsproto(self) -> Connection:
        if self._judge is None:
            self._judge = Connection(ConnectionType.CLIENT if self.client else ConnectionType.SERVER)
        return self._judge


def join(frames: Sequence[EncodedFrame], keys: bytes = b"") -> bytes:
    """Return the bytes of all frames, a binary message each. A client masks each with four random bytes of ``keys``."""
    parts: list[bytes | memoryview] = []
    headers, mark = (MASKED_HEADERS, MASKED) if keys else (PLAIN_HEADERS, 0)
    turn = 0
    for frame in frames:
        length = len(frame) if isinstance(frame, bytes) else sum(map(len, frame))
        if length < IN_TWO:
            parts.append(headers[length])
        elif length < 0x10000:
            parts.append(bytes((BINARY, mark | IN_TWO)) + length.to_bytes(2, "big"))
        else:
            parts.append(bytes((BINARY, mark | IN_EIGHT)) + length.to_bytes(8, "big"))
        if keys:
            key = keys[turn : turn + KEY]
            turn += KEY
            parts += (key, masked(whole(frame), key))
        elif isinstance(frame, bytes):
            parts.append(frame)
        else:
            parts += frame
    return b"".join(parts)


def masked(data: bytes, key: bytes) -> bytes:
    """Return data with the mask applied, or removed."""
    size = len(data)
    if size < BY_STRIDES:
        words = (size + 3) >> 2
        number = int.from_bytes(data, "little") ^ int.from_bytes(key * words, "little")
        return number.to_bytes(words << 2, "little")[:size]
    result = bytearray(size)
    for turn in range(KEY):
        result[turn::KEY] = data[turn::KEY].translate(XORED[key[turn]])
    return bytes(result)


def measure(chunk: bytes, offset: int) -> tuple[int, int]:
    """Return the sizes of header and payload of the frame that begins here; zeros if its header is not whole."""
    short = chunk[offset + 1] & (MASKED - 1)
    counted = {IN_TWO: 2, IN_EIGHT: 8}.get(short, 0)
    start = offset + 2 + counted
    header = 2 + counted + (KEY if chunk[offset + 1] & MASKED else 0)
    if offset + header > len(chunk):
        return 0, 0
    return header, int.from_bytes(chunk[offset + 2 : start], "big") if counted else short


def text_refused(size: int) -> RemoteProtocolError:
    """Return the error for a text message, after which no message is read."""
    return RemoteProtocolError(f"text message of {size} characters: frames are binary messages")
