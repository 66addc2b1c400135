"""Holds a client of many servers: each request goes to the less busy of two connections, drawn at random."""

from __future__ import annotations

import random
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Unpack

import trio

from rsocket_trio.client.reconnecting import (
    BACKOFF,
    FailoverRequester,
    ReconnectingClient,
    ReconnectOptions,
    checked,
)
from rsocket_trio.connection.recording import recording_into
from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RSocketError, did_not_run, fresh_copy, unsent_copy
from rsocket_trio.terms import Backoff
from rsocket_trio.tools.event_loop_checks import need_trio
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.schemes import parse_uri

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


class PoolMember:
    """One connection of a pool, which is made again when it is lost.

    ``uri`` is where it leads. ``state`` is that of ``connect_forever``: ``"connecting"``, ``"connected"``, ``"lost"``,
    ``"draining"``, or ``"closed"`` after a refusal, which is not tried again. ``load`` is the number of requests in
    flight on it.
    """

    def __init__(self, client: ReconnectingClient) -> None:
        self._client = client
        self._leaving = trio.Event()

    def __repr__(self) -> str:
        return f"<PoolMember {self.uri}, {self.state}, load {self.load}>"

    @property
    def uri(self) -> str:
        """Return where it leads."""
        return self._client._uri

    @property
    def state(self) -> str:
        """Return the state of its connection."""
        return self._client._state

    @property
    def load(self) -> int:
        """Return the number of requests in flight."""
        return self._client._requests_in_flight


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
        self._members: list[PoolMember] = []
        self._is_closed = False
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Pool of {len(self._members)} connections>"

    @property
    def members(self) -> tuple[PoolMember, ...]:
        """Return the connections, those that drain because their URI left the list among them."""
        return tuple(self._members)

    async def connected(self) -> None:
        """Wait until a server is connected, also with ``wait=False``. Raise the refusal if all servers refuse."""
        need_trio()
        await trio.lowlevel.checkpoint()
        await self._next(wait=True)

    # Requests

    def _usable(self, tried: Sequence[Engine] = ()) -> Engine | None:
        engines = [member._client._usable() for member in self._members]
        usable = [engine for engine in engines if engine is not None and engine not in tried]
        # A session that waits for a new transport is asked only where there is no other.
        usable = [engine for engine in usable if not engine.is_suspended] or usable
        if len(usable) > 1:
            # In random order: of two that are equally busy, `min` takes the first.
            usable = random.sample(usable, 2)
        return min(usable, key=lambda engine: engine.session.requests_in_flight, default=None)

    def _failure(self, *, wait: bool) -> Exception | None:
        waiting = None if wait else unsent_copy(ConnectionLost("no server of the pool is connected"))
        return self._ended() or waiting

    def _ended(self) -> Exception | None:
        """Return why there will be no member that is connected."""
        if self._is_closed:
            return ConnectionClosed("the pool was closed")
        staying = [member for member in self._members if not member._leaving.is_set()]
        refusals = [refusal for member in staying if (refusal := member._client._ended) is not None]
        if refusals and len(refusals) == len(staying):
            # Nothing is tried any more: a server that refuses once refuses again.
            return fresh_copy(refusals[0])
        return None

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

    # Members

    def _set(self, uris: Iterable[str]) -> None:
        """Connect to these servers, and drain the connections to others. Raise ``ValueError`` for an invalid URI."""
        assert self._nursery is not None
        wanted = checked_uris(uris)
        kept = set()
        for member in self._members:
            if member.uri not in wanted:
                member._leaving.set()
            elif not member._leaving.is_set():
                kept.add(member.uri)
        for uri in wanted:
            for _ in range(0 if uri in kept else self._connections):
                client = ReconnectingClient(uri, self._terms, True, self._backoff, lambda _: self._changes.wake_all())
                member = PoolMember(client)
                self._members.append(member)
                self._nursery.start_soon(self._keep, member)
        # Those that wait for a member may have been refused by the former ones.
        self._changes.wake_all()

    async def _keep(self, member: PoolMember) -> None:
        """Keep a member connected until its URI leaves the list, then let its requests finish."""
        async with member._client._running():
            await member._leaving.wait()
            await member._client._retire()
        self._members.remove(member)

    def _close(self, nursery: trio.Nursery) -> None:
        """End all connections; requests that wait raise."""
        self._is_closed = True
        self._changes.wake_all()
        nursery.cancel_scope.cancel()

    async def _follow(self, lists: AsyncIterable[Iterable[str]]) -> None:
        """Take over each list of servers as it comes."""
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

    The options are those of ``connect_forever``: ``dialect``, ``responder``, ``setup``, ``data_mime``,
    ``metadata_mime``, ``keepalive``, ``lease``, ``strict``, ``resume``, ``limits``, ``fragment_size``, ``quirks``,
    ``peer``, ``extension_entries``, ``streamux``, ``capture``, ``codecs``, ``around``, ``auth``, ``deadlines``,
    ``connect_timeout``, ``ssl_context`` and ``headers``.

    Raise ``ValueError`` for no URIs or an invalid one, ``TypeError`` for a single one. A server that refuses the
    connection is not tried again; when all do, every waiting and later call raises the refusal. An error of the async
    iterable, and an invalid URI in one of its lists, ends the block.
    """
    need_trio()
    if not isinstance(backoff, Backoff):
        raise TypeError(f"backoff is a Backoff, not {type(backoff).__name__}")
    if type(connections) is not int or connections < 1:
        raise ValueError(f"connections to each server: {connections!r}, at least 1")
    lists = uris if isinstance(uris, AsyncIterable) else None
    first = [] if isinstance(uris, AsyncIterable) else checked_uris(uris)
    if lists is None and not first:
        raise ValueError("a pool needs the URI of a server")
    terms = checked(options)
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
