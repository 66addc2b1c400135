"""A server in a thread of its own, for tests whose own thread is Spark's, asyncio's or a command's."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from rsocket_trio import Responder, serve

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that a server may take to begin or to end on a busy machine."""


class ThreadServer:
    """A server in a thread. Its methods are for other threads."""

    def __init__(self, responder: Responder, uri: str = "tcp://127.0.0.1:0", **options: Any) -> None:
        self._responder = responder
        self._options = options
        self._scope = trio.CancelScope()
        self._ready: queue.SimpleQueue[tuple[str, trio.lowlevel.TrioToken]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=trio.run, args=(self._main, uri))
        self._thread.start()
        self.uri, self._token = self._ready.get(timeout=PATIENCE)

    async def _main(self, uri: str) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                [bound] = await nursery.start(partial(serve, self._responder, [uri], **self._options))
                self._ready.put((bound, trio.lowlevel.current_trio_token()))

    def run(self, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Run an async function in the server's thread."""
        return trio.from_thread.run(function, *arguments, trio_token=self._token)

    def stop(self) -> None:
        """End it, without a goodbye."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def serving(responder: Responder, uri: str = "tcp://127.0.0.1:0", **options: Any) -> Iterator[str]:
    """Serve for as long as the block, which gets the URI."""
    server = ThreadServer(responder, uri, **options)
    try:
        yield server.uri
    finally:
        server.stop()
