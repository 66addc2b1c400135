"""Holds a client of many servers: each request goes to the less busy of two connections, drawn at random."""

from __future__ import annotations

import random
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Unpack

import trio

from rsocket_trio.client.reconnecting import BACKOFF, FailoverRequester, ReconnectingClient, ReconnectOptions, checked
from rsocket_trio.connection.recording import recording_into
from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RSocketError, did_not_run, fresh_copy, unsent_copy
from rsocket_trio.terms import Backoff
from rsocket_trio.tools.event_loop_checks import need_trio
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.schemes import parse_uri

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


class Pool(FailoverRequester):
    """Sends the requests of a ``Connection`` over one of many connections. Made by ``open_pool``.

    Of two connections, drawn at random, a request takes the one with fewer requests in flight, and stays with it. One
    that certainly did not run (the server rejected it or drains, or the connection was lost before anything of the
    request had left) goes to another connection, and to each at most once while servers reject it. Any other error is
    the caller's, since the request may have run.
    """

    def __init__(self, terms: ReconnectOptions, connections: int, wait: bool, backoff: Backoff) -> None:
        super().__init__(wait)
        self._terms = terms
        self._connections = connections
        self._backoff = backoff
        self._members: dict[ReconnectingClient, trio.Event] = {}
        """The connections; the event of each is set when its URI has left the list."""
        self._is_closed = False
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Pool of {len(self._members)} connections>"

    @property
    def members(self) -> tuple[ReconnectingClient, ...]:
        """Return the clients of the single connections, each with its ``uri``, ``state`` and ``load``.

        Those that drain because their URI left the list are among them.
        """
        return tuple(self._members)

    async def connected(self) -> None:
        """Wait until a server is connected, also with ``wait=False``. Raise the refusal if all servers refuse."""
        need_trio()
        await trio.lowlevel.checkpoint()
        await self._next(wait=True)

    def _usable(self, tried: Sequence[Engine] = ()) -> Engine | None:
        engines = [member._usable() for member in self._members]
        usable = [engine for engine in engines if engine is not None and engine not in tried]
        # A session that waits for a new transport is asked only where there is no other.
        usable = [engine for engine in usable if not engine.is_suspended] or usable
        if len(usable) > 1:
            # In random order: of two that are equally busy, `min` takes the first.
            usable = random.sample(usable, 2)
        return min(usable, key=lambda engine: engine.session.requests_in_flight, default=None)

    def _failure(self, *, wait: bool) -> Exception | None:
        if self._is_closed:
            return ConnectionClosed("the pool was closed")
        staying = [member for member, leaving in self._members.items() if not leaving.is_set()]
        refusals = [refusal for member in staying if (refusal := member._ended) is not None]
        if refusals and len(refusals) == len(staying):
            # Nothing is tried any more: a server that refuses once refuses again.
            return fresh_copy(refusals[0])
        return None if wait else unsent_copy(ConnectionLost("no server of the pool is connected"))

    def _sends_again(self, refusal: RSocketError) -> bool:
        return did_not_run(refusal)

    async def _next_engine(self, refusal: RSocketError, tried: Sequence[Engine]) -> Engine | None:
        if not did_not_run(refusal):
            return None
        engine = self._usable(tried)
        is_gone = refusal._is_unsent or isinstance(refusal, ConnectionClosed)
        if engine is None and is_gone and self._failure(wait=self._wait) is None:
            return await self._next(tried, wait=self._wait)
        await trio.lowlevel.checkpoint_if_cancelled()
        return engine

    def _set(self, uris: Iterable[str]) -> None:
        """Connect to these servers, and drain the connections to others. Raise ``ValueError`` for an invalid URI."""
        assert self._nursery is not None
        wanted = checked_uris(uris)
        kept = set()
        for member, leaving in self._members.items():
            if member.uri not in wanted:
                leaving.set()
            elif not leaving.is_set():
                kept.add(member.uri)
        for uri in wanted:
            for _ in range(0 if uri in kept else self._connections):
                member = ReconnectingClient(uri, self._terms, True, self._backoff, lambda _: self._changes.wake_all())
                self._members[member] = trio.Event()
                self._nursery.start_soon(self._keep, member)
        # Those that wait for a member may have been refused by the former ones.
        self._changes.wake_all()

    async def _keep(self, member: ReconnectingClient) -> None:
        """Keep a member connected until its URI leaves the list, then let its requests finish."""
        async with member._running():
            await self._members[member].wait()
            await member._retire()
        del self._members[member]

    def _close(self, nursery: trio.Nursery) -> None:
        self._is_closed = True
        self._changes.wake_all()
        nursery.cancel_scope.cancel()

    async def _follow(self, lists: AsyncIterable[Iterable[str]]) -> None:
        async for uris in lists:
            self._set(uris)


@asynccontextmanager
async def open_pool(
    uris: Iterable[str] | AsyncIterable[Iterable[str]],
    connections: int = 1,
    *,
    wait: bool = True,
    backoff: Backoff = BACKOFF,
    **options: Unpack[ReconnectOptions],
) -> AsyncIterator[Pool]:
    """Provide a client of the servers at ``uris``, each of which gets ``connections``, until the block ends.

    ``uris`` are the URIs of equal servers, or an async iterable of such lists: with each new list connections to URIs
    that are not in it any more drain, and new ones are made. The block starts at once. Each connection is made again
    when it is lost or drains, with pauses by ``backoff``, and none takes requests meanwhile. ``wait`` says whether
    requests wait while no server is connected, or raise ``ConnectionLost`` at once.
    All other options are those of ``connect_forever``.

    Raise ``ValueError`` for no URIs or an invalid one, ``TypeError`` for a single one. A server that refuses the
    connection is not tried again; when all do, every waiting and later call raises the refusal. An error of the async
    iterable, and an invalid URI in one of its lists, ends the block.
    """
    need_trio()
    if type(connections) is not int or connections < 1:
        raise ValueError(f"connections to each server: {connections!r}, at least 1")
    lists = uris if isinstance(uris, AsyncIterable) else None
    first = [] if isinstance(uris, AsyncIterable) else checked_uris(uris)
    if lists is None and not first:
        raise ValueError("a pool needs the URI of a server")
    terms = checked(options, backoff)
    async with recording_into(terms["capture"]) as recording:
        # One capture for all connections, not one for each.
        terms["capture"] = recording
        pool = Pool(terms, connections, wait, backoff)
        async with nursery_beside(pool._close) as pool._nursery:
            if lists is None:
                pool._set(first)
            else:
                pool._nursery.start_soon(pool._follow, lists)
            yield pool


def checked_uris(uris: Iterable[str]) -> list[str]:
    """Return the URIs, each once. Raise ``ValueError`` and ``TypeError`` for one that is invalid."""
    if isinstance(uris, str | bytes) or not isinstance(uris, Iterable):
        raise TypeError(f"a pool takes a list of URIs, or an async iterable of such lists, not {uris!r}")
    unique = list(dict.fromkeys(uris))
    for uri in unique:
        if not isinstance(uri, str):
            raise TypeError(f"a URI is a str, not {type(uri).__name__}")
        parse_uri(uri)
    return unique
