"""Serves a responder on URIs, on listeners or on one stream, in this process or in workers."""

from __future__ import annotations

import logging
import os
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import attrs
import trio

from rsocket_trio.client.open import Connected, as_transport
from rsocket_trio.client.options import FRAGMENT_SIZE, LIMITS
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.connection.recording import CaptureLike, recording_into
from rsocket_trio.limits import DRAIN_TIMEOUT, Limits, checked_grace
from rsocket_trio.responder import Responder
from rsocket_trio.server.accept import Server
from rsocket_trio.server.signals import Stop, collecting_rarely
from rsocket_trio.signatures import completed, shows_options
from rsocket_trio.tools.event_loop_checks import need_trio, refuse_asyncio
from rsocket_trio.transports.connect import HeadersLike, as_headers
from rsocket_trio.transports.listen import (
    BoundListener,
    Inherited,
    ListenerAdapter,
    SSLContextLike,
    open_listeners,
    server_contexts,
)
from rsocket_trio.transports.websocket.origins import parse_origins

if TYPE_CHECKING:
    from rsocket_trio.streamux.negotiation import StreamuxOptions
    from rsocket_trio.terms import ResumeOptions

logger = logging.getLogger("rsocket_trio")

Where = str | trio.abc.Listener[Any]
"""A URI, or a listener of the application's own that accepts Trio streams."""


class StreamServeOptions(TypedDict, total=False):
    """The options of ``serve_stream``."""

    dialects: Annotated[Iterable[str], ALL]
    resume: Annotated[ResumeOptions | None, None]
    limits: Annotated[Limits, LIMITS]
    fragment_size: Annotated[int, FRAGMENT_SIZE]
    grace: Annotated[float, DRAIN_TIMEOUT]
    quirks: Annotated[Iterable[str], ()]
    streamux: Annotated[StreamuxOptions | None, None]
    capture: Annotated[CaptureLike | None, None]


class ServeOptions(StreamServeOptions, total=False):
    """The options of ``serve`` and ``run``: those above, and those of listening and of worker processes."""

    ssl_context: Annotated[SSLContextLike | None, None]
    unix_mode: Annotated[int | None, None]
    origins: Annotated[str | Iterable[str], ()]
    over: Annotated[object | None, None]
    workers: Annotated[int | None, None]


@shows_options
def serve_options(**options: Unpack[ServeOptions]) -> ServeOptions:
    """Return these options of a server with the defaults of all others. Iterables can be iterated again."""
    complete: Any = dict(completed(serve_options, options))
    checked_grace(complete["grace"])
    for name in ("dialects", "origins"):
        value = complete[name]
        complete[name] = (value,) if isinstance(value, str) else tuple(value)
    if not isinstance(complete["quirks"], str):
        complete["quirks"] = tuple(complete["quirks"])
    if isinstance(complete["ssl_context"], Mapping):
        complete["ssl_context"] = dict(complete["ssl_context"])
    result: ServeOptions = complete
    return result


def run(responder: Responder | str, uris: Where | Iterable[Where], **options: Unpack[ServeOptions]) -> None:
    """Serve ``responder`` on ``uris`` until SIGINT or SIGTERM: a whole server program.

    This is ``trio.run`` of ``serve``, whose ``options`` it takes. The first signal stops it: clients that wait are
    accepted and answered, every connection drains for at most ``grace`` seconds, and this returns. A second one ends
    the process at once.

    The log has a line ``listening URI`` for each URI, with the port that was bound, and so has stderr if it is a
    terminal. Until this returns, Python's collector looks for cycles less often, unless the application has set its
    thresholds.

    Raise the errors of ``serve``, and ``RuntimeError`` outside of the main thread, or inside of a running loop of Trio
    or asyncio.
    """
    refuse_asyncio()
    with Stop() as stop, collecting_rarely():
        trio.run(stop.run, partial(serve, responder, uris, task_status=_Announcement(), **options))


class _Announcement:
    """Tells the users of a program where it listens."""

    def started(self, value: Iterable[str] = ()) -> None:
        """Log the URIs, and write them to stderr if that is a terminal."""
        for uri in value:
            logger.info("listening %s", uri)
            if sys.stderr is not None and sys.stderr.isatty():
                print(f"listening {uri}", file=sys.stderr)


