"""The victim: a server of ours with a simple responder, which says on its standard streams how it is.

The first line that it writes are its URIs. Then it answers each line that it reads, both being JSON: ``look`` counts
what is alive, ``call`` makes it the client of somebody, ``calls`` tells what became of that.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from qa.attacks import crowd
from qa.attacks.typed import serve_typed
from rsocket_trio import (
    Channel,
    Lease,
    Limits,
    Payload,
    Responder,
    ResumeOptions,
    RSocketError,
    open_connection,
    serve,
)

WATCHED = {
    ("rsocket_trio.connection.connection", "Connection"): "connections",
    ("rsocket_trio.rsocket.session", "Session"): "sessions",
    ("rsocket_trio.streamux.session", "Session"): "sessions",
    ("rsocket_trio.rsocket.stream_table", "Stream"): "streams",
    ("rsocket_trio.streamux.request_table", "Exchange"): "streams",
}


class Work:
    """Handlers at work: how many were started, are alive now, were alive at most."""

    def __init__(self) -> None:
        self.started = self.alive = self.most = self.pushes = 0
        self.wrong = self.ledgers = 0
        self.left: list[float] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.started += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        try:
            yield
        finally:
            self.alive -= 1


@functools.cache
def as_large_as(size: int) -> bytes:
    """An item, one for all streams: what a handler keeps is not the library's."""
    return bytes(size)


def responder_of(work: Work, permits: int) -> Responder:
    """Echoes, sleeps where the data say ``sleep``, and streams items without end of as many bytes as the data say.

    With a further word in the data each of them is an object of its own.
    """
    responder = Responder()

    @responder.request_response
    async def answer(request: Payload) -> Payload:
        if request.data == b"sleep":
            with work.counted():
                await trio.sleep_forever()
        return request

    @responder.request_stream
    async def items(request: Payload) -> AsyncIterator[bytes]:
        size, _, fresh = request.data.partition(b" ")
        with work.counted():
            while True:
                # One that waits many times over takes no more memory than one that waits once.
                yield b"x" * int(size) if fresh else as_large_as(int(size))

    @responder.request_channel(initial_request_n=4)
    async def talk(channel: Channel) -> None:
        with work.counted():
            if channel.request.data == b"sleep":
                await trio.sleep_forever()
            async for _ in channel:
                pass

    @responder.request_channel("count")
    async def count(channel: Channel) -> None:
        size = 0
        async for item in channel:
            size += len(item.data)
        await channel.send(b"%d" % size)

    @responder.request_stream("watched")
    async def watched(request: Payload) -> AsyncIterator[bytes]:
        try:
            yield b"here"
            await trio.sleep_forever()
        finally:
            work.left.append(time.monotonic())

    serve_typed(responder)
    crowd.serve_ledgers(responder, work)

    @responder.fire_and_forget
    async def note(request: Payload) -> None:
        with work.counted():
            await trio.sleep_forever()

    @responder.metadata_push
    def pushed(metadata: bytes) -> None:
        work.pushes += 1

    if permits:

        @responder.lease
        async def policy(setup: object) -> AsyncIterator[Lease]:
            yield Lease(permits, 3600)

    return responder


class Calls:
    """The calls that this process makes as a client of others."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self._scopes: list[trio.CancelScope] = []

    def hang_up(self) -> None:
        """End all of them."""
        for scope in self._scopes:
            scope.cancel()

    async def call(self, uri: str, what: str) -> None:
        """Connect and ask; the outcome is ``TypeOfError: text``."""
        place = len(self.outcomes)
        self.outcomes.append("")
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            await self._call(uri, what, place)
        self._scopes.remove(scope)

    async def _call(self, uri: str, what: str, place: int) -> None:
        try:
            async with open_connection(uri, lease=what == "lease") as connection:
                if what == "ask":
                    await connection.request_response(b"?")
                elif what == "stream":
                    async with connection.request_stream(b"?") as items:
                        await trio.sleep(0.5)
                        async for _ in items:
                            pass
                elif what == "sleepy":
                    async with connection.request_stream(b"?") as items:
                        await anext(items)
                        await trio.sleep_forever()
                else:
                    await trio.sleep_forever()
        except RSocketError as error:
            self.outcomes[place] = f"{type(error).__name__}: {error}"


def glance(work: Work) -> dict[str, int]:
    """Return counts of the objects that are alive in this process, as far as they are known at once."""
    return {"tasks": trio.lowlevel.current_statistics().tasks_living, "handlers": work.alive}


def look(work: Work) -> dict[str, int]:
    """Return counts of all objects that are alive in this process."""
    gc.collect()
    names = {
        getattr(sys.modules[module], name): key for (module, name), key in WATCHED.items() if module in sys.modules
    }
    found = Counter(names[type(one)] for one in gc.get_objects() if type(one) in names)
    return {
        **glance(work),
        "connections": found["connections"],
        "sessions": found["sessions"],
        "streams": found["streams"],
    }


def server_tls() -> ssl.SSLContext:
    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


async def main(options: dict[str, Any]) -> None:
    """Serve, and obey the lines of the standard input until it ends."""
    work, calls = Work(), Calls()
    schemes = options.get("schemes", ["tcp"])
    uris = [
        "aeron:udp?endpoint=127.0.0.1:0"
        if scheme == "aeron"
        else f"{scheme}://127.0.0.1:0" + ("/" if scheme.startswith("ws") else "")
        for scheme in schemes
    ]
    if "ws" in schemes:
        import rsocket_trio.transports.websocket.transport  # what the first handshake would import
    if "h2" in schemes:
        import rsocket_trio.transports.http2.http2_handshake  # noqa: F401
    context = server_tls() if "tls" in schemes else None
    limits = Limits(**options.get("limits", {}))
    resume = ResumeOptions(**options["resume"]) if "resume" in options else None
    async with trio.open_nursery() as nursery, trio.open_nursery() as clients:

        async def start(task_status: trio.TaskStatus[list[str]]) -> None:
            responder = responder_of(work, options.get("permits", 0))
            terms: dict[str, Any] = {"limits": limits, "resume": resume, "ssl_context": context, "grace": 0.1}
            await serve(responder, uris, **terms, task_status=task_status)

        said = b""
        print(json.dumps(await nursery.start(start)), flush=True)
        async with trio.lowlevel.FdStream(os.dup(0)) as orders:
            async for chunk in orders:
                said += chunk
                while b"\n" in said:
                    line, _, said = said.partition(b"\n")
                    order = json.loads(line)
                    reply: object = None
                    if order["do"] == "look":
                        reply = look(work)
                    elif order["do"] == "glance":
                        reply = glance(work)
                    elif order["do"] == "work":
                        reply = vars(work)
                    elif order["do"] == "call":
                        clients.start_soon(calls.call, order["uri"], order["what"])
                    elif order["do"] == "hang up":
                        calls.hang_up()
                    elif order["do"] == "calls":
                        reply = calls.outcomes
                    print(json.dumps(reply), flush=True)
        clients.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    logging.basicConfig(level=asked.get("level", "INFO"), format="%(levelname)s %(message)s")
    trio.run(main, asked)
