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


@attrs.define(eq=False, repr=False)
class ResumePositions:
    """The resumption state of one session.

    ``received`` is the position of the next frame expected: the bytes of all tracked frames that came. ``answered`` is
    up to where the peer must have counted, because it answered a request that ends there. ``mimes`` are the MIME types
    that must not change, where a client says them again. In the extension draft only marked streams are resumable
    (RSX-RES-07); ``unreported`` are the bytes received since the peer last heard how far this side got (RSX-RES-05).
    """

    _dialect: Dialect
    _outbox: RetainingOutbox
    store_bytes: int
    received: int = 0
    answered: int = 0
    mimes: tuple[str | int, str | int] | None = None
    unreported: int = 0
    _dropped: int = 0
    """The position before which the client keeps no more, as it said when it came back."""
    _asked: dict[bytes, int] | None = None
    """The position behind a request's first frame, by stream id, while that is kept and nothing came on the stream."""
    _unmarked: dict[int, None] | None = None
    """The streams that are not resumable, in a dialect that marks those that are."""

    def __attrs_post_init__(self) -> None:
        if self._dialect.entries:
            self._unmarked = {}
        self._outbox.retain(self.store_bytes, self.tracks, self.note_leaving)

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
        store, position = self.store, request.last_received_server_position
        first = request.first_available_client_position
        dialect = self._dialect
        if request.version not in ((dialect.major, dialect.minor), *dialect.resume_versions):
            raise RejectedResume(f"version {request.version[0]}.{request.version[1]} is not that of the session")
        if request.mimes != self.mimes:
            raise RejectedResume("the MIME types are not those of the session")  # RSX-RES-08
        reached = max(store.first, self.answered)
        if position < reached:
            raise ReplayedResume(f"position {position} is below {reached}, up to where the client got before")
        if not store.serves(position):
            # No recording has a position that never was, so this is checked before the client's own position.
            raise RejectedResume(f"position {position} can't be served: kept are {store.first} to {store.position}")
        if first < self._dropped:
            raise ReplayedResume(f"the client's first position {first} is below {self._dropped}, as it was before")
        if first > self.received:
            raise RejectedResume(f"the client's first position {first} is beyond {self.received}")

    def take(self, request: ResumeRequest, first: bytes) -> None:
        """Resume with a client whose positions were checked, this frame before all others."""
        self._dropped = request.first_available_client_position
        self.go_on(request.last_received_server_position, first)

    def go_on(self, position: int, first: bytes | None) -> None:
        """Send all frames that the peer has not received, behind this one.

        Raise ``RemoteProtocolError`` for a position that can't be served (RS02-RSM-25).
        """
        store = self.store
        if not store.serves(position):
            raise RemoteProtocolError(
                f"resume position {position} can't be served: kept are {store.first} to {store.position}"
            )
        if position < self.answered:
            raise RemoteProtocolError(
                f"resume position {position}, but a request that ends at {self.answered} was answered: the peer does"
                " not count what it receives"
            )
        self._trim(store, position)
        self._outbox.send_again(first)

    def stop_retaining(self) -> None:
        """Stop retaining frames and asking for positions."""
        self._outbox.stop_retaining()
        self._asked = None

    def _trim(self, store: FrameStore, position: int) -> None:
        store.trim(position)
        asked, first = self._asked, store.first
        if asked:
            for stream_id, _ in list(takewhile(lambda entry: entry[1] <= first, asked.items())):
                del asked[stream_id]

    def _note_answer(self, frame: bytes, asked: dict[bytes, int]) -> None:
        """Note the first answer on a stream. A request there is no answer: only the stream's opener sends one."""
        if frame[4] >> 2 > LAST_REQUEST:
            self.answered = max(self.answered, asked.pop(frame[:4]))

    def _is_marked(self, frame: bytes) -> bool:
        """Return whether the stream of a received frame is resumable. A request says so itself."""
        if frame[4] >> 2 <= LAST_REQUEST:
            with suppress(RemoteProtocolError):  # one that can't be read opens no stream
                request = self._dialect.codec.decode(frame)
                if isinstance(request, RequestFrame):
                    self.opened(request.stream_id, request.extensions)
        return self.survives(int.from_bytes(frame[:4], "big"))


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
    """The resumption of one session: its agreement, its request and answer in either role, and the end of a transport.

    ``positions`` is ``None`` until resumption was agreed. ``claim`` takes a token for a new session of a server.
    ``heard`` says that a frame of the peer's ever came. ``grants`` are the entries that a server granted by itself in
    its answer to the SETUP, ``setup_size`` are the bytes that it keeps of the SETUP, the token among them. ``resumed``
    is called with the time when the session goes on over a new transport, ``encode_error`` writes an ERROR on stream 0.
    """

    _dialect: Dialect
    _options: ResumeOptions
    _table: StreamTable
    _outbox: RetainingOutbox
    _resumed: Callable[[float], None]
    _encode_error: Callable[[int, bytes], bytes]
    _terms: ClientTerms | None = None
    positions: ResumePositions | None = None
    claim: Callable[[bytes], bool] = any_token
    setup_size: int = 0
    heard: bool = False
    grants: tuple[ExtensionEntry, ...] = ()

    @property
    def is_kept(self) -> bool:
        """Return whether what was sent is kept, so that the session may go on."""
        return self.positions is not None and self._outbox.store is not None

    @property
    def progress(self) -> int:
        """Bytes of the streams, both ways, that are known to have come. It never shrinks."""
        positions = self._agreed()
        return positions.received + positions.store.first

    # The agreement

    def agree_as_client(self, terms: ClientTerms) -> ResumePositions:
        """Begin to retain frames under the token of these terms. Return the positions to count."""
        self._terms = terms
        return self._agree()

    def agree_as_server(self, frame: SetupFrame, size: int) -> ResumePositions | None:
        """Begin to retain frames if the client's SETUP, of ``size`` bytes, asks for it.

        Raise ``RejectedSetup`` for a token in use.
        """
        token = frame.resume_token
        if token is None:
            return None
        if not self.claim(token):
            raise RejectedSetup("the resume token is in use")  # RS02-RSM-22
        self.setup_size = size
        positions = self._agree()
        if self._dialect.entries:
            positions.mimes = frame.metadata_mime, frame.data_mime
            self.setup_size += len(token)  # kept in its entry as well
        return positions

    def _agree(self) -> ResumePositions:
        self.positions = ResumePositions(self._dialect, self._outbox, self._options.store_bytes)
        return self.positions

    def close(self) -> None:
        """Discard the retained frames of a session that is over."""
        if self.positions is not None:
            self.positions.stop_retaining()

    def suspend(self) -> list[Event]:
        """Detach the lost transport, and fail the streams that do not outlive it (RSX-RES-07)."""
        positions, table, outbox = self._agreed(), self._table, self._outbox
        outbox.leave()
        lost = [stream for stream in table.all() if not positions.survives(stream.id)]
        for stream in lost:
            outbox.discard(stream)
            table.end(stream)
        # A fire-and-forget is in no table.
        outbox.drop_begun(lambda queue: isinstance(queue, Stream) and not positions.survives(queue.id))
        return [StreamFailed(stream, ConnectionLost("the stream did not outlive its transport")) for stream in lost]

    # The client

    def ask(self) -> bytes:
        """Return the client's first frame on a new transport (RS10-RSM-11, RSX-RES-02)."""
        positions, dialect, terms = self._agreed(), self._dialect, self._terms
        assert terms is not None
        if dialect.entries:
            return dialect.codec.encode(setup_frame(dialect, terms, position=positions.received))
        token = terms.resume_token or b""
        frame = ResumeFrame(dialect.major, dialect.minor, token, positions.received, positions.store.first)
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
        self._agreed().go_on(position, None)
        self._resumed(now)

    def farewell(self, error: RemoteProtocolError) -> bytes:
        """Return the ERROR that tells a server that its answer can't be served (RS02-RSM-25)."""
        return self._encode_error(CONNECTION_ERROR, str(error).encode())

    # The server

    def check(self, request: ResumeRequest) -> None:
        """Raise ``RejectedResume`` if a client's positions can't be served."""
        if self.positions is None or not self.is_kept:
            raise RejectedResume("unknown resume token")
        self.positions.check(request)

    def take(self, request: ResumeRequest, now: float) -> None:
        """Resume the session with a returning client. Call ``check`` first."""
        positions, dialect = self._agreed(), self._dialect
        first = (
            SetupOkFrame(Payload(), self._granted_again(dialect.extensions.resume_grant(positions.received)))
            if dialect.entries
            else ResumeOkFrame(positions.received)
        )
        positions.take(request, dialect.codec.encode(first))
        self._outbox.come_back()
        self._resumed(now)

    def _granted_again(self, entry: ExtensionEntry) -> tuple[ExtensionEntry, ...]:
        """Return a server's grants to a returning client: this entry and those of the first SETUP_OK."""
        return (entry, *(grant for grant in self.grants if grant.ext != entry.ext))

    def _agreed(self) -> ResumePositions:
        assert self.positions is not None
        return self.positions
