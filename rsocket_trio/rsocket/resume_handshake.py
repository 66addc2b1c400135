"""The resumption handshake of a session in either role: requests, answers, and the start on a new transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rsocket_trio.errors import (
    CONNECTION_ERROR,
    ConnectionLost,
    RejectedResume,
    RejectedSetup,
    RemoteProtocolError,
    connection_error,
)
from rsocket_trio.mux.events import Event, StreamFailed
from rsocket_trio.mux.outbox import Outbox, StreamQueue
from rsocket_trio.mux.retransmission import RetainingOutbox
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.rsocket.extensions.payloads import AT_OK, ResumeGrant
from rsocket_trio.rsocket.extensions.terms import content_at, resume_grant
from rsocket_trio.rsocket.frames import ErrorFrame, ResumeFrame, ResumeOkFrame, SetupFrame, SetupOkFrame
from rsocket_trio.rsocket.resume_positions import MarkedPositions, ResumePositions, ResumeRequest, is_tracked
from rsocket_trio.rsocket.setup import ClientTerms, setup_frame
from rsocket_trio.rsocket.stream_table import Stream
from rsocket_trio.terms import ResumeOptions

if TYPE_CHECKING:
    from rsocket_trio.rsocket.session import Session


def outbox_for(
    resume: ResumeOptions | None, limit: int, drained: Callable[[StreamQueue], None], session: Session
) -> Outbox:
    """Return the outbox of a session: one that retains sent frames if the session may be resumed."""
    if resume is None:
        return Outbox(limit, drained)

    def tracks(frame: bytes) -> bool:
        resumption = session.resume_handshake.resumption
        return resumption.tracks(frame) if resumption is not None else is_tracked(frame)

    def beat() -> bytes:
        return session.control.asked_beat()

    def overflow() -> bool:
        return session.resume_handshake.overflow()

    return RetainingOutbox(limit, drained, tracks, beat, overflow)


FORGOTTEN = "what was in progress may have been processed or not; open a new connection to go on"
UNHEARD = (
    "nothing ever came from the server, which may never have had the SETUP or may have processed what was sent;"
    " open a new connection to go on"
)


def any_token(token: bytes) -> bool:
    """Accept every token: the default of a session whose server keeps no list of them."""
    return True


class ResumeHandshake:
    """The resumption handshake of one session; ``resumption`` is ``None`` if none was agreed.

    ``claim`` takes a token for a new session of a server. ``gave_up`` says that resumption was agreed and is not
    promised any more, ``heard`` that a frame of the peer's ever came. ``grants`` are the entries that a server granted
    by itself in its answer to the SETUP.
    """

    __slots__ = ("_resume", "_session", "_terms", "claim", "gave_up", "grants", "heard", "resumption")

    def __init__(self, session: Session, resume: ResumeOptions | None) -> None:
        self._session = session
        self._resume = resume
        self._terms: ClientTerms | None = None
        self.resumption: ResumePositions | None = None
        self.claim: Callable[[bytes], bool] = any_token
        self.gave_up = False
        self.heard = False
        self.grants: tuple[Entry, ...] = ()

    @property
    def offered(self) -> bool:
        """Whether this side resumes sessions at all."""
        return self._resume is not None

    @property
    def is_kept(self) -> bool:
        """Whether what was sent is kept, so that the session may go on."""
        return self.resumption is not None and self._outbox.store is not None

    @property
    def progress(self) -> int:
        """Bytes of the streams, both ways, that are known to have come. It never shrinks."""
        resumption = self._agreed()
        return resumption.received + resumption.store.first

    # The beginning

    def begin_client(self, token: bytes, terms: ClientTerms) -> None:
        """Begin to retain frames as a client, under the token of its SETUP."""
        self._terms = terms
        self._begin(token)

    def begin_server(self, frame: SetupFrame) -> None:
        """Begin to retain frames if the client's SETUP asks for it. Raise ``RejectedSetup`` for a token in use."""
        token = frame.resume_token
        if token is None or not self.offered:
            return
        if not self.claim(token):
            raise RejectedSetup("the resume token is in use")  # RS02-RSM-22
        resumption = self._begin(token)
        if self._session.dialect.entries:
            resumption.mimes = frame.metadata_mime, frame.data_mime

    def _begin(self, token: bytes) -> ResumePositions:
        assert self._resume is not None
        session = self._session
        kind = MarkedPositions if session.dialect.entries else ResumePositions
        self.resumption = kind(session.dialect, self._outbox, token, self._resume.store_bytes)
        session.control.resumption = session.commands.resumption = self.resumption
        return self.resumption

    def overflow(self) -> bool:
        """Handle a full store: return whether the session goes on without resumption."""
        if self._resume is None or not self._resume.give_up_when_full:
            return False
        self._agreed().forgo()
        # The peer may keep what it sends, and still has to hear how far this side got.
        self.gave_up = True
        self._session.attention = True
        return True

    def close(self) -> None:
        """Discard the retained frames of a session that is over."""
        if self.resumption is not None:
            self.resumption.forgo()

    def suspend(self) -> list[Event]:
        """Detach the lost transport, and fail the streams that do not outlive it (RSX-RES-07)."""
        session, resumption = self._session, self.resumption
        assert resumption is not None
        self._outbox.leave()
        lost = [stream for stream in session.open_streams() if not resumption.survives(stream.id)]
        for stream in lost:
            session.outbox.discard(stream)
            session.table.end(stream)
        # A fire-and-forget is in no table.
        self._outbox.drop_begun(lambda queue: isinstance(queue, Stream) and not resumption.survives(queue.id))
        return [StreamFailed(stream, ConnectionLost("the stream did not outlive its transport")) for stream in lost]

    # The client

    def ask(self) -> bytes:
        """Return the client's first frame on a new transport (RS10-RSM-11, RSX-RES-02)."""
        resumption, dialect = self._agreed(), self._session.dialect
        if dialect.entries:
            assert self._terms is not None
            return dialect.codec.encode(setup_frame(dialect, self._terms, position=resumption.received))
        frame = ResumeFrame(
            *(dialect.major, dialect.minor, resumption.token), resumption.received, resumption.store.first
        )
        return dialect.codec.encode(frame)

    def answered(self, answer: bytes, now: float) -> None:
        """Take the server's answer. Raise ``RejectedResume`` or a fault of the server, which end the session."""
        dialect = self._session.dialect
        frame = dialect.codec.decode(answer)
        if isinstance(frame, ErrorFrame) and not frame.stream_id:
            refusal = dialect.refusal(frame.code, frame.data)
            if isinstance(refusal, RejectedResume):
                refusal.advice = FORGOTTEN if self.heard else UNHEARD
            raise refusal or connection_error(frame.code, frame.data)
        position: int | None = None
        if isinstance(frame, ResumeOkFrame) and not frame.stream_id and not dialect.entries:
            position = frame.last_received_client_position
        elif isinstance(frame, SetupOkFrame) and not frame.stream_id:
            grant = content_at(AT_OK, frame.extensions, ResumeGrant)
            position = grant.last_received_client_position if isinstance(grant, ResumeGrant) else None
        if position is None:
            raise RemoteProtocolError(f"{dialect.codec.name_of(frame)} in answer to the wish to resume")
        self._agreed().go_on(position, None)
        self._session.restart(now)

    def farewell(self, error: RemoteProtocolError) -> bytes:
        """Return the ERROR that tells a server that its answer can't be served (RS02-RSM-25)."""
        return self._session.error_frame(CONNECTION_ERROR, str(error).encode())

    # The server

    def check(self, back: ResumeRequest) -> None:
        """Raise ``RejectedResume`` if a client's positions can't be served."""
        if self.resumption is None or not self.is_kept:
            raise RejectedResume("unknown resume token")
        self.resumption.check(back)

    def take(self, back: ResumeRequest, now: float) -> None:
        """Resume the session with a returning client. Call ``check`` first."""
        resumption, session = self._agreed(), self._session
        dialect = session.dialect
        first = (
            SetupOkFrame(Payload(), self._granted_again(resume_grant(resumption.received)))
            if dialect.entries
            else ResumeOkFrame(resumption.received)
        )
        resumption.take(back, dialect.codec.encode(first))
        self._outbox.come_back()
        session.restart(now)

    def _granted_again(self, entry: Entry) -> tuple[Entry, ...]:
        """Return a server's grants to a returning client: this entry and those of the first SETUP_OK."""
        return (entry, *(grant for grant in self.grants if grant.ext != entry.ext))

    @property
    def _outbox(self) -> RetainingOutbox:
        outbox = self._session.outbox
        assert isinstance(outbox, RetainingOutbox)
        return outbox

    def _agreed(self) -> ResumePositions:
        assert self.resumption is not None
        return self.resumption
