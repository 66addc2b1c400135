"""The protocols that a connection can speak: names, detection, checked terms, and factories of sessions."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, IDS
from rsocket_trio.mux.framing import Framing
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket import dialect as family
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import SetupFrame
from rsocket_trio.rsocket.handshake import ClientTerms, described, setup_frame, stated
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE
from rsocket_trio.rsocket.session import Session as RSocketSession
from rsocket_trio.rsocket.stream_sender import checked_fragment_size
from rsocket_trio.streamux_magic import NAME, begins
from rsocket_trio.terms import ResumeOptions, Setup
from rsocket_trio.values import Unsaid

if TYPE_CHECKING:
    from rsocket_trio.connection.hooks import Responder
    from rsocket_trio.rsocket.detection import Undecided
    from rsocket_trio.rsocket.quirks import Peer
    from rsocket_trio.streamux.negotiation import StreamuxOptions

STREAMUX: Final = NAME
ALL: Final[tuple[str, ...]] = (*family.ALL, STREAMUX)
SHORT: Final[dict[str, str]] = {
    "1.0": family.RSOCKET_1_0.name,
    "0.2": family.REACTIVESOCKET_0_2.name,
    "0.1": family.REACTIVESOCKET_0_1.name,
    "0.0": family.REACTIVESOCKET_0_0.name,
    "ext": family.RSOCKET_2_0_DRAFT.name,
    "streamux": STREAMUX,
}
"""Full names of the dialects by their short names."""
IN_SHORT: Final = ", ".join(SHORT)
Detected: TypeAlias = Dialect | str
"""A dialect of the family by its record, Streamux by its name."""


def full_name(name: str) -> str:
    """Return the full name of a dialect, from its full or its short name. Raise ``ValueError`` for an unknown name."""
    full = SHORT.get(name, name)
    if full not in ALL:
        raise ValueError(f"dialect {name!r}: the known ones are {', '.join(ALL)}, in short {IN_SHORT}")
    return full


def name_of(protocol: Detected) -> str:
    return protocol if isinstance(protocol, str) else protocol.name


def detect_protocol(data: bytes, *, message: bool, ended: bool) -> Detected | Undecided | None:
    """Return the dialect of a client from its first bytes; ``None`` if no dialect begins like this.

    ``message`` says that ``data`` begins with the first message of a transport that keeps message borders, ``ended``
    that no more bytes will come. Streamux is tested first, by five bytes, and ignores borders (DET-01, DET-09).
    """
    # Imported here, as Streamux and the old peers are below: a program loads the protocols that it speaks.
    from rsocket_trio.rsocket.detection import UNDECIDED, detect

    streamux = begins(data)
    if streamux:
        return STREAMUX
    if streamux is None and not ended and (data or not message):
        return UNDECIDED
    return detect(data, message=message, ended=ended)


MAX_TOKEN_SIZE = 65535
"""Largest size of a resume token in bytes, which do not count against the limit of a SETUP."""


def framing_for(dialect: Dialect, limits: Limits, *, first_limit: int | None = None) -> Framing:
    """Return the framing of a dialect on byte streams; ``first_limit`` bounds the first frame, in bytes."""
    return dialect.framing(limits.frame_size, dialect.codec.minimum, first_limit)


def new_token() -> bytes:
    """Return a random resume token. Simulations replace this function by a repeatable one."""
    return secrets.token_bytes(TOKEN_SIZE)


@attrs.frozen
class ClientSetup:
    """The SETUP of a client: as a frame, as bytes, and as the application sees it."""

    frame: SetupFrame
    encoded: bytes = attrs.field(repr=False)
    shown: Setup


def client_setup(dialect: Dialect, terms: ClientTerms) -> ClientSetup:
    """Return the SETUP of these terms. Raise what their encoding raises."""
    frame = setup_frame(dialect, numbered(dialect, terms))
    written = setup_frame(dialect, terms) if dialect.mime_fields else frame
    return ClientSetup(frame, dialect.codec.encode(frame), described(dialect, stated(dialect, written)))


@attrs.frozen
class RSocketEnd:
    """A side of future connections of the RSocket family, with checked terms."""

    dialect: Dialect
    limits: Limits
    fragment_size: int
    resume: ResumeOptions | None

    @property
    def name(self) -> str:
        return self.dialect.name

    def framing(self, *, first: bool = False) -> Framing:
        """Return the framing that cuts bytes into frames; that of a server's ``first`` frame is for a SETUP."""
        # A SETUP may be a little above its own limit, so that its sender hears of the limit and not of a broken frame.
        first_limit = self.limits.setup_size + MAX_TOKEN_SIZE + 2 if first else None
        return framing_for(self.dialect, self.limits, first_limit=first_limit)

    def session(self, responder: Responder | None, *, client: bool) -> RSocketSession:
        return RSocketSession(
            self.dialect,
            client=client,
            limits=self.limits,
            fragment_size=self.fragment_size,
            extensions=() if responder is None else responder._extensions,
            resume=self.resume,
        )


@attrs.frozen
class RSocketClient(RSocketEnd):
    """A client of the RSocket family."""

    responder: Responder | None
    terms: ClientTerms
    setup: ClientSetup
    """The SETUP of sessions without resumption."""

    def begin(self, now: float) -> tuple[Session, Setup]:
        """Return a session that sends the SETUP, and that SETUP."""
        dialect, responder, terms, setup = self.dialect, self.responder, self.terms, self.setup
        if self.resume is not None:
            terms = attrs.evolve(terms, resume_token=new_token())
            setup = client_setup(dialect, terms)
        session = self.session(responder, client=True)
        # Without a responder a lease is of no use, and servers end the connection on a lease that they do not expect.
        grants = responder is not None and responder._lease_handler is None
        encoded = setup.frame, setup.encoded
        session.start_client(numbered(dialect, terms), now, grants=grants, encoded_setup=encoded)
        return session, setup.shown


