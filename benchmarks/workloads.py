"""What is measured: the same operations for every library."""

from __future__ import annotations

import attrs


@attrs.frozen
class Workload:
    """``count`` operations of one kind; ``size`` bytes each way (or an item); ``concurrency`` of them at once."""

    name: str
    what: str
    kind: str
    count: int
    size: int
    concurrency: int = 1


# fmt: off
WORKLOADS = (
    Workload("rr1",     "request/response 64 B, 1 in flight",   "request", 3_000,  64),
    Workload("rr64",    "request/response 64 B, 64 in flight",  "request", 20_000, 64, 64),
    Workload("stream",  "stream items 64 B, credit 256",        "stream",  60_000, 64),
    Workload("bulk",    "stream items 16 KiB, credit 256",      "stream",  10_000, 16_384),
    Workload("channel", "channel echo 64 B",                    "channel", 20_000, 64),
    Workload("large",   "request/response 1 MiB each way",      "request", 60,     1_048_576),
    Workload("connect", "connect, SETUP, one request, close",   "connect", 400,    64),
)
# fmt: on
BY_NAME = {workload.name: workload for workload in WORKLOADS}
CREDIT = 256
LARGEST = 256 * 1024 * 1024
"""Bytes of the one message that ``oob`` sends beside everything else."""
