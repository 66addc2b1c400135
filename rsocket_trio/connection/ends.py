"""Holds the client and server ends of each protocol, which make sessions and framings for new connections."""

from __future__ import annotations

import secrets
from typing import Protocol

import attrs

from rsocket_trio.connection.dialects import STREAMUX
from rsocket_trio.errors import RejectedResume
from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, IDS
from rsocket_trio.mux.framing import Framing, Framing24, Framing32, Unframed
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import ErrorFrame, SetupFrame
from rsocket_trio.rsocket.resume_positions import TOKEN_SIZE, ResumeRequest, resume_request
from rsocket_trio.rsocket.session import Session as RSocketSession
from rsocket_trio.rsocket.setup import ClientTerms, described, setup_frame, stated
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.streamux.session import Session as StreamuxSession
from rsocket_trio.terms import ResumeOptions, Setup

FRAMINGS: dict[str, type[Framing24 | Framing32]] = {"u24": Framing24, "u32": Framing32}
LONGEST_TOKEN = 65535
"""Largest size of a resume token in bytes, which do not count against the limit of a SETUP."""


def framing_for(dialect: Dialect, limits: Limits, *, first_limit: int | None = None) -> Framing:
    """Return the framing of a dialect on byte streams; ``first_limit`` bounds the first frame, in bytes."""
    return FRAMINGS[dialect.framing](limits.frame_size, dialect.codec.minimum, first_limit)


def new_token() -> bytes:
    """Return a random resume token. Simulations replace this function by a repeatable one."""
    return secrets.token_bytes(TOKEN_SIZE)


@attrs.frozen
class Begun:
    """The session of a new connection, and the terms of the SETUP that are known so far.

    ``resumable`` is the same session if it may be resumed over another transport.
    """

    session: Session
    setup: Setup
    resumable: RSocketSession | None = None


class End(Protocol):
    """One side of future connections, with checked terms. A client begins once, a server for each client."""

    @property
    def name(self) -> str:
        """The dialect's name."""
        ...

    @property
    def resume(self) -> ResumeOptions | None:
        """The options of resumption, or ``None`` without resumption."""
        ...

    def framing(self) -> Framing:
        """Return the framing that cuts bytes into frames."""
        ...

    @property
    def length_on_messages(self) -> bool:
        """Whether a client's messages keep the length of byte streams."""
        ...

    def begin(self, now: float) -> Begun:
        """Return a new session, with its first frame queued if this side speaks first."""
        ...


class ServerEnd(End, Protocol):
    """The server's side, which also handles clients that resume a session."""

    @property
    def lengths_are_learnt(self) -> bool:
        """Whether a client's first message shows if messages keep the length of byte streams."""
        ...

    def framing(self, *, first: bool = False) -> Framing:
        """Return the framing; with ``first`` it starts at the first frame, which has a limit of its own."""
        ...

    def resume_request(self, first: bytes) -> ResumeRequest | None:
        """Return the resume request in a client's first frame; ``None`` for a new client."""
        ...

    def refusal(self, refusal: RejectedResume) -> bytes:
        """Return the frame that refuses to resume a session."""
        ...


@attrs.frozen
class RSocketClient:
    """A client of the RSocket family."""

    dialect: Dialect
    terms: ClientTerms
    limits: Limits
    fragment_size: int
    responder: Responder | None
    resume: ResumeOptions | None
    said: tuple[SetupFrame, bytes]
    """The SETUP of sessions without resumption, as a frame and encoded."""
    length_on_messages: bool
    """Whether messages keep the length of byte streams."""

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self.dialect.name

    def framing(self) -> Framing:
        """Return the framing that cuts bytes into frames."""
        return framing_for(self.dialect, self.limits)

    def begin(self, now: float) -> Begun:
        """Return a session that sends the SETUP."""
        dialect, responder, terms, said = self.dialect, self.responder, self.terms, self.said
        if self.resume is not None:
            terms = attrs.evolve(terms, resume_token=new_token())
            frame = setup_frame(dialect, numbered(dialect, terms))
            said = frame, dialect.codec.encode(frame)
        session = RSocketSession(
            dialect,
            client=True,
            limits=self.limits,
            fragment_size=self.fragment_size,
            extensions=responder.extensions if responder is not None else (),
            resume=self.resume,
        )
        # Without a responder a lease is of no use, and servers end the connection on a lease that they do not expect.
        grants = responder is not None and responder.lease_policy is None
        session.start_client(numbered(dialect, terms), now, grants=grants, said=said)
        written = setup_frame(dialect, terms) if dialect.mime_fields else said[0]
        setup = described(dialect, stated(dialect, written))
        return Begun(session, setup, session if self.resume is not None else None)