@attrs.frozen
class RSocketServer(RSocketEnd):
    """A server of one dialect of the family."""

    responder: Responder
    own_size: bool
    """True if the application chose the fragment size, which then holds for every client."""
    setup_to_come: Setup = attrs.field(init=False)
    """Stands for a client's SETUP until that is here."""

    @setup_to_come.default
    def _setup_to_come(self) -> Setup:
        return Setup(dialect=self.dialect.name, metadata_mime=COMPOSITE_METADATA)

    def begin(self, now: float) -> tuple[Session, Setup]:
        """Return a session that waits for the SETUP, and what stands for that."""
        session = self.session(self.responder, client=False)
        session.start_server(grants_leases=self.responder._lease_handler is not None, own_size=self.own_size)
        return session, self.setup_to_come


@attrs.frozen
class StreamuxPeer:
    """Either side of a Streamux connection: its two peers are equal.

    Without ``options`` a server allows a quick init, and all else is as the document recommends.
    """

    options: StreamuxOptions | None
    client: bool
    limits: Limits
    fragment_size: int
    responder: Responder | None

    name = STREAMUX
    resume: ResumeOptions | None = None

    def framing(self, *, first: bool = False) -> Framing:
        """Return no framing: the session cuts the bytes itself."""
        return Framing()

    def begin(self, now: float) -> tuple[Session, Setup]:
        """Return a session that sends the initialize message, or with a quick init has it ready."""
        from rsocket_trio.streamux.negotiation import StreamuxOptions
        from rsocket_trio.streamux.session import Session as StreamuxSession

        handles = (lambda interaction: False) if self.responder is None else self.responder._has_default
        session = StreamuxSession(
            StreamuxOptions(qa=not self.client) if self.options is None else self.options,
            client=self.client,
            limits=self.limits,
            fragment_size=self.fragment_size,
            whole=handles(Interaction.REQUEST_RESPONSE),
            chunks=handles(Interaction.REQUEST_CHANNEL),
        )
        session.start(now)
        return session, Setup(dialect=STREAMUX)


ProtocolFactory: TypeAlias = RSocketClient | StreamuxPeer
"""The client's side of future connections, with checked terms."""
ServerProtocolFactory: TypeAlias = RSocketServer | StreamuxPeer
"""The server's side, which also handles clients that resume a session."""


def numbered(dialect: Dialect, terms: ClientTerms) -> ClientTerms:
    """Return the terms, with well-known MIME types as numbers if the dialect has those."""
    if not dialect.mime_fields:
        return terms
    data_mime, metadata_mime = (IDS.get(str(mime), mime) for mime in (terms.data_mime, terms.metadata_mime))
    return attrs.evolve(terms, data_mime=data_mime, metadata_mime=metadata_mime)


T = TypeVar("T")
MAX_CHUNK_SIZE = 2**30 - 1


def peer_and_dialect(name: str | None, dialect: str) -> tuple[Peer | None, str]:
    """Return the peer of that name, if any, and the full name of its dialect or of ``dialect``.

    Raise ``ValueError`` for an unknown name, or a dialect that is not the peer's.
    """
    if name is None:
        return None, full_name(dialect)
    from rsocket_trio.rsocket.quirks import peer_named

    peer = peer_named(name)
    if not isinstance(dialect, Unsaid) and full_name(dialect) != peer.dialect:
        raise ValueError(f"peer {name!r} speaks {peer.dialect}, not {full_name(dialect)}")
    return peer, peer.dialect


def needed(need: T | None, term: T) -> T:
    """Return what a peer needs, unless this term was set or the peer needs nothing of the kind."""
    return need if need is not None and isinstance(term, Unsaid) else term


def with_quirks(family: Sequence[Dialect], quirks: Iterable[str]) -> Sequence[Dialect]:
    """Return the dialects with these deviations of peers. Raise ``ValueError`` for an unknown one."""
    quirks = quirks if isinstance(quirks, str) else tuple(quirks)
    if not family and quirks and not isinstance(quirks, str):
        raise ValueError(f"quirks {', '.join(quirks)} of {STREAMUX}: there are none")
    if not quirks and not isinstance(quirks, str):
        return family
    from rsocket_trio.rsocket.quirks import all_with_quirks

    return all_with_quirks(family, quirks)


def checked_size(fragment_size: int, largest: int, resume: ResumeOptions | None) -> int:
    """Return the fragment size, checked against the largest frame and the store for resumption."""
    if resume is not None and not isinstance(resume, ResumeOptions):
        raise TypeError(f"resume is ResumeOptions, not {type(resume).__name__}")
    size = checked_fragment_size(fragment_size, largest)
    if resume is not None and size > resume.store_bytes:
        raise ValueError(f"fragment_size of {size} bytes: the store for resumption has {resume.store_bytes}")
    return size


def check_types(limits: object, streamux: object) -> None:
    """Raise ``TypeError`` for what are no ``Limits``, or no ``StreamuxOptions``."""
    if not isinstance(limits, Limits):
        raise TypeError(f"limits are Limits, not {type(limits).__name__}")
    if streamux is not None:
        from rsocket_trio.streamux.negotiation import StreamuxOptions

        if not isinstance(streamux, StreamuxOptions):
            raise TypeError(f"streamux options are StreamuxOptions, not {type(streamux).__name__}")
