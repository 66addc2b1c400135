"""Delivers a task's requests over one connection after another, until the server has all of them.

The module holds the parts that the delivery guarantees share: the queue of requests, the measure of progress, and the
errors that end a delivery.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TypeAlias

import attrs

from rsocket_trio import Canceled, Connection, Payload, Rejected
from rsocket_trio.errors import RSocketError, StreamError
from rsocket_trio.replay.errors import NotWritten
from rsocket_trio.spark.connections import Pool, Tries, target_of
from rsocket_trio.spark.feeding import Feed
from rsocket_trio.spark.mistakes import PASSING, SinkError, is_missing_route, unwritten
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.request_rows import Piece, rows_of

TRANSIENT = frozenset({NotWritten.default_code})
"""Codes of application errors that a later try may not meet."""


@attrs.define
class Report:
    """The outcome of a delivery: the number of rows that the server refused, and the reason for the first.

    ``attempts`` are those that were staged, each with its number of rows.
    """

    skipped: int = 0
    problem: str | None = None
    attempts: list[tuple[str, int]] = attrs.field(factory=list)


Pieces: TypeAlias = Feed[Piece, Report]


def passes(error: Exception) -> bool:
    """Return whether the same request may succeed when it is tried again."""
    if isinstance(error, Rejected):
        return not is_missing_route(error)
    return isinstance(error, (*PASSING, Canceled)) or (isinstance(error, StreamError) and error.code in TRANSIENT)


class Delivery(ABC):
    """The requests of one task on their way. Each class delivers them in its own way, see ``send_over``."""

    def __init__(self, pool: Pool, options: Options, pieces: Pieces) -> None:
        self.pool = pool
        self.options = options
        self.pieces = pieces
        self.route = options.route
        self.report = Report()
        self.tries = Tries(options, f"writing to {options.route}")
        self.ready: deque[Payload] = deque()
        """Requests that are to be sent, or sent again."""

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

    async def fill(self) -> bool:
        """Wait for requests to send. Return false when there are no more."""
        while not self.ready:
            piece = await self.pieces.take()
            if piece is None:
                return False
            self.ready.extend(piece.payloads)
        return True

    @abstractmethod
    async def send_over(self, connection: Connection) -> None:
        """Send the requests over this connection, and return once the server has all of them.

        When this raises, the requests that the server does not have are in ``ready`` again.
        """

    def skip(self, payload: Payload, error: Exception) -> None:
        """Skip a request that the server refused: count its rows, or raise ``SinkError``."""
        if self.options.error_policy == "fail":
            problem = unwritten(error, self.options, self.route)
            raise SinkError(f"{problem}; errorPolicy=skip counts such rows and goes on") from error
        self.report.skipped += rows_of(payload)
        self.report.problem = self.report.problem or str(error)