@shows_options
async def serve(
    responder: Responder | str,
    uris: Where | Iterable[Where],
    *,
    signals: bool = False,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ServeOptions],
) -> None:
    """Serve ``responder`` on ``uris`` until cancelled. ``nursery.start`` of it returns the bound URIs.

    ``responder`` is a ``Responder``, or the name of one to import, as in ``"app:responder"``. ``uris`` are one or
    several URIs, or ``trio.abc.Listener`` objects of streams, which are closed at the end. ``task_status`` is for
    ``nursery.start``. Options, all by name:

    * ``dialects``: those that are served, all by default; the first bytes of a client decide.
    * ``resume``: ``ResumeOptions``; clients that ask for it may resume their sessions.
    * ``limits``: the bounds of each connection, ``Limits()``.
    * ``fragment_size``: bytes of the largest frame to send, 65536.
    * ``ssl_context``: for ``tls``, ``wss`` and ``h2s``: a context, a function that makes one and is called once for
      each scheme, or a mapping of schemes to these. The context of ``h2s`` is no other scheme's: its ALPN is set here.
    * ``unix_mode``: permissions of a Unix socket.
    * ``origins``: origins of pages in browsers that may open a WebSocket, beside pages of the server's own host: full
      origins as in ``"https://app.example:8443"``, or ``"*"`` for all. Other pages get HTTP 403.
    * ``grace``: seconds that open streams get when this is cancelled, 10.
    * ``quirks``: names of deviations of peers to support, each in the dialects that have it.
    * ``streamux``: ``StreamuxOptions``; by default a quick init is allowed.
    * ``capture``: a ``Capture``, or a directory for a capture of all connections.
    * ``over``: a media driver of Aeron, from ``open_media_driver``; without one the URIs say which.
    * ``workers``: number of processes that serve. SIGHUP replaces them without refusing a client. The responder is
      given by name then, ``ssl_context`` is a function of a module, ``capture`` a directory; limits are those of each.
    * ``signals``: handle SIGINT and SIGTERM. The first one has the effect of a cancellation, and this returns; a second
      one ends the process at once. A signal before anything is bound makes it report no URIs.

    When cancelled, it accepts the clients that wait, stops listening, drains every connection for at most ``grace``
    seconds, and closes it.

    Raise ``OSError`` for an address that cannot be bound, ``ValueError`` for an invalid URI, dialect, quirk, origin,
    ``ssl_context`` or name of a responder, ``ImportError`` for a module that fails, ``ChildProcessError`` when workers
    end again and again, ``RuntimeError`` for ``signals`` outside of the main thread. A ``ValueError`` is also a
    responder of which a handler has ``requires=``, and which finds no users: it has neither ``authenticate`` nor
    ``setup``.
    """
    need_trio()
    terms = serve_options(**completed(serve, options))
    parse_origins(terms["origins"])  # what is none is said before anything begins
    targets: list[Where] = [uris] if isinstance(uris, str | trio.abc.Listener) else list(uris)
    if not signals:
        await _serve(responder, targets, terms, task_status)
        return
    reported: list[str] | None = None

    class Status:
        """Keeps the URIs that were reported."""

        def started(self, value: list[str]) -> None:
            nonlocal reported
            reported = value
            task_status.started(value)

    with Stop() as stop:
        await stop.run(_serve, responder, targets, terms, Status())
        if reported is None:
            task_status.started([])


async def _serve(
    responder: Responder | str, targets: list[Where], options: ServeOptions, task_status: trio.TaskStatus[list[str]]
) -> None:
    if options["workers"] is not None:
        await _serve_by_workers(responder, targets, options, task_status)
        return
    if isinstance(responder, str):
        from rsocket_trio.server.processes.import_responder import find_responder

        responder = find_responder(responder)
    await serve_here(responder, partial(_open, targets, options), options, task_status=task_status)


async def _open(targets: list[Where], options: ServeOptions) -> list[BoundListener | ListenerAdapter]:
    named = [uri for uri in targets if isinstance(uri, str)]
    context, mode, origins = options["ssl_context"], options["unix_mode"], parse_origins(options["origins"])
    opened = await open_listeners(named, ssl_context=context, unix_mode=mode, origins=origins, over=options["over"])
    bound = iter(opened)
    return [next(bound) if isinstance(target, str) else ListenerAdapter(target) for target in targets]


