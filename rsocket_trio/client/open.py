"""Opens a client's connection: by URI, or over a stream that is connected already."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast

import attrs
import trio

from rsocket_trio.client.options import KEEPALIVE, ConnectionOptions, StreamOptions
from rsocket_trio.connection.connection import Connection, checked_entries
from rsocket_trio.connection.fault_log import FailureLog
from rsocket_trio.connection.hooks import PLAIN, CallTerms
from rsocket_trio.connection.protocols import (
    MAX_CHUNK_SIZE,
    STREAMUX,
    ProtocolFactory,
    RSocketClient,
    StreamuxPeer,
    check_types,
    checked_size,
    client_setup,
    needed,
    peer_and_dialect,
    with_quirks,
)
from rsocket_trio.connection.recording import RecordedTransport, recording_into, with_lengths, wrapped_dial
from rsocket_trio.connection.resumption import Dial, ResumeDialer, is_absence
from rsocket_trio.errors import ConnectionLost, Unsupported
from rsocket_trio.forms import function_name
from rsocket_trio.metadata.mime import check_mime, mime_name
from rsocket_trio.mux.session import State
from rsocket_trio.payload import PayloadLike, as_payload
from rsocket_trio.responder import Responder, check_users
from rsocket_trio.rsocket.dialect import dialect_named, spoken
from rsocket_trio.rsocket.handshake import ClientTerms
from rsocket_trio.rsocket.session import Session as RSocketSession
from rsocket_trio.rsocket.stream_sender import UNCUT, checked_fragment_size
from rsocket_trio.signatures import completed, shows_options
from rsocket_trio.terms import Keepalive
from rsocket_trio.tools.event_loop_checks import need_trio
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.base import ConnectTimeout, Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.connect import HeadersLike, as_headers, as_lost, open_transport
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.values import Unsaid

if TYPE_CHECKING:
    from trio_websocket import WebSocketConnection

    from rsocket_trio.metadata.authentication import Auth, Credentials

Connected: TypeAlias = "trio.abc.Stream | Transport | WebSocketConnection"
"""The kinds of stream that frames can travel over."""
Connect: TypeAlias = Callable[[], Awaitable[Connected] | AbstractAsyncContextManager[Connected]]
"""A function that opens a new stream to the server each time it is called: an async one, or an async context manager.

