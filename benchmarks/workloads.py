"""The workloads: the same operations for every library."""

from __future__ import annotations

import attrs

OPERATIONS = 100_000
"""CPU seconds are given for so many operations."""
WARM_UP = 0.3
"""Seconds of operations that come first and are not counted."""
FIRST = {"stream": 1_000, "channel": 1_000, "connections": 20, "streams": 50}
"""The number of operations in a warm-up that is counted: items, connections, open streams."""


@attrs.frozen
class Workload:
    """Operations of one kind, for ``seconds``, or ``count`` of them where those are 0.

    ``size`` is in bytes, each way or of an item; ``concurrency`` operations are in flight at once. ``must`` and ``aim``
    say how many times the CPU seconds of ours rsocket-py takes, at least.
    """

    name: str
    label: str
    what: str
    kind: str
    seconds: float
    count: int
    size: int
    concurrency: int
    must: float = 0
    aim: float = 0

    @property
    def first(self) -> Workload:
        """The operations that come before those that are counted."""
        return attrs.evolve(
            self, seconds=min(WARM_UP, self.seconds), count=min(FIRST.get(self.kind, self.count), self.count)
        )

    def scaled(self, share: float) -> Workload:
        """Return a part of it: ``share`` of the seconds, and of the operations."""
        return attrs.evolve(self, seconds=self.seconds * share, count=round(self.count * share))


# fmt: off
WORKLOADS = (
    #        name       label  what                                   kind     seconds count size      at once must aim
    Workload("rr1",     "W1", "request/response 64 B, 1 in flight",  "request", 2, 0,       64,        1,  1.4, 2.0),
    Workload("rr64",    "W2", "request/response 64 B, 64 in flight", "request", 2, 0,       64,        64, 3.5, 5.0),
    Workload("stream",  "W3", "stream items 64 B, credit 256",       "stream",  0, 200_000, 64,        1, 10.0, 18.0),
    Workload("bulk",    "W4", "stream items 16 KiB, credit 256",     "stream",  0, 20_000,  16_384,    1,  2.0, 3.0),
    Workload("channel", "W5", "channel echo 64 B",                   "channel", 0, 100_000, 64,        1,  8.0, 18.0),
    Workload("large",   "W6", "request/response 1 MiB each way",     "request", 2, 0,       1_048_576, 1,  1.3, 2.0),
    Workload("connect", "W7", "connect, SETUP, one request, close",  "connect", 2, 0,       64,        1,  0.9, 1.1),
)
IDLE = (
    Workload("connection", "W8c", "idle connection", "connections", 0, 500,   64, 1),
    Workload("open",       "W8s", "open stream",     "streams",     0, 5_000, 64, 1),
)
"""The idle connections and streams of which ``memory`` measures the size."""
TYPED = Workload("typed", "W9", "orders as objects, 64 in flight", "typed", 2, 0, 64, 64, 3.0, 4.0)
"""Request/response with objects of several fields, which ``typed`` measures: about 64 B as JSON."""
# fmt: on
BY_NAME = {workload.name: workload for workload in (*WORKLOADS, *IDLE, TYPED)}
CREDIT = 256
REFILL = CREDIT // 2
"""Items after which a reader grants as many more."""
WRITE = 65_536
"""Bytes that rsocket-py reads at once."""
LARGEST = 256 * 1024 * 1024
"""Bytes of the one message that ``oob`` sends beside everything else."""
