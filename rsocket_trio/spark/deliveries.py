"""Delivers a task's requests over one connection after another, until the server has all of them.

At least once: each row is a request of its own, and those without an answer are sent again over the next connection. A
row may arrive twice, and the server may take rows in any order; none is lost.

Exactly once: tasks stage rows, which count once the driver has committed the batch. A task's rows can't be asked for
again, so they are staged in attempts of limited size. An attempt is kept here until the server has confirmed it, and is
staged anew, as another attempt, when the connection breaks before. Attempts that no commit names count for nothing.
"""

from __future__ import annotations

import json
import logging
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import attrs
import msgspec
import trio

from rsocket_trio import Canceled, Channel, Connection, ConnectionLost, Payload, Rejected
from rsocket_trio.errors import RSocketError, StreamError, readable
from rsocket_trio.replay.elements import ARROW, read_element
from rsocket_trio.replay.errors import NotStaged, NotWritten
from rsocket_trio.replay.ledger import Commit
from rsocket_trio.spark.background import Queue
from rsocket_trio.spark.connections import Pool, Tries, request, target_of
from rsocket_trio.spark.errors import PASSING, SinkError, is_missing_route, unwritten
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.request_rows import Origin, Piece

T = TypeVar("T")

logger = logging.getLogger("rsocket_trio.spark")

MAX_ATTEMPT_BYTES = 4 * 2**20
"""The size of an attempt, about: a task keeps so much in memory."""
ABORT_TIMEOUT = 2.0
"""Seconds for aborting attempts at the end of a task."""


class Staged(msgspec.Struct):
    """The answer to an attempt: what of it is staged."""

    rows: int
    elements: int


class PackFormats(msgspec.Struct):
    """The formats of packs that a stage takes."""

    pack: list[str]


@attrs.define
class Report:
    """The outcome of a delivery: the number of rows that the server refused, and the reason for the first.

    ``attempts`` are those that were staged, each with its number of rows.
    """

    skipped: int = 0
    problem: str | None = None
    attempts: list[tuple[str, int]] = attrs.field(factory=list)


Pieces: TypeAlias = Queue[Piece]


def passes(error: Exception) -> bool:
    """Return whether the same request may succeed when it is tried again."""
    if isinstance(error, Rejected):
        return not is_missing_route(error)
    is_transient = isinstance(error, StreamError) and error.code == NotWritten.default_code
    return is_transient or isinstance(error, (*PASSING, Canceled))


class Delivery(ABC):
    """The requests of one task on their way. Each class delivers them in its own way, see ``send_over``."""

    def __init__(self, pool: Pool, options: Options, pieces: Pieces) -> None:
        self.pool = pool
        self.options = options
        self.pieces = pieces
        self.route = options.route
        self.report = Report()
        self.tries = Tries(options, f"writing to {options.route}")

    async def run(self) -> Report:
        """Deliver all requests and return the report. Raise ``SinkError`` for an error that no retry mends."""
        try:
            await self.deliver()
        except RSocketError as error:
            raise unwritten(error, self.options, self.route) from error
        return self.report

    async def deliver(self) -> None:
        """Deliver all requests, over as many connections as it takes."""
        while await self.fill():
            try:
                async with self.pool.connection(target_of(self.options)) as connection:
                    await self.send_over(connection)
            except Exception as error:
                if not passes(error):
                    raise
                await self.tries.failed(error)

    @abstractmethod
    async def fill(self) -> bool:
        """Wait for requests to send. Return false when there are no more."""

    @abstractmethod
    async def send_over(self, connection: Connection) -> None:
        """Send the requests over this connection, and return once the server has all of them.

        When this raises, the requests that the server does not have are kept.
        """


# At least once


