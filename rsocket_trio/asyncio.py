"""Connections for programs of asyncio: a thread of Trio serves those of a loop, which awaits each call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import trio

import rsocket_trio
from rsocket_trio.errors import ConnectionClosed
from rsocket_trio.mux.stream_state import checked_request_n
from rsocket_trio.tools.trio_thread import TrioThread

P = ParamSpec("P")
T = TypeVar("T")
threads: WeakKeyDictionary[asyncio.AbstractEventLoop, TrioThread] = WeakKeyDictionary()
"""The thread of each loop that has connections; it ends with the last of them."""


class TrioBlock:
    """Stands for an object of Trio that an async context manager gives there: a connection, a client, a stream.

    It has the members of that object; its async methods run in Trio and are awaited in asyncio. If the block fails in
    Trio, the task in asyncio's block is cancelled, and the error is raised at its end.
    """

    def __init__(self, opening: AbstractAsyncContextManager[object], thread: TrioThread | None = None) -> None:
        self._opening = opening
        self._inner: Any = opening
        self._owns_thread = thread is None
        self._thread = cast("TrioThread", thread)
        self._leaving = trio.Event()
        self._is_inside = self._has_failed = self._has_cancelled = self._is_over = False
        self._items: deque[object] = deque()

    async def __aenter__(self) -> Self:
        if self._owns_thread:
            loop = asyncio.get_running_loop()
            self._thread = threads.get(loop) or threads.setdefault(loop, TrioThread(loop))
            self._thread.users += 1
        self._body = cast("asyncio.Task[object]", asyncio.current_task())
        opened: asyncio.Future[None] = self._thread.loop.create_future()
        self._task = asyncio.create_task(self._hold(opened))
        try:
            await asyncio.wait([opened, self._task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        if self._has_failed or not opened.done():
            await self._task  # raises why
        self._is_inside = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if asyncio.get_running_loop() is not self._thread.loop:
            raise RuntimeError("the block is left in another event loop than it was entered in")
        self._is_inside = False
        if self._has_cancelled:
            self._body.uncancel()
        elif kind is None or (self._owns_thread and issubclass(kind, ConnectionClosed)):
            self._thread.soon(self._leaving.set)
        else:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._has_failed or kind is None:
            self._task.result()

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        """Keep the block open until it is left. The last block of a thread ends it."""
        try:
            await asyncio.shield(self._thread.ready)
            await self._thread.call(self._hold_in_trio, opened)
        except Exception:
            # A stream fails with its connection only, and its readers hear of that.
            self._has_failed = self._owns_thread
            self._has_cancelled = self._has_failed and self._is_inside and self._body.cancel()
            raise
        finally:
            self._thread.users -= self._owns_thread
            if not self._thread.users and threads.get(self._thread.loop) is self._thread:
                del threads[self._thread.loop]
                self._thread.is_over = True  # first: it may be about to begin
                self._thread.soon(self._thread.stopping.set)
                if not self._thread.loop.is_closed():
                    await asyncio.shield(self._thread.ended)
                    self._thread.thread.join()  # its last instructions

    async def _hold_in_trio(self, opened: asyncio.Future[None]) -> None:
        async with self._opening as self._inner:
            self._thread.post(opened.set_result, None)
            await self._leaving.wait()

    def __getattr__(self, name: str) -> object:
        if name == "_inner":  # of a copy that is being made
            raise AttributeError(name)
        if name == "lease":  # is of the time in Trio
            return trio.from_thread.run_sync(getattr, self._inner, name, trio_token=self._thread._token)
        member = getattr(self._inner, name)
        if name in ("request_stream", "request_channel", "request_subscription"):
            return lambda *arguments, **options: TrioBlock(member(*arguments, **options), self._thread)
        if name in ("request_n", "on_state"):
            check = checked_request_n if name == "request_n" else lambda function: function
            return lambda argument: self._thread.soon(member, check(argument))
        return partial(self._thread.call, member) if callable(member) and name != "_sends" else member

    def remote(self, contract: object, *, auth: object = None, metadata: object = ()) -> object:
        """Return an object with the methods of ``contract``; each call of one is a request."""
        return self._inner._calls().remote_of(contract, self, auth, metadata)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        while not self._items:
            if self._is_over:
                raise StopAsyncIteration
            await self._thread.call(self._receive)
        return self._items.popleft()

    async def _receive(self) -> None:
        """Take the items that came, in Trio: those of a call that is cancelled are kept for the next."""
        batch = await self._inner.receive_batch()
        self._is_over = not batch
        self._items.extend(batch)


def _for_asyncio(function: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Return a function that does in asyncio what ``function`` does in Trio, with the same arguments."""
    opened = wraps(function)(lambda *arguments, **options: TrioBlock(function(*arguments, **options)))
    return cast("Callable[P, AbstractAsyncContextManager[T]]", opened)


open_connection = _for_asyncio(rsocket_trio.open_connection)
connect_forever = _for_asyncio(rsocket_trio.connect_forever)
open_pool = _for_asyncio(rsocket_trio.open_pool)
