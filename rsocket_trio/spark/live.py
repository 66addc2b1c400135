"""Receives a live stream as it comes, each element at most once, and reads a batch of it up to a bound.

What is lost with a connection is not sent again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import trio

from rsocket_trio import Connection, ConnectionLost, Payload
from rsocket_trio.replay.elements import now_us
from rsocket_trio.spark.background import Taker
from rsocket_trio.spark.connections import Pool, Tries, target_of
from rsocket_trio.spark.mistakes import PASSING_FOR_READS, DataLossError, is_missing_route
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.records import Chunk, Weights

logger = logging.getLogger("rsocket_trio.spark")


class Reception:
    """Receives a live stream, over as many connections as it takes.

    ``take`` gets elements that came together, and returns whether they are enough; while it waits, the server gets no
    credit. ``lost`` gets the error of each connection that broke, and returns whether to end there.
    """

    def __init__(
        self,
        pool: Pool,
        options: Options,
        take: Callable[[Chunk], Awaitable[bool]],
        lost: Callable[[Exception], bool],
    ) -> None:
        self._pool = pool
        self._options = options
        self._take = take
        self._lost = lost
        self.tries = Tries(options, f"reading {options.route}")
        self.is_connected = False
        """True once there was a connection."""
        self.rows = 0

    async def run(self) -> None:
        """Receive until the stream completes, or there is enough. Raise the error of the stream."""
        while True:
            try:
                async with self._pool.connection(target_of(self._options)) as connection:
                    self.is_connected = True
                    await self._receive(connection)
            except PASSING_FOR_READS as error:
                if is_missing_route(error) and not self.rows:
                    raise  # a retry is useless
                if self._lost(error):
                    return
                await self.tries.failed(error)
            else:
                return

    async def _receive(self, connection: Connection) -> None:
        options = self._options
        request = Payload(options.request, options.request_metadata or None)
        if options.interaction == "response":
            with trio.move_on_after(options.read_timeout):
                await self._add([await connection.request_response(request, route=options.route)])
                return
            raise ConnectionLost(f"no answer within {options.read_timeout:g} s")
        ask = connection.request_channel if options.interaction == "channel" else connection.request_stream
        async with ask(request, route=options.route, initial_request_n=options.credit) as items:
            while (batch := await items.receive_batch()) and not await self._add(batch):
                self.tries.succeeded()

    async def _add(self, batch: list[Payload]) -> bool:
        metadatas = [payload.metadata for payload in batch]
        has_metadata = any(metadata is not None for metadata in metadatas)
        chunk = Chunk(self.rows, [payload.data for payload in batch], metadatas if has_metadata else None, now_us())
        self.rows += chunk.rows
        return await self._take(chunk)


async def fetch_live(pool: Pool, options: Options, conveyor: Taker[Chunk]) -> None:
    """Put the elements of a live stream on the conveyor, up to its end, ``maxRows`` or ``maxDuration``.

    A connection that can't be made is tried again; one that breaks once rows have come is a ``DataLossError``, unless
    that is accepted: then the read ends with the elements that came. Raise ``ConnectionLost`` if the time ends before
    the first connection.
    """
    weigh = Weights(options)
    most = math.inf if options.max_rows is None else options.max_rows

    async def take(chunk: Chunk) -> bool:
        if chunk.start + chunk.rows > most:
            chunk, _ = chunk.split(int(most) - chunk.start)
        await conveyor.put(chunk, weigh(chunk))
        return reception.rows >= most

    def lost(error: Exception) -> bool:
        if reception.rows and options.fail_on_data_loss:
            raise DataLossError(
                f"{options.route}: the connection broke after {reception.rows} rows of a stream that can't be "
                f"repeated: {error}; with failOnDataLoss=false the read ends there"
            ) from error
        if reception.rows:
            logger.warning(
                "%s: ended after %d rows, the connection broke: %s", options.route, reception.rows, str(error)
            )
        return reception.rows > 0

    reception = Reception(pool, options, take, lost)
    with trio.move_on_after(math.inf if options.max_duration is None else options.max_duration) as time:
        await reception.run()
    if time.cancelled_caught and not reception.is_connected:
        why = reception.tries.last or "it was still being made"
        raise ConnectionLost(
            f"reading {options.route}: no connection within {options.max_duration:g} s (maxDuration): {why}"
        )
