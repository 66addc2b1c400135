"""The handshake of a new connection: SETUP and its answer in either role, and the gate that holds frames meanwhile.

Nothing here changes a session: each step returns its outcome as a value, or raises the error that ends it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from rsocket_trio.errors import (
    InvalidSetup,
    RejectedResume,
    RejectedSetup,
    RemoteProtocolError,
    SetupError,
    UnsupportedSetup,
)
from rsocket_trio.limits import Limits, charged
from rsocket_trio.payload import Payload, without_metadata
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import (
    LEASE,
    ErrorFrame,
    ExtensionEntry,
    ExtFrame,
    MetadataPushFrame,
    PayloadFrame,
    ResumeFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.stream_table import StreamTable
from rsocket_trio.terms import MAX_REQUESTS, MAX_SECONDS, Keepalive, Lease, Setup
from rsocket_trio.values import value

UNLIMITED_LEASE = Lease(MAX_REQUESTS, MAX_SECONDS)
"""The lease that a client grants a server's requests if its application has no policy of its own."""

ANSWERS = (PayloadFrame, ErrorFrame)
"""Frames that only a responder sends, where the two sides' ids tell nothing."""

FOR_HANDLERS = (MetadataPushFrame, ExtFrame)
"""Frames for the connection that an application's handlers take: none of those runs before the gate is open."""


@value
class ClientTerms:
    """The terms that a client puts into its SETUP."""

    payload: Payload = attrs.field(repr=without_metadata)
    data_mime: str | int
    metadata_mime: str | int
    keepalive: Keepalive
    lease: bool
    strict: bool
    entries: tuple[ExtensionEntry, ...] = ()
    resume_token: bytes | None = attrs.field(default=None, repr=False)


def setup_frame(dialect: Dialect, terms: ClientTerms, *, position: int | None = None) -> SetupFrame:
    """Return the SETUP of this dialect for those terms; with ``position`` the one that resumes from there."""
    if dialect.entries:
        rules = dialect.extensions
        asked = rules.asked(terms.keepalive, lease=terms.lease, token=terms.resume_token, position=position)
        entries = (*asked, *terms.entries)
        ack = any(entry.ack for entry in entries)
        version, mimes = (dialect.major, dialect.minor), (terms.metadata_mime, terms.data_mime)
        return SetupFrame(*version, 0.0, 0.0, *mimes, terms.payload, ack=ack, extensions=entries)
    return SetupFrame(
        dialect.major,
        dialect.minor,
        terms.keepalive.interval,
        terms.keepalive.max_lifetime,
        terms.metadata_mime,
        terms.data_mime,
        terms.payload,
        lease=terms.lease,
        strict=terms.strict and dialect.strict,
        resume_token=terms.resume_token,
    )


def stated(dialect: Dialect, frame: SetupFrame) -> SetupFrame:
    """Return the same SETUP; terms that stand in extension entries are in its fields, too."""
    return dialect.extensions.stated(frame) if dialect.entries else frame


def refusal(dialect: Dialect, frame: SetupFrame, *, grants_leases: bool, resumes: bool = False) -> SetupError | None:
    """Return why a server of this dialect can't accept this SETUP, or ``None``."""
    versions = dialect.versions or {(dialect.major, dialect.minor)}
    if (frame.major, frame.minor) not in versions:
        # RS10-SETUP-08, RS02-CON-07: the description of the code names versions.
        return InvalidSetup(f"version {frame.major}.{frame.minor} is not spoken here, {dialect.name} is")
    if dialect.entries:
        return dialect.extensions.refusal(frame, grants_leases=grants_leases, resumes=resumes)
    if dialect.has_lifetime and (frame.keepalive_interval <= 0 or frame.max_lifetime <= 0):
        return InvalidSetup(
            f"keepalive interval {frame.keepalive_interval:g} s and lifetime {frame.max_lifetime:g} s must be above 0"
        )
    if frame.resume_token is not None and not resumes:
        # RS10-SETUP-07, RS02-SETUP-07.
        return RejectedSetup("resumption is not offered here")
    if frame.lease and not grants_leases:
        return UnsupportedSetup("leases are not granted here")
    return None


def described(dialect: Dialect, frame: SetupFrame) -> Setup:
    """Return the SETUP as the application sees it, before the facts of the handshake are added."""
    return Setup(
        dialect=dialect.name,
        payload=frame.payload,
        data_mime=frame.data_mime,
        metadata_mime=frame.metadata_mime,
        keepalive_interval=frame.keepalive_interval,
        max_lifetime=frame.max_lifetime,
        lease=frame.lease,
        strict=frame.strict,
        resume=frame.resume_token is not None,
        extension_entries=frame.extensions,
    )


def setup_answer(dialect: Dialect, data: bytes) -> SetupOkFrame | None:
    """Return the SETUP_OK that this frame is, ``None`` for a frame that a client may get before it.

    Raise ``RemoteProtocolError`` for any other frame (RSX-OK-01).
    """
    try:
        frame = dialect.codec.decode(data)
    except RemoteProtocolError:
        return None  # It will be skipped, if it may be.
    if isinstance(frame, ErrorFrame) and not frame.stream_id:
        return None
    if not isinstance(frame, SetupOkFrame):
        raise RemoteProtocolError(f"{dialect.codec.name_of(frame)} before SETUP_OK")
    return frame


