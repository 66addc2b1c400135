"""The commands of a session on its streams: each encodes a frame and updates the stream's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rsocket_trio.errors import DRAIN_SIGN, LocalProtocolError, Rejected, StreamError, Unsupported
from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.mux.outbox import SMALL, FragmentSource, Outbox
from rsocket_trio.mux.session import StreamCommands
from rsocket_trio.mux.stream_state import (
    BOTH,
    MAX_REQUEST_N,
    NEITHER,
    RECEIVING,
    REQUEST_CHANNEL,
    REQUEST_RESPONSE,
    SEND_CANCEL,
    SEND_COMPLETE,
    SEND_ERROR,
    SEND_HALF_CANCEL,
    SEND_LAST_WORD,
    SEND_NEXT,
    SENDING,
    UNBOUNDED,
    Interaction,
    applied,
)
from rsocket_trio.payload import MetadataPush, Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.fast_path import LENGTH, BytePatterns, Head
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtensionEntry,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
)
from rsocket_trio.rsocket.stream_table import Stream, StreamTable

if TYPE_CHECKING:
    from rsocket_trio.rsocket.resume_protocol import ResumeHandshake

UNCUT = 2**24 - 1 + 16
"""Bytes of a frame for peers that join no fragments: a payload below 2^24 - 1, and what may stand before it in 0.1."""
EMPTY = Payload()
ANOTHER_DRAINS = b"no new requests: another connection is closing"
"""The text of an application's error in the place of the sign that this connection drains."""
MAX_MIMES_BYTES = 2 * 128
"""Bytes that the MIME types of one payload take at most."""


def checked_fragment_size(size: int, limit: int) -> int:
    """Return a valid outbound fragment size. Raise ``ValueError`` naming the bounds."""
    if not 64 <= size <= limit:
        raise ValueError(f"fragment_size of {size} bytes: must be between 64 and {limit}")
    return size


def fragments(
    dialect: Dialect, fragment_size: int, frame: RequestFrame | PayloadFrame, fixed: int
) -> Iterator[EncodedFrame]:
    """Generate the frames of one payload as they are sent; ``fixed`` is the size of the first frame's fields in bytes.

    A request goes on as PAYLOAD (RS10-FRAG-04) or as itself (RS01-FRAG-02: a channel without its number). NEXT
    stands on every PAYLOAD, COMPLETE on the last frame only (RS10-FRAG-06, RS10-CH-05). No data is copied.
    """
    payload, request = frame.payload, frame if isinstance(frame, RequestFrame) else None
    metadata = memoryview(payload.metadata) if payload.metadata is not None else None
    data, repeats = memoryview(payload.data), dialect.request_repeats
    later_room = fragment_size - dialect.codec.header_size
    room, later_n = later_room - fixed, None
    if repeats and request is not None and request.interaction is not REQUEST_CHANNEL:
        later_n, later_room = request.initial_n, room
    data_mime, metadata_mime = payload.data_mime, payload.metadata_mime
    if dialect.mime_fields:
        # RSX-MIME-05: the first frame says them, and may become larger than others for that.
        room = max(room - dialect.extensions.mime_size(payload), dialect.metadata_header)
    first, follows, is_like_last, before = True, True, False, b""
    while follows:
        part: memoryview | None = None
        if metadata is not None:
            room -= dialect.metadata_header
            part, metadata = metadata[:room], metadata[room:] if len(metadata) > room else None
            room -= len(part)
        share = data[:0] if metadata is not None else data[:room]
        data = data[len(share) :]
        follows = metadata is not None or len(data) > 0
        # Those of nothing but data, up to the last, begin alike, and are many.
        if not (is_like_last and follows):
            bare = Payload(b"", None if part is None else bytes(part), metadata_type=payload.metadata_type)
            bare.data_mime, bare.metadata_mime = data_mime, metadata_mime
            complete = frame.complete and not follows
            said: RequestFrame | PayloadFrame = PayloadFrame(frame.stream_id, bare, True, complete, follows)
            if request is not None and (first or repeats):
                n, entries = (request.initial_n, request.extensions) if first else (later_n, ())
                said = RequestFrame(frame.stream_id, request.interaction, bare, n, follows, complete, entries)
            before = dialect.codec.encode(said)
        yield before, share
        is_like_last = part is None and not first
        first, room, data_mime, metadata_mime = False, later_room, None, None


