"""Who waits for the one answer of a request/response: a parked task and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import outcome
import trio

from rsocket_trio.connection.streams import Owner
from rsocket_trio.errors import RSocketError
from rsocket_trio.payload import Payload

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.mux.stream import StreamState


class Reply(Owner):
    """The task that asked. No scope, no event, no task of its own."""

    __slots__ = ("_engine", "_stream", "_task")

    def __init__(self, task: trio.lowlevel.Task, engine: Engine, stream: StreamState) -> None:
        self._task: trio.lowlevel.Task | None = task
        self._engine = engine
        self._stream = stream

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """The task is cancelled: so is its request."""
        self._stream.owner = None
        self._engine.cancel_stream(self._stream)
        return trio.lowlevel.Abort.SUCCEEDED

    def on_item(self, payload: Payload, complete: bool) -> None:
        stream = self._stream
        stream.owner = None  # nothing more comes, and two that refer to each other would wait for the collector
        self._engine.session.outbox.on_answer(stream)
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Value(payload))

    def on_complete(self) -> None:
        self.on_item(Payload(), True)

    def on_error(self, error: RSocketError) -> None:
        self._stream.owner = None
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Error(error))