@attrs.define(eq=False, repr=False)
class ServerHandshake:
    """A server that waits for SETUP, then for its application, while it holds later frames.

    Keepalives, leases, errors and answers pass meanwhile. ``owes_answer`` says that the SETUP asked for an answer: then
    nothing may be said before it. ``is_for_session`` tells whether an EXT frame concerns the session alone.
    ``own_size`` says that the fragment size is the application's, whatever the client joins. ``offers_resume`` says
    that sessions may be resumed, ``grants_leases`` that the application has a policy for leases; ``granted`` are the
    entries that are granted without the application.
    """

    _dialect: Dialect
    _limits: Limits
    _table: StreamTable
    _is_for_session: Callable[[bytes], bool]
    _grants_leases: bool
    _own_size: bool
    _offers_resume: bool
    _held: list[bytes] = attrs.Factory(list)
    _size: int = 0
    owes_answer: bool = False
    granted: tuple[ExtensionEntry, ...] = ()

    def admit(self, data: bytes) -> SetupFrame:
        """Return the SETUP that a client's first frame is. Its resume token does not count towards the limit.

        Terms that stand in extension entries are in its fields as well, leases if they are granted. Raise the
        ``SetupError`` that refuses it.
        """
        dialect, leases, resumes = self._dialect, self._grants_leases, self._offers_resume
        codec = dialect.codec
        try:
            frame = codec.decode(data)
        except RemoteProtocolError as error:
            header = codec.header(data)
            if dialect.entries and header is not None and header.row is not None and header.row.frame is SetupFrame:
                raise dialect.extensions.unreadable(error) from None
            # ALL-RCT-04: its ignore flag changes nothing.
            raise InvalidSetup(str(error)) from None
        if isinstance(frame, ResumeFrame) and not frame.stream_id:
            # RS10-RSM-17; where resumption is offered, a RESUME never gets here.
            raise RejectedResume("resumption is not offered here")
        if not isinstance(frame, SetupFrame) or frame.stream_id:
            name = codec.name_of(frame)
            raise InvalidSetup(f"the first frame must be SETUP on stream 0, not {name}")  # RS10-CON-02
        frame = stated(dialect, frame)
        size = len(data) - len(frame.resume_token or b"")
        if size > self._limits.setup_size:
            raise InvalidSetup(f"SETUP of {size} bytes, limit {self._limits.setup_size}")
        refused = refusal(dialect, frame, grants_leases=leases, resumes=resumes)
        if refused is not None:
            raise refused
        if dialect.entries:
            granted = dialect.extensions.grants(frame, grants_leases=leases, resumes=resumes)
            frame = attrs.evolve(frame, lease=any(entry.ext == LEASE for entry in granted))
            if frame.ack:
                self.granted = granted
                self.owes_answer = True
        return frame

    def joins_fragments(self, frame: SetupFrame) -> bool:
        """Return whether this client joins fragments; others get payloads whole unless the application says more."""
        return self._own_size or (frame.major, frame.minor) not in self._dialect.whole_versions

    @property
    def is_full(self) -> bool:
        """Return whether enough is held for reading to pause."""
        return len(self._held) >= self._limits.held_frames or self._size >= self._limits.held_size

    @property
    def size(self) -> int:
        """The charged size of all held frames in bytes, overhead included."""
        return charged(self._size, len(self._held))

    def admits(self, data: bytes) -> bool:
        """Return whether a later frame passes now. It changes nothing."""
        header = self._dialect.codec.header(data)
        if header is None:
            return True
        row = header.row
        if self.owes_answer:
            # Only an end that the peer announces needs no answer.
            return row is not None and row.frame is ErrorFrame
        if row is not None and row.frame in FOR_HANDLERS:
            return row.frame is ExtFrame and self._is_for_session(data)
        if header.stream_id and not self._dialect.ids_have_parity:
            # The id may be one of ours and one of the peer's: only what answers our own requests goes on.
            return row is not None and row.frame in ANSWERS
        # A request, or something for a request that is held already, waits.
        return not header.stream_id or self._table.find(header.stream_id) is not None

    def hold(self, data: bytes) -> None:
        """Keep this frame until the application accepts the SETUP."""
        self._held.append(data)
        self._size += len(data)
        if self._table.learns:
            self._learn(data)

    def release(self) -> list[bytes]:
        """Return the held frames in order, and hold none any more."""
        held, self._held, self._size = self._held, [], 0
        return held

    def _learn(self, data: bytes) -> None:
        """Learn the peer's parity from a held request: the application may send requests before it is processed."""
        header = self._dialect.codec.header(data)
        if header is not None and header.stream_id and header.row is not None and header.row.interaction is not None:
            self._table.learn(header.stream_id)
