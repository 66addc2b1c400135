"""Counts the rows, bytes and reconnects of tasks, and brings the counts to the reader on the driver.

Spark has no metrics for sources in Python, and a task has no other way back. So the reader on the driver listens on a
socket, each partition names its address, and each task reports once, with 40 bytes. A report that can't be delivered is
given up: rows are never held back for it.
"""

from __future__ import annotations

import hmac
import logging
import os
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import attrs
import trio

logger = logging.getLogger("rsocket_trio.spark")

REPORT_HOST: Final = "RSOCKET_TRIO_REPORT_HOST"
"""The environment variable that names an address of the driver's machine which executors elsewhere reach."""
REPORT_TIMEOUT = 2.0
"""Seconds that the end of a task waits for its report at most."""
SILENCE = 60.0
"""Seconds for which a process does not try again to reach a collector: waiting for it would delay every task."""
RECEIVE_TIMEOUT = 5.0
"""Seconds that a connection to the collector may take."""
MAX_CONNECTIONS = 256
"""Connections to the collector at a time; it closes any more at once."""

_REPORT = struct.Struct(">16sQQQ")

Address: TypeAlias = tuple[str, int, bytes]
"""Host and port of a collector, and the token by which it knows the route of a report."""


@attrs.define
class Tally:
    """The number of rows and bytes that came, and of connections that were lost, or could not be made."""

    rows: int = 0
    bytes: int = 0
    reconnects: int = 0

    def add(self, rows: int, size: int, reconnects: int = 0) -> None:
        """Add to each number; ``size`` is in bytes."""
        self.rows += rows
        self.bytes += size
        self.reconnects += reconnects


class Counted(Protocol):
    """Rows that came together."""

    @property
    def rows(self) -> int:
        """Return their number."""
        ...

    @property
    def size(self) -> int:
        """Return their bytes."""
        ...


class CountingTaker:
    """Hands rows on to ``conveyor``, and counts them in ``tally``."""

    def __init__(self, conveyor: Any) -> None:
        self._conveyor = conveyor
        self.tally = Tally()

    async def put(self, item: Counted, weight: int) -> None:
        """Count and hand on."""
        self.tally.add(item.rows, item.size)
        await self._conveyor.put(item, weight)


class Collector:
    """Receives the reports of tasks, by route. Used in the background thread; ``totals`` may be read in any."""

    def __init__(self) -> None:
        self.totals: dict[str, Tally] = {}
        self._routes: dict[bytes, str] = {}
        self._tokens: dict[str, bytes] = {}
        self._where: tuple[str, int] | None = None
        self._scope = trio.CancelScope()
        self._open = 0

    async def listen(self, start: Callable[[Any], object]) -> None:
        """Listen, with a task that ``start`` begins. A host that can't be listened on is a warning: nothing comes."""
        host = os.environ.get(REPORT_HOST) or "127.0.0.1"
        try:
            listeners = await trio.open_tcp_listeners(0, host=host)
        except OSError as error:
            logger.warning("no counts of tasks: %s of %s can't be listened on: %s", REPORT_HOST, host, error)
            return
        # Several where the host's name has several addresses: one will do.
        for unused in listeners[1:]:
            await unused.aclose()
        self._where = (host, listeners[0].socket.getsockname()[1])
        start(partial(self._serve, listeners[:1]))

    def address(self, route: str) -> Address | None:
        """Return where tasks report what they read from ``route``; ``None`` if nobody listens."""
        if self._where is None:
            return None
        if route not in self._tokens:
            self._tokens[route] = token = os.urandom(16)
            self._routes[token] = route
            self.totals[route] = Tally()
        return (*self._where, self._tokens[route])

    def close(self) -> None:
        """Stop listening."""
        self._scope.cancel()

    async def _serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        with self._scope:
            await trio.serve_listeners(self._receive, list(listeners))

    async def _receive(self, stream: trio.SocketStream) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                with trio.move_on_after(RECEIVE_TIMEOUT):
                    await self._count(stream)
        except trio.BrokenResourceError:
            pass  # a task that ended half-way
        finally:
            self._open -= 1
            # The task waits for this: what it reported is in the totals now.
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _count(self, stream: trio.SocketStream) -> None:
        data = b""
        while len(data) < _REPORT.size:
            more = await stream.receive_some(_REPORT.size - len(data))
            if not more:
                return
            data += more
        token, rows, size, reconnects = _REPORT.unpack(data)
        for known, route in self._routes.items():
            if hmac.compare_digest(known, token):
                self.totals[route].add(rows, size, reconnects)


_unreachable: dict[tuple[str, int], float] = {}
"""Collectors that could not be reached, and the time at which they are tried again."""


async def report(address: Address, tally: Tally) -> None:
    """Tell the collector what a task counted, and wait until it has it, for a short time. Never raise for a failure."""
    host, port, token = address
    if time.monotonic() < _unreachable.get((host, port), 0.0):
        return
    try:
        with trio.fail_after(REPORT_TIMEOUT):
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(_REPORT.pack(token, tally.rows, tally.bytes, tally.reconnects))
                await stream.receive_some(1)
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        if len(_unreachable) >= MAX_CONNECTIONS:
            _unreachable.clear()
        _unreachable[host, port] = time.monotonic() + SILENCE
        logger.warning(
            "the driver does not hear the counts of this worker, because %s:%d can't be reached (set %s at the driver "
            "to an address of its own): %s",
            *(host, port, REPORT_HOST, str(error) or type(error).__name__),
        )
