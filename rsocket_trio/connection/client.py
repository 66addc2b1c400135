"""Opening a connection: by URI, or over a stream that is there already."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from rsocket_trio.connection.connection import Connection
from rsocket_trio.connection.handlers import only_leaf
from rsocket_trio.errors import Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, IDS, OCTET_STREAM
from rsocket_trio.mux.framing import Framing, Framing24, Framing32
from rsocket_trio.payload import Payload, PayloadLike, as_payload
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import dialect_named
from rsocket_trio.rsocket.extension_terms import as_entries
from rsocket_trio.rsocket.quirks import with_quirks
from rsocket_trio.rsocket.session import Session, checked_fragment_size
from rsocket_trio.rsocket.setup import ClientTerms, described, setup_frame, stated
from rsocket_trio.terms import Keepalive
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.bytestream import ByteStreamTransport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.uris import parse_uri

FRAMINGS: dict[str, type[Framing24 | Framing32]] = {"u24": Framing24, "u32": Framing32}
FRAGMENT_SIZE = 65536
"""Bytes of an outbound frame by default."""
NO_SETUP = Payload()
KEEPALIVE = Keepalive(interval=20, max_lifetime=90)
LIMITS = Limits()


@asynccontextmanager
async def open_connection(
    uri: str,
    *,
    dialect: str = "rsocket/1.0",
    responder: Responder | None = None,
    setup: PayloadLike = NO_SETUP,
    data_mime: str = OCTET_STREAM,
    metadata_mime: str = COMPOSITE_METADATA,
    keepalive: Keepalive = KEEPALIVE,
    lease: bool = False,
    strict: bool = False,
    resume: None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    ssl_context: ssl.SSLContext | None = None,
    headers: Iterable[tuple[str, str]] = (),
    quirks: Iterable[str] = (),
    entries: Iterable[object] = (),
) -> AsyncIterator[Connection]:
    """Connect to a peer for as long as the block.

    ``setup`` is the application's word to the server, ``keepalive`` the interval and lifetime (20 s and 90 s),
    ``fragment_size`` the bytes of an outbound frame, ``headers`` go into a WebSocket handshake. ``responder`` serves
    the requests that the server makes. ``quirks`` name deviations of old peers to put up with.

    ``entries`` are extension entries of the SETUP, in the extension draft. Where they, or ``lease``, ask for an answer
    there, the block starts with that answer, and a refusal is raised at once.

    Otherwise the block starts once SETUP is queued. A refusal raises ``RejectedSetup``, ``InvalidSetup`` or
    ``UnsupportedSetup`` in every waiting and later call, a lost connection ``ConnectionLost``. Raises
    ``ConnectionLost`` at once when the peer can't be reached, and ``ValueError`` for terms that can't be said. Leaving
    cancels what is open and flushes what is queued, for at most a second.
    """
    terms = _terms(setup, data_mime, metadata_mime, keepalive, lease, strict, entries)
    session = client_session(dialect, terms, limits, fragment_size, responder, resume, quirks)
    parse_uri(uri)
    async with (
        open_transport(uri, ssl_context=ssl_context, headers=headers, limits=limits) as transport,
        _run_client(session, terms, transport, responder) as connection,
    ):
        yield connection


@asynccontextmanager
async def open_connection_over(
    stream: trio.abc.Stream | Transport,
    *,
    dialect: str = "rsocket/1.0",
    responder: Responder | None = None,
    setup: PayloadLike = NO_SETUP,
    data_mime: str = OCTET_STREAM,
    metadata_mime: str = COMPOSITE_METADATA,
    keepalive: Keepalive = KEEPALIVE,
    lease: bool = False,
    strict: bool = False,
    resume: None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    quirks: Iterable[str] = (),
    entries: Iterable[object] = (),
) -> AsyncIterator[Connection]:
    """The same over a Trio stream (or a transport) that is connected already; it is closed when the block ends."""
    terms = _terms(setup, data_mime, metadata_mime, keepalive, lease, strict, entries)
    session = client_session(dialect, terms, limits, fragment_size, responder, resume, quirks)
    transport = as_transport(stream)
    async with _run_client(session, terms, transport, responder) as connection:
        yield connection


def as_transport(stream: trio.abc.Stream | Transport) -> Transport:
    """Any Trio stream as a transport."""
    return ByteStreamTransport(stream) if isinstance(stream, trio.abc.Stream) else stream


def framing_for(dialect: Dialect, limits: Limits, *, first_limit: int | None = None) -> Framing:
    """How frames of this dialect are cut out of a byte stream; ``first_limit`` bounds the first one, in bytes."""
    return FRAMINGS[dialect.framing](limits.frame_size, dialect.codec.minimum, first_limit)


def client_session(
    dialect: str,
    terms: ClientTerms,
    limits: Limits,
    fragment_size: int,
    responder: Responder | None,
    resume: None,
    quirks: Iterable[str],
) -> Session:
    """A client's session, its terms checked before anything is dialled. Raises ``ValueError`` and ``Unsupported``."""
    record = with_quirks(dialect_named(dialect), quirks)
    refuse_resume(resume)
    check_limits(limits)
    if terms.entries and not record.entries:
        raise Unsupported(f"{record.name} has no extension entries")
    if terms.strict and not record.strict:
        raise Unsupported(f"{record.name} has no strict flag")
    try:
        record.codec.encode(setup_frame(record, _numbered(record, terms)))
    except Exception as error:
        raise ValueError(f"the SETUP can't be said in {record.name}: {error}") from error
    return Session(
        record,
        client=True,
        limits=limits,
        fragment_size=checked_fragment_size(fragment_size, record.codec.largest),
        extensions=frozenset(responder.extensions) if responder is not None else frozenset(),
    )


