"""Writes rows exactly once: tasks stage them, and they count once the driver has committed the batch.

A task's rows can't be asked for again, so they are staged in attempts of limited size. An attempt is kept here until
the server has confirmed it, and is staged anew, as another attempt, when the connection breaks before. Attempts that no
commit names count for nothing.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import trio

from rsocket_trio import Channel, Connection, ConnectionLost, Payload
from rsocket_trio.errors import RSocketError, StreamError, readable
from rsocket_trio.replay.elements import ARROW
from rsocket_trio.replay.errors import NotStaged
from rsocket_trio.spark.connections import Pool, request, target_of
from rsocket_trio.spark.delivering import Delivery, Pieces, passes
from rsocket_trio.spark.mistakes import PASSING, SinkError, unwritten
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.protocol import ABORT_ROUTE, COMMIT_ROUTE, EPOCH_ROUTE, PACK_ROUTE, STAGE_ROUTE
from rsocket_trio.spark.request_rows import Origin, Piece

logger = logging.getLogger("rsocket_trio.spark")

ATTEMPT_BYTES = 4 * 2**20
ATTEMPT_ELEMENTS = 65536
"""The size of an attempt, about: a task keeps so much in memory."""
ABORT_TIMEOUT = 2.0
"""Seconds for aborting attempts at the end of a task."""


class Staging(Delivery):
    """The rows of one task, staged attempt after attempt; ``epoch`` is that of the planning, if the server has them."""

    def __init__(self, pool: Pool, options: Options, pieces: Pieces, origin: Origin, epoch: int | None = None) -> None:
        super().__init__(pool, options, pieces)
        self.route = options.route + STAGE_ROUTE
        self._origin = origin
        self._epoch = epoch
        self._kept: list[Piece] = []
        self._orphans: list[str] = []

    async def deliver(self) -> None:
        """Stage all rows; abort the attempts that were staged for nothing, also on failure."""
        try:
            await super().deliver()
        except BaseException:
            self._orphans += [attempt for attempt, _ in self.report.attempts]
            raise
        finally:
            with trio.move_on_after(ABORT_TIMEOUT, shield=True):
                await self._abort_orphans()

    async def _abort_orphans(self) -> None:
        if self._orphans and await abort(self.pool, self.options, self._origin.sink, self._orphans):
            self._orphans.clear()

    async def fill(self) -> bool:
        """Wait for a piece that was not staged. Return false when there are no more."""
        if not self._kept:
            piece = await self.pieces.take()
            if piece is None:
                return False
            self._kept.append(piece)
        return True

    async def send_over(self, connection: Connection) -> None:
        """Stage attempts over this connection, until all is staged."""
        # Before the same rows are staged anew: the server may have no room for both.
        await self._abort_orphans()
        while await self.fill():
            attempt = str(uuid.uuid4())
            try:
                with trio.fail_after(self.options.read_timeout) as patience:
                    await self._stage(connection, attempt, patience)
            except BaseException as error:
                # It may be staged, with only its confirmation lost.
                self._orphans.append(attempt)
                if isinstance(error, trio.TooSlowError):
                    self.pool.distrust(connection)
                raise
            self.report.attempts.append((attempt, sum(piece.rows for piece in self._kept)))
            self._kept.clear()
            self.tries.succeeded()

    async def _stage(self, connection: Connection, attempt: str, patience: trio.CancelScope) -> None:
        said = {"sink": self._origin.sink, "attempt": attempt, "partition": self._origin.partition}
        said |= {"batch": self._origin.batch, "epoch": self._epoch, "query": self._origin.query}
        async with connection.request_channel(json.dumps(said).encode(), route=self.route) as channel:
            for kept in self._kept:
                await self._send(channel, kept, patience)
            sent, size = sum(len(piece.payloads) for piece in self._kept), sum(piece.size for piece in self._kept)
            while size < ATTEMPT_BYTES and sent < ATTEMPT_ELEMENTS:
                # Spark may take any time to hand over the next rows.
                patience.deadline = float("inf")
                piece = await self.pieces.take()
                if piece is None:
                    break
                self._kept.append(piece)
                sent, size = sent + len(piece.payloads), size + piece.size
                await self._send(channel, piece, patience)
            patience.deadline = trio.current_time() + self.options.read_timeout
            await channel.send_eof()
            answers = [payload async for payload in channel]
        rows = sum(piece.rows for piece in self._kept)
        if len(answers) != 1:
            raise ConnectionLost(f"route {self.route!r} completed with {len(answers)} answers: one was expected")
        told = read_answer(answers[0].data, self.route)
        if (told.get("rows"), told.get("elements")) != (rows, sent):
            raise SinkError(
                f"route {self.route!r} staged {told.get('rows')} rows in {told.get('elements')} elements: "
                f"{rows} rows in {sent} were sent"
            )

    async def _send(self, channel: Channel, piece: Piece, patience: trio.CancelScope) -> None:
        timeout = self.options.read_timeout
        patience.deadline = trio.current_time() + timeout

        def payloads() -> Iterator[Payload]:
            for payload in piece.payloads:
                if not channel.room:
                    # The server grants credit slowly, but it is there.
                    patience.deadline = trio.current_time() + timeout
                yield payload

        await channel.send_many(payloads())


async def commit(
    pool: Pool,
    options: Options,
    sink: str,
    batch: int,
    attempts: Sequence[tuple[str, int]],
    *,
    once: bool = False,
    query: str | None = None,
    epoch: int | None = None,
) -> bool:
    """Commit attempts, each with its number of rows, as one batch. Return false if the batch counted before.

    ``once``: the sink has no other batch, and the server may forget it some day. ``query`` is the id of the query, and
    ``epoch`` that of the planning.

    Raise ``SinkError`` when the server does not have them, the sink is another query's, or it has a later batch.
    """
    route = options.route + COMMIT_ROUTE
    named = [{"attempt": name, "rows": rows} for name, rows in attempts]
    said: dict[str, Any] = {"sink": sink, "batch": batch, "attempts": named, "once": once}
    said |= {"query": query, "takeOver": options.take_over, "epoch": epoch}
    try:
        told = await ask(pool, options, route, said)
    except RSocketError as error:
        if getattr(error, "code", None) == NotStaged.default_code:
            raise SinkError(
                f"batch {batch} of sink {sink!r} was not committed: {error}. Nothing of it counts; it is written anew "
                "when the query starts again"
            ) from error
        raise unwritten(error, options, route) from error
    promoted, last, rows = (told.get(name) for name in ("promoted", "last", "rows"))
    if type(promoted) is not bool or type(last) is not int or type(rows) is not int:
        raise SinkError(f"route {route!r} answered a commit with {readable(json.dumps(told))}")
    wanted = sum(number for _, number in attempts)
    if promoted and rows != wanted:
        raise SinkError(f"route {route!r} promoted {rows} rows of {wanted}")
    # A batch promoted now is the last one, and so is one that was promoted before.
    if last != batch:
        raise SinkError(
            f"route {route!r} says that it {'promoted' if promoted else 'had'} batch {batch} of sink {sink!r}, and yet "
            f"that the last is {last}: it is not known whether the rows count"
        )
    return promoted


async def takes_packs(pool: Pool, options: Options) -> bool:
    """Ask the server whether its stage takes packs. Raise ``SinkError`` if it can't be reached."""
    formats = await _ask_if_known(pool, options, PACK_ROUTE, {}, "pack", list)
    return formats is not None and ARROW in formats


