"""Writes rows at least once: the server answers each row, sent as a request or as an item of a channel.

Rows that were not answered when a connection broke are sent again over the next one. A row may arrive twice; none is
lost.
"""

from __future__ import annotations

from collections import deque

import trio

from rsocket_trio import Channel, Connection, Payload
from rsocket_trio.errors import ConnectionLost, RSocketError, StreamError
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.delivering import Delivery, Pieces, SilenceWatch, passes
from rsocket_trio.spark.mistakes import SinkError, is_missing_route
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.request_rows import PIECE_BYTES, route_entry

UNACKED_BYTES = 16 * PIECE_BYTES
"""Bytes that may wait for their answers: where rows are large this is less than ``inFlight`` of them."""


class Round:
    """A delivery over one connection: it ends with the first failure, or once everything was answered."""

    def __init__(self, delivery: Delivery, connection: Connection) -> None:
        self.delivery = delivery
        self.connection = connection
        self.failure: Exception | None = None
        self.scope = trio.CancelScope()
        self.silence = SilenceWatch(delivery.pool, connection, delivery.options, self.is_waiting)

    def is_waiting(self) -> bool:
        """Return whether something was sent and not answered."""
        raise TypeError("each kind of round says so itself")

    def fail(self, error: Exception) -> None:
        """End the round with this error: send nothing more and await nothing more."""
        if self.failure is None:
            self.failure = error
        self.scope.cancel()


class Requests(Delivery):
    """A request_response for each row, up to ``inFlight`` of them at a time, in no order."""

    async def send_over(self, connection: Connection) -> None:
        """Run one round."""
        await RequestRound(self, connection).run()


