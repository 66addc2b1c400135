"""Hands the one answer of a request/response to the parked task that requested it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import outcome
import trio

from rsocket_trio.connection.streams import Owner
from rsocket_trio.errors import RSocketError
from rsocket_trio.payload import Payload

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.mux.stream_state import StreamState


class Reply(Owner):
    """The parked task of a request/response, without a scope, event or task of its own."""

    __slots__ = ("_engine", "_stream", "_task")

    def __init__(self, task: trio.lowlevel.Task, engine: Engine, stream: StreamState) -> None:
        self._task: trio.lowlevel.Task | None = task
        self._engine = engine
        self._stream = stream

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """Cancel the request, because its task was cancelled."""
        self._stream.owner = None
        self._engine.cancel_stream(self._stream)
        return trio.lowlevel.Abort.SUCCEEDED

    def on_item(self, payload: Payload, complete: bool) -> None:
        stream = self._stream
        stream.owner = None  # nothing more comes, and a reference cycle would wait for the garbage collector
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
