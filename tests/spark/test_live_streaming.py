"""Live streams under a streaming query: what came is held, bounded and numbered, in memory or in a log."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from trio.testing import MockClock

from rsocket_trio import ApplicationError, Channel, Outgoing, Payload, Rejected, Responder
from rsocket_trio.replay import Log, database
from rsocket_trio.spark import live_buffer
from rsocket_trio.spark.live_buffer import (
    LOG_FILE,
    ChunkPartition,
    Intake,
    MemoryStore,
    WalError,
    WalStore,
    check_buffered,
    within,
)
from rsocket_trio.spark.live_streaming import LiveStreamReader, MemoryStreamReader, WalStreamReader
from rsocket_trio.spark.mistakes import SourceError
from rsocket_trio.spark.options import OptionError, Options, Use, parse_options
from rsocket_trio.spark.ranges import CheckpointError, DataLossError, Range
from rsocket_trio.spark.records import Chunk
from tests.blocks import ROOT
from tests.spark.serving import URI, options, served
from tests.spark.test_reading import column

Serving = Callable[[Responder], None]
PATIENCE = 10.0
ALL = ReadAllAvailable()


def wanted(**more: object) -> Options:
    texts = {"path": URI, "route": "ticks", "positions": "none"} | {name: str(value) for name, value in more.items()}
    return parse_options(texts, Use.STREAM_READ)


class Ticker:
    """A producer that sends what it is told to, as credit allows."""

    def __init__(self) -> None:
        self.sent = 0
        self.subscribed = 0
        self.responder = Responder()
        self._more: trio.MemorySendChannel[int]
        self.wanted = 0
        self.breaks_at: int | None = None
        self.completes_at: int | None = None

        @self.responder.request_stream("ticks")
        async def ticks(request: Payload, out: Outgoing) -> None:
            await self._send(out)

        @self.responder.request_channel("ticks")
        async def channel(channel: Channel) -> None:
            await self._send(channel)

    async def _send(self, out: Outgoing | Channel) -> None:
        self.subscribed += 1
        while self.completes_at is None or self.sent < self.completes_at:
            if self.sent >= self.wanted:
                await trio.sleep(0.001)
                continue
            if self.breaks_at is not None and self.sent >= self.breaks_at:
                self.breaks_at = None
                raise Rejected("closing")
            await out.send(Payload(b"tick %d" % self.sent, b"m" if self.sent % 3 == 0 else None))
            self.sent += 1


@pytest.fixture
def ticker(serving: Serving) -> Ticker:
    found = Ticker()
    serving(found.responder)
    return found


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def plan(reader: LiveStreamReader, at: dict[str, Any], limit: Any = ALL) -> tuple[list[bytes], dict[str, Any]]:
    """The rows of the next micro-batch, read by copies, and where it ends."""
    end = json.loads(json.dumps(reader.latestOffset(at, limit)))
    rows = []
    for partition in reader.partitions(at, end):
        copied, place = pickle.loads(pickle.dumps((reader, partition)))
        rows += column(list(copied.read(place)), "data")
    return rows, end


@pytest.fixture(params=["none", "wal"])
def reader(request: pytest.FixtureRequest, tmp_path: Path, ticker: Ticker) -> Iterator[LiveStreamReader]:
    """A reader of either kind."""
    if request.param == "none":
        yield MemoryStreamReader(wanted(), None)
        return
    found = WalStreamReader(wanted(positions="wal", walDir=tmp_path), None)
    yield found
    found.stop()


def ticks(start: int, end: int) -> list[bytes]:
    return [b"tick %d" % number for number in range(start, end)]


def test_what_comes_is_planned_and_read(reader: LiveStreamReader, ticker: Ticker) -> None:
    at = reader.initialOffset()
    assert plan(reader, at) == ([], at)
    ticker.wanted = 500
    eventually(lambda: reader._store.end == 500)

    rows, at = plan(reader, at, ReadMaxRows(200))
    assert rows == ticks(0, 200)
    rows, at = plan(reader, at)
    assert rows == ticks(200, 500)
    reader.commit(at)
    told = reader.reportLatestOffset()
    assert told is not None
    assert told.pop("server") == "memory://spark"
    assert told.pop("routes") == ["ticks"]
    assert told == at
    assert plan(reader, at) == ([], at)


def test_metadata_and_times_are_kept(reader: LiveStreamReader, ticker: Ticker) -> None:
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    ticker.wanted = 6
    eventually(lambda: reader._store.end == 6)
    end = reader.latestOffset(at, ALL)
    batches = [batch for one in reader.partitions(at, end) for batch in reader.read(one)]

    assert column(batches, "metadata") == [b"m", None, None] * 2
    assert column(batches, "position") == list(range(6))
    assert all(abs(one.timestamp() - time.time()) < 60 for one in column(batches, "received_at"))


def test_a_micro_batch_may_have_several_tasks(ticker: Ticker) -> None:
    reader = MemoryStreamReader(wanted(minPartitions=4), None)
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    ticker.wanted = 100
    eventually(lambda: reader._store.end == 100)
    end = reader.latestOffset(at, ALL)
    found = reader.partitions(at, end)

    assert len(found) == 4
    assert [row for one in found for row in column(list(reader.read(one)), "data")] == ticks(0, 100)
    assert repr(found[0]) == "ChunkPartition(25 rows)"


def test_what_is_not_read_holds_the_producer_back(reader: LiveStreamReader, ticker: Ticker) -> None:
    store = reader._store
    store._max_bytes = 1000
    at = reader.initialOffset()
    ticker.wanted = 10**9
    reader.latestOffset(at, ALL)
    # The credit that was given at the start, and nothing more.
    eventually(lambda: ticker.sent == 2048)
    time.sleep(0.05)
    assert ticker.sent == 2048

    def goes_on() -> bool:
        nonlocal at
        # What was stored behind a plan holds the producer back until the next one.
        _, at = plan(reader, at)
        return ticker.sent > 2048

    eventually(goes_on)


def test_a_channel_is_read_as_a_stream_is(ticker: Ticker) -> None:
    reader = MemoryStreamReader(wanted(interaction="channel"), None)
    at = reader.initialOffset()
    ticker.wanted = ticker.completes_at = 10
    reader.latestOffset(at, ALL)
    eventually(lambda: reader._intake.is_over)

    assert plan(reader, at)[0] == ticks(0, 10)
    assert reader._intake.error is None


def test_a_connection_that_breaks_is_made_again(
    reader: LiveStreamReader, ticker: Ticker, caplog: pytest.LogCaptureFixture
) -> None:
    ticker.breaks_at, ticker.wanted = 50, 80
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    eventually(lambda: reader._store.end >= 80)

    assert plan(reader, at)[0] == ticks(0, 80)
    assert ticker.subscribed == 2
    assert "on their way are lost" in caplog.text


def test_an_error_of_the_producer_ends_the_query_behind_what_came(serving: Serving) -> None:
    responder = Responder()

    @responder.request_stream("ticks")
    async def fail(request: Payload, out: Outgoing) -> None:
        await out.send(b"one")
        raise ApplicationError("no more")

    serving(responder)
    reader = MemoryStreamReader(wanted(), None)
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    eventually(lambda: reader._intake.is_over)

    rows, at = plan(reader, at)
    assert rows == [b"one"]
    with pytest.raises(SourceError, match="route 'ticks' at memory://spark refused: no more"):
        reader.latestOffset(at, ALL)


def test_available_now_takes_what_came_and_waits_for_a_volume_that_was_asked_for(ticker: Ticker) -> None:
    reader = MemoryStreamReader(wanted(minRowsPerTrigger=70), None)
    at = reader.initialOffset()
    ticker.wanted = 100
    reader.prepareForTriggerAvailableNow()
    rows, end = plan(reader, at)
    ticker.wanted = 200
    eventually(lambda: reader._store.end == 200)

    assert 70 <= len(rows) <= 100
    assert plan(reader, end) == ([], end)


# After a restart


def test_without_a_log_what_was_planned_is_lost_with_its_process(ticker: Ticker) -> None:
    print_ = wanted().fingerprint
    start, end = {"v": 1, "f": print_, "n": 5}, {"v": 1, "f": print_, "n": 9}

    with pytest.raises(DataLossError, match="elements 5 to 8 were planned and are not there any more"):
        MemoryStreamReader(wanted(), None).partitions(start, end)

    lenient = MemoryStreamReader(wanted(failOnDataLoss="false"), None)
    assert lenient.partitions(start, end) == []
    ticker.wanted = 3
    lenient.latestOffset(end, ALL)
    eventually(lambda: lenient._store.end == 12)
    assert plan(lenient, end)[0] == ticks(0, 3)


def test_a_log_goes_on_where_it_was(ticker: Ticker, tmp_path: Path) -> None:
    given = wanted(positions="wal", walDir=tmp_path)
    first = WalStreamReader(given, None)
    at = first.initialOffset()
    ticker.wanted = 30
    first.latestOffset(at, ALL)
    eventually(lambda: first._store.end == 30)
    end = first.latestOffset(at, ReadMaxRows(20))
    first.stop()

    second = WalStreamReader(given, None)
    planned = second.partitions(at, end)
    assert [row for one in planned for row in column(list(second.read(one)), "data")] == ticks(0, 20)
    assert repr(planned) == "[ChunkPartition(20 rows)]"
    assert second._store.unread > 0
    assert plan(second, end)[0][:10] == ticks(20, 30)
    second.stop()


async def store(directory: Path, **more: Any) -> WalStore:
    return await WalStore.opened(directory, options(Use.STREAM_READ, positions="wal", walDir=directory, **more))


async def read(log: WalStore, start: int, end: int) -> list[bytes | None]:
    """The elements between two indexes, as tasks get them."""
    found: list[bytes | None] = []
    for part in await log.planned(start, end, None):
        assert isinstance(part, ChunkPartition)
        found += [data for chunk in part.chunks for data in chunk.datas]
    return found


def payloads(count: int, size: int = 100) -> list[Payload]:
    return [Payload(b"%d" % number + bytes(size)) for number in range(count)]


async def test_committed_elements_are_dropped_and_later_ones_stay(tmp_path: Path) -> None:
    log = await store(tmp_path)
    for _ in range(5):
        await log.add(payloads(10))
    await log.release(25)

    # Those that came together go together.
    assert (log.begin, log.end) == (20, 50)
    assert await read(log, 25, 50) == [payload.data for _ in range(5) for payload in payloads(10)][25:]
    with pytest.raises(DataLossError, match=r"elements from 0 on can't be read: .*the earliest is 20"):
        await read(log, 0, 50)
    await log.aclose()


def test_a_full_disk_ends_the_query_and_loses_nothing_that_was_acknowledged(
    ticker: Ticker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = WalStreamReader(wanted(positions="wal", walDir=tmp_path), None)
    at = reader.initialOffset()
    ticker.wanted = 100
    reader.latestOffset(at, ALL)
    eventually(lambda: reader._store.end == 100)

    async def full(*_: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Log, "append_all", full)
        ticker.wanted = 10**9
        eventually(lambda: reader._intake.error is not None)
    # The next one would have lost the credit of another subscription.
    assert ticker.subscribed == 1
    # What is safe comes first, then why there is no more.
    rows, at = plan(reader, at)
    assert rows == ticks(0, 100)
    with pytest.raises(WalError, match=r"option 'walDir': .* can't be written: No space left on device"):
        reader.latestOffset(at, ALL)
    reader.stop()

    again = WalStreamReader(wanted(positions="wal", walDir=tmp_path), None)
    assert again._store.end == 100
    again.stop()


async def test_what_comes_while_others_are_dropped_is_in_the_log(tmp_path: Path) -> None:
    log = await store(tmp_path)
    await log.add(payloads(3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.release, log.end)
        nursery.start_soon(log.add, [Payload(b"meanwhile")])

    assert log.begin == 3
    assert await read(log, 3, 4) == [b"meanwhile"]
    await log.aclose()


async def test_what_is_not_in_the_log_is_named(tmp_path: Path) -> None:
    log = await store(tmp_path)
    await log.write(payloads(10))
    with pytest.raises(DataLossError, match="elements 5 to 11 were planned"):
        check_buffered(log, 5, 12)
    await log.aclose()


async def test_what_travels_with_a_task_is_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_buffer, "PART_BYTES", 1000)
    log = await store(tmp_path)
    await log.write(payloads(40, size=98))

    assert [repr(part) for part in await log.planned(0, 40, None)] == ["ChunkPartition(10 rows)"] * 4
    assert await read(log, 3, 40) == [payload.data for payload in payloads(40, size=98)][3:]
    await log.aclose()


async def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    log = await store(tmp_path)
    await log.write([Payload(b"precious")])
    await log.aclose()
    path = tmp_path / LOG_FILE
    data = path.read_bytes()
    assert data.count(b"precious") == 1
    path.write_bytes(data.replace(b"precious", b"pretious"))

    log = await store(tmp_path)
    with pytest.raises(DataLossError, match=r"elements from 0 on can't be read: .*CRC is wrong"):
        await read(log, 0, 1)
    await log.aclose()


async def test_a_query_whose_log_was_taken_over_writes_no_more(tmp_path: Path) -> None:
    log = await store(tmp_path)
    usurper = await store(tmp_path)

    for doing in (log.release(0), log.write(payloads(1)), log.begin_anew(5)):
        with pytest.raises(DataLossError, match="taken over by another query"):
            await doing
    await usurper.write(payloads(2))
    await usurper.release(0)
    assert usurper.end == 2
    await log.aclose()
    await usurper.aclose()


async def test_between_two_looks_at_the_epoch_nothing_is_written_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await store(tmp_path)
    usurper = await store(tmp_path)
    monkeypatch.setattr(log, "check_epoch", lambda: None)
    await usurper.write(payloads(2))

    with pytest.raises(DataLossError, match="taken over by another query: partition 0 ends at 2, not at 0"):
        await log.write(payloads(1))
    await log.aclose()
    await usurper.aclose()


async def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "filesystem_of", lambda folder: "nfs4")
    with pytest.raises(OptionError, match=r"'walDir' of .*: a log has to be on a local disk, and this one is on nfs4"):
        await store(tmp_path)


async def test_the_log_of_another_query_is_refused(tmp_path: Path) -> None:
    await (await store(tmp_path)).aclose()

    with pytest.raises(CheckpointError, match="holds the log of a query with other options"):
        await store(tmp_path, route="other")


def test_a_checkpoint_of_another_log_is_refused(ticker: Ticker, tmp_path: Path) -> None:
    reader = WalStreamReader(wanted(positions="wal", walDir=tmp_path), None)
    at = reader.initialOffset() | {"log": "other"}

    with pytest.raises(CheckpointError, match="belongs to the log 'other'"):
        reader.latestOffset(at, ALL)
    reader.stop()


async def test_a_log_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    await (await store(tmp_path)).aclose()
    path = tmp_path / "wal.json"
    path.write_text(path.read_text().replace('"v": 3', '"v": 2'))

    with pytest.raises(CheckpointError, match=r"holds a log of another version.*choose another walDir"):
        await store(tmp_path)


@pytest.fixture
def query(ticker: Ticker, tmp_path: Path) -> Iterator[Callable[..., WalStreamReader]]:
    """Makes readers of one log, as one process after the other does."""
    readers: list[WalStreamReader] = []

    def again(**more: object) -> WalStreamReader:
        for reader in readers:
            reader.stop()
        readers[:] = [WalStreamReader(wanted(positions="wal", walDir=tmp_path, **more), None)]
        return readers[0]

    yield again
    readers[0].stop()


@pytest.mark.parametrize("trigger", ["now and then", "availableNow"])
def test_a_log_that_ends_before_the_checkpoint_takes_nothing_new_for_read(
    trigger: str,
    query: Callable[..., WalStreamReader],
    ticker: Ticker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = query()
    at = reader.initialOffset()
    ticker.wanted = 30
    reader.latestOffset(at, ALL)
    eventually(lambda: reader._store.end == 30)
    _, at = plan(reader, at)
    reader.stop()
    for path in tmp_path.glob(f"{LOG_FILE}*"):
        path.unlink()
    ticker.wanted = 33

    reader = query()
    if trigger == "availableNow":
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="ends at element 0, the checkpoint is at 30"):
        reader.latestOffset(at, ALL)
    assert reader._store.end == 0

    lenient = query(failOnDataLoss="false")
    lenient.latestOffset(at, ALL)
    eventually(lambda: lenient._store.end == 33)
    assert plan(lenient, at)[0] == ticks(30, 33)
    assert "ends at element 0, the checkpoint is at 30" in caplog.text
    assert query()._store.begin == 30


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"v": 2, "id": "x", "f": "y", "epoch": "z", "base": 0}', "\xff"])
async def test_a_damaged_identity_is_named(content: str, tmp_path: Path) -> None:
    await (await store(tmp_path)).aclose()
    (tmp_path / "wal.json").write_text(content, "latin-1")

    with pytest.raises(CheckpointError, match=r"wal\.json is damaged"):
        await store(tmp_path)


WRITER = """
import pathlib, sys, trio
from tests.spark.test_live_streaming import payloads, store