class CreditGrant:
    """A REQUEST_N that waits to leave: further credit is added to it instead of queued behind it.

    It stands in the urgent queue, or in that of its own stream: behind its unsent request, or behind the fragments that
    are leaving (rsocket-js takes no REQUEST_N while it joins those of the same stream).
    """

    __slots__ = ("_encode", "amount", "stream")

    size = 20  # bytes of the largest REQUEST_N of any dialect, as they count in the outbox

    def __init__(self, encode: Callable[[RequestNFrame], bytes], stream: Stream, amount: int) -> None:
        self._encode = encode
        self.stream = stream
        self.amount = amount

    def take(self) -> bytes | None:
        """Return the frame, ``None`` if it was sent already or the stream needs no credit any more."""
        if self.stream.grant is self:
            self.stream.grant = None
        amount, self.amount = self.amount, 0
        return self._encode(RequestNFrame(self.stream.id, amount)) if amount and self.stream.open & RECEIVING else None

    @property
    def next_size(self) -> int:
        """The size of the frame in bytes, 0 once it was sent."""
        return self.size if self.amount else 0


class StreamSender(StreamCommands[Stream]):
    """Commands on streams. Each checks the stream's halves, encodes, and puts into the outbox.

    No request waits for an id: a session without a free one refuses it.
    """

    __slots__ = (
        "_beyond",
        "_codec",
        "_dialect",
        "_encode",
        "_encoders",
        "_fragment_size",
        "_header",
        "_lone_size",
        "_most_alone",
        "_outbox",
        "_patterns",
        "_short_size",
        "_table",
        "_whole_size",
        "positions",
    )

    def __init__(
        self,
        dialect: Dialect,
        patterns: BytePatterns | None,
        table: StreamTable,
        outbox: Outbox,
        fragment_size: int,
        whole_size: int,
    ) -> None:
        self._dialect = dialect
        self._beyond = 0 if dialect.keeps_credit else UNBOUNDED
        self._codec = dialect.codec
        self._encode = dialect.codec.encode
        self._encoders = dialect.codec.encoders
        self._header = dialect.codec.header_size
        self._table = table
        self._outbox = outbox
        self._whole_size = min(whole_size, dialect.codec.largest)
        self.positions: ResumeHandshake | None = None
        self._patterns = patterns
        self.cut_above(fragment_size)

    def cut_above(self, fragment_size: int) -> None:
        """Set the fragment size in bytes. Call it before anything is sent."""
        self._fragment_size = fragment_size
        # A frame of that size is sent whole, whatever MIME types its payload has.
        self._lone_size = fragment_size - (MAX_MIMES_BYTES if self._dialect.mime_fields else 0)
        self._most_alone = self._lone_size - self._header
        self._short_size = min(self._most_alone, SMALL - self._header)

    def check_request(self, interaction: Interaction, payload: Payload) -> None:
        if interaction not in self._dialect.interactions:
            raise Unsupported(f"{self._dialect.name} has no {interaction.value}")

    def open(
        self,
        interaction: Interaction,
        payload: Payload,
        initial_n: int | None = None,
        *,
        complete: bool = False,
        entries: tuple[ExtensionEntry, ...] = (),
    ) -> Stream:
        if interaction not in self._dialect.interactions:
            self.check_request(interaction, payload)
        fixed = 0 if initial_n is None else self._dialect.request_n_field
        if self.positions is not None and self._dialect.entries:
            entries = self._dialect.extensions.with_mark(entries)
        if entries:
            if not self._dialect.entries:
                raise Unsupported(f"{self._dialect.name} has no extension entries")
            fixed += self._dialect.extensions.block_size(entries)
            self._check_room(fixed, payload)
        patterns = self._patterns
        if payload.metadata_type or payload.data_mime is not None or payload.metadata_mime is not None:
            self._check_extras(payload)
            patterns = None
        stream = self._table.new(interaction)
        if self.positions is not None:
            self.positions.opened(stream.id, entries)
        stream.granted = self._beyond + (1 if initial_n is None else initial_n)
        if complete:
            stream.open &= ~SENDING
        if patterns is not None and initial_n is None and not entries:
            pattern = patterns.requests.get(interaction)
            short = None if pattern is None else self._short_frame(pattern, patterns.width, stream.id, payload)
            if short is not None:
                self._outbox.put(stream, short)
                return stream
        request = RequestFrame(stream.id, interaction, payload, initial_n, False, complete, entries)
        try:
            self._put(stream, request, fixed)
        except LocalProtocolError:
            # Refused before a byte was sent: the stream has never been.
            self._table.end(stream)
            raise
        return stream

    def _short_frame(
        self, pattern: Head, width: int, stream_id: int, payload: Payload
    ) -> bytes | tuple[bytes, bytes] | None:
        """Encode a frame that says nothing but its payload; its id is ``width`` bytes wide. A large body stays apart.

        Return ``None`` if the payload has to be cut or encoded otherwise.
        """
        data, metadata = payload.data, payload.metadata
        id_field = stream_id.to_bytes(width, "big")
        if metadata is None:
            # An empty item is none in some dialects, where it completes.
            if 0 < len(data) <= self._short_size:
                return pattern.before + id_field + pattern.after + data
            if self._short_size < len(data) <= self._most_alone:
                return pattern.before + id_field + pattern.after, data
            return None
        size = len(metadata)
        if pattern.after_with_metadata is None or LENGTH + size + len(data) > self._most_alone:
            return None
        before = id_field + pattern.after_with_metadata + size.to_bytes(LENGTH, "big") + metadata
        return before + data if len(data) <= self._short_size else (before, data)

    def _check_room(self, fixed: int, payload: Payload) -> None:
        """Raise ``LocalProtocolError`` if the first fragment can never fit into the resumption store."""
        if self.positions is not None:
            size = self._header + fixed + self._dialect.extensions.mime_size(payload) + self._dialect.metadata_header
            limit = self.positions.options.store_bytes
            if size > limit:
                raise LocalProtocolError(f"a request begins with {size} bytes: the store for resumption has {limit}")

    def _check_extras(self, payload: Payload) -> None:
        """Raise ``Unsupported`` for payload types that the dialect can't express, before anything is sent."""
        if missing := self._dialect.lacks(payload):
            raise Unsupported(f"{self._dialect.name} has no {missing}")

    def send_item(self, stream: Stream, payload: Payload, *, complete: bool = False) -> None:
        if not stream.open & SENDING:
            applied(SEND_NEXT, stream.open)
        if stream.room <= 0:
            raise LocalProtocolError(f"no credit left on stream {stream.id}")
        patterns, head = self._patterns, stream.item_head
        if payload.metadata_type or payload.data_mime is not None or payload.metadata_mime is not None:
            self._check_extras(payload)
            patterns = head = None
        stream.room -= 1
        stream.item_sent = True
        if head is not None and not complete and payload.metadata is None:
            # Most items of a stream begin with the same bytes, which are made once.
            if 0 < len(payload.data) <= self._short_size:
                self._outbox.put(stream, head + payload.data)
                return
            if self._short_size < len(payload.data) <= self._most_alone:
                self._outbox.put(stream, (head, payload.data))
                return
        elif patterns is not None and not (stream.requester and self._dialect.channel_items_are_requests):
            pattern = patterns.last if complete else patterns.item
            short = self._short_frame(pattern, patterns.width, stream.id, payload)
            if short is not None:
                self._outbox.put(stream, short)
                if complete and stream.open == SENDING:
                    # Nothing else is left of it than this frame, which is on its way.
                    stream.open = NEITHER
                    stream.ended = True
                elif complete:
                    self._complete(stream)
                elif payload.metadata is None:
                    stream.item_head = short[0] if isinstance(short, tuple) else short[: self._header]
                return
        if complete and self._hides(stream, payload):
            self._put(stream, self._item_frame(stream, payload, next_=True, complete=False), 0)
            self.send_complete(stream)
            return
        self._put(stream, self._item_frame(stream, payload, next_=True, complete=complete), 0)
        if complete:
            self._complete(stream)

    def offer_item(self, stream: Stream, item: object) -> bool:
        """Send an item of nothing but data, like one before it, if there are credit and room for it.

        Return whether it was sent. All others are sent by ``send_item``.
        """
        head = stream.item_head
        if type(item) is bytes:
            data = item
        elif (
            type(item) is Payload
            and item.metadata is None
            and not item.metadata_type
            and item.data_mime is None
            and item.metadata_mime is None
        ):
            data = item.data
        else:
            return False
        if not data or head is None or stream.room <= 0 or not stream.open & SENDING:
            return False
        if len(data) <= self._short_size:
            if not self._outbox.offer(stream, head + data):
                return False
        elif len(data) > self._most_alone or not self._outbox.has_room(len(data)):
            return False
        else:
            self._outbox.put(stream, (head, data))
        stream.room -= 1
        return True

    def send_complete(self, stream: Stream) -> None:
        applied(SEND_COMPLETE, stream.open)
        self._outbox.put(stream, self._encode(self._item_frame(stream, EMPTY, next_=False, complete=True)))
        self._complete(stream)

    def send_error(self, stream: Stream, error: StreamError) -> None:
        """End the stream both ways with ERROR; send CANCEL if the dialect gives a requester no ERROR."""
        applied(SEND_ERROR, stream.open)
        if stream.requester and not self._dialect.requester_fails:
            self.send_cancel(stream)
            return
        if not stream.requester and stream.open & RECEIVING:
            self._table.expect_late(stream.id, stream.interaction)
        frame = self.error_frame(stream.id, error.code, error.data)
        if frame.code == Rejected.default_code and frame.data == DRAIN_SIGN and self._dialect.announces_drain:
            # The sign is the session's. An application may have heard it on another connection, as a forwarder does.
            frame = self.error_frame(stream.id, error.code, ANOTHER_DRAINS)
        self._outbox.put(stream, self._encode(frame))
        self._table.end(stream)

    def send_cancel(self, stream: Stream) -> None:
        """Cancel the peer's half; a requester's cancel ends both halves.

        A cancel discards what waits in the stream's queue. If the request was still there, nothing is sent at all.
        Does nothing on a stream that has ended.
        """
        if stream.requester:
            if stream.open == NEITHER:
                return
            stream.open = applied(SEND_CANCEL, stream.open)
            self._outbox.discard(stream)
            if stream.left:
                self._outbox.put_urgent(self._encode(CancelFrame(stream.id)))
            self._table.end(stream)
        elif self._dialect.half_close and stream.open & RECEIVING:
            stream.open = applied(SEND_HALF_CANCEL, stream.open)
            self._table.drop_assembly(stream)
            # In its queue, so that a COMPLETE that was said before arrives before.
            self._outbox.put(stream, self._encode(CancelFrame(stream.id)))
            if stream.open == NEITHER:
                self._table.end(stream)

    def metadata_push(self, stream: Stream, push: MetadataPush) -> None:
        if not self._dialect.pushes_on_streams:
            raise Unsupported(f"{self._dialect.name} has no metadata push on streams")
        if stream.open == NEITHER:
            raise LocalProtocolError(f"stream {stream.id} is over")
        self._outbox.put(stream, self._encode(MetadataPushFrame(push.metadata, stream.id, push.metadata_type)))

    def request_n(self, stream: Stream, amount: int) -> None:
        if not stream.open & RECEIVING:
            return
        stream.granted += amount
        grant = stream.grant
        if isinstance(grant, CreditGrant) and grant.amount + amount <= MAX_REQUEST_N:
            grant.amount += amount
            return
        stream.grant = grant = CreditGrant(self._encode, stream, amount)
        if stream.requester and not stream.left:
            self._outbox.put(stream, grant)
        elif not self._outbox.put_behind_fragments(stream, grant):
            self._outbox.put_urgent(grant)

    def keep_credit(self, stream: Stream) -> None:
        """Send the credit that waited in a discarded queue, since this side still reads from the stream."""
        if isinstance(stream.grant, CreditGrant):
            self._outbox.put_urgent(stream.grant)

    def refuse(self, stream_id: int, code: int, text: str) -> None:
        """Answer a request with ERROR, without opening a stream."""
        self._outbox.put_reply(self._encode(self.error_frame(stream_id, code, text.encode())))

    def abort(self, stream: Stream, code: int, text: str) -> None:
        """End a stream for a fault of the peer: send CANCEL as its requester, else ERROR."""
        if stream.requester:
            self.send_cancel(stream)
        else:
            self._outbox.discard(stream)
            self.refuse(stream.id, code, text)
            self._table.end(stream)

    def error_frame(self, stream_id: int, code: int, data: bytes) -> ErrorFrame:
        """Return an ERROR, its text cut between two characters to fit into one frame of the outbound size."""
        room = self._fragment_size - self._header - 4
        while 0 < room < len(data) and data[room] & 0xC0 == 0x80:
            room -= 1
        return ErrorFrame(stream_id, code, data[:room])

    def _item_frame(
        self, stream: Stream, payload: Payload, *, next_: bool, complete: bool
    ) -> RequestFrame | PayloadFrame:
        if stream.requester and self._dialect.channel_items_are_requests:
            initial_n = self._dialect.channel_item_n if next_ else None
            return RequestFrame(stream.id, stream.interaction, payload, initial_n, False, complete)  # RS01-SEQ-09
        return PayloadFrame(stream.id, payload, next_, complete, False)

    def _hides(self, stream: Stream, payload: Payload) -> bool:
        """Return whether a completion with this item would read as one without an item."""
        dialect = self._dialect
        if not dialect.bare_complete_is_no_item or stream.interaction is REQUEST_RESPONSE:
            return False
        if stream.requester:
            return dialect.only_completes(payload)
        return payload.metadata is None and not payload.data

    def _complete(self, stream: Stream) -> None:
        if not self._dialect.half_close and not stream.requester:
            move = SEND_LAST_WORD
            if stream.open & RECEIVING:
                self._table.expect_late(stream.id, stream.interaction)
        else:
            move = SEND_COMPLETE
        stream.open &= BOTH & ~move.closes
        if stream.open == NEITHER:
            self._table.end(stream)

    def _put(self, stream: Stream, frame: RequestFrame | PayloadFrame, fixed: int) -> None:
        payload, data = frame.payload, frame.payload.data
        size = self._header + fixed + len(data)
        if payload.metadata is not None:
            size += self._dialect.metadata_header + len(payload.metadata)
        if size > self._lone_size:
            if self._dialect.request_fragments or type(frame) is PayloadFrame:
                frames = fragments(self._dialect, self._fragment_size, frame, fixed)
                self._outbox.put(stream, FragmentSource(frames, size))
                return
            if size > self._whole_size:
                name, limit = self._codec.name_of(frame), self._whole_size
                text = f"{name} of {size} bytes can't be fragmented: the peer takes requests whole, limit {limit}"
                raise LocalProtocolError(text)
        # Its size is known to be allowed: the codec need not look again.
        before, body = self._encoders[frame.interaction if type(frame) is RequestFrame else PayloadFrame](frame)
        self._outbox.put(stream, (before, data) if len(data) > self._short_size else before + body)
