"""An HTTP/2 connection that carries many streams: both windows of each direction, one reading and one writing task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.settings import SettingCodes
from hpack.exceptions import HPACKError
from trio.lowlevel import checkpoint, wait_readable

from rsocket_trio.errors import readable
from rsocket_trio.limits import Limits
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT, FIRST_READ_SIZE, LARGEST_READ, has_unread, say_the_end
from rsocket_trio.transports.error_text import HandshakeFailed, PeerLeft, reason
from rsocket_trio.transports.first_bytes import HEAD_SIZE, HTTP_2, server_protocol
from rsocket_trio.transports.http2.frame_intake import (
    DATA,
    END_STREAM,
    GOAWAY,
    WINDOW_UPDATE,
    FrameIntake,
    PeerFault,
    frame_of,
    short_streams,
)
from rsocket_trio.transports.http2.h2_setup import CONNECTION_WINDOW, Headers, as_text, begun_h2, name_of
from rsocket_trio.transports.http2.lanes import STREAM_WINDOW, UNWRITTEN, Lane, Outlet, Waiter
from rsocket_trio.transports.socket_stream import SocketStream

LARGEST_WINDOW: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1
FAREWELL: Final = 1.0
"""Seconds that the end of a connection may take, to tell a peer of its fault."""
LAST_WRITE: Final = 0.2
"""Seconds that a goodbye without a fault may take."""


class Multiplexed:
    """One HTTP/2 connection over a stream. ``running`` runs its tasks.

    ``on_head(stream_id, headers)`` is called for each request that a client begins, and for each final answer of a
    server. ``streams`` is the number of streams that the peer may have open.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        limits: Limits,
        on_head: Callable[[int, Headers], None],
        *,
        client: bool,
        streams: int = 0,
    ) -> None:
        self.lanes: dict[int, Lane] = {}
        self.failure = ""
        """The reason why the connection is over; empty until then."""
        self.leaving = ""
        """The peer's GOAWAY as text: it opens and accepts no more streams. Empty until it comes."""
        self.has_begun = False
        self.first = b""
        """The beginning of what was read until then."""
        self.watcher = Waiter()
        """Woken when the peer's SETTINGS came, when a stream is over, and at the end of the connection."""
        self.is_alone = False
        """True if the connection is to end with its first stream."""
        self.carried = 0
        """Streams that were added and not closed by this side: those that the peer reset are among them."""
        self.idle_since = trio.current_time()
        """When the last of them was closed; before the first, when the connection began."""
        self.answered_pings = 0
        self._short = short_streams(limits)
        self._client = client
        self._on_head = on_head
        self._stream = stream
        self._socket = stream if isinstance(stream, SocketStream) else None
        self._intake = FrameIntake(self, trio.current_time, server=not client)
        self.outlet = Outlet(stream, self._intake.empty, self._on_flood)
        self._receive_window = CONNECTION_WINDOW
        self._unopened = 0
        self._read_size = FIRST_READ_SIZE
        # Shielded: what streams say last goes out, and the answer is read, while everything around is cancelled.
        self._tasks = trio.CancelScope(shield=True), trio.CancelScope(shield=True)
        self._reading = trio.CancelScope()
        self._fault: PeerFault | None = None
        self._said_goodbye = False
        self._is_over = trio.Event()
        self.h2 = begun_h2(client=client, streams=streams)

    @property
    def initial_window(self) -> int:
        """Bytes that may be sent on a new stream."""
        return self.h2.remote_settings.initial_window_size

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not read, as far as that can be told."""
        return has_unread(self._stream)

    @property
    def largest_frame(self) -> int:
        """Bytes of the largest frame that the peer takes."""
        return self.h2.max_outbound_frame_size

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
            elif self.is_alone:
                await self._close()
        self.lose("the HTTP/2 connection was closed")
        self._is_over.set()

    async def _read_all(self) -> None:
        while chunk := await self._read_some():
            if len(chunk) >= self._read_size:
                self._read_size = min(2 * self._read_size, LARGEST_READ)
            # Frames that cost much come in portions, and other tasks run in between.
            while self._feed(chunk):
                chunk = b""
                await checkpoint()
        self.lose("the peer closed the HTTP/2 connection")

    async def _read_some(self) -> bytes:
        socket = self._socket
        if socket is None:
            return bytes(await self._stream.receive_some(self._read_size))
        while True:
            socket.check_open()
            if socket.is_drained:
                await wait_readable(socket.socket)
            else:
                await checkpoint()
            chunk = socket.read(self._read_size)
            if chunk is not None:
                return chunk

    def _feed(self, chunk: bytes) -> bool:
        """Handle the frames of a chunk, then write what is due. Return whether frames are left."""
        if not self.has_begun:
            self.first = (self.first + chunk)[:HEAD_SIZE]
            if self._client and server_protocol(self.first) not in {"", HTTP_2}:
                # It may be less than a header of HTTP/2, and all that comes. No farewell would be understood.
                raise trio.BrokenResourceError("the server speaks another protocol")
        try:
            return self._intake.feed(chunk)
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
                await say_the_end(self._stream, DISCARD_LIMIT)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _close(self) -> None:
        """Close the connection as soon as its one stream is over, which its block may outlive."""
        with trio.move_on_after(LAST_WRITE):
            self.say_goaway()
            await self.outlet.wait_written()
        await trio.aclose_forcefully(self._stream)

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
            await self.watcher.wait()
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
        lanes, self.lanes = self.lanes, {}
        for lane in lanes.values():
            lane.fail(text)
        self.watcher.wake()

    # Output

    def flush(self) -> None:
        """Write the frames that h2 made."""
        if data := self.h2.data_to_send():
            self.outlet.put(data)

    def _on_flood(self, size: int) -> None:
        text = f"{size} bytes of answers wait for a peer that does not read, limit {UNWRITTEN}"
        self.stop(PeerFault(text, ErrorCodes.ENHANCE_YOUR_CALM))

    def _goaway(self, code: int, text: str = "", last: int | None = None) -> bytes:
        if last is None:
            last = 0 if self._client else self.h2.highest_inbound_stream_id
        said = text.encode("utf-8", "replace")[:256]
        return frame_of(GOAWAY, 0, 0, last.to_bytes(4, "big") + int(code).to_bytes(4, "big") + said)

    def say_goaway(self) -> None:
        """Announce that no more streams are opened or accepted. Those that are open go on."""
        if not (self.failure or self._said_goodbye):
            self._said_goodbye = True
            self.flush()  # SETTINGS come first, always
            self.outlet.put(self._goaway(ErrorCodes.NO_ERROR))

    def announce_goaway(self) -> None:
        """Have the peer open no more streams. Those that it opens before it hears of that are still accepted.

        RFC 9113, 6.8: a GOAWAY with the highest id, and once the peer must have heard of it, ``say_goaway``.
        """
        if not (self.failure or self._said_goodbye):
            self.outlet.put(self._goaway(ErrorCodes.NO_ERROR, last=MAX_STREAM_ID))

    def ping(self) -> None:
        """Ask the peer for a frame."""
        if not self.failure:
            self.h2.ping(bytes(8))
            self.flush()

    # Streams

    def add(self, lane: Lane) -> None:
        """Begin to move a stream's data."""
        self.carried += 1
        self.lanes[lane.stream_id] = lane

    def send_headers(self, stream_id: int, headers: Iterable[tuple[str, str]], *, end_stream: bool = False) -> None:
        """Send a request or an answer. Raise h2's ``ProtocolError`` for headers that are not valid."""
        self.h2.send_headers(stream_id, list(headers), end_stream=end_stream)
        self.flush()

    def end(self, lane: Lane) -> None:
        """Send the end of a stream, behind all its data. The peer's direction goes on."""
        if not (lane.said_the_end or lane.is_closed or lane.failure):
            lane.said_the_end = True
            self.h2.end_stream(lane.stream_id)
            self.flush()

    def close(self, lane: Lane) -> None:
        """Close a stream: reset it unless it is over in both directions."""
        if lane.is_closed:
            return
        lane.is_closed = True
        self.carried -= 1
        self.idle_since = trio.current_time()
        lane.drop()
        if self.lanes.pop(lane.stream_id, None) is not None:
            if not (lane.has_ended and lane.said_the_end):
                # RFC 9113, 8.1: an answer that is complete makes the rest of the request needless.
                self.reset(lane.stream_id, ErrorCodes.NO_ERROR if lane.said_the_end else ErrorCodes.CANCEL)
            if not lane.has_data and not self._client:
                self._count_short()
        lane.wake()
        self.outlet.forget(lane)
        self.watcher.wake()
        if self.is_alone:
            self._reading.cancel()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Reset a stream."""
        if not self.failure:
            self.h2.reset_stream(stream_id, code)
            self.flush()

    def drop(self, lane: Lane, text: str, code: ErrorCodes) -> None:
        """Reset a stream unless it is over, and have what uses it fail with ``text``."""
        self.lanes.pop(lane.stream_id, None)
        if not self._is_closed(lane.stream_id):
            self.reset(lane.stream_id, code)
        lane.fail(text)

    def _is_closed(self, stream_id: int) -> bool:
        """Return whether a stream is over in both directions, or was reset."""
        stream = self.h2.streams.get(stream_id)
        return stream is None or stream.closed

    def open_windows(self, lane: Lane, size: int) -> None:
        """Have the peer send on, by so many bytes: in few frames, each for half of a window."""
        if self.failure:
            return
        if lane.has_length:
            self.h2.acknowledge_received_data(size, lane.stream_id)
            self.flush()
            return
        lane.unopened += size
        self._unopened += size
        if lane.unopened >= STREAM_WINDOW // 2 and not (lane.has_ended or lane.is_closed or lane.failure):
            self.outlet.put(frame_of(WINDOW_UPDATE, 0, lane.stream_id, lane.unopened.to_bytes(4, "big")))
            lane.receive_window += lane.unopened
            lane.unopened = 0
        if self._unopened >= CONNECTION_WINDOW // 4:
            self.outlet.put(frame_of(WINDOW_UPDATE, 0, 0, self._unopened.to_bytes(4, "big")))
            self._receive_window += self._unopened
            self._unopened = 0

    def refuse(self, stream_id: int, headers: Iterable[tuple[str, str]]) -> None:
        """Answer a request with these headers and nothing else."""
        self.send_headers(stream_id, headers, end_stream=True)
        if not self._is_closed(stream_id):
            # RFC 9113, 8.1: the rest of the request is not needed.
            self.reset(stream_id, ErrorCodes.NO_ERROR)
        self._short.spend(trio.current_time())

    def refuse_quietly(self, stream_id: int) -> None:
        """Refuse a request, so that the client may try it elsewhere."""
        self.reset(stream_id, ErrorCodes.REFUSED_STREAM)
        self._short.spend(trio.current_time())

    def _count_short(self) -> None:
        """Count a stream that carried nothing."""
        try:
            self._short.spend(trio.current_time())
        except PeerFault as fault:
            # This is not the reading task, which raises it.
            self.stop(fault)

    # Frames of the peer

    def data_begins(self, stream_id: int, size: int, flags: int) -> Lane | None:
        """Count a DATA frame against the windows. Return the stream that takes it, if one does."""
        lane = self.lanes.get(stream_id)
        if lane is None or lane.has_ended or lane.has_length:
            return None
        lane.receive_window -= size
        self._receive_window -= size
        if lane.receive_window < 0 or self._receive_window < 0:
            raise PeerFault(f"DATA of {size} bytes exceeds a window", ErrorCodes.FLOW_CONTROL_ERROR)
        return lane

    def content_begins(self) -> None:
        """Give back what the HEADERS of a stream cost: the stream carries something. Padding carries nothing."""
        self._intake.empty.refund(1)

    def data_ends(self, taker: Any) -> None:
        """Note the end of a stream, of which h2 learns by a frame without data."""
        self.judge(frame_of(DATA, END_STREAM, taker.stream_id))

    def padding_came(self, taker: Any, size: int) -> None:
        """Open the windows for bytes that carried nothing."""
        self.open_windows(taker, size)

    def window_opens(self, stream_id: int, increment: int) -> bool:
        """Note that the peer takes more. Return False if h2 is to judge that."""
        if not increment:
            return False
        if not stream_id:
            outlet = self.outlet
            outlet.window += increment
            if outlet.window > LARGEST_WINDOW:
                raise PeerFault(f"the connection's window exceeds {LARGEST_WINDOW}", ErrorCodes.FLOW_CONTROL_ERROR)
            outlet.make_room()
            return True
        lane = self.lanes.get(stream_id)
        if lane is None:
            return False
        lane.send_window += increment
        if lane.send_window > LARGEST_WINDOW:
            self._abort(lane, f"its window exceeds {LARGEST_WINDOW}", ErrorCodes.FLOW_CONTROL_ERROR)
        else:
            self.outlet.on_window(lane)
        return True

    def check_begun(self, stream_id: int) -> None:
        """Raise ``PeerFault`` for a stream that was never opened, of which h2 would think nothing (RFC 9113, 6.4)."""
        h2 = self.h2
        is_ours = stream_id % 2 == self._client
        if stream_id > (h2.highest_outbound_stream_id if is_ours else h2.highest_inbound_stream_id):
            raise PeerFault(f"RST_STREAM for stream {stream_id}, which was never opened")

    def goes_away(self, last_stream_id: int, code: int, text: str) -> None:
        """Note that the peer opens and accepts no more streams. Those above ``last_stream_id`` it did not look at."""
        self.leaving = f"the peer is going away ({name_of(code)}{': ' if text else ''}{text})"
        if self._client:
            for stream_id, lane in list(self.lanes.items()):
                if stream_id > last_stream_id:
                    del self.lanes[stream_id]
                    lane.fail(self.leaving)
        self.watcher.wake()

    def judge(self, frame: bytes) -> None:
        """Have h2 judge a frame, and handle its events. Raise ``PeerFault`` and h2's ``ProtocolError``."""
        if self.failure:
            return  # it was given up while a chunk was handled
        for event in self.h2.receive_data(frame):
            if isinstance(event, RequestReceived | ResponseReceived):
                assert event.headers is not None
                if isinstance(event, RequestReceived) and self._client:
                    raise PeerFault("the server sent a request")
                self._on_head(event.stream_id or 0, [(as_text(name), as_text(value)) for name, value in event.headers])
            elif isinstance(event, StreamEnded):
                self._end(event.stream_id)
            elif isinstance(event, StreamReset):
                self._reset(event)
            elif isinstance(event, DataReceived):
                self._take_counted(event)
            elif isinstance(event, RemoteSettingsChanged):
                self._adjust(event)
            elif isinstance(event, PingAckReceived):
                self.answered_pings += 1
                self.watcher.wake()
            # The others ask for nothing: h2 answers pings itself, and what it ignores is counted already.

    def _end(self, stream_id: int | None) -> None:
        lane = self.lanes.get(stream_id or 0)
        if lane is not None:
            lane.has_ended = True
            lane.reader.wake()

    def _reset(self, event: StreamReset) -> None:
        self._short.spend(trio.current_time())
        lane = self.lanes.pop(event.stream_id or 0, None)
        if lane is not None:
            who = "the peer" if event.remote_reset else "this side"
            lane.fail(f"{who} reset the HTTP/2 stream: {name_of(event.error_code or 0)}")

    def _abort(self, lane: Lane, text: str, code: ErrorCodes) -> None:
        """Reset a stream for a fault of the peer's."""
        self._short.spend(trio.current_time())
        self.drop(lane, f"this side reset the HTTP/2 stream: {text}", code)

    def _take_counted(self, event: DataReceived) -> None:
        """Take data that h2 counts."""
        lane = self.lanes.get(event.stream_id or 0)
        size = event.flow_controlled_length or 0
        if lane is not None and event.data:
            lane.deliver(event.data)
            size -= len(event.data)
        if size:
            self.h2.acknowledge_received_data(size, event.stream_id or 0)

    def _adjust(self, event: RemoteSettingsChanged) -> None:
        """Apply the peer's settings to what is counted here."""
        self.has_begun = True
        changed = event.changed_settings.get(SettingCodes.INITIAL_WINDOW_SIZE)
        if changed is not None:
            more = changed.new_value - (changed.original_value or 0)
            for lane in self.lanes.values():
                lane.send_window += more
                if lane.send_window > LARGEST_WINDOW:
                    raise PeerFault(f"a stream's window exceeds {LARGEST_WINDOW}", ErrorCodes.FLOW_CONTROL_ERROR)
                self.outlet.on_window(lane)
        self.watcher.wake()


@asynccontextmanager
async def running(connection: Multiplexed) -> AsyncIterator[None]:
    """Run the tasks of a connection for as long as the block; the block's own error leaves alone, in no group."""
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.read)
        nursery.start_soon(connection.write)
        try:
            yield
        except BaseException as exc:
            error = exc
        await connection.leave()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
