"""The resumption handshake of a session in either role: requests, answers, and the start on a new transport."""

from __future__ import annotations

from collections.abc import Callable

from rsocket_trio.errors import (
    CONNECTION_ERROR,
    ConnectionLost,
    RejectedResume,
    RejectedSetup,
    RemoteProtocolError,
    connection_error,
)
from rsocket_trio.mux.events import Event, StreamFailed
from rsocket_trio.mux.retransmission import RetainingOutbox
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import ErrorFrame, ExtensionEntry, ResumeFrame, ResumeOkFrame, SetupFrame, SetupOkFrame
from rsocket_trio.rsocket.handshake import ClientTerms, setup_frame
from rsocket_trio.rsocket.resume_positions import MarkedPositions, ResumePositions, ResumeRequest
from rsocket_trio.rsocket.stream_table import Stream, StreamTable
from rsocket_trio.terms import ResumeOptions

FORGOTTEN = "what was in progress may have been processed or not; open a new connection to go on"
UNHEARD = (
    "nothing ever came from the server, which may never have had the SETUP or may have processed what was sent;"
    " open a new connection to go on"
)


def any_token(token: bytes) -> bool:
    """Accept every token: the default of a session whose server keeps no list of them."""
    return True


class ResumeHandshake:
    """The resumption of one session: its agreement, its request and answer in either role, and the end of a transport.

    ``positions`` is ``None`` until resumption was agreed. ``claim`` takes a token for a new session of a server.
    ``gave_up`` says that resumption was agreed and is not promised any more, ``heard`` that a frame of the peer's ever
    came. ``grants`` are the entries that a server granted by itself in its answer to the SETUP, ``setup_size`` are the
    bytes that it keeps of the SETUP, the token among them. ``resumed`` is called with the time when the session goes on
    over a new transport, ``encode_error`` writes an ERROR on stream 0.
    """

    __slots__ = (
        "_dialect",
        "_encode_error",
        "_options",
        "_outbox",
        "_resumed",
        "_table",
        "_terms",
        "claim",
        "gave_up",
        "grants",
        "heard",
        "positions",
        "setup_size",
    )

    def __init__(
        self,
        dialect: Dialect,
        options: ResumeOptions,
        table: StreamTable,
        outbox: RetainingOutbox,
        resumed: Callable[[float], None],
        encode_error: Callable[[int, bytes], bytes],
    ) -> None:
        self._dialect = dialect
        self._options = options
        self._table = table
        self._outbox = outbox
        self._resumed = resumed
        self._encode_error = encode_error
        self._terms: ClientTerms | None = None
        self.positions: ResumePositions | None = None
        self.claim: Callable[[bytes], bool] = any_token
        self.setup_size = 0
        self.gave_up = False
        self.heard = False
        self.grants: tuple[ExtensionEntry, ...] = ()

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
        kind = MarkedPositions if self._dialect.entries else ResumePositions
        self.positions = kind(self._dialect, self._outbox, self._options.store_bytes)
        return self.positions

    def agree_grants(self, grants: tuple[ExtensionEntry, ...]) -> None:
        """Keep the entries that the first SETUP_OK granted, for those that follow."""
        self.grants = grants

    def overflow(self) -> bool:
        """Handle a full store: return whether the session goes on without resumption."""
        if not self._options.give_up_when_full:
            return False
        self._agreed().stop_retaining()
        # The peer may keep what it sends, and still has to hear how far this side got.
        self.gave_up = True
        return True

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
