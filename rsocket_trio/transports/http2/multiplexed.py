"""An HTTP/2 connection that carries many streams: its frames and windows, one reading and one writing task.

DATA and GOAWAY are handled here, every other frame goes to h2, which judges it. Nearly all bytes are in DATA frames,
which h2 copies five times and makes a hexadecimal text of; and it can't go on after a GOAWAY, which lets open streams
finish (RFC 9113, 6.8).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.settings import SettingCodes, Settings
from hpack.exceptions import HPACKError
from hyperframe.frame import DataFrame, GoAwayFrame, WindowUpdateFrame
from trio.lowlevel import ParkingLot, checkpoint

from rsocket_trio.errors import RemoteProtocolError, readable
from rsocket_trio.limits import Limits, RateBudget
from rsocket_trio.mux.framing import CROWD
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT, FIRST_READ_SIZE, MAX_READ_BYTES, say_the_end
from rsocket_trio.transports.error_text import HandshakeFailed, PeerLeft, reason
from rsocket_trio.transports.first_bytes import HEAD_SIZE, HTTP_2, PREFACE, server_protocol
from rsocket_trio.transports.http2.http2_stream import HEADER, MAX_UNWRITTEN, STREAM_WINDOW, Http2Stream, Outlet

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""The types of frames."""
HEADER_SIZE: Final = 9
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
MAX_ID: Final = 0x7FFFFFFF
"""The largest stream id, window and increment; the bit above it is reserved."""
SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
"""Bytes of the frames that have a size of their own."""
DEFAULT_WINDOW: Final = 65535
"""Bytes of both windows before anything was said about them (RFC 9113, 6.9.2)."""
CONNECTION_WINDOW: Final = 16 * STREAM_WINDOW
"""Bytes that a peer may send ahead of all readers together: 15 streams that nobody reads leave room for the others."""
MAX_CLOSED_STREAMS: Final = 1024
"""Streams that h2 remembers after they closed, for frames that cross."""
MAX_FRAME: Final = 131072
"""Bytes of the largest frame that a peer may send."""
KEPT_SETTINGS: Final = frozenset({1, 2, 3, 4, 5, 6, 8})
"""Settings that h2 may keep. It would keep all others, and a peer may name 65,536 (RFC 9113, 6.5.2)."""
MAX_TABLE_SIZE: Final = 4096
"""Bytes of the table of headers that this side compresses with, whatever more the peer allows."""
MAX_HEAD: Final = 65536
"""Bytes of a header block with its CONTINUATION frames; also of the fields that it expands to."""
MAX_CONTINUATIONS: Final = 32
JUDGED: Final = 12
"""DATA frames that take as long as one that h2 handles."""
BEGUN: Final = 64
"""DATA frames that take as long as a stream that begins."""
EMPTY_FRAMES: Final = 2_000
"""Frames without content that may come in a burst: PING, SETTINGS, PRIORITY, empty DATA, and others."""
EMPTY_RATE: Final = 200.0
"""The number of those that become free again in a second."""
SMALL_WINDOW: Final = 1024
"""Bytes below which a window that was opened is next to nothing, and the frame that opened it without content."""
SETTINGS_FRAMES: Final = 100
"""SETTINGS frames that may come in a burst: h2 keeps a note of some until the next header block."""
SETTINGS_RATE: Final = 1.0
"""The number of those that become free again in a second."""
FAREWELL: Final = 1.0
"""Seconds that the end of a connection may take, to tell a peer of its fault."""
LAST_WRITE: Final = 0.2
"""Seconds that a goodbye without a fault may take."""

Headers: TypeAlias = list[tuple[str, str]]
"""Names in lower case, and values; the pseudo-header fields first."""

if logging.getLogger("hpack").level == logging.NOTSET:
    # It logs every header at DEBUG, credentials as well.
    logging.getLogger("hpack").setLevel(logging.INFO)


