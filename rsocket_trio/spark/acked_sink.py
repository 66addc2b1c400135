"""Writes rows at least once: the server answers each row, which is a request of its own.

Rows that were not answered when a connection broke are sent again over the next one. A row may arrive twice, and the
server may take rows in any order; none is lost.
"""

from __future__ import annotations

import trio

from rsocket_trio import Connection, ConnectionLost, Payload
from rsocket_trio.errors import RSocketError, StreamError
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.delivering import Delivery, Pieces, passes
from rsocket_trio.spark.mistakes import SinkError, is_missing_route
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.request_rows import PIECE_BYTES

UNANSWERED_BYTES = 16 * PIECE_BYTES
"""Bytes that may wait for their answers: where rows are large this is less than ``inFlight`` of them."""


class Requests(Delivery):
    """A request_response for each row, up to ``inFlight`` of them at a time, in no order."""

    def __init__(self, pool: Pool, options: Options, pieces: Pieces) -> None:
        super().__init__(pool, options, pieces)
        self._flying: dict[int, Payload] = {}
        self._size = 0
        """Bytes of the requests that wait for their answers."""
        self._number = 0
        self._heard = 0.0
        """The time at which the server last answered, or was first asked after a pause."""
        self._answered = trio.Event()
        self._failure: Exception | None = None
        """The first failure on a connection, which ends its use."""
        self._scope = trio.CancelScope()
        self._intake = trio.CancelScope()

    async def send_over(self, connection: Connection) -> None:
        """Send, until Spark has no more rows and all were answered. Raise the error that ended it before that."""
        self._failure, self._heard = None, trio.current_time()
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as watching:
                    watching.start_soon(self._watch_silence, connection)
                    async with trio.open_nursery() as nursery:
                        with trio.CancelScope() as self._intake:
                            await self._ask_all(connection, nursery)
                    watching.cancel_scope.cancel()
        finally:
            # In the order in which they were first sent: a dict keeps it.
            self.ready.extendleft(reversed(self._flying.values()))
            self._flying.clear()
            self._size = 0
        if self._failure is not None:
            raise self._failure

    async def _watch_silence(self, connection: Connection) -> None:
        """End the use of a connection that has answered nothing for too long; new requests go to another one."""
        timeout = self.options.read_timeout
        while True:
            await trio.sleep_until(self._heard + timeout)
            if not self._flying:
                self._heard = trio.current_time()
            elif trio.current_time() >= self._heard + timeout:
                self.pool.distrust(connection)
                self._fail(ConnectionLost(f"no answer within {timeout:g} s"))
                return

    async def _ask_all(self, connection: Connection, nursery: trio.Nursery) -> None:
        """Start a task for each row, as ``inFlight`` and ``UNANSWERED_BYTES`` allow."""
        while await self.fill():
            payload = self.ready[0]
            while len(self._flying) >= self.options.in_flight or (
                self._flying and self._size + payload.size > UNANSWERED_BYTES
            ):
                self._answered = trio.Event()
                await self._answered.wait()
            self.ready.popleft()
            if not self._flying:
                self._heard = trio.current_time()
            self._number += 1
            self._flying[self._number] = payload
            self._size += payload.size
            nursery.start_soon(self._ask, connection, self._number, payload)

    async def _ask(self, connection: Connection, number: int, payload: Payload) -> None:
        try:
            await connection.request_response(payload)
        except RSocketError as error:
            if not self._is_skipped(error, payload):
                return
        else:
            self.tries.succeeded()
        del self._flying[number]
        self._size -= payload.size
        self._heard = trio.current_time()
        # Wakes ``_ask_all``, which waits for room.
        self._answered.set()

    def _is_skipped(self, error: RSocketError, payload: Payload) -> bool:
        """Return whether only the row was refused, and is skipped. Any other failure ends the use of the connection."""
        if passes(error):
            # The other requests may still be answered: only new ones have to wait.
            self._failure = self._failure or error
            self._intake.cancel()
        elif is_missing_route(error) or not isinstance(error, StreamError):
            self._fail(error)
        else:
            try:
                self.skip(payload, error)
            except SinkError as fatal:
                self._fail(fatal)
            else:
                return True
        return False

    def _fail(self, error: Exception) -> None:
        """End with this error: send nothing more and await nothing more."""
        self._failure = self._failure or error
        self._scope.cancel()
