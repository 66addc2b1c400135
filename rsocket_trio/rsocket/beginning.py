"""The start of a connection: SETUP and SETUP_OK in either role, and the frames held before acceptance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rsocket_trio.errors import CONNECTION_ERROR, RemoteProtocolError, UnsupportedSetup
from rsocket_trio.mux.events import SetupAccepted, SetupReceived
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.rsocket.extensions.terms import check_grants, grants
from rsocket_trio.rsocket.frames import ErrorFrame, KeepaliveFrame, SetupFrame, SetupOkFrame
from rsocket_trio.rsocket.gate import Gate
from rsocket_trio.rsocket.keepalive import KeepaliveTimer
from rsocket_trio.rsocket.setup import ClientTerms, admit, described, setup_frame
from rsocket_trio.rsocket.standing import State
from rsocket_trio.rsocket.stream_sender import UNCUT
from rsocket_trio.terms import MAX_REQUESTS, MAX_SECONDS, Lease

if TYPE_CHECKING:
    from rsocket_trio.rsocket.session import Session

UNLIMITED_LEASE = Lease(MAX_REQUESTS, MAX_SECONDS)
"""The lease that a client grants a server's requests if its application has no policy of its own."""


class ClientBeginning:
    """The client role: sends SETUP, and waits for SETUP_OK if it asked for one.

    ``grants`` says that with leases the session grants the server's requests, and without bounds: not where the
    application has a policy for that, or serves no requests.
    """

    is_full = False

    __slots__ = ("_grants", "_session", "_terms")

    def __init__(self, session: Session, terms: ClientTerms, *, grants: bool) -> None:
        self._session = session
        self._terms = terms
        self._grants = grants

    def start(self, now: float, said: tuple[SetupFrame, bytes] | None = None) -> None:
        """Send SETUP. Raises ``LocalProtocolError`` for terms that the dialect can't say."""
        session, terms = self._session, self._terms
        if said is None:
            frame = setup_frame(session.dialect, terms)
            encoded = session.dialect.codec.encode(frame)
        else:
            frame, encoded = said
        session.outbox.put_signal(encoded)
        if terms.resume_token is not None and not session.dialect.entries:
            session.resume_handshake.begin_client(terms.resume_token, terms)
        if frame.ack:
            # RSX-SETUP-03: nothing is sent until the answer, but silence counts.
            session.state = State.ASKING
            session.beginning = self
            session.keepalive = KeepaliveTimer(math.inf, terms.keepalive.max_lifetime, now)
        else:
            self._open(now)

    def lets_through(self, data: bytes) -> bool:
        """Take SETUP_OK if this frame is one. Return ``True`` for any other frame that may come before it."""
        session, terms = self._session, self._terms
        codec = session.dialect.codec
        try:
            frame = codec.decode(data)
        except RemoteProtocolError:
            return True  # It will be skipped, if it may be.
        if isinstance(frame, ErrorFrame) and not frame.stream_id:
            return True
        if not isinstance(frame, SetupOkFrame):
            raise RemoteProtocolError(f"{codec.name_of(frame)} before SETUP_OK")  # RSX-OK-01
        if frame.stream_id:
            session.receiver.ignored += 1  # ALL-RCT-07
            return False
        try:
            check_grants(setup_frame(session.dialect, terms).extensions, frame.extensions)
        except UnsupportedSetup as error:
            session.end_with(CONNECTION_ERROR, error.data, error)  # RSX-OK-02
            return False
        session.control.established = True
        if terms.resume_token is not None:
            session.resume_handshake.begin_client(terms.resume_token, terms)
        self._open(session.receiver.now)
        session.receiver.events.append(SetupAccepted(frame.extensions))
        return False

    def _open(self, now: float) -> None:
        session, terms = self._session, self._terms
        if session.dialect.codec.writes(KeepaliveFrame):
            session.keepalive = KeepaliveTimer(terms.keepalive.interval, terms.keepalive.max_lifetime, now)
        session.state = State.OPEN
        session.beginning = None
        if terms.lease:
            session.control.agree_leases()
            if self._grants and not session.dialect.implicit_lease:
                session.grant(UNLIMITED_LEASE, now)  # RS10-CON-11


class ServerBeginning:
    """The server role: waits for SETUP, then for its application, while the gate holds later frames."""

    __slots__ = ("_gate", "_grants_leases", "_own_size", "_session")

    def __init__(self, session: Session, *, grants_leases: bool, own_size: bool) -> None:
        self._session = session
        self._grants_leases = grants_leases
        self._own_size = own_size
        self._gate = Gate(session.dialect, session.limits, session.table, session.control)

    @property
    def is_full(self) -> bool:
        """Whether enough is held for reading to pause."""
        return self._gate.is_full

    @property
    def held_size(self) -> int:
        """Bytes held until the application accepts the SETUP."""
        return self._gate.size

    def lets_through(self, data: bytes) -> bool:
        """Return whether to process this frame now. The first one is taken as the SETUP, later ones may be held.

        Raises the ``SetupError`` that refuses the client.
        """
        if self._session.state is State.GATED:
            return self._gate.lets_through(data)
        self._take_setup(data)
        return False

    def open(self, granted: tuple[Entry, ...]) -> list[bytes]:
        """Open the gate: the application accepts the SETUP with these entries. Return the held frames in order."""
        session = self._session
        session.state = State.OPEN
        session.beginning = None
        if self._gate.owes_answer:
            # RSX-OK-01: before anything else.
            answer = SetupOkFrame(Payload(), (*session.resume_handshake.grants, *granted))
            session.outbox.release(session.dialect.codec.encode(answer))
        return self._gate.open()

    def _take_setup(self, data: bytes) -> None:
        """Check the SETUP, and hold what follows until the application accepts it."""
        session, resume_handshake = self._session, self._session.resume_handshake
        dialect, grants_leases = session.dialect, self._grants_leases
        frame = admit(
            dialect, data, session.limits.setup_size, grants_leases=grants_leases, resumes=resume_handshake.offered
        )
        session.state = State.GATED
        session.control.established = True
        # Without a lifetime silence alone kills nothing.
        session.keepalive = KeepaliveTimer(math.inf, frame.max_lifetime or math.inf, session.receiver.now)
        if not self._own_size and (frame.major, frame.minor) in dialect.whole_versions:
            session.commands.cut_above(UNCUT)
        resume_handshake.begin_server(frame)
        if frame.lease:
            session.control.agree_leases()
        if frame.ack:
            resume_handshake.grants = grants(frame, grants_leases=grants_leases, resumes=resume_handshake.offered)
            self._gate.owes_answer = True
            session.outbox.hold()
        session.receiver.events.append(SetupReceived(described(dialect, frame)))
