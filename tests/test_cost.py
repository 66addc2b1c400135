"""What an operation costs, counted instead of timed: a lost optimisation shows here, on any machine and at any load.

Client and server run in one Trio loop over a pair of memory streams, in a fixed order, so that two runs of the same
code count the same. Counting starts when the connection has done such work before: connecting and the first workers are
not in it. Both ends are.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

import attrs
import pytest
import trio
import trio.testing

import rsocket_trio
from rsocket_trio import (
    Channel,
    Connection,
    Payload,
    Responder,
    open_connection,
    open_connection_over,
    serve_stream,
)
from rsocket_trio.mux import reassembly
from rsocket_trio.testing import simulate
from tests.serving import running_server

OURS = str(Path(rsocket_trio.__file__).parent)
WRITTEN = re.compile(r"<attrs generated .* rsocket_trio\.")
"""How attrs names the files of what it writes for us."""
ITEM = bytes(64)
MEBIBYTE = bytes(1024 * 1024)
CREDIT = 256
AT_ONCE = 64
FIRST, COUNTED = 128, 1_024
"""Operations before the counting starts, and those that are counted."""
COUNTED_CONNECTIONS = 32
SLACK = 1.15
"""How many times the calls that were counted last there may be, so that a helper of two lines may be extracted."""
responder = Responder()


@responder.request_response
async def echo(request: Payload) -> Payload:
    return request


@responder.request_stream
async def items(request: Payload) -> AsyncIterator[bytes]:
    for _ in range(int(request.data)):
        yield ITEM


@responder.request_channel
async def echo_all(channel: Channel) -> None:
    async for item in channel:
        await channel.send(item)


@responder.request_response("typed")
async def typed(number: int) -> int:
    return number


@responder.request_stream("typed")
async def typed_items(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


class Counted(trio.abc.HalfCloseableStream):
    """A stream that counts how often it is written to and read from."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, counts: Counter[str]) -> None:
        self._stream = stream
        self._counts = counts

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._counts["writes"] += 1
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self._counts["reads"] += 1
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Steps(trio.abc.Instrument):
    """Counts how often the scheduler lets a task run."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._counts["steps"] += 1


async def one_at_a_time(connection: Connection, count: int) -> None:
    for _ in range(count):
        await connection.request_response(ITEM)


async def many_at_once(connection: Connection, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(one_at_a_time, connection, count // AT_ONCE)


async def stream(connection: Connection, count: int) -> None:
    async with connection.request_stream(str(count), initial_request_n=CREDIT) as received:
        assert len([item async for item in received]) == count


async def channel(connection: Connection, count: int) -> None:
    async with connection.request_channel() as both, trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(count):
                await both.send(ITEM)
            await both.send_eof()

        nursery.start_soon(send)
        assert len([item async for item in both]) == count


async def large(connection: Connection, count: int) -> None:
    """As many times 16 KiB there and back, a mebibyte at a time."""
    for _ in range(count // 64):
        await connection.request_response(MEBIBYTE)


async def typed_one_at_a_time(connection: Connection, count: int) -> None:
    for number in range(count):
        assert await connection.request_response(number, route="typed", reply=int) == number


async def typed_at_once(connection: Connection, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(typed_one_at_a_time, connection, count // AT_ONCE)


async def typed_stream(connection: Connection, count: int) -> None:
    async with connection.request_stream(count, route="typed", items=int, initial_request_n=CREDIT) as received:
        assert len([item async for item in received]) == count


async def typed_streams_at_once(connection: Connection, count: int) -> None:
    async def one_after_the_other() -> None:
        for _ in range(count // AT_ONCE):
            await typed_stream(connection, 1)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(one_after_the_other)


Work = Callable[[Connection, int], Awaitable[None]]


@attrs.frozen
class Bound:
    """What a thousand operations may cost: a little above what they do."""

    work: Work
    writes: int
    reads: int
    steps: int
    """How often the scheduler lets a task run."""
    calls: int
    """Calls of our own functions, resumed coroutines and generators included: as counted, with no slack."""


# fmt: off
BOUNDS = (
    #     work           writes  reads  steps   calls
    Bound(one_at_a_time, 2_000,  2_000, 14_100, 104_000),
    Bound(many_at_once,  145,    110,   1_850,  40_900),
    Bound(stream,        19,     19,    140,    4_200),
    Bound(channel,       28,     24,    200,    12_000),
    Bound(large,         510,    370,   2_180,  17_650),
    Bound(typed_one_at_a_time, 2_000, 2_000, 14_100, 137_000),
    Bound(typed_at_once, 145,    110,   1_850,  75_000),
    Bound(typed_stream,  19,     19,    140,    16_300),
    Bound(typed_streams_at_once, 125, 103, 2_760, 203_100),
)
# fmt: on
@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests before left in the memory for joining payloads makes no difference here."""
    monkeypatch.setattr(reassembly, "BUFFER_POOL", reassembly.BufferPool())