@attrs.frozen
class RSocketServer:
    """A server of one dialect of the family."""

    dialect: Dialect
    limits: Limits
    fragment_size: int
    responder: Responder
    resume: ResumeOptions | None
    own_size: bool
    """Whether the application chose the fragment size, which then holds for every client."""

    length_on_messages = False

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self.dialect.name

    def framing(self, *, first: bool = False) -> Framing:
        """Return the framing that cuts bytes into frames."""
        # A SETUP may be a little above its own limit, so that its sender hears of the limit and not of a broken frame.
        first_limit = self.limits.setup_size + LONGEST_TOKEN + 2 if first else None
        return framing_for(self.dialect, self.limits, first_limit=first_limit)

    @property
    def lengths_are_learnt(self) -> bool:
        """Whether a client's first message shows if messages keep the length of byte streams."""
        return self.dialect.lengths_are_learnt

    def resume_request(self, first: bytes) -> ResumeRequest | None:
        """Return the resume request in a client's first frame; ``None`` for a new client."""
        return resume_request(self.dialect, first)

    def refusal(self, refusal: RejectedResume) -> bytes:
        """Return an encoded ERROR REJECTED_RESUME."""
        return self.dialect.codec.encode(ErrorFrame(0, refusal.code, refusal.data))

    def begin(self, now: float) -> Begun:
        """Return a session that waits for the SETUP."""
        dialect, limits, responder = self.dialect, self.limits, self.responder
        session = RSocketSession(
            dialect,
            client=False,
            limits=limits,
            fragment_size=self.fragment_size,
            extensions=responder.extensions,
            resume=self.resume,
        )
        session.start_server(grants_leases=responder.lease_policy is not None, own_size=self.own_size)
        setup = Setup(dialect=dialect.name, metadata_mime=COMPOSITE_METADATA)
        return Begun(session, setup, session if self.resume is not None else None)


@attrs.frozen
class StreamuxEnd:
    """Either side of a Streamux connection: its two peers are equal."""

    options: StreamuxOptions
    client: bool
    limits: Limits
    fragment_size: int
    responder: Responder | None

    name = STREAMUX
    length_on_messages = lengths_are_learnt = False
    resume: ResumeOptions | None = None

    def framing(self, *, first: bool = False) -> Framing:
        """Return no framing: the session cuts the bytes itself."""
        return Unframed()

    def resume_request(self, first: bytes) -> ResumeRequest | None:
        """Return ``None``: Streamux has no resumption."""
        return None

    def refusal(self, refusal: RejectedResume) -> bytes:
        """Return no bytes: Streamux has no such message."""
        return b""

    def begin(self, now: float) -> Begun:
        """Return a session that sends the initialize message, or with a quick init has it ready."""
        handles = self.responder.has_default if self.responder is not None else _handles_nothing
        session = StreamuxSession(
            self.options,
            client=self.client,
            limits=self.limits,
            fragment_size=self.fragment_size,
            whole=handles(Interaction.REQUEST_RESPONSE),
            chunks=handles(Interaction.REQUEST_CHANNEL),
        )
        session.start(now)
        return Begun(session, Setup(dialect=STREAMUX))


def numbered(dialect: Dialect, terms: ClientTerms) -> ClientTerms:
    """Return the terms, with well-known MIME types as numbers if the dialect has those."""
    if not dialect.mime_fields:
        return terms
    data_mime, metadata_mime = (IDS.get(str(mime), mime) for mime in (terms.data_mime, terms.metadata_mime))
    return attrs.evolve(terms, data_mime=data_mime, metadata_mime=metadata_mime)


def _handles_nothing(interaction: Interaction) -> bool:
    return False
