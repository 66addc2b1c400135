"""The parts of a load that its makers get, and the messages of worker processes.

A message of a worker is a length, and a pickled pair of a kind and its content.
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

if TYPE_CHECKING:
    from rsocket_trio.loadgen.plan import Plan

STOPPING = 1.0
"""Seconds that requests under way get when the load is stopped."""
SIZE = struct.Struct("!I")

# Messages to a worker.
START = "start"
"""With the moment of the start, in nanoseconds of the monotonic clock."""
STOP = "stop"
# Messages from a worker.
READY = "ready"
"""With the reason why it is not, or nothing."""
ROWS = "rows"
"""With rows that were counted since the last ones."""
DONE = "done"

Message: TypeAlias = tuple[str, object]


class LoadError(RuntimeError):
    """There was no load: the server can't be reached, refuses, or answers the first request with an error."""


@attrs.frozen(kw_only=True)
class Part:
    """The part of one task in a load."""

    plan: Plan
    task: int
    seed: int

    @property
    def requests(self) -> int | None:
        """Return how many of the plan's requests the task makes, ``None`` if the plan has no number."""
        requests = self.plan.requests
        return None if requests is None else len(range(self.task, requests, self.plan.tasks))


def encode(message: object) -> bytes:
    """Encode a message, or a part of a load, for a process of the same Python."""
    content = pickle.dumps(message)
    return SIZE.pack(len(content)) + content


async def receive(stream: trio.abc.ReceiveStream) -> object | None:
    """Receive one message. Return ``None`` at the end of the stream, also inside of a message."""
    head = await _receive_exactly(stream, SIZE.size)
    content = await _receive_exactly(stream, SIZE.unpack(head)[0]) if head is not None else None
    return pickle.loads(content) if content is not None else None


async def _receive_exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes | None:
    chunks = bytearray()
    while len(chunks) < size:
        try:
            more = await stream.receive_some(size - len(chunks))
        except trio.BrokenResourceError:
            return None
        if not more:
            return None
        chunks += more
    return bytes(chunks)