class Requests(Delivery):
    """A request_response for each row, up to ``inFlight`` of them at a time, in no order."""

    def __init__(self, pool: Pool, options: Options, pieces: Pieces) -> None:
        super().__init__(pool, options, pieces)
        self._ready: deque[Payload] = deque()
        self._flying: dict[int, Payload] = {}
        self._number = 0
        self._failure: Exception | None = None
        """The first failure on a connection, which ends its use."""
        self._intake = trio.CancelScope()
        self._answered = trio.Event()

    async def fill(self) -> bool:
        while not self._ready:
            piece = await self.pieces.take()
            if piece is None:
                return False
            self._ready.extend(piece.payloads)
        return True

    async def send_over(self, connection: Connection) -> None:
        """Send, until Spark has no more rows and all were answered. Raise the error that ended it before that."""
        self._failure = None
        try:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as self._intake:
                    while await self.fill():
                        while len(self._flying) >= self.options.in_flight:
                            self._answered = trio.Event()
                            await self._answered.wait()
                        self._number += 1
                        self._flying[self._number] = self._ready.popleft()
                        nursery.start_soon(self._ask, connection, self._number, nursery.cancel_scope)
        finally:
            # In the order in which they were first sent: a dict keeps it.
            self._ready.extendleft(reversed(self._flying.values()))
            self._flying.clear()
        if self._failure is not None:
            raise self._failure

    async def _ask(self, connection: Connection, number: int, all_requests: trio.CancelScope) -> None:
        payload, timeout = self._flying[number], self.options.read_timeout
        error: Exception | None = None
        try:
            with trio.fail_after(timeout):
                await connection.request_response(payload)
        except trio.TooSlowError:
            self.pool.distrust(connection)
            error = ConnectionLost(f"no answer within {timeout:g} s")
        except RSocketError as problem:
            error = self._unless_skipped(problem, payload)
        else:
            self.tries.succeeded()
        if error is None:
            del self._flying[number]
            # Wakes ``send_over``, which waits for room.
            self._answered.set()
            return
        self._failure = self._failure or error
        if passes(error):
            # The other requests may still be answered: only new ones have to wait.
            self._intake.cancel()
        else:
            all_requests.cancel()

    def _unless_skipped(self, error: RSocketError, payload: Payload) -> Exception | None:
        """Return the error for a failed request, ``None`` if only its rows were refused, and are counted as skipped."""
        if passes(error) or is_missing_route(error) or not isinstance(error, StreamError):
            return error
        if self.options.error_policy == "fail":
            problem = unwritten(error, self.options, self.route)
            return SinkError(f"{problem}; errorPolicy=skip counts such rows and goes on")
        self.report.skipped += read_element(payload)[0].count
        self.report.problem = self.report.problem or str(error)
        return None


# Exactly once