async def run():
    log = await store(pathlib.Path(sys.argv[1]))
    while True:
        await log.add(payloads(10))
        print(log.end, flush=True)

trio.run(run)
"""


def test_what_was_acknowledged_survives_a_writer_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()

    log = trio.run(store, tmp_path)
    assert log.end >= acknowledged[-1] == 200
    rows = trio.run(read, log, 0, log.end)
    assert rows == [payloads(10)[number % 10].data for number in range(log.end)]
    trio.run(log.aclose)


# Stores


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (Range(0, 0, 20), Chunk(5, [b"a", b"b", b"c"], None, 1)),
        (Range(0, 6, 7), Chunk(6, [b"b"], None, 1)),
        (Range(0, 0, 6), Chunk(5, [b"a"], None, 1)),
        (Range(0, 8, 9), None),
        (Range(0, 0, 5), None),
    ],
)
def test_a_range_has_its_part_of_a_chunk(one: Range, kept: Chunk | None) -> None:
    assert within(Chunk(5, [b"a", b"b", b"c"], None, 1), one) == kept


async def test_what_is_read_makes_room_and_what_is_committed_is_forgotten(autojump_clock: MockClock) -> None:
    memory = MemoryStore(2000)
    await memory.add(payloads(5))
    await memory.add(payloads(5))
    assert memory.unread > 1000
    with trio.move_on_after(10) as waiting:
        await memory.wait_for_room()
    assert waiting.cancelled_caught

    await memory.read_up_to(5)
    await memory.wait_for_room()
    assert (memory.begin, memory.end) == (0, 10)
    await memory.release(7)
    assert (memory.begin, memory.end) == (5, 10)
    await memory.aclose()


async def test_empty_elements_need_room_as_well(autojump_clock: MockClock) -> None:
    memory = MemoryStore(1000)
    await memory.add([Payload(b"")] * 9)
    await memory.wait_for_room()
    await memory.add([Payload(b"")])
    with trio.move_on_after(10) as waiting:
        await memory.wait_for_room()
    assert waiting.cancelled_caught
    assert memory.unread == 0

    await memory.read_up_to(10)
    await memory.wait_for_room()


async def test_a_producer_that_comes_and_goes_gets_no_credit_without_room(autojump_clock: MockClock) -> None:
    responder, subscribed = Responder(), []

    @responder.request_stream("ticks")
    async def flap(request: Payload, out: Outgoing) -> None:
        subscribed.append(trio.current_time())
        for _ in range(20):
            await out.send(bytes(100))
        raise Rejected("closing")

    memory = MemoryStore(3000)
    async with served(responder) as connections, trio.open_nursery() as nursery:
        intake = Intake(connections, options(Use.STREAM_READ, route="ticks", positions="none", credit=50), memory)
        nursery.start_soon(intake.run)
        await trio.sleep(1000)
        assert (len(subscribed), memory.end) == (1, 20)
        await memory.read_up_to(20)
        await trio.sleep(1000)
        assert (len(subscribed), memory.end) == (2, 40)
        nursery.cancel_scope.cancel()


async def test_credit_is_granted_for_what_is_safe_only(autojump_clock: MockClock) -> None:
    class Slow(MemoryStore):
        async def write(self, batch: list[Payload]) -> None:
            await trio.sleep(100)
            await super().write(batch)

    ticker = Ticker()
    ticker.wanted = 1000
    memory = Slow(10**6)
    async with served(ticker.responder) as connections, trio.open_nursery() as nursery:
        intake = Intake(connections, options(Use.STREAM_READ, route="ticks", positions="none", credit=10), memory)
        nursery.start_soon(intake.run)
        await trio.sleep(99)
        assert (memory.end, ticker.sent) == (0, 10)
        await trio.sleep(150)
        assert 0 < memory.end <= ticker.sent <= memory.end + 10
        nursery.cancel_scope.cancel()