class PeerFault(Exception):
    """The peer broke a rule of HTTP/2, or sent too much: the connection ends with GOAWAY and this code."""

    def __init__(self, text: str, code: ErrorCodes = ErrorCodes.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


class Allowance(RateBudget):
    """The number of times that a peer may do something: a burst, refilled at a rate per second."""

    def spend(self, now: float) -> None:
        """Count one more. Raise ``PeerFault`` if none is left."""
        try:
            super().spend(now)
        except RemoteProtocolError as error:
            raise PeerFault(str(error), ErrorCodes.ENHANCE_YOUR_CALM) from None

    def refund(self) -> None:
        """Give one back."""
        self._tokens = min(self._burst, self._tokens + 1)


class SmallH2(H2Connection):
    """h2 with a shorter memory of closed streams."""

    MAX_CLOSED_STREAMS = MAX_CLOSED_STREAMS


def begun_h2(*, client: bool, streams: int) -> H2Connection:
    """Return h2 with this side's settings, which it is about to send. A server allows so many ``streams``."""
    h2 = SmallH2(H2Configuration(client_side=client, header_encoding="latin-1"))
    values = {
        SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
        SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD,
    }
    if client:
        values[SettingCodes.ENABLE_PUSH] = 0
    announced = values if client else {**values, SettingCodes.MAX_CONCURRENT_STREAMS: streams}
    h2.local_settings = Settings(client=client, initial_values=announced)
    h2.max_inbound_frame_size = MAX_FRAME
    h2.initiate_connection()
    if not client:
        h2.receive_data(PREFACE)  # that of the client is taken here
    h2.increment_flow_control_window(CONNECTION_WINDOW - DEFAULT_WINDOW)
    # A stream too many would end the connection. It is refused by itself: the peer may not know of the limit yet.
    h2.local_settings = Settings(client=client, initial_values=values)
    return h2


class Multiplexed:
    """One HTTP/2 connection over a stream. ``running`` runs its tasks.

    ``on_head(stream_id, headers)`` is called for each request that a client begins, and for each final answer of a
    server.
    """

    def __init__(
        self, stream: trio.abc.Stream, limits: Limits, on_head: Callable[[int, Headers], None], *, client: bool
    ) -> None:
        self.streams: dict[int, Http2Stream] = {}
        self.failure = ""  # the reason why the connection is over
        self.leaving = ""  # the peer's GOAWAY as text: it opens and accepts no more streams
        self.has_begun = False
        self.first = b""  # the beginning of what was read until then
        self.watcher = ParkingLot()
        """Woken when the peer's SETTINGS came, when a stream is over, and at the end of the connection."""
        self.carried = 0
        """Streams that were added and not closed by this side: those that the peer reset are among them."""
        self.idle_since = trio.current_time()  # when the last of them was closed, or the connection began
        self.answered_pings = 0
        self.empty_frames = Allowance(EMPTY_FRAMES, EMPTY_RATE, "frames without content")
        self._settings_frames = Allowance(SETTINGS_FRAMES, SETTINGS_RATE, "SETTINGS frames")
        self._short_streams = Allowance(limits.cancels, limits.cancel_rate, "streams reset, refused or without content")
        self._client = client
        self._on_head = on_head
        self.stream = stream
        self._preface = b"" if client else PREFACE  # what is to come of the client's
        self._is_first = True  # whether no frame has come
        self._rest = bytearray()  # a frame that is not complete, or frames behind a portion
        self._needed = 0  # bytes that this has to have until there is something to handle
        self._body: Http2Stream | None = None  # the stream of a DATA frame that is not complete
        self._missing = 0  # bytes of it that are to come
        self._body_ends = False  # whether it ends its stream
        self._block = 0  # bytes of the header block that is not complete
        self._continuations = 0  # frames of it behind the first
        self._receive_window = CONNECTION_WINDOW
        self._unopened = 0
        self._read_size = FIRST_READ_SIZE
        # Shielded: what streams say last goes out, and the answer is read, while everything around is cancelled.
        self._tasks = trio.CancelScope(shield=True), trio.CancelScope(shield=True)
        self._reading = trio.CancelScope()
        self._fault: PeerFault | None = None
        self._said_goodbye = False
        self._is_over = trio.Event()
        self.h2 = begun_h2(client=client, streams=limits.shared_connections)
        self.outlet = Outlet(stream, self.h2, self._on_flood)

    # Both tasks

    async def read(self) -> None:
        """Read to the end of the connection. A peer that broke the rules is told so."""
        with self._tasks[0]:
            try:
                with self._reading:
                    self.flush()
                    await self._read_all()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self.lose(f"the HTTP/2 connection broke: {reason(error)}")
            except PeerFault as fault:
                self.stop(fault)
            if self._fault is not None:
                await self._turn_away(self._fault)
        self.lose("the HTTP/2 connection was closed")
        self._is_over.set()

    async def _read_all(self) -> None:
        while chunk := bytes(await self.stream.receive_some(self._read_size)):
            if len(chunk) >= self._read_size:
                self._read_size = min(2 * self._read_size, MAX_READ_BYTES)
            # Frames that cost much come in portions, and other tasks run in between.
            while self._feed(chunk):
                chunk = b""
                await checkpoint()
        self.lose("the peer closed the HTTP/2 connection")

    def _feed(self, chunk: bytes) -> bool:
        """Handle the frames of a chunk, then write what is due. Return whether frames are left."""
        if not self.has_begun:
            self.first = (self.first + chunk)[:HEAD_SIZE]
            if self._client and server_protocol(self.first) not in {"", HTTP_2}:
                # It may be less than a header of HTTP/2, and all that comes. No farewell would be understood.
                raise trio.BrokenResourceError("the server speaks another protocol")
        try:
            return self._cut(chunk)
        except ProtocolError as error:
            self.h2.clear_outbound_data_buffer()  # its GOAWAY, which names no reason
            code = error.error_code
            if isinstance(error.__cause__, HPACKError) and not isinstance(error, DenialOfServiceError):
                code = ErrorCodes.COMPRESSION_ERROR
            raise PeerFault(readable(str(error)), code) from error
        finally:
            if not self.failure:
                self.flush()

    async def _turn_away(self, fault: PeerFault) -> None:
        """Send GOAWAY with the reason, then discard what comes, so that it arrives."""
        with trio.move_on_after(FAREWELL):
            try:
                self.outlet.put(self._goaway(fault.code, str(fault)))
                await self.outlet.wait_written()
                await say_the_end(self.stream, DISCARD_LIMIT)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def write(self) -> None:
        """Write what could not be written at once."""
        with self._tasks[1]:
            await self.outlet.write()

    async def leave(self) -> None:
        """Say goodbye, write what is due, and end both tasks."""
        try:
            with trio.CancelScope(shield=True) as scope:
                if self.failure:
                    scope.deadline = trio.current_time() + FAREWELL
                    await self._is_over.wait()
                else:
                    # A peer with something to lose has ended its streams. One that takes no bytes is not waited for.
                    scope.deadline = trio.current_time() + LAST_WRITE
                    self.say_goaway()
                    await self.outlet.wait_written()
        finally:
            for task in self._tasks:
                task.cancel()

    def stop(self, fault: PeerFault) -> None:
        """End the connection for a fault of the peer's. The reading task tells it."""
        if not self.failure:
            self._fault = fault
            self.lose(f"HTTP/2: {fault}")
            self._reading.cancel()

    async def wait_begun(self) -> None:
        """Wait for the peer's SETTINGS. Raise ``HandshakeFailed``."""
        while not self.has_begun and not self.failure:
            await self.watcher.park()
        if self.failure:
            raise self.handshake_failed(self.failure)

    def handshake_failed(self, text: str) -> HandshakeFailed:
        """Return the error of a handshake that ended for this reason: the peer left, or broke the rules."""
        return PeerLeft(text) if self._fault is None else HandshakeFailed(text)

    def lose(self, text: str) -> None:
        """Note that the connection is over, unless it was before."""
        if self.failure:
            return
        self.failure = text
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.fail(text)
        self.watcher.unpark_all()

    # Output

    def flush(self) -> None:
        """Write the frames that h2 made."""
        if data := self.h2.data_to_send():
            self.outlet.put(data)

    def _on_flood(self, size: int) -> None:
        text = f"{size} bytes of answers wait for a peer that does not read, limit {MAX_UNWRITTEN}"
        self.stop(PeerFault(text, ErrorCodes.ENHANCE_YOUR_CALM))

    def _goaway(self, code: int, text: str = "", last: int | None = None) -> bytes:
        if last is None:
            last = 0 if self._client else self.h2.highest_inbound_stream_id
        explanation = text.encode("utf-8", "replace")[:256]
        return GoAwayFrame(0, last_stream_id=last, error_code=code, additional_data=explanation).serialize()

    def say_goaway(self, *, crossing: bool = False) -> None:
        """Announce that no more streams are opened or accepted. Those that are open go on.

        Those that are ``crossing`` are still accepted (RFC 9113, 6.8): the GOAWAY has the highest id, and once the peer
        must have heard of it, another one follows.
        """
        if not (self.failure or self._said_goodbye):
            self._said_goodbye = not crossing
            self.flush()  # SETTINGS come first, always
            self.outlet.put(self._goaway(ErrorCodes.NO_ERROR, last=MAX_ID if crossing else None))

    def ping(self) -> None:
        """Ask the peer for a frame."""
        if not self.failure:
            self.h2.ping(bytes(8))
            self.flush()

    # Streams

    def add(self, stream: Http2Stream) -> None:
        """Begin to move a stream's data."""
        self.carried += 1
        self.streams[stream.stream_id] = stream

    def send_headers(self, stream_id: int, headers: Iterable[tuple[str, str]], *, end_stream: bool = False) -> None:
        """Send a request or an answer. Raise h2's ``ProtocolError`` for headers that are not valid."""
        self.h2.send_headers(stream_id, list(headers), end_stream=end_stream)
        self.flush()

    def end(self, stream: Http2Stream) -> None:
        """Send the end of a stream, behind all its data. The peer's direction goes on."""
        if not (stream.said_the_end or stream.is_closed or stream.failure):
            stream.said_the_end = True
            self.h2.end_stream(stream.stream_id)
            self.flush()

    def close(self, stream: Http2Stream) -> None:
        """Close a stream: reset it unless it is over in both directions."""
        if stream.is_closed:
            return
        stream.is_closed = True
        self.carried -= 1
        self.idle_since = trio.current_time()
        stream.drop()
        if self.streams.pop(stream.stream_id, None) is not None:
            if not (stream.has_ended and stream.said_the_end):
                # RFC 9113, 8.1: an answer that is complete makes the rest of the request needless.
                self.reset(stream.stream_id, ErrorCodes.NO_ERROR if stream.said_the_end else ErrorCodes.CANCEL)
            if not stream.has_data and not self._client:
                try:
                    self._short_streams.spend(trio.current_time())
                except PeerFault as fault:
                    # This is not the reading task, which raises it.
                    self.stop(fault)
        stream.wake()
        self.outlet.forget(stream)
        self.watcher.unpark_all()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Reset a stream."""
        if not self.failure:
            self.h2.reset_stream(stream_id, code)
            self.flush()

    def drop(self, stream: Http2Stream, text: str, code: ErrorCodes) -> None:
        """Reset a stream unless it is over, and have what uses it fail with ``text``."""
        self.streams.pop(stream.stream_id, None)
        if not self._is_closed(stream.stream_id):
            self.reset(stream.stream_id, code)
        stream.fail(text)

    def _is_closed(self, stream_id: int) -> bool:
        """Return whether a stream is over in both directions, or was reset."""
        stream = self.h2.streams.get(stream_id)
        return stream is None or stream.closed

    def open_windows(self, stream: Http2Stream, size: int) -> None:
        """Have the peer send on, by so many bytes: in few frames, each for half of a window."""
        if self.failure or not size:
            return
        if stream.has_length:
            self.h2.acknowledge_received_data(size, stream.stream_id)
            self.flush()
            return
        stream.unopened += size
        self._unopened += size
        if stream.unopened >= STREAM_WINDOW // 2 and not (stream.has_ended or stream.is_closed or stream.failure):
            self.outlet.put(WindowUpdateFrame(stream.stream_id, window_increment=stream.unopened).serialize())
            stream.receive_window += stream.unopened
            stream.unopened = 0
        if self._unopened >= CONNECTION_WINDOW // 4:
            self.outlet.put(WindowUpdateFrame(0, window_increment=self._unopened).serialize())
            self._receive_window += self._unopened
            self._unopened = 0

    def refuse(self, stream_id: int, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Answer a request with these headers and nothing else; with none, so that the client may try it elsewhere."""
        if headers:
            self.send_headers(stream_id, headers, end_stream=True)
        if not self._is_closed(stream_id):
            # RFC 9113, 8.1: the rest of the request is not needed.
            self.reset(stream_id, ErrorCodes.NO_ERROR if headers else ErrorCodes.REFUSED_STREAM)
        self._short_streams.spend(trio.current_time())

    # Frames of the peer

    def _cut(self, chunk: bytes) -> bool:
        """Handle whole frames. Return whether some are left. Raise ``PeerFault`` and h2's ``ProtocolError``."""
        if self._rest:
            self._rest += chunk
            if len(self._rest) < self._needed:
                return False
            chunk = bytes(self._rest)
        offset = self._take_preface(chunk) if self._preface else 0
        if self._body is not None:
            offset = self._take_content(self._body, chunk, offset)
        size, cost, self._needed = len(chunk), 0, 0
        while cost < CROWD and (start := offset + HEADER_SIZE) <= size:
            high, low, kind, flags, stream_id = HEADER.unpack_from(chunk, offset)
            length, stream_id = high << 8 | low, stream_id & MAX_ID
            end = start + length
            # RFC 9113, 3.4: both prefaces have a SETTINGS frame, which comes first.
            if self._is_first and (kind != SETTINGS or flags & ACK or length > MAX_FRAME):
                raise PeerFault(f"the first frame is no SETTINGS: {chunk[offset : offset + 32].hex()}")
            if length > MAX_FRAME:
                raise PeerFault(f"frame of {length} bytes, limit {MAX_FRAME}", ErrorCodes.FRAME_SIZE_ERROR)
            stream = self.streams.get(stream_id) if kind == DATA and not self._block else None
            if stream is not None and (stream.has_ended or stream.has_length):
                stream = None
            if end > size and (stream is None or flags & PADDED):
                self._needed = end - offset
                break
            self._is_first = False
            if stream is not None:
                cost += 1
                padding = self._count_data(stream, chunk, start, length, flags)
                offset = self._take_content(stream, chunk, start + bool(padding)) + max(padding - 1, 0)
            else:
                cost += BEGUN if kind == HEADERS else JUDGED
                self._handle(chunk[offset:end], kind, flags, stream_id)
                offset = end
        self._rest = bytearray(chunk[offset:])
        return cost >= CROWD

    def _take_preface(self, chunk: bytes) -> int:
        """Take the client's preface, or as much as is here. Return where it ends."""
        came = chunk[: len(self._preface)]
        if not self._preface.startswith(came):
            raise PeerFault(f"{readable((PREFACE[: -len(self._preface)] + came)[:32])!r} is no preface of HTTP/2")
        self._preface = self._preface[len(came) :]
        return len(came)

    def _count_data(self, stream: Http2Stream, chunk: bytes, start: int, size: int, flags: int) -> int:
        """Count a DATA frame of ``size`` bytes against the windows. Its content comes next. Return the padding."""
        stream.receive_window -= size
        self._receive_window -= size
        if stream.receive_window < 0 or self._receive_window < 0:
            raise PeerFault(f"DATA of {size} bytes exceeds a window", ErrorCodes.FLOW_CONTROL_ERROR)
        padding = 1 + (chunk[start] if size else 0) if flags & PADDED else 0
        if padding > size:
            raise PeerFault("a DATA frame is padded beyond its end")
        self._body, self._missing, self._body_ends = stream, size - padding, bool(flags & END_STREAM)
        if not (self._missing or self._body_ends):
            self.empty_frames.spend(trio.current_time())
        self.open_windows(stream, padding)
        return padding

    def _take_content(self, stream: Http2Stream, chunk: bytes, offset: int) -> int:
        """Hand the next part of a DATA frame to its stream. Return where it ends."""
        piece = chunk[offset : offset + self._missing]
        self._missing -= len(piece)
        if piece:
            stream.deliver(piece)
        if not self._missing:
            self._body = None
            if self._body_ends:
                # h2 learns of the end alone.
                self._judge(DataFrame(stream.stream_id, flags=["END_STREAM"]).serialize())
        return offset + len(piece)

    def _handle(self, frame: bytes, kind: int, flags: int, stream_id: int) -> None:
        """Count a frame that carries nothing, and handle it here or have h2 judge it."""
        length = len(frame) - HEADER_SIZE
        if length != SIZES.get(kind, length) or (kind == SETTINGS and (length % 6 or (flags & ACK and length))):
            raise PeerFault(f"frame of type {kind} of {length} bytes", ErrorCodes.FRAME_SIZE_ERROR)
        if self._block or kind in {HEADERS, PUSH_PROMISE, CONTINUATION}:
            self._count_block(length, kind, flags)
        elif kind == WINDOW_UPDATE:
            self._judge(frame)
            self._count_window(stream_id)
            return
        elif kind == GOAWAY and length >= 8 and not stream_id:
            self.empty_frames.spend(trio.current_time())
            self._leave(frame)
            return
        elif kind != DATA or length <= (1 + frame[HEADER_SIZE] if flags & PADDED and length else 0):
            self.empty_frames.spend(trio.current_time())
            if kind == RST_STREAM:
                self._check_begun(stream_id)
            elif kind == SETTINGS:
                self._settings_frames.spend(trio.current_time())
        self._judge(frame)

    def _count_block(self, length: int, kind: int, flags: int) -> None:
        """Count a frame of a header block. Raise ``PeerFault`` if the block is too long, or in too many frames."""
        if kind != CONTINUATION:
            self._block = self._continuations = 0
            # The stream's first byte gives it back.
            self.empty_frames.spend(trio.current_time())
        self._block += length + 1  # an empty one counts as well
        self._continuations += kind == CONTINUATION
        if self._block > MAX_HEAD or self._continuations > MAX_CONTINUATIONS:
            raise PeerFault(
                f"header block of {self._block} bytes in {self._continuations} CONTINUATION frames, "
                f"limits {MAX_HEAD} and {MAX_CONTINUATIONS}",
                ErrorCodes.ENHANCE_YOUR_CALM,
            )
        if flags & END_HEADERS:
            self._block = 0

    def _count_window(self, stream_id: int) -> None:
        """Count a WINDOW_UPDATE that opened no window, or one that leaves room for a DATA frame of a few bytes."""
        stream = self.streams.get(stream_id)
        counted = stream.counted if stream else None if stream_id else self.h2
        if counted is None or counted.outbound_flow_control_window < SMALL_WINDOW:
            # One that opens a window further costs less than DATA.
            self.empty_frames.spend(trio.current_time())

    def _check_begun(self, stream_id: int) -> None:
        """Raise ``PeerFault`` for a stream that was never opened, of which h2 would think nothing (RFC 9113, 6.4)."""
        h2 = self.h2
        is_ours = stream_id % 2 == self._client
        if stream_id > (h2.highest_outbound_stream_id if is_ours else h2.highest_inbound_stream_id):
            raise PeerFault(f"RST_STREAM for stream {stream_id}, which was never opened")

    def _leave(self, frame: bytes) -> None:
        """Note that the peer takes no more streams, and did not look at those above the last that it names."""
        last, code = (int.from_bytes(frame[at : at + 4], "big") for at in (HEADER_SIZE, HEADER_SIZE + 4))
        text = readable(frame[HEADER_SIZE + 8 :])
        self.leaving = f"the peer is going away ({name_of(code)}{': ' if text else ''}{text})"
        if self._client:
            for stream_id, stream in list(self.streams.items()):
                if stream_id > last & MAX_ID:
                    del self.streams[stream_id]
                    stream.fail(self.leaving)
        self.watcher.unpark_all()

    def _judge(self, frame: bytes) -> None:
        """Have h2 judge a frame, and handle its events. Raise ``PeerFault`` and h2's ``ProtocolError``."""
        if self.failure:
            return  # it was given up while a chunk was handled
        for event in self.h2.receive_data(frame):
            stream_id = getattr(event, "stream_id", None) or 0
            stream = self.streams.get(stream_id)
            if isinstance(event, events.RequestReceived | events.ResponseReceived):
                if isinstance(event, events.RequestReceived) and self._client:
                    raise PeerFault("the server sent a request")
                self._on_head(stream_id, [(str(name), str(text)) for name, text in event.headers or ()])
            elif isinstance(event, events.StreamReset):
                self._reset(event)
            elif isinstance(event, events.DataReceived):
                # Its length was announced, or it is nobody's.
                size = event.flow_controlled_length or 0
                if stream is not None and event.data:
                    stream.deliver(event.data)
                    size -= len(event.data)
                if size:
                    self.h2.acknowledge_received_data(size, stream_id)
            elif isinstance(event, events.StreamEnded) and stream is not None:
                stream.has_ended = True
                stream.reader.unpark_all()
            elif isinstance(event, events.WindowUpdated):
                self.outlet.on_window(stream)
            elif isinstance(event, events.RemoteSettingsChanged):
                self.has_begun = True
                for setting in event.changed_settings.keys() - KEPT_SETTINGS:
                    del self.h2.remote_settings[setting]
                if self.h2.encoder.header_table_size > MAX_TABLE_SIZE:
                    self.h2.encoder.header_table_size = MAX_TABLE_SIZE
                for stream in self.streams.values():
                    self.outlet.on_window(stream)
                self.watcher.unpark_all()
            elif isinstance(event, events.PingAckReceived):
                self.answered_pings += 1
                self.watcher.unpark_all()
            # The others ask for nothing: h2 answers pings itself, and what it ignores is counted already.

    def _reset(self, event: events.StreamReset) -> None:
        self._short_streams.spend(trio.current_time())
        stream = self.streams.pop(event.stream_id or 0, None)
        if stream is not None:
            who = "the peer" if event.remote_reset else "this side"
            stream.fail(f"{who} reset the HTTP/2 stream: {name_of(event.error_code or 0)}")


@asynccontextmanager
async def running(connection: Multiplexed) -> AsyncIterator[None]:
    """Run the tasks of a connection for as long as the block."""
    async with nursery_beside(lambda nursery: nursery.start_soon(connection.leave)) as nursery:
        nursery.start_soon(connection.read)
        nursery.start_soon(connection.write)
        yield


def name_of(code: ErrorCodes | int) -> str:
    """Return the name of an error code (RFC 9113, 7), or its number."""
    return next((known.name for known in ErrorCodes if known == code), f"0x{code:X}")