Where it can't it raises ``OSError`` (and so what TLS raises), ``ConnectionLost``, ``trio.BrokenResourceError``,
``trio.ClosedResourceError``, ``trio.TooSlowError`` or trio-websocket's ``HandshakeError``.
"""
NO_HANDLERS = Responder()
"""Serves the connections of all clients that have no responder: it rejects every request."""
NO_RECORDING = nullcontext()
NO_NEW_STREAM = "no new stream"


@shows_options
def open_connection(
    uri: str, **options: Unpack[ConnectionOptions[PayloadLike, HeadersLike]]
) -> AbstractAsyncContextManager[Connection]:
    """Connect to the server at ``uri`` for as long as the block. Return a context manager that gives the
    ``Connection``.

    Options, all by name:

    * ``dialect``: the protocol and version, in full or in short; ``"rsocket/1.0"`` by default.
    * ``responder``: serves the requests of the server. Without one they are rejected.
    * ``setup``: data of the application for the server: a payload, bytes or text.
    * ``data_mime``, ``metadata_mime``: MIME types of all payloads; octet-stream and composite metadata by default.
    * ``keepalive``: seconds between KEEPALIVEs and the longest silence, 20 and 90.
    * ``lease``: agree on leases; requests then wait for a permit.
    * ``strict``: the strict flag of ReactiveSocket 0.1 and 0.2.
    * ``resume``: ``ResumeOptions``; the session goes on over a new transport after a loss.
    * ``limits``: the bounds of this side, ``Limits()``.
    * ``fragment_size``: bytes of the largest frame to send, 65536; larger payloads are cut.
    * ``quirks``: names of deviations of the peer to support.
    * ``peer``: the name of an old implementation. It sets dialect, quirks, MIME types, keepalive, fragment size and
      initial credit; options that are given win, and ``quirks`` are added.
    * ``extension_entries``: those of the SETUP, in the extension draft.
    * ``streamux``: ``StreamuxOptions``, for ``streamux/1`` only.
    * ``capture``: a ``Capture``, or a directory for a capture of this connection.
    * ``ssl_context``: for ``tls``, ``wss`` and ``h2s``; the certificates of the system are trusted by default.
    * ``headers``: of the request that opens a WebSocket or an HTTP/2 stream: a mapping, or pairs of text.
    * ``over``: a connection that others use, too, from ``open_shared``; ``ssl_context`` is that one's then.
    * ``codecs``: of objects, the preferred one first; those of the responder by default.
    * ``around``: interceptors of all requests, the outermost first.
    * ``auth``: credentials in the SETUP, ``Simple`` or ``Bearer``, or a function that gives them, async or not.
    * ``deadlines``: requests carry the time that is left to them, which the server's handlers keep to.
    * ``connect_timeout``: seconds until the block starts at the latest, 10; ``math.inf`` for no limit.

    The block starts once the SETUP is queued, over HTTP/2 with the answer to the POST. It starts with the answer of the
    server if ``lease`` or ``extension_entries`` ask for one in the extension draft, and in Streamux unless a quick init
    is requested. Leaving cancels open streams and writes queued frames, for at most a second.

    Raise ``ConnectionLost`` if the server cannot be reached, or not within ``connect_timeout``, with the URI and the
    step of connecting that was not done; ``ValueError`` for an invalid URI or option,
    ``Unsupported`` for an option that the dialect lacks, ``NegotiationFailed`` if two Streamux peers share no terms. A
    refusal raises ``RejectedSetup``, ``InvalidSetup`` or ``UnsupportedSetup`` in every waiting and later call; so do
    ``RejectedResume`` and ``ConnectionLost`` when a session ends.
    """

    return open_uri(uri, completed(open_connection, options))


def open_uri(
    uri: str, terms: ConnectionOptions[PayloadLike, HeadersLike], time_limit: ConnectTimeout | None = None
) -> AbstractAsyncContextManager[Connection]:
    """Connect as ``open_connection`` does, with all options; the time of ``time_limit`` has begun before."""

    def dialer() -> Dial:
        parse_uri(uri)
        headers = as_headers(terms["headers"]) if terms["headers"] else ()
        context, limits, over = terms["ssl_context"], terms["limits"], terms["over"]
        return partial(open_transport, uri, ssl_context=context, headers=headers, limits=limits, over=over)

    return _run_client(dialer, terms, uri, time_limit)


@shows_options
def open_connection_over(
    stream: Connected | Connect, **options: Unpack[StreamOptions[PayloadLike]]
) -> AbstractAsyncContextManager[Connection]:
    """Use ``stream``, a connected Trio stream, for as long as the block; it is closed at the end.

    A transport or a ``trio_websocket.WebSocketConnection`` is accepted as well. The options are those of
    ``open_connection`` except ``uri``, ``ssl_context``, ``headers`` and ``over``: ``dialect``, ``responder``,
    ``setup``, ``data_mime``, ``metadata_mime``, ``keepalive``, ``lease``, ``strict``, ``resume``, ``limits``,
    ``fragment_size``, ``quirks``, ``peer``, ``extension_entries``, ``streamux``, ``capture``, ``codecs``, ``around``,
    ``auth``, ``deadlines`` and ``connect_timeout``, which bounds a function that opens the stream, and the server's
    answer where the block starts with that.

    With ``resume`` more than one stream may be needed: then ``stream`` is a function that opens one each time, an async
    one or an async context manager.
    An error that says that it cannot connect (see ``Connect``) is followed by another try, or is the cause of the first
    ``ConnectionLost``; any other error ends the session and leaves the block unchanged. Raise ``TypeError`` for a
    single stream with ``resume``.
    """

    terms = completed(open_connection_over, options)

    def dialer() -> Dial:
        if terms["resume"] is not None and not callable(stream):
            raise TypeError("to resume takes new streams: give a function that opens one, or use open_connection")
        return partial(_connected, stream)

    return _run_client(dialer, terms)


@asynccontextmanager
async def _connected(stream: Connected | Connect, time_limit: ConnectTimeout) -> AsyncIterator[Transport]:
    """Provide a transport over the stream, or over a new one each time. Raise ``ConnectionLost``."""
    async with AsyncExitStack() as stack:
        if callable(stream):
            stream = await _new_stream(stream, time_limit, stack)
        transport = as_transport(stream)
        try:
            yield transport
        finally:
            with trio.CancelScope(shield=True):
                await transport.aclose()
        return
    raise time_limit.expired(NO_NEW_STREAM)


async def _new_stream(connect: Connect, time_limit: ConnectTimeout, stack: AsyncExitStack) -> Connected:
    """Return a new stream, which stays open for as long as the stack. Raise ``ConnectionLost``.

    Once the time is over, a context manager that opens a stream ends the block of the stack.
    """
    try:
        opening = connect()
        if not isinstance(opening, AbstractAsyncContextManager):
            with time_limit.step(NO_NEW_STREAM):
                return await opening
        # Around the whole block, because what is entered here may open nurseries and scopes.
        scope = stack.enter_context(time_limit.scope())
        stream = await stack.enter_async_context(opening)
        if scope.cancel_called:
            # It opened in the same scheduler step in which the time was over: the block would be cancelled later.
            await trio.lowlevel.checkpoint()
        scope.deadline = math.inf
    except Exception as error:
        if isinstance(error, ConnectionLost) or not is_absence(error):
            raise
        raise ConnectionLost(f"no new stream: {str(error) or type(error).__name__}") from error
    return stream


def as_transport(stream: Connected) -> Transport:
    if isinstance(stream, trio.abc.Stream):
        return ByteStreamTransport(stream)
    # Nobody has one who never imported it; programs that use TCP need not.
    websocket = sys.modules.get("trio_websocket")
    if websocket is not None and isinstance(stream, websocket.WebSocketConnection):
        from rsocket_trio.transports.websocket.trio_websocket_adapter import TrioWebSocketAdapter

        return TrioWebSocketAdapter(stream)
    return cast("Transport", stream)


def _factory(options: StreamOptions[PayloadLike], credentials: Credentials | None) -> ProtocolFactory:
    """Return the factory of the client's session, with checked terms, before anything is dialled.

    The needs of a peer are defaults: a term that is no default was set, and stays. Quirks are added. Raise
    ``ValueError``, ``TypeError`` and ``Unsupported``.
    """
    payload, keepalive = as_payload(options["setup"]), options["keepalive"]
    if not isinstance(keepalive, Keepalive):
        raise TypeError(f"keepalive is a Keepalive, not {type(keepalive).__name__}")
    if credentials is not None:
        from rsocket_trio.services.calls.access import with_credentials

        payload = with_credentials(payload, credentials)
    limits, fragment_size, responder = options["limits"], options["fragment_size"], options["responder"]
    quirks, streamux, resume = options["quirks"], options["streamux"], options["resume"]
    data_mime, metadata_mime = options["data_mime"], options["metadata_mime"]
    known, dialect = peer_and_dialect(options["peer"], options["dialect"])
    if known is not None:
        data_mime, metadata_mime = needed(known.mime, data_mime), needed(known.mime, metadata_mime)
        keepalive = known.keepalive or keepalive if keepalive is KEEPALIVE else keepalive
        fragment_size = needed(known.fragment_size, fragment_size)
        quirks = quirks if isinstance(quirks, str) else (*known.quirks, *quirks)
    entries = checked_entries(options["extension_entries"])
    terms = ClientTerms(payload, data_mime, metadata_mime, keepalive, options["lease"], options["strict"], entries)
    check_types(limits, streamux)
    if dialect == STREAMUX:
        _check_streamux_terms(terms, quirks)
        size = checked_fragment_size(fragment_size, MAX_CHUNK_SIZE)
        if resume is not None:
            raise Unsupported(f"{STREAMUX} has no resumption")
        return StreamuxPeer(streamux, True, limits, size, responder)
    if streamux is not None:
        raise ValueError(f"streamux options for {dialect}: they are those of {STREAMUX}")
    [record] = map(spoken, with_quirks([dialect_named(dialect)], quirks))
    if known is not None and known.initial_request_n is not None:
        record = attrs.evolve(record, initial_request_n=known.initial_request_n)
    if terms.entries and not record.entries:
        raise Unsupported(f"{record.name} has no extension entries")
    if terms.strict and not record.strict:
        raise Unsupported(f"{record.name} has no strict flag")
    if not record.free_mimes:
        for what, mime in ("data_mime", terms.data_mime), ("metadata_mime", terms.metadata_mime):
            # A number has no slash, nor has an empty metadata type, which means in the draft that there is no metadata.
            says_none = not mime and record.mime_fields and what == "metadata_mime"  # RSX-MIME-01
            if isinstance(mime, str) and "/" not in mime and not says_none:
                check_mime(what, mime)
    try:
        setup = client_setup(record, terms)
    except Exception as error:
        raise ValueError(f"the SETUP can't be said in {record.name}: {error}") from error
    if resume is not None and not record.resumes:
        raise Unsupported(f"{record.name} has no resumption")
    if isinstance(fragment_size, Unsaid) and (record.major, record.minor) in record.whole_versions:
        fragment_size = UNCUT
    size = checked_size(fragment_size, record.codec.largest, resume)
    return RSocketClient(record, limits, size, resume, responder, terms, setup)


def _check_streamux_terms(terms: ClientTerms, quirks: Iterable[str]) -> None:
    """Raise ``Unsupported`` for terms of a SETUP, which Streamux does not have."""
    with_quirks((), quirks)
    for is_set, term_name in (
        (terms.payload.data or terms.payload.metadata is not None, "SETUP payload"),
        (terms.lease, "leases"),
        (terms.strict, "strict flag"),
        (terms.entries, "extension entries"),
    ):
        if is_set:
            raise Unsupported(f"{STREAMUX} has no {term_name}")


def check_auth_of_setup(auth: Auth, dialect: str, peer: str | None, metadata_mime: str) -> None:
    """Raise ``ValueError`` for credentials of a SETUP that has no composite metadata, ``TypeError`` for none.

    ``metadata_mime`` counts unless ``peer`` needs another one. A function that gives credentials is not called here.
    """
    from rsocket_trio.services.calls.access import check_auth

    known, dialect = peer_and_dialect(peer, dialect)
    mime = needed(None if known is None else known.mime, metadata_mime)
    check_auth(auth, "" if dialect == STREAMUX else mime_name(mime))


def call_terms(options: StreamOptions[Any]) -> CallTerms:
    """Return what the options say of the connection's own requests. Raise ``TypeError`` and ``ValueError``."""
    if callable(options["around"]) or hasattr(options["around"], "call_ended"):
        raise TypeError(f"around takes interceptors in a list, not {function_name(options['around'])} alone")
    codecs, around = options["codecs"], tuple(options["around"])
    if codecs is None and not around and not options["deadlines"]:
        return PLAIN
    # Imported here, as what credentials need is elsewhere: a program of bytes loads nothing of services.
    from rsocket_trio.codecs import checked_codecs
    from rsocket_trio.services.calls.context import as_interceptor, only_observe

    interceptors = tuple(as_interceptor("around", function) for function in around)
    deadlines, known = bool(options["deadlines"]), None if codecs is None else checked_codecs(codecs)
    observers = interceptors if only_observe(interceptors) and not deadlines else ()
    return CallTerms(known, interceptors, deadlines, observers)


