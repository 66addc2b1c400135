"""Opens the connections of a load task before the load starts, and reopens those that are lost."""

from __future__ import annotations

import logging
import random
from typing import Any

import trio

from rsocket_trio import Connection, ConnectionLost, Unsupported, open_connection
from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.terms import Retry

logger = logging.getLogger("rsocket_trio.spark")

AGAIN = Retry(first_delay=0.1, longest_delay=2.0)


class Line:
    """A connection that is replaced when it is lost. While there is none, requests fail at once."""

    def __init__(self, uri: str, terms: dict[str, Any]) -> None:
        self._uri = uri
        self._terms = terms
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """Return the connection. Raise ``ConnectionLost`` while there is none."""
        if self._connection is None:
            raise ConnectionLost(f"not connected to {self._uri}")
        return self._connection

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a connection open until cancelled. Started once the first one is made; raise the error if that fails."""
        tries = 0
        while True:
            try:
                async with open_connection(self._uri, **self._terms) as connection:
                    await _hear(connection)
                    self._connection = connection
                    tries = 0
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    reason = await connection.wait_closed()
            except RSocketError as error:
                if task_status is not trio.TASK_STATUS_IGNORED:
                    raise
                reason = error
            finally:
                self._connection = None
            logger.info("%s: %s", self._uri, reason)
            await trio.sleep(AGAIN.delay(tries, random.random()))
            tries += 1


async def open_lines(plan: Plan, nursery: trio.Nursery) -> list[Line]:
    """Open all connections of a task and run them in the nursery. Raise the error of one that cannot be made."""
    terms = plan.connection_terms()
    lines = [Line(plan.uri, terms) for _ in range(plan.connections)]
    with trio.move_on_after(plan.connect_timeout) as scope:
        for line in lines:
            await nursery.start(line.run)
    if scope.cancelled_caught:
        raise ConnectionLost(f"{plan.uri}: no connection within {plan.connect_timeout:g} s")
    return lines


async def _hear(connection: Connection) -> None:
    """Wait for the answer to a ping: a refusal of the SETUP shows here."""
    try:
        await connection.ping()
    except Unsupported:
        # The dialect has no ping: there the first request shows a refusal.
        return