async def serve_here(
    responder: Responder,
    open_listeners: Callable[[], Awaitable[Sequence[BoundListener | ListenerAdapter]]],
    options: ServeOptions,
    *,
    retiring: trio.Event | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on these listeners until cancelled; then accept the connections that wait, and let all of them drain.

    Once ``retiring`` is set nothing is accepted any more. Open connections are served for ``RETIRE_DELAY`` seconds and
    drain; then this returns.
    """
    async with recording_into(options["capture"]) as recording:
        server = Server(responder, options, recording)
        listeners = await open_listeners()
        async with AsyncExitStack() as stack:
            for listener in listeners:
                stack.push_async_callback(listener.aclose)
            handlers = await stack.enter_async_context(server.open_handlers(options["grace"]))
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(partial(listener.serve, server.accept, handler_nursery=handlers))
                # From here a cancellation of the caller means: accept what waits, drain, and return.
                task_status.started([listener.uri for listener in listeners])
                await (trio.Event() if retiring is None else retiring).wait()
                # The supervisor's sockets stay open, and other workers accept what waits.
                for listener in listeners:
                    await listener.aclose()
            # Imported only here, as a program of one process does not load it.
            from rsocket_trio.server.processes.messages import RETIRE_DELAY

            # A client that was accepted just now has not asked for anything yet: give it time to do so.
            await trio.sleep(RETIRE_DELAY)


async def serve_inherited(
    options: ServeOptions,
    responder: Responder,
    inherited: Sequence[Inherited],
    *,
    retiring: trio.Event,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve, in a worker process, the listeners that its supervisor bound."""

    async def take_over() -> list[BoundListener]:
        contexts = server_contexts([sockets.endpoint for sockets in inherited], options["ssl_context"])
        origins = parse_origins(options["origins"])
        return [sockets.listener(contexts, origins) for sockets in inherited]

    await serve_here(responder, take_over, options, retiring=retiring, task_status=task_status)


async def _serve_by_workers(
    name: Responder | str, uris: Sequence[Where], options: ServeOptions, task_status: trio.TaskStatus[list[str]]
) -> None:
    """Have worker processes serve the responder of this name. Raise ``TypeError`` if an option can't be sent."""
    addresses = [uri for uri in uris if isinstance(uri, str)]
    if len(addresses) < len(uris):
        raise TypeError("with workers all that is served is named by URIs")
    context = options["ssl_context"]
    contexts = context.values() if isinstance(context, Mapping) else [context]
    if any(isinstance(made, ssl.SSLContext) for made in contexts):
        raise TypeError("with workers ssl_context is a function of a module that makes it: each process needs its own")
    if options["capture"] is not None and not isinstance(options["capture"], str | os.PathLike):
        raise TypeError("with workers capture is a directory: each process writes files of its own")
    # Imported only here: a program of one process does not load it.
    from rsocket_trio.server.processes.supervisor import serve_in_processes

    await serve_in_processes(name, addresses, partial(serve_inherited, options), options, task_status=task_status)


@shows_options
async def serve_stream(
    responder: Responder,
    stream: Connected,
    *,
    path: str | None = None,
    headers: HeadersLike = (),
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[StreamServeOptions],
) -> None:
    """Serve ``responder`` on ``stream``, a connected Trio stream or transport, until its peer ends it; then close it.

    A ``trio_websocket.WebSocketConnection`` that the program accepted is served as well. ``path`` and ``headers`` are
    those of the HTTP request that opened the stream, where the program read it: the setup handler finds them in the
    handshake's facts, in place of what the stream itself says. The options are those of
    ``serve`` for one connection: ``dialects``, ``resume``, ``limits``, ``fragment_size``, ``grace``, ``quirks``,
    ``streamux`` and ``capture``. ``task_status`` is for ``nursery.start``. When cancelled the connection drains for at
    most ``grace`` seconds.
    """
    need_trio()
    terms = completed(serve_stream, options)
    if not isinstance(path, str | None):
        raise TypeError(f"path must be a text or None, not {path!r:.100}")
    known = tuple((name.lower(), text) for name, text in as_headers(headers))
    checked_grace(terms["grace"])
    async with recording_into(terms["capture"]) as recording:
        server = Server(responder, terms, recording)
        transport = as_transport(stream)
        facts = transport.handshake
        own_path = facts.path if path is None else path
        transport.handshake = attrs.evolve(facts, path=own_path, headers=known or facts.headers)
        async with server.open_handlers(terms["grace"]) as handlers:
            served = trio.Event()
            handlers.start_soon(server.serve_one, transport, served)
            task_status.started()
            await served.wait()
