"""Opening a connection: by URI, or over a stream that is there already."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from rsocket_trio.connection.connection import Connection
from rsocket_trio.connection.ends import End, client_end
from rsocket_trio.connection.handlers import only_leaf
from rsocket_trio.errors import Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, OCTET_STREAM
from rsocket_trio.payload import Payload, PayloadLike, as_payload
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.extension_terms import as_entries
from rsocket_trio.rsocket.setup import ClientTerms
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import Keepalive
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.bytestream import ByteStreamTransport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.uris import parse_uri

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
    streamux: StreamuxOptions | None = None,
) -> AsyncIterator[Connection]:
    """Connect to a peer for as long as the block.

    ``setup`` is the application's word to the server, ``keepalive`` the interval and lifetime (20 s and 90 s),
    ``fragment_size`` the bytes of an outbound frame, ``headers`` go into a WebSocket handshake. ``responder`` serves
    the requests that the server makes. ``quirks`` name deviations of old peers to put up with.

    ``entries`` are extension entries of the SETUP, in the extension draft. Where they, or ``lease``, ask for an answer
    there, the block starts with that answer, and a refusal is raised at once.

    ``streamux`` are the options of ``streamux/1``. There the block starts with the server's initialize message, or at
    once with a quick init; ``NegotiationFailed`` is raised where the two share no terms.

    Otherwise the block starts once SETUP is queued. A refusal raises ``RejectedSetup``, ``InvalidSetup`` or
    ``UnsupportedSetup`` in every waiting and later call, a lost connection ``ConnectionLost``. Raises
    ``ConnectionLost`` at once when the peer can't be reached, and ``ValueError`` for terms that can't be said. Leaving
    cancels what is open and flushes what is queued, for at most a second.
    """
    terms = _terms(setup, data_mime, metadata_mime, keepalive, lease, strict, entries)
    refuse_resume(resume)
    end = client_end(dialect, terms, limits, fragment_size, responder, quirks, streamux)
    parse_uri(uri)
    async with (
        open_transport(uri, ssl_context=ssl_context, headers=headers, limits=limits) as transport,
        _run_client(end, transport, responder) as connection,
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
    streamux: StreamuxOptions | None = None,
) -> AsyncIterator[Connection]:
    """The same over a Trio stream (or a transport) that is connected already; it is closed when the block ends."""
    terms = _terms(setup, data_mime, metadata_mime, keepalive, lease, strict, entries)
    refuse_resume(resume)
    end = client_end(dialect, terms, limits, fragment_size, responder, quirks, streamux)
    transport = as_transport(stream)
    async with _run_client(end, transport, responder) as connection:
        yield connection


def as_transport(stream: trio.abc.Stream | Transport) -> Transport:
    """Any Trio stream as a transport."""
    return ByteStreamTransport(stream) if isinstance(stream, trio.abc.Stream) else stream


def refuse_resume(resume: object) -> None:
    """Resumption can't be asked for. Raises ``Unsupported``."""
    if resume is not None:
        raise Unsupported("resumption is not offered by this version")


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


@asynccontextmanager
async def _run_client(end: End, transport: Transport, responder: Responder | None) -> AsyncIterator[Connection]:
    """Run the connection for as long as the block; the block's own error leaves alone, in no group."""
    begun = end.begin(trio.current_time())
    connection = Connection(begun.session, responder, begun.setup, transport.handshake)
    transport.use_framing(begun.framing)
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
