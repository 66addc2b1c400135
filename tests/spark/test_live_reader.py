"""Live streams under a streaming query: what came is kept, bounded and numbered, until it was read."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rsocket_trio import ApplicationError, Channel, Outgoing, Payload, Rejected, Responder
from rsocket_trio.spark import live_reader
from rsocket_trio.spark.errors import DataLossError, OptionError, SourceError
from rsocket_trio.spark.live_reader import LiveStreamReader
from rsocket_trio.spark.options import Options, Use, parse_options
from tests.spark.serving import URI, column

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


def plan_all(reader: LiveStreamReader, at: dict[str, Any], rows: int) -> tuple[list[bytes], dict[str, Any]]:
    """The rows of micro-batches until there are so many, and where the last ends."""
    found: list[bytes] = []

    def more() -> bool:
        nonlocal found, at
        some, at = plan(reader, at)
        found += some
        return len(found) >= rows

    eventually(more)
    return found, at


def ticks(start: int, end: int) -> list[bytes]:
    return [b"tick %d" % number for number in range(start, end)]


def test_what_comes_is_planned_and_read(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    assert reader.reportLatestOffset() is None
    assert plan(reader, at) == ([], at)
    ticker.wanted = 500
    eventually(lambda: ticker.sent == 500)

    rows, at = plan(reader, at, ReadMaxRows(200))
    assert rows == ticks(0, len(rows))
    # Spark may ask again for the end of what is planned.
    assert len(rows) <= 200
    others, at = plan_all(reader, at, 500 - len(rows))
    assert rows + others == ticks(0, 500)
    reader.commit(at)
    told = reader.reportLatestOffset()
    assert told is not None
    assert told.pop("server") == "memory://spark"
    assert told.pop("routes") == ["ticks"]
    assert told == at
    assert plan(reader, at) == ([], at)


def test_a_micro_batch_that_is_asked_for_again_is_the_same(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    ticker.wanted = 5
    eventually(lambda: reader.latestOffset(at, ALL) != at)
    end = reader.latestOffset(at, ALL)
    ticker.wanted = 10

    assert reader.latestOffset(at, ALL) == end
    assert plan(reader, at)[0] == plan(reader, at)[0] != []


def test_what_travels_with_a_task_is_of_limited_size(ticker: Ticker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_reader, "MAX_PART_BYTES", 150)
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    ticker.wanted = 80
    parts: list[int] = []
    rows: list[bytes] = []
    while len(rows) < 80:
        end = reader.latestOffset(at, ALL)
        for one in reader.partitions(at, end):
            some = column(list(reader.read(one)), "data")
            parts.append(len(some))
            rows += some
        at = end

    assert rows == ticks(0, 80)
    assert max(parts) < 4


def test_what_is_not_read_holds_the_producer_back(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(bufferBytes=1000), None)
    at = reader.initialOffset()
    ticker.wanted = 10**9
    reader.latestOffset(at, ALL)
    # The credit that was given at the start, and nothing more.
    eventually(lambda: ticker.sent == 2048)

    def goes_on() -> bool:
        nonlocal at
        # What was kept behind a plan holds the producer back until the next one.
        _, at = plan(reader, at)
        return ticker.sent > 2048

    eventually(goes_on)


def test_a_micro_batch_is_bounded_by_bytes(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(maxBytesPerTrigger=2000), None)
    at, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    ticker.wanted = 500
    eventually(lambda: reader.latestOffset(at, limit) != at)

    assert 0 < len(plan(reader, at, limit)[0]) < 50


def test_a_volume_is_waited_for_unless_there_is_no_room_for_it(ticker: Ticker) -> None:
    patient = LiveStreamReader(wanted(minRowsPerTrigger=20), None)
    at = patient.initialOffset()
    ticker.wanted = 10
    patient.latestOffset(at, ReadMaxRows(10**6))
    eventually(lambda: ticker.sent == 10)
    assert plan(patient, at, ReadMaxRows(10**6))[0] == []
    ticker.wanted = 20
    eventually(lambda: len(plan(patient, at, ReadMaxRows(10**6))[0]) == 20)

    reader = LiveStreamReader(wanted(bufferBytes=1000, minRowsPerTrigger=10**6), None)
    ticker.wanted = 10**9
    eventually(lambda: plan(reader, at, ReadMaxRows(10**6))[0] != [])


def test_a_connection_that_breaks_is_made_again(ticker: Ticker, caplog: pytest.LogCaptureFixture) -> None:
    reader = LiveStreamReader(wanted(), None)
    ticker.breaks_at, ticker.wanted = 50, 80

    assert plan_all(reader, reader.initialOffset(), 80)[0] == ticks(0, 80)
    assert ticker.subscribed == 2
    assert "those on their way are lost" in caplog.text


def test_an_error_of_the_producer_ends_the_query_behind_what_came(serving: Serving) -> None:
    responder = Responder()

    @responder.request_stream("ticks")
    async def fail(request: Payload, out: Outgoing) -> None:
        await out.send(b"one")
        raise ApplicationError("no more")

    serving(responder)
    reader = LiveStreamReader(wanted(), None)

    rows, at = plan_all(reader, reader.initialOffset(), 1)
    assert rows == [b"one"]
    with pytest.raises(SourceError, match="route 'ticks' at memory://spark refused: no more"):
        eventually(lambda: reader.latestOffset(at, ALL) != at)


def test_the_trigger_available_now_is_refused() -> None:
    with pytest.raises(OptionError, match="availableNow needs positions=server"):
        LiveStreamReader(wanted(), None).prepareForTriggerAvailableNow()


def test_what_was_planned_is_lost_with_its_process(ticker: Ticker) -> None:
    print_ = wanted().fingerprint
    start, end = {"v": 1, "f": print_, "n": 5}, {"v": 1, "f": print_, "n": 9}

    with pytest.raises(DataLossError, match="rows 5 to 8 were planned and are not there any more"):
        LiveStreamReader(wanted(), None).partitions(start, end)

    lenient = LiveStreamReader(wanted(failOnDataLoss="false"), None)
    assert lenient.partitions(start, end) == []
    ticker.wanted = 3
    assert plan_all(lenient, end, 3)[0] == ticks(0, 3)