class Staging(Delivery):
    """The rows of one task, staged attempt after attempt; ``epoch`` is that of the planning, if the server has them."""

    def __init__(self, pool: Pool, options: Options, pieces: Pieces, origin: Origin, epoch: int | None = None) -> None:
        super().__init__(pool, options, pieces)
        self.route = options.route + ".stage"
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
        if not self._kept:
            piece = await self.pieces.take()
            if piece is None:
                return False
            self._kept.append(piece)
        return True

    async def send_over(self, connection: Connection) -> None:
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
        origin = self._origin
        stage = {"sink": origin.sink, "attempt": attempt, "partition": origin.partition}
        stage |= {"batch": origin.batch, "epoch": self._epoch, "query": origin.query}
        async with connection.request_channel(json.dumps(stage).encode(), route=self.route) as channel:
            for kept in self._kept:
                await self._send(channel, kept, patience)
            while sum(piece.size for piece in self._kept) < MAX_ATTEMPT_BYTES:
                # Spark may take any time to hand over the next rows.
                patience.deadline = float("inf")
                piece = await self.pieces.take()
                if piece is None:
                    break
                self._kept.append(piece)
                await self._send(channel, piece, patience)
            patience.deadline = trio.current_time() + self.options.read_timeout
            await channel.send_eof()
            answers = [payload async for payload in channel]
        rows, elements = sum(piece.rows for piece in self._kept), sum(len(piece.payloads) for piece in self._kept)
        if len(answers) != 1:
            raise ConnectionLost(f"route {self.route!r} completed with {len(answers)} answers: one was expected")
        staged = read_answer(answers[0].data, self.route, Staged)
        if (staged.rows, staged.elements) != (rows, elements):
            raise SinkError(
                f"route {self.route!r} staged {staged.rows} rows in {staged.elements} elements: "
                f"{rows} rows in {elements} were sent"
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
    route = options.route + ".commit"
    question: dict[str, object] = {"sink": sink, "batch": batch, "attempts": dict(attempts), "once": once}
    question |= {"query": query, "takeOver": options.take_over, "epoch": epoch}
    try:
        committed = await ask(pool, options, route, question, Commit)
    except RSocketError as error:
        if getattr(error, "code", None) == NotStaged.default_code:
            raise SinkError(
                f"batch {batch} of sink {sink!r} was not committed: {error}. Nothing of it counts; it is written anew "
                "when the query starts again"
            ) from error
        raise unwritten(error, options, route) from error
    total = sum(number for _, number in attempts)
    if committed.promoted and committed.rows != total:
        raise SinkError(f"route {route!r} promoted {committed.rows} rows of {total}")
    # A batch promoted now is the last one, and so is one that was promoted before.
    if committed.last != batch:
        done = "promoted" if committed.promoted else "had"
        raise SinkError(
            f"route {route!r} says that it {done} batch {batch} of sink {sink!r}, and yet that the last is "
            f"{committed.last}: it is not known whether the rows count"
        )
    return committed.promoted


async def takes_packs(pool: Pool, options: Options) -> bool:
    """Ask the server whether its stage takes packs. Raise ``SinkError`` if it can't be reached."""
    formats = await _ask_if_known(pool, options, ".pack", {}, PackFormats)
    return formats is not None and ARROW in formats.pack


async def next_epoch(pool: Pool, options: Options, sink: str) -> int | None:
    """Take an epoch for a write that is being planned; ``None`` from a server without epochs.

    What is staged with a higher epoch takes the place of what a writer that was killed has staged for the same batch.
    Raise ``SinkError`` if the server can't be reached.
    """
    return await _ask_if_known(pool, options, ".epoch", {"sink": sink}, int)


async def _ask_if_known(
    pool: Pool, options: Options, suffix: str, question: Mapping[str, object], kind: type[T]
) -> T | None:
    """Return an answer, ``None`` where the server does not know the question."""
    route = options.route + suffix
    try:
        return await ask(pool, options, route, question, kind)
    except StreamError as error:
        logger.info("%s is not answered: %s", route, str(error))
        return None
    except RSocketError as error:
        raise unwritten(error, options, route) from error


async def abort(pool: Pool, options: Options, sink: str, attempts: Sequence[str]) -> bool:
    """Tell the server to drop these attempts. Return whether it heard.

    They would expire anyway: a failure is a warning.
    """
    route = options.route + ".abort"
    try:
        with trio.fail_after(ABORT_TIMEOUT):
            async with pool.connection(target_of(options)) as connection:
                question = json.dumps({"sink": sink, "attempts": list(attempts)}).encode()
                await connection.request_response(question, route=route)
    except (RSocketError, *PASSING) as error:
        logger.warning("%d attempts of sink %s stay staged until they expire: %s", len(attempts), sink, str(error))
        return False
    return True


async def ask(pool: Pool, options: Options, route: str, question: Mapping[str, object], kind: type[T]) -> T:
    """Ask until there is an answer of this kind. The request must be safe to repeat."""
    return read_answer(await request(pool, options, route, json.dumps(question).encode(), passes), route, kind)


def read_answer(data: bytes, route: str, kind: type[T]) -> T:
    """Return the answer that JSON holds. Raise ``SinkError`` for anything else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise SinkError(f"route {route!r} answered with {readable(data[:100])}: {error}") from None
