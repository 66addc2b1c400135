"""Serving: listening on every URI, and what is served there."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypedDict, Unpack

import trio

from rsocket_trio.client.open import FRAGMENT_SIZE, LIMITS, Connected, as_transport
from rsocket_trio.connection.connection import DRAIN_TIMEOUT
from rsocket_trio.connection.handler_tasks import only_leaf
from rsocket_trio.connection.loops import need_trio, refuse_asyncio
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.connection.recording import (
    CaptureLike,
    recording_into,
)
from rsocket_trio.limits import Limits
from rsocket_trio.responder import Responder
from rsocket_trio.server.accept import Server
from rsocket_trio.server.processes.import_responder import find_responder
from rsocket_trio.server.serving import SSLContextLike, Terms, serve_by_workers, serve_here
from rsocket_trio.server.stopping import Stop
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.listen import BoundListener, ListenerAdapter, open_listeners
from rsocket_trio.transports.websocket.origins import parse_origins

Where = str | trio.abc.Listener[Any]
"""What can be served: a URI, or a listener of the application's own that accepts Trio streams."""


class ServeOptions(TypedDict, total=False):
    """The arguments of ``serve`` that ``run`` takes as well."""

    dialects: Iterable[str]
    resume: ResumeOptions | None
    limits: Limits
    fragment_size: int
    ssl_context: SSLContextLike | None
    unix_mode: int | None
    grace: float
    quirks: Iterable[str]
    streamux: StreamuxOptions | None
    capture: CaptureLike | None
    workers: int | None
    origins: str | Iterable[str]


def run(responder: Responder | str, uris: Where | Iterable[Where], **options: Unpack[ServeOptions]) -> None:
    """Serve on all URIs until SIGINT or SIGTERM: a whole server program, which takes the arguments of ``serve``.

    This is ``trio.run`` of ``serve``. The first signal stops listening and lets every connection drain for at most
    ``grace`` seconds; then this returns. A second one ends the process at once. Nothing is printed.

    Raises what ``serve`` raises, and ``RuntimeError`` outside of the main thread, or inside of a loop that runs: one of
    Trio, or of asyncio.
    """
    refuse_asyncio()
    with Stop() as stop:
        trio.run(stop.run, partial(serve, responder, uris, **options))