def refuse_resume(resume: object) -> None:
    """Resumption can't be asked for. Raises ``Unsupported``."""
    if resume is not None:
        raise Unsupported("resumption is not offered by this version")


def check_limits(limits: object) -> None:
    """Raise ``TypeError`` for what are no ``Limits``."""
    if not isinstance(limits, Limits):
        raise TypeError(f"limits are Limits, not {type(limits).__name__}")


def _terms(
    setup: PayloadLike,
    data_mime: str,
    metadata_mime: str,
    keepalive: Keepalive,
    lease: bool,
    strict: bool,
    entries: Iterable[object],
) -> ClientTerms:
    payload: Payload = as_payload(setup)
    mimes = data_mime, metadata_mime
    if not isinstance(keepalive, Keepalive):
        raise TypeError(f"keepalive is a Keepalive, not {type(keepalive).__name__}")
    return ClientTerms(payload, *mimes, keepalive, lease, strict, as_entries(entries))


def _numbered(dialect: Dialect, terms: ClientTerms) -> ClientTerms:
    """The same terms, well-known MIME types by their numbers where the dialect has those."""
    if not dialect.mime_fields:
        return terms
    data_mime, metadata_mime = (IDS.get(str(mime), mime) for mime in (terms.data_mime, terms.metadata_mime))
    return attrs.evolve(terms, data_mime=data_mime, metadata_mime=metadata_mime)


@asynccontextmanager
async def _run_client(
    session: Session, terms: ClientTerms, transport: Transport, responder: Responder | None
) -> AsyncIterator[Connection]:
    """Run the connection for as long as the block; the block's own error leaves alone, in no group."""
    setup = described(session.dialect, stated(session.dialect, setup_frame(session.dialect, terms)))
    connection = Connection(session, responder, setup, transport.handshake)
    policy = responder is not None and responder.lease_policy is not None
    session.start_client(_numbered(session.dialect, terms), trio.current_time(), own_policy=policy)
    transport.use_framing(framing_for(session.dialect, session.limits))
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run, transport)
            try:
                await connection.wait_for_answer()
                yield connection
            except BaseException as exc:
                error = exc
            connection.leave()
    except BaseExceptionGroup as group:
        leaf = only_leaf(group)
        raise leaf from leaf.__cause__
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
