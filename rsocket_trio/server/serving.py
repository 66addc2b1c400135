"""Serves listeners in this process or in workers, from the first accept until the last connection has drained."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import attrs
import trio

from rsocket_trio.client.open import FRAGMENT_SIZE, LIMITS
from rsocket_trio.connection.connection import DRAIN_TIMEOUT
from rsocket_trio.connection.handler_tasks import only_leaf
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.connection.recording import CaptureLike, recording_into
from rsocket_trio.limits import Limits
from rsocket_trio.responder import Responder
from rsocket_trio.server.accept import Server
from rsocket_trio.server.processes.messages import LINGER
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.listen import BoundListener, Inherited, ListenerAdapter
from rsocket_trio.transports.websocket.origins import parse_origins

SSLContextLike = ssl.SSLContext | Callable[[], ssl.SSLContext]
"""The context of served TLS, or a function that makes it."""


@attrs.frozen(kw_only=True)
class Terms:
    """The terms of all connections: the arguments of ``serve`` that have these names."""

    dialects: tuple[str, ...] = ALL
    resume: ResumeOptions | None = None
    limits: Limits = LIMITS
    fragment_size: int = FRAGMENT_SIZE
    ssl_context: SSLContextLike | None = None
    grace: float = DRAIN_TIMEOUT
    quirks: Iterable[str] = ()
    streamux: StreamuxOptions | None = None
    capture: CaptureLike | None = None
    origins: tuple[str, ...] = ()

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, made by the given function if it is one."""
        given = self.ssl_context
        return given if given is None or isinstance(given, ssl.SSLContext) else given()


async def serve_here(
    responder: Responder,
    open_listeners: Callable[[], Awaitable[Sequence[BoundListener | ListenerAdapter]]],
    terms: Terms,
    *,
    retiring: trio.Event | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on these listeners until cancelled, then let every connection drain.

    Once ``retiring`` is set nothing is accepted any more; what is connected is served a little longer, then drains, and
    this returns.
    """
    async with recording_into(terms.capture) as recording:
        server = Server(
            responder,
            terms.dialects,
            terms.limits,
            terms.fragment_size,
            terms.resume,
            terms.quirks,
            terms.streamux,
            recording,
        )
        listeners = await open_listeners()
        async with AsyncExitStack() as stack:
            stack.callback(server.log_repeats)
            for listener in listeners:
                stack.push_async_callback(listener.aclose)
            try:
                async with server.sharing_deadlines(), trio.open_nursery() as nursery:
                    accepting = await nursery.start(_accept, listeners, server, nursery)
                    lingered: trio.Event | None = None
                    if retiring is not None:
                        lingered = trio.Event()
                        nursery.start_soon(_retire, retiring, accepting, lingered)
                    task_status.started([listener.uri for listener in listeners])
                    await server.run_until_cancelled(terms.grace, lingered)
                    nursery.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                leaf = only_leaf(group)
                raise leaf from leaf.__cause__


async def _accept(
    listeners: Sequence[BoundListener | ListenerAdapter],
    server: Server,
    handlers: trio.Nursery,
    task_status: trio.TaskStatus[trio.CancelScope],
) -> None:
    """Accept on all listeners, until the reported scope is cancelled. Accepted connections go on."""
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(partial(listener.serve, server.accept, handler_nursery=handlers))
        task_status.started(nursery.cancel_scope)


async def _retire(retiring: trio.Event, accepting: trio.CancelScope, lingered: trio.Event) -> None:
    await retiring.wait()
    accepting.cancel()
    await trio.sleep(LINGER)
    lingered.set()


async def serve_inherited(
    terms: Terms,
    responder: Responder,
    inherited: Sequence[Inherited],
    *,
    retiring: trio.Event,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve, in a worker process, the listeners that its supervisor bound."""

    async def take_over() -> list[BoundListener]:
        context, origins = terms.context(), parse_origins(terms.origins)
        return [each.listener(context, origins) for each in inherited]

    await serve_here(responder, take_over, terms, retiring=retiring, task_status=task_status)


async def serve_by_workers(
    name: Any,
    uris: Sequence[Any],
    terms: Terms,
    *,
    workers: int,
    unix_mode: int | None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Have worker processes serve the responder of this name. Raises ``TypeError`` if a term can't be sent."""
    if not all(isinstance(uri, str) for uri in uris):
        raise TypeError("with workers all that is served is named by URIs")
    if isinstance(terms.ssl_context, ssl.SSLContext):
        raise TypeError("with workers ssl_context is a function of a module that makes it: each process needs its own")
    if terms.capture is not None and hasattr(terms.capture, "opened"):
        raise TypeError("with workers capture is a directory: each process writes files of its own")
    # Here, so that a program of one process does not load it.
    from rsocket_trio.server.processes.supervisor import serve_in_processes

    await serve_in_processes(
        name,
        uris,
        partial(serve_inherited, terms),
        workers=workers,
        grace=terms.grace,
        make_context=terms.context,
        unix_mode=unix_mode,
        resumes=terms.resume is not None,
        task_status=task_status,
    )
