"""Reads a live stream as it comes: elements that are lost with a connection are not sent again."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rsocket_trio import Connection, ConnectionLost, Incoming, Payload
from rsocket_trio.replay.elements import now_us
from rsocket_trio.spark.background import Taker
from rsocket_trio.spark.connections import Pool, Tries, target_of
from rsocket_trio.spark.mistakes import PASSING_FOR_READS, is_missing_route
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.ranges import DataLossError
from rsocket_trio.spark.records import Chunk, Weights

logger = logging.getLogger("rsocket_trio.spark")


def chunk_of(batch: list[Payload], start: int) -> Chunk:
    """Return elements of a live stream as a chunk, numbered from ``start`` on."""
    metadatas = [payload.metadata for payload in batch]
    has_metadata = any(metadata is not None for metadata in metadatas)
    return Chunk(start, [payload.data for payload in batch], metadatas if has_metadata else None, now_us())


@asynccontextmanager
async def subscribed(connection: Connection, options: Options, *, refill: bool) -> AsyncIterator[Incoming]:
    """Open the stream that the options ask for, by ``request_stream`` or ``request_channel``."""
    request = Payload(options.request, options.request_metadata or None)
    ask = connection.request_channel if options.interaction == "channel" else connection.request_stream
    async with ask(request, route=options.route, initial_request_n=options.credit, refill=refill) as items:
        yield items


async def fetch_live(pool: Pool, options: Options, conveyor: Taker[Chunk]) -> None:
    """Put the elements of a live stream on the conveyor, up to its end, ``maxRows`` or ``maxDuration``.

    A connection that can't be made is tried again; one that breaks once rows have come is a ``DataLossError``, unless
    that is accepted: then the read ends with the elements that came. Raise ``ConnectionLost`` if the time ends before
    the first connection.
    """
    tries = Tries(options, f"reading {options.route}")
    connected = trio.Event()
    with trio.move_on_after(math.inf if options.max_duration is None else options.max_duration) as time:
        await _fetch_live(pool, options, conveyor, tries, connected)
    if time.cancelled_caught and not connected.is_set():
        why = tries.last or "it was still being made"
        raise ConnectionLost(
            f"reading {options.route}: no connection within {options.max_duration:g} s (maxDuration): {why}"
        )


async def _fetch_live(
    pool: Pool, options: Options, conveyor: Taker[Chunk], tries: Tries, connected: trio.Event
) -> None:
    target = target_of(options)
    rows = 0

    async def take(batch: list[Payload]) -> bool:
        nonlocal rows
        if options.max_rows is not None:
            batch = batch[: options.max_rows - rows]
        chunk = chunk_of(batch, rows)
        rows += len(batch)
        await conveyor.put(chunk, weigh(chunk))
        return options.max_rows is not None and rows >= options.max_rows

    weigh = Weights(options)
    while True:
        try:
            async with pool.connection(target) as connection:
                connected.set()
                if options.interaction == "response":
                    await take([await _ask(connection, options)])
                    return
                async with subscribed(connection, options, refill=True) as items:
                    while batch := await items.receive_batch():
                        if await take(batch):
                            return
                return
        except PASSING_FOR_READS as error:
            if is_missing_route(error) and not rows:
                raise  # a retry is useless
            if not rows:
                await tries.failed(error)
                continue
            if options.fail_on_data_loss:
                raise DataLossError(
                    f"{options.route}: the connection broke after {rows} rows of a stream that can't be repeated: "
                    f"{error}; with failOnDataLoss=false the read ends there"
                ) from error
            logger.warning("%s: ended after %d rows, the connection broke: %s", options.route, rows, str(error))
            return


async def _ask(connection: Connection, options: Options) -> Payload:
    request = Payload(options.request, options.request_metadata or None)
    try:
        with trio.fail_after(options.read_timeout):
            return await connection.request_response(request, route=options.route)
    except trio.TooSlowError:
        raise ConnectionLost(f"no answer within {options.read_timeout:g} s") from None
