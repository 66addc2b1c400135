"""What is measured: the same operations for every library."""

from __future__ import annotations

import attrs


@attrs.frozen
class Workload:
    """``count`` operations of one kind; ``size`` bytes each way (or an item); ``concurrency`` of them at once.

    ``must`` and ``aim`` say how many times the CPU seconds of ours rsocket-py takes, at least.
    """

    name: str
    label: str
    what: str
    kind: str
    count: int
    size: int
    concurrency: int
    must: float
    aim: float


# fmt: off
WORKLOADS = (
    #        name       label  what                                   kind       count   size      at once must aim
    Workload("rr1",     "W1", "request/response 64 B, 1 in flight",  "request", 3_000,  64,        1,  1.4, 2.0),
    Workload("rr64",    "W2", "request/response 64 B, 64 in flight", "request", 20_000, 64,        64, 3.5, 5.0),
    Workload("stream",  "W3", "stream items 64 B, credit 256",       "stream",  60_000, 64,        1, 10.0, 18.0),
    Workload("bulk",    "W4", "stream items 16 KiB, credit 256",     "stream",  10_000, 16_384,    1,  2.0, 3.0),
    Workload("channel", "W5", "channel echo 64 B",                   "channel", 20_000, 64,        1,  8.0, 18.0),
    Workload("large",   "W6", "request/response 1 MiB each way",     "request", 300,    1_048_576, 1,  1.3, 2.0),
    Workload("connect", "W7", "connect, SETUP, one request, close",  "connect", 400,    64,        1,  0.9, 1.1),
)
TYPED = Workload("typed", "W9", "orders as objects, 64 in flight", "typed", 20_000, 64, 64, 3.0, 4.0)
"""Request/response with objects of several fields, which ``typed`` measures: about 64 B as JSON."""
# fmt: on
BY_NAME = {workload.name: workload for workload in (*WORKLOADS, TYPED)}
CREDIT = 256
REFILL = CREDIT // 2
"""Items after which a reader grants as many more."""
WRITE = 65_536
"""Bytes that the floor writes at once, and that it and rsocket-py read at once."""
LARGEST = 256 * 1024 * 1024
"""Bytes of the one message that ``oob`` sends beside everything else."""
