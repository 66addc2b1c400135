"""A thread of Trio beside an event loop of asyncio, which awaits calls there."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import trio

from rsocket_trio.errors import ConnectionClosed

LOOP_CHECK_INTERVAL = 0.5
"""Seconds between looks whether the loop was closed."""
T = TypeVar("T")


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