class RequestRound(Round):
    """Requests over one connection: some tasks that each ask, wait, and ask the next."""

    delivery: Requests

    def __init__(self, delivery: Requests, connection: Connection) -> None:
        super().__init__(delivery, connection)
        self._flying: dict[int, Payload] = {}
        self._number = 0
        self._askers = 0
        self._most = delivery.options.in_flight
        self._low = trio.Event()
        self._mark = 0
        self._intake = trio.CancelScope()

    def is_waiting(self) -> bool:
        """Return whether a request is on its way."""
        return bool(self._flying)

    async def run(self) -> None:
        """Send, until Spark has no more rows and all were answered. Raise the error that ended it before that."""
        try:
            with self.scope:
                async with trio.open_nursery() as watching:
                    watching.start_soon(self.silence.watch, self.fail)
                    async with trio.open_nursery() as nursery:
                        with self._intake:
                            await self._hand_out(nursery)
                    watching.cancel_scope.cancel()
        finally:
            # In the order in which they were first sent: a dict keeps it.
            self.delivery.ready.extendleft(reversed(self._flying.values()))
        if self.failure is not None:
            raise self.failure

    async def _hand_out(self, nursery: trio.Nursery) -> None:
        """Keep as many tasks asking as ``inFlight`` and ``UNACKED_BYTES`` allow."""
        ready = self.delivery.ready
        while self.failure is None and await self.delivery.fill():
            largest = max([payload.size for payload in ready])
            self._most = max(min(self.delivery.options.in_flight, UNACKED_BYTES // max(largest, 1)), 1)
            while self._askers < min(self._most, len(ready)):
                self._askers += 1
                nursery.start_soon(self._ask_on)
            # A task that finds no row left sets it, and one that fails cancels the wait by its scope.
            self._low = trio.Event()
            await self._low.wait()

    async def _ask_on(self) -> None:
        delivery, flying, connection = self.delivery, self._flying, self.connection
        ready, silence = delivery.ready, self.silence
        try:
            while ready and self.failure is None and self._askers <= self._most:
                payload = ready.popleft()
                self._number = number = self._number + 1
                if not flying:
                    silence.heard = trio.current_time()
                flying[number] = payload
                try:
                    await connection.request_response(payload)
                except RSocketError as error:
                    self._settle(error, number)
                else:
                    del flying[number]
                    silence.heard = trio.current_time()
                    delivery.tries.succeeded()
        finally:
            self._askers -= 1
            # The last rows are asked for while others still wait for their answers.
            if not ready:
                self._low.set()

    def _settle(self, error: RSocketError, number: int) -> None:
        """Handle a failed request: end the round, or skip the row if only the row was refused."""
        if passes(error):
            # The other requests may still be answered: only new ones have to wait.
            self.failure = self.failure or error
            self._intake.cancel()
        elif is_missing_route(error) or not isinstance(error, StreamError):
            self.fail(error)
        else:
            try:
                self.delivery.skip(self._flying[number], error)
            except SinkError as fatal:
                self.fail(fatal)
            else:
                del self._flying[number]
                self.silence.heard = trio.current_time()


class Acknowledged(Delivery):
    """One channel: each row is an item, and each answer acknowledges the next one, in order.

    A server may take several items at once, and refuse them together without naming the bad one. So these
    are sent again one at a time, and only a row that is refused alone is skipped.
    """

    def __init__(self, pool: Pool, options: Options, pieces: Pieces) -> None:
        super().__init__(pool, options, pieces)
        self.suspects = 0
        """The number of next rows that are sent one at a time."""

    async def send_over(self, connection: Connection) -> None:
        """Run one round."""
        await ChannelRound(self, connection).run()


class ChannelRound(Round):
    """The channel over one connection."""

    delivery: Acknowledged

    def __init__(self, delivery: Acknowledged, connection: Connection) -> None:
        super().__init__(delivery, connection)
        self._sent: deque[Payload] = deque()
        self._size = 0
        self._is_complete = False
        self._acknowledged = trio.Event()

    def is_waiting(self) -> bool:
        """Return whether an item was not acknowledged."""
        return bool(self._sent)

    async def run(self) -> None:
        """Send, until Spark has no more rows and all were acknowledged. Raise the error that ended it before that."""
        delivery = self.delivery
        try:
            first = self._take()
            opening = Payload(first.data, route_entry(delivery.options.route) + (first.metadata or b""))
            credit = max(delivery.options.in_flight, 2)
            try:
                with self.scope:
                    async with self.connection.request_channel(opening, initial_request_n=credit) as channel:
                        await self._converse(channel)
            except RSocketError as error:
                self.failure = self.failure or error
        finally:
            delivery.ready.extendleft(reversed(self._sent))
        failure = self.failure
        if failure is None:
            return
        if passes(failure) or is_missing_route(failure) or not isinstance(failure, StreamError) or not self._sent:
            raise failure
        if delivery.options.error_policy == "skip" and len(self._sent) > 1:
            delivery.suspects = len(self._sent)
            return
        delivery.skip(delivery.ready.popleft(), failure)
        delivery.suspects = 0

    async def _converse(self, channel: Channel) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.silence.watch, self.fail)
            nursery.start_soon(self._receive, channel)
            try:
                await self._send(channel)
                while self._sent:
                    await self._wait_for_some()
            except RSocketError as error:
                # The receiver knows why, and may have more to read before it.
                with trio.move_on_after(self.delivery.options.connect_timeout):
                    await trio.sleep_forever()
                self.fail(error)
            nursery.cancel_scope.cancel()

    async def _send(self, channel: Channel) -> None:
        delivery = self.delivery
        while await delivery.fill():
            while delivery.ready:
                while self._is_full():
                    await self._wait_for_some()
                await channel.send(self._take())
        self._is_complete = True
        await channel.send_eof()

    async def _receive(self, channel: Channel) -> None:
        delivery, sent = self.delivery, self._sent
        try:
            while batch := await channel.receive_batch():
                if len(batch) > len(sent):
                    raise ConnectionLost(f"{len(batch)} acknowledgements for {len(sent)} items")
                for _ in batch:
                    self._size -= sent.popleft().size
                delivery.suspects = max(delivery.suspects - len(batch), 0)
                delivery.tries.succeeded()
                self.silence.heard = trio.current_time()
                # Wakes the sender, which waits for room or for the last acknowledgement.
                self._acknowledged.set()
            if sent or not self._is_complete:
                raise ConnectionLost(f"the server completed too early, {len(sent)} items are not acknowledged")
        except RSocketError as error:
            self.fail(error)

    def _is_full(self) -> bool:
        most = 1 if self.delivery.suspects else self.delivery.options.in_flight
        return len(self._sent) >= most or self._size > UNACKED_BYTES

    def _take(self) -> Payload:
        payload = self.delivery.ready.popleft()
        if not self._sent:
            self.silence.heard = trio.current_time()
        self._sent.append(payload)
        self._size += payload.size
        return payload

    async def _wait_for_some(self) -> None:
        self._acknowledged = trio.Event()
        await self._acknowledged.wait()