async def _wait_until_open(connection: Connection, transport: Transport, time_limit: ConnectTimeout, uri: str) -> None:
    """Wait for what the block begins with: the answer to the POST of HTTP/2, and to a SETUP that asks for one.

    Raise ``ConnectionLost``, and the refusal of the server.
    """
    # An application's own transport may be one that knows nothing of this.
    granted = getattr(transport, "granted", None)
    engine, session = connection._engine, connection._engine.session
    try:
        if granted is not None:
            with as_lost(uri):
                connection.handshake = await granted(time_limit)
        if session.state is State.ASKING:
            with time_limit.step(f"the {session.dialect.first_message} was not answered"):
                await engine.wait_for_answer()
    except trio.ClosedResourceError:
        # The connection ended before the answer came, as for the silence of its peer.
        raise await connection.wait_closed() from None
    except ConnectionLost as lost:
        if engine.ended is None:
            # Without a word to the peer, which does not answer.
            engine.end(lost)
            engine.link.abandon()
        raise


@asynccontextmanager
async def _run_client(
    dialer: Callable[[], Dial],
    options: StreamOptions[PayloadLike],
    uri: str = "",
    time_limit: ConnectTimeout | None = None,
) -> AsyncIterator[Connection]:
    """Run the connection for as long as the block; the block's own error leaves alone, in no group."""
    need_trio()
    # Invalid options raise when the block begins, and the options are kept no longer than that.
    responder, capture, calls = options["responder"], options["capture"], call_terms(options)
    if time_limit is None:
        time_limit = ConnectTimeout(options["connect_timeout"], uri)
    if responder is not None:
        check_users(responder)
    credentials = None
    if options["auth"] is not None:
        check_auth_of_setup(options["auth"], options["dialect"], options["peer"], options["metadata_mime"])
        from rsocket_trio.services.calls.access import fresh_credentials

        with time_limit.step("no credentials from auth"):
            credentials = await fresh_credentials(options["auth"])
    factory, dial = _factory(options, credentials), dialer()
    del dialer, options, credentials
    async with recording_into(capture) if capture is not None else NO_RECORDING as recording:
        if isinstance(factory, RSocketClient) and factory.dialect.length_on_messages:
            # Byte streams have lengths anyway.
            dial = wrapped_dial(dial, lambda inner: with_lengths(inner) if inner.is_message_based else inner)
        if recording is not None:
            dial = wrapped_dial(dial, lambda inner: RecordedTransport(inner, recording, "client", factory.name))
        async with dial(time_limit) as transport:
            session, setup = factory.begin(trio.current_time())
            failures = FailureLog()
            connection = Connection(session, responder or NO_HANDLERS, setup, transport.handshake, failures, calls)
            if factory.resume is not None and isinstance(session, RSocketSession):
                resuming = ResumeDialer(dial, session.resume_handshake, factory.framing, factory.resume)
                connection._engine.reconnector = resuming
            transport.use_framing(factory.framing())
            try:
                # At the end the nursery waits for ``_run``, which writes what is queued, closes and returns.
                async with nursery_beside(lambda _: connection._leave()) as nursery:
                    # A lost connection raises nothing here: the calls that wait raise it.
                    nursery.start_soon(connection._run, transport)
                    await _wait_until_open(connection, transport, time_limit, uri)
                    connection._engine.tell_connected()
                    yield connection
            finally:
                failures.log_repeats()
                if isinstance(transport, RecordedTransport):
                    transport.session_over(connection._engine.ended)
