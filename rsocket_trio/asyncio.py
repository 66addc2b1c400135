"""Connections for programs of asyncio: a thread of Trio serves those of a loop, which awaits each call."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import trio

import rsocket_trio
from rsocket_trio.errors import ConnectionClosed
from rsocket_trio.mux.stream_state import checked_request_n

P = ParamSpec("P")
T = TypeVar("T")
LOOP_CHECK_INTERVAL = 0.5
"""Seconds between looks whether the loop was closed."""
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


class TrioThread:
    """The thread of Trio that serves all connections of one event loop. It ends with the last of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.users = 0
        self.is_over = False
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.stopping = trio.Event()
        # A daemon, so that a connection that was forgotten does not keep the interpreter from ending.
        self.thread = threading.Thread(target=self._serve, name="rsocket_trio.asyncio", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            trio.run(self._run)
        except OSError as error:  # it can't begin: there are too many open files
            self.post(self.ready.set_exception, error)
        finally:
            self.post(self.ended.set_result, None)

    async def _run(self) -> None:
        """Let the calls run, which are system tasks, until no connection is left or the loop was closed."""
        self._token = trio.lowlevel.current_trio_token()
        self.post(self.ready.set_result, None)
        while not self.is_over:
            if self.loop.is_closed():
                logging.getLogger("rsocket_trio").warning("an event loop was closed before its connections")
                return
            with trio.move_on_after(LOOP_CHECK_INTERVAL):
                await self.stopping.wait()

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call ``function``, from Trio's thread."""
        with suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(function, *arguments)

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Have Trio call a plain ``function``, behind what was asked of it before."""
        with suppress(trio.RunFinishedError, AttributeError):  # it has ended, or has not begun
            self._token.run_sync_soon(function, *arguments)

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: object, **options: object) -> T:
        """Return what an async ``function`` returns in Trio. A cancellation goes there, and waits for its end."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("the connection belongs to another event loop")
        done: asyncio.Future[T] = self.loop.create_future()
        scope, closed = trio.CancelScope(), ConnectionClosed("the connection was closed by this side")

        async def run() -> None:
            settle = partial(done.set_exception, closed)
            try:
                with scope:
                    settle = partial(done.set_result, await function(*arguments, **options))
            except Exception as error:
                settle = partial(done.set_exception, error)
            finally:
                self.post(settle)

        try:
            self._token.run_sync_soon(partial(trio.lowlevel.spawn_system_task, run, context=copy_context()))
            return await asyncio.shield(done)
        except trio.RunFinishedError:
            raise closed from None
        except asyncio.CancelledError:
            self.soon(scope.cancel)
            while not done.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([done])
            done.exception()  # asked for, or the loop would report it
            raise


def _for_asyncio(function: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Return a function that does in asyncio what ``function`` does in Trio, with the same arguments."""
    opened = wraps(function)(lambda *arguments, **options: TrioBlock(function(*arguments, **options)))
    return cast("Callable[P, AbstractAsyncContextManager[T]]", opened)


open_connection = _for_asyncio(rsocket_trio.open_connection)
connect_forever = _for_asyncio(rsocket_trio.connect_forever)
open_pool = _for_asyncio(rsocket_trio.open_pool)