GATED = ("writes", "reads", "steps")
COUNTS = (*GATED, "calls")


@pytest.mark.parametrize("count", GATED)
@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.work.__name__)
def test_a_thousand_operations_cost_no_more_than_they_did(bound: Bound, count: str) -> None:
    costs = measured(bound.work)

    assert costs[count] <= getattr(bound, count), f"{count}: {costs[count]:.0f} a thousand"


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.work.__name__)
def test_the_calls_of_a_thousand_operations_are_about_what_they_were(
    bound: Bound, record_property: Callable[[str, object], None]
) -> None:
    calls = measured(bound.work)["calls"]

    record_property("calls", round(calls))
    assert calls <= bound.calls * SLACK, f"{calls:.0f} a thousand, and {bound.calls} when they were counted last"


def test_the_same_work_counts_the_same() -> None:
    assert simulate(counted, stream) == simulate(counted, stream)


def test_a_connection_with_one_request_costs_no_more_than_it_did() -> None:
    costs = simulate(counted_connections)

    assert costs["calls"] / COUNTED_CONNECTIONS <= 507 * SLACK
    assert costs["steps"] / COUNTED_CONNECTIONS <= 25
    assert costs["scopes"] / COUNTED_CONNECTIONS <= 10  # one of them bounds the dialling, and ends with it


@cache
def is_ours(file: str) -> bool:
    return file.startswith(OURS) or WRITTEN.match(file) is not None


@cache
def measured(work: Work) -> dict[str, float]:
    """Return what a thousand operations cost."""
    counts = simulate(counted, work)
    return {name: counts[name] / COUNTED * 1000 for name in COUNTS}


@contextmanager
def counting(counts: Counter[str]) -> Iterator[None]:
    """Count the calls of our own functions, Trio's cancel scopes and steps."""

    def on_call(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            if is_ours(frame.f_code.co_filename):
                counts["calls"] += 1
            elif frame.f_code is trio.CancelScope.__enter__.__code__:
                counts["scopes"] += 1

    steps = Steps(counts)
    trio.lowlevel.add_instrument(steps)
    before = sys.getprofile()
    sys.setprofile(on_call)
    try:
        yield
    finally:
        sys.setprofile(before)
        trio.lowlevel.remove_instrument(steps)


async def counted_connections() -> Counter[str]:
    """Return what it costs both ends to connect, to ask once and to part, as often as is counted."""
    counts: Counter[str] = Counter()

    async def ask_once(uri: str) -> None:
        async with open_connection(uri) as connection:
            await connection.request_response(ITEM)

    async with running_server(responder, "memory://counted") as uri:
        await ask_once(uri)
        with counting(counts):
            for _ in range(COUNTED_CONNECTIONS):
                await ask_once(uri)
    return counts


@pytest.mark.parametrize("work", [many_at_once, stream, channel])
def test_without_interceptors_no_request_makes_a_call_for_them(work: Work) -> None:
    modules = simulate(modules_called, work)

    assert "connection/dispatch.py" in modules
    assert [name for name in modules if name.startswith(("observe/", "services/"))] == []


async def modules_called(work: Work) -> set[str]:
    """Return the modules of ours that the work calls, on both ends."""
    files: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
    try:
        await counted(work)
    finally:
        sys.setprofile(before)
    return {file.removeprefix(f"{OURS}/") for file in files if is_ours(file)}


async def counted(work: Work) -> Counter[str]:
    """Return what the work costs both ends of a connection that has done some before."""
    counts: Counter[str] = Counter()
    here, there = (Counted(end, counts) for end in trio.testing.memory_stream_pair())
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_stream, responder, there)
        async with open_connection_over(here) as connection:
            await work(connection, FIRST)
            counts.clear()
            with counting(counts):
                await work(connection, COUNTED)
            return Counter(counts)
