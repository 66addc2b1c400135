"""The resumption of a session: its positions, the frames kept for retransmission, and the handshake in either role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final

import attrs

from rsocket_trio.errors import (
    CONNECTION_ERROR,
    ConnectionLost,
    RejectedResume,
    RejectedSetup,
    RemoteProtocolError,
    connection_error,
)
from rsocket_trio.mux.events import Event, StreamFailed
from rsocket_trio.mux.retransmission import FrameStore, RetainingOutbox
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import (
    ErrorFrame,
    ExtensionEntry,
    RequestFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.handshake import ClientTerms, setup_frame
from rsocket_trio.rsocket.stream_table import Stream, StreamTable
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.values import value

FIRST_TRACKED: Final = 0x04
LAST_TRACKED: Final = 0x0B
LAST_REQUEST: Final = 0x07
FIRE_AND_FORGET: Final = 0x05
TOKEN_SIZE: Final = 16
"""Bytes of our own tokens: 128 random bits (RS02-RSM-22)."""
LAST_POSITION: Final = 2**63 - 1
REMEMBERED: Final = 16_384
"""Limit of remembered streams that are not resumable; frames of a forgotten one would count."""


def is_tracked(frame: bytes) -> bool:
    """Return whether a frame counts: requests, REQUEST_N, CANCEL, PAYLOAD and ERROR, on a stream (RS10-RSM-04)."""
    return len(frame) > 4 and FIRST_TRACKED <= frame[4] >> 2 <= LAST_TRACKED and frame[:4] != b"\0\0\0\0"


class ReplayedResume(RejectedResume):
    """Raised for a RESUME with outdated positions, as of a recording. It is no reason to end the session."""


@value
class ResumeRequest:
    """A client's request to resume: its token, its received position, and the first position that it can serve."""

    token: bytes = attrs.field(repr=False)
    version: tuple[int, int]
    last_received_server_position: int
    first_available_client_position: int = 0
    mimes: tuple[str | int, str | int] | None = None


def resume_request(dialect: Dialect, first: bytes) -> ResumeRequest | None:
    """Return the request to resume in a client's first frame, ``None`` for any other frame, readable or not."""
    try:
        frame = dialect.codec.decode(first)
    except RemoteProtocolError:
        return None
    if isinstance(frame, ResumeFrame) and not frame.stream_id and not dialect.entries:
        positions = frame.last_received_server_position, frame.first_available_client_position
        return ResumeRequest(frame.token, (frame.major, frame.minor), *positions)
    if isinstance(frame, SetupFrame) and not frame.stream_id and dialect.entries:
        asked = dialect.extensions.asked_to_resume(frame)
        if asked is not None:
            mimes = frame.metadata_mime, frame.data_mime
            return ResumeRequest(asked[0], (frame.major, frame.minor), asked[1], mimes=mimes)
    return None


FORGOTTEN = "what was in progress may have been processed or not; open a new connection to go on"
UNHEARD = (
    "nothing ever came from the server, which may never have had the SETUP or may have processed what was sent;"
    " open a new connection to go on"
)


def any_token(token: bytes) -> bool:
    """Accept every token: the default of a session whose server keeps no list of them."""
    return True