async def next_epoch(pool: Pool, options: Options, sink: str) -> int | None:
    """Take an epoch for a write that is being planned; ``None`` from a server without epochs.

    What is staged with a higher epoch takes the place of what a writer that was killed has staged for the same batch.
    Raise ``SinkError`` if the server can't be reached.
    """
    epoch: int | None = await _ask_if_known(pool, options, EPOCH_ROUTE, {"sink": sink}, "epoch", int)
    return epoch


async def _ask_if_known(
    pool: Pool, options: Options, suffix: str, said: Mapping[str, Any], name: str, kind: type
) -> Any:
    """Return a field of an answer, ``None`` where the server does not know the question."""
    route = options.route + suffix
    try:
        told = await ask(pool, options, route, said)
    except StreamError as error:
        logger.info("%s is not answered: %s", route, str(error))
        return None
    except RSocketError as error:
        raise unwritten(error, options, route) from error
    if type(told.get(name)) is not kind:
        raise SinkError(f"route {route!r} answered with {readable(json.dumps(told))}, without {name!r}")
    return told[name]


async def abort(pool: Pool, options: Options, sink: str, attempts: Sequence[str]) -> bool:
    """Tell the server to drop these attempts. Return whether it heard.

    They would expire anyway: a failure is a warning.
    """
    route = options.route + ABORT_ROUTE
    try:
        with trio.fail_after(ABORT_TIMEOUT):
            async with pool.connection(target_of(options)) as connection:
                said = json.dumps({"sink": sink, "attempts": list(attempts)}).encode()
                await connection.request_response(said, route=route)
    except (RSocketError, *PASSING) as error:
        logger.warning("%d attempts of sink %s stay staged until they expire: %s", len(attempts), sink, str(error))
        return False
    return True


async def ask(pool: Pool, options: Options, route: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Ask until there is an answer. The request must be safe to repeat."""
    return read_answer(await request(pool, options, route, json.dumps(said).encode(), passes), route)


def read_answer(data: bytes, route: str) -> dict[str, Any]:
    """Return the JSON object of an answer. Raise ``SinkError`` for anything else."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise SinkError(f"route {route!r} answered with no JSON object: {readable(data[:100])}")
    return told