async def serve(
    responder: Responder | str,
    uris: Where | Iterable[Where],
    *,
    dialects: Iterable[str] = ALL,
    resume: ResumeOptions | None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    ssl_context: SSLContextLike | None = None,
    unix_mode: int | None = None,
    origins: str | Iterable[str] = (),
    grace: float = DRAIN_TIMEOUT,
    quirks: Iterable[str] = (),
    streamux: StreamuxOptions | None = None,
    capture: CaptureLike | None = None,
    workers: int | None = None,
    signals: bool = False,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on all URIs until cancelled; to be started with ``nursery.start``, which returns the bound URIs.

    A listener that is no URI, but a ``trio.abc.Listener`` of streams, is served as well, and closed at the end.
    One port serves every dialect that ``dialects`` names. ``unix_mode`` are the permissions of a Unix socket.
    ``origins`` are those of pages in browsers that may open a WebSocket, beside pages of the host that they connect to:
    full origins as in ``https://app.example:8443``, or ``"*"`` for all. Other pages get HTTP 403.
    When cancelled: listening stops, every connection drains for at most ``grace`` seconds, then is closed.

    Each of ``quirks`` changes those of the dialects that know it. ``streamux`` are the options of ``streamux/1``; by
    default a quick init is allowed. With ``resume`` clients that ask for it when they connect may come back after their
    transport was lost, and go on where they were. ``capture`` records the frames of all connections: a ``Capture``, or
    a directory, which the server then has a capture of its own for.

    With ``workers`` so many processes serve the same addresses, and SIGHUP replaces them without refusing anybody. The
    responder is named then, as in ``"app:responder"``, and imported by each; ``ssl_context`` is a function of a module,
    ``capture`` a directory. Limits hold in each process by itself.

    With ``signals`` SIGINT and SIGTERM are handled for as long as this serves. The first one is as if this had been
    cancelled, and this returns then; a second one ends the process at once. One that comes before anything is bound
    makes it report no URIs.

    Raises ``OSError`` for an address that can't be bound, ``ValueError`` for a URI, a dialect, a quirk, an origin or a
    responder's name that is none, ``ImportError`` for a module that fails; ``ChildProcessError`` when workers end again
    and again; ``RuntimeError`` for ``signals`` outside of the main thread.
    """
    need_trio()
    terms = Terms(
        dialects=(dialects,) if isinstance(dialects, str) else tuple(dialects),
        resume=resume,
        limits=limits,
        fragment_size=fragment_size,
        ssl_context=ssl_context,
        grace=grace,
        quirks=quirks if isinstance(quirks, str) else tuple(quirks),
        streamux=streamux,
        capture=capture,
        origins=(origins,) if isinstance(origins, str) else tuple(origins),
    )
    parse_origins(terms.origins)  # what is none is said before anything begins
    wanted: list[Where] = [uris] if isinstance(uris, str | trio.abc.Listener) else list(uris)
    if not signals:
        await _serve(responder, wanted, terms, workers, unix_mode, task_status)
        return
    reported: list[str] | None = None

    class Status:
        """Remembers what was reported."""

        def started(self, value: list[str]) -> None:
            nonlocal reported
            reported = value
            task_status.started(value)

    with Stop() as stop:
        await stop.run(_serve, responder, wanted, terms, workers, unix_mode, Status())
        if reported is None:
            task_status.started([])


async def _serve(
    responder: Responder | str,
    wanted: list[Where],
    terms: Terms,
    workers: int | None,
    unix_mode: int | None,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    if workers is not None:
        await serve_by_workers(responder, wanted, terms, workers=workers, unix_mode=unix_mode, task_status=task_status)
        return
    found = find_responder(responder) if isinstance(responder, str) else responder
    await serve_here(found, partial(_open, wanted, terms, unix_mode), terms, task_status=task_status)


async def _open(wanted: list[Where], terms: Terms, unix_mode: int | None) -> list[BoundListener | ListenerAdapter]:
    """A listener for each, in the order given."""
    named = [uri for uri in wanted if isinstance(uri, str)]
    origins = parse_origins(terms.origins)
    bound = iter(await open_listeners(named, ssl_context=terms.context(), unix_mode=unix_mode, origins=origins))
    return [next(bound) if isinstance(each, str) else ListenerAdapter(each) for each in wanted]


async def serve_stream(
    responder: Responder,
    stream: Connected,
    *,
    dialects: Iterable[str] = ALL,
    resume: ResumeOptions | None = None,
    limits: Limits = LIMITS,
    fragment_size: int = FRAGMENT_SIZE,
    grace: float = DRAIN_TIMEOUT,
    quirks: Iterable[str] = (),
    streamux: StreamuxOptions | None = None,
    capture: CaptureLike | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve one stream (or transport) that is connected already, until its peer ends it; it is closed then.

    A ``trio_websocket.WebSocketConnection`` that the program accepted is served as well.

    When cancelled the connection drains for at most ``grace`` seconds.
    """
    need_trio()
    async with recording_into(capture) as recording:
        server = Server(responder, dialects, limits, fragment_size, resume, quirks, streamux, recording)
        transport = as_transport(stream)
        try:
            async with trio.open_nursery() as nursery:
                served = trio.Event()
                nursery.start_soon(server.serve_one, transport, served)
                task_status.started()
                await server.run_until_cancelled(grace, served)
        except BaseExceptionGroup as group:
            leaf = only_leaf(group)
            raise leaf from leaf.__cause__
        finally:
            server.log_repeats()