@attrs.define(eq=False, repr=False)
class ResumeHandshake:
    """The resumption of one session: its agreement, positions, request and answer in either role, the transport's end.

    ``claim`` takes a token for a new session of a server. ``heard`` says that a frame of the peer's ever came.
    ``grants`` are the entries that a server granted by itself in its answer to the SETUP, ``setup_size`` are the bytes
    that it keeps of the SETUP, the token among them. ``resumed`` is called with the time when the session goes on over
    a new transport, ``encode_error`` writes an ERROR on stream 0.

    ``received`` is the position of the next frame expected: the bytes of all tracked frames that came. Up to
    ``answered_to`` the peer must have counted, because it answered a request that ends there. ``mimes`` are the MIME
    types that must not change, where a client says them again. In the extension draft only marked streams are resumable
    (RSX-RES-07); ``unreported`` are the bytes received since the peer last heard how far this side got (RSX-RES-05).
    """

    _dialect: Dialect
    options: ResumeOptions
    _table: StreamTable
    _outbox: RetainingOutbox
    _resumed: Callable[[float], None]
    _encode_error: Callable[[int, bytes], bytes]
    _terms: ClientTerms | None = None
    claim: Callable[[bytes], bool] = any_token
    setup_size: int = 0
    heard: bool = False
    grants: tuple[ExtensionEntry, ...] = ()
    received: int = 0
    answered_to: int = 0
    mimes: tuple[str | int, str | int] | None = None
    unreported: int = 0
    _dropped: int = 0
    """The position before which the client keeps no more, as it said when it came back."""
    _asked: dict[bytes, int] | None = None
    """The position behind a request's first frame, by stream id, while that is kept and nothing came on the stream."""
    _unmarked: dict[int, None] | None = None
    """The streams that are not resumable, in a dialect that marks those that are."""

    @property
    def is_kept(self) -> bool:
        """Return whether what was sent is kept, so that the session may go on."""
        return self._outbox.store is not None

    @property
    def progress(self) -> int:
        """Bytes of the streams, both ways, that are known to have come. It never shrinks."""
        return self.received + self.store.first

    # Positions

    @property
    def store(self) -> FrameStore:
        """The frames that were sent and may have to be sent again."""
        assert self._outbox.store is not None
        return self._outbox.store

    def tracks(self, frame: bytes) -> bool:
        """Return whether an outbound frame moves the position."""
        return is_tracked(frame) and (not self._unmarked or int.from_bytes(frame[:4], "big") not in self._unmarked)

    def note_leaving(self, frame: bytes) -> bool:
        """Note the end of a request that leaves, until it is answered. Return whether a frame moves the position."""
        if not self.tracks(frame):
            return False
        kind = frame[4] >> 2
        if kind <= LAST_REQUEST and kind != FIRE_AND_FORGET:
            if self._asked is None:
                self._asked = {}
            self._asked[frame[:4]] = self.store.position + len(frame)
        return True

    def survives(self, stream_id: int) -> bool:
        """Return whether a stream outlives its transport."""
        return not self._unmarked or stream_id not in self._unmarked

    def opened(self, stream_id: int, entries: tuple[ExtensionEntry, ...]) -> None:
        """Note a stream with these extension entries: where there are marks, it is resumable if it has one."""
        unmarked = self._unmarked
        if unmarked is None:
            return
        unmarked.pop(stream_id, None)
        if not self._dialect.extensions.is_resumable(entries):
            if len(unmarked) >= REMEMBERED:
                del unmarked[next(iter(unmarked))]
            unmarked[stream_id] = None

    def count(self, frames: Sequence[bytes]) -> None:
        """Count received frames. Raise ``RemoteProtocolError`` past the largest position (RS10-RSM-07)."""
        received, asked, has_marks = self.received, self._asked, self._unmarked is not None
        for frame in frames:
            # ``is_tracked``, spelled out: it is asked of every frame that is received.
            if len(frame) > 4 and FIRST_TRACKED <= frame[4] >> 2 <= LAST_TRACKED and frame[:4] != b"\0\0\0\0":
                if has_marks and not self._is_marked(frame):
                    continue
                received += len(frame)
                if asked and frame[:4] in asked:
                    self._note_answer(frame, asked)
        self.unreported += received - self.received
        self.received = received
        if received > LAST_POSITION:
            raise RemoteProtocolError(f"resume position {received}, the last is {LAST_POSITION}")

    def confirmed(self, position: int) -> None:
        """Take the peer's received position, and drop the frames before it (RS10-RSM-22)."""
        store = self._outbox.store
        if store is None:
            return
        first = store.first
        self._trim(store, position)
        if store.first != first:
            # An answer that frees nothing is no reason to ask again.
            self._outbox.on_trimmed()

    def check(self, request: ResumeRequest) -> None:
        """Check that the client's positions can be served. Raise ``RejectedResume`` naming them (RS02-RSM-18).

        Raise ``ReplayedResume`` if they are below those that the client itself reported or implied (RS10-RSM-19).
        """
        if not self.is_kept:
            raise RejectedResume("unknown resume token")
        store, position = self.store, request.last_received_server_position
        first = request.first_available_client_position
        dialect = self._dialect
        if request.version not in ((dialect.major, dialect.minor), *dialect.resume_versions):
            raise RejectedResume(f"version {request.version[0]}.{request.version[1]} is not that of the session")
        if request.mimes != self.mimes:
            raise RejectedResume("the MIME types are not those of the session")  # RSX-RES-08
        reached = max(store.first, self.answered_to)
        if position < reached:
            raise ReplayedResume(f"position {position} is below {reached}, up to where the client got before")
        if not store.serves(position):
            # No recording has a position that never was, so this is checked before the client's own position.
            raise RejectedResume(f"position {position} can't be served: kept are {store.first} to {store.position}")
        if first < self._dropped:
            raise ReplayedResume(f"the client's first position {first} is below {self._dropped}, as it was before")
        if first > self.received:
            raise RejectedResume(f"the client's first position {first} is beyond {self.received}")

    def go_on(self, position: int, first: bytes | None) -> None:
        """Send all frames that the peer has not received, behind this one.

        Raise ``RemoteProtocolError`` for a position that can't be served (RS02-RSM-25).
        """
        store = self.store
        if not store.serves(position):
            raise RemoteProtocolError(
                f"resume position {position} can't be served: kept are {store.first} to {store.position}"
            )
        if position < self.answered_to:
            raise RemoteProtocolError(
                f"resume position {position}, but a request that ends at {self.answered_to} was answered: the peer does"
                " not count what it receives"
            )
        self._trim(store, position)
        self._outbox.send_again(first)

    # The agreement

    def agree_as_client(self, terms: ClientTerms) -> None:
        """Begin to retain frames under the token of these terms."""
        self._terms = terms
        self._agree()

    def agree_as_server(self, frame: SetupFrame, size: int) -> bool:
        """Begin to retain frames if the client's SETUP, of ``size`` bytes, asks for it. Return whether it does.

        Raise ``RejectedSetup`` for a token in use.
        """
        token = frame.resume_token
        if token is None:
            return False
        if not self.claim(token):
            raise RejectedSetup("the resume token is in use")  # RS02-RSM-22
        self.setup_size = size
        self._agree()
        if self._dialect.entries:
            self.mimes = frame.metadata_mime, frame.data_mime
            self.setup_size += len(token)  # kept in its entry as well
        return True

    def _agree(self) -> None:
        if self._dialect.entries:
            self._unmarked = {}
        self._outbox.retain(self.options.store_bytes, self.tracks, self.note_leaving)

    def close(self) -> None:
        """Discard the retained frames of a session that is over."""
        self._outbox.stop_retaining()
        self._asked = None

    def suspend(self) -> list[Event]:
        """Detach the lost transport, and fail the streams that do not outlive it (RSX-RES-07)."""
        table, outbox = self._table, self._outbox
        outbox.leave()
        lost = [stream for stream in table.all() if not self.survives(stream.id)]
        for stream in lost:
            outbox.discard(stream)
            table.end(stream)
        # A fire-and-forget is in no table.
        outbox.drop_begun(lambda queue: isinstance(queue, Stream) and not self.survives(queue.id))
        return [StreamFailed(stream, ConnectionLost("the stream did not outlive its transport")) for stream in lost]

    # The client

    def ask(self) -> bytes:
        """Return the client's first frame on a new transport (RS10-RSM-11, RSX-RES-02)."""
        dialect, terms = self._dialect, self._terms
        assert terms is not None
        if dialect.entries:
            return dialect.codec.encode(setup_frame(dialect, terms, position=self.received))
        token = terms.resume_token or b""
        frame = ResumeFrame(dialect.major, dialect.minor, token, self.received, self.store.first)
        return dialect.codec.encode(frame)

    def answered(self, answer: bytes, now: float) -> None:
        """Take the server's answer. Raise ``RejectedResume`` or a fault of the server, which end the session."""
        dialect = self._dialect
        frame = dialect.codec.decode(answer)
        if isinstance(frame, ErrorFrame) and not frame.stream_id:
            refusal = dialect.refusal(frame.code, frame.data)
            if isinstance(refusal, RejectedResume):
                refusal.advice = FORGOTTEN if self.heard else UNHEARD
            raise refusal or connection_error(frame.code, frame.data)
        position: int | None = None
        if isinstance(frame, ResumeOkFrame) and not frame.stream_id and not dialect.entries:
            position = frame.last_received_client_position
        elif isinstance(frame, SetupOkFrame) and not frame.stream_id and dialect.entries:
            position = dialect.extensions.resumed_from(frame.extensions)
        if position is None:
            raise RemoteProtocolError(f"{dialect.codec.name_of(frame)} in answer to the wish to resume")
        self.go_on(position, None)
        self._resumed(now)

    def farewell(self, error: RemoteProtocolError) -> bytes:
        """Return the ERROR that tells a server that its answer can't be served (RS02-RSM-25)."""
        return self._encode_error(CONNECTION_ERROR, str(error).encode())

    # The server

    def take(self, request: ResumeRequest, now: float) -> None:
        """Resume the session with a returning client. Call ``check`` first."""
        dialect = self._dialect
        first = (
            SetupOkFrame(Payload(), self._granted_again(dialect.extensions.resume_grant(self.received)))
            if dialect.entries
            else ResumeOkFrame(self.received)
        )
        self._dropped = request.first_available_client_position
        self.go_on(request.last_received_server_position, dialect.codec.encode(first))
        self._outbox.come_back()
        self._resumed(now)

    def _granted_again(self, entry: ExtensionEntry) -> tuple[ExtensionEntry, ...]:
        return (entry, *(grant for grant in self.grants if grant.ext != entry.ext))

    def _trim(self, store: FrameStore, position: int) -> None:
        store.trim(position)
        asked, first = self._asked, store.first
        if asked:
            for stream_id, _ in list(takewhile(lambda entry: entry[1] <= first, asked.items())):
                del asked[stream_id]

    def _note_answer(self, frame: bytes, asked: dict[bytes, int]) -> None:
        """Note the first answer on a stream. A request there is no answer: only the stream's opener sends one."""
        if frame[4] >> 2 > LAST_REQUEST:
            self.answered_to = max(self.answered_to, asked.pop(frame[:4]))

    def _is_marked(self, frame: bytes) -> bool:
        """Return whether the stream of a received frame is resumable. A request says so itself."""
        if frame[4] >> 2 <= LAST_REQUEST:
            with suppress(RemoteProtocolError):  # one that can't be read opens no stream
                request = self._dialect.codec.decode(frame)
                if isinstance(request, RequestFrame):
                    self.opened(request.stream_id, request.extensions)
        return self.survives(int.from_bytes(frame[:4], "big"))
