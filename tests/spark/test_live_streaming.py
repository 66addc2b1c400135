"""Live streams under a streaming query: what came is kept, bounded and numbered, until it was read."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from trio.testing import MockClock

from rsocket_trio import ApplicationError, Channel, Outgoing, Payload, Rejected, Responder
from rsocket_trio.spark import live_streaming
from rsocket_trio.spark.live_streaming import LiveBuffer, LiveStreamReader, within
from rsocket_trio.spark.mistakes import DataLossError, SourceError
from rsocket_trio.spark.options import OptionError, Options, Use, parse_options
from rsocket_trio.spark.records import Chunk
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


def came(reader: LiveStreamReader) -> LiveBuffer:
    """Return what came to a reader that has begun to receive."""
    assert reader._buffer is not None
    return reader._buffer


def until_there_are(reader: LiveStreamReader, end: int) -> None:
    eventually(lambda: came(reader).end == end)


def ticks(start: int, end: int) -> list[bytes]:
    return [b"tick %d" % number for number in range(start, end)]


def test_what_comes_is_planned_and_read(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    assert reader.reportLatestOffset() is None
    assert plan(reader, at) == ([], at)
    ticker.wanted = 500
    until_there_are(reader, 500)

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
    assert (came(reader).begin, came(reader).size) == (500, 0)


def test_metadata_and_times_are_kept(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    ticker.wanted = 6
    until_there_are(reader, 6)
    end = reader.latestOffset(at, ALL)
    batches = [batch for one in reader.partitions(at, end) for batch in reader.read(one)]

    assert column(batches, "metadata") == [b"m", None, None] * 2
    assert column(batches, "position") == list(range(6))
    assert all(abs(one.timestamp() - time.time()) < 60 for one in column(batches, "received_at"))


def test_a_micro_batch_is_bounded_by_bytes(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    ticker.wanted = 100
    until_there_are(reader, 100)

    half = came(reader).size // 2
    assert 45 <= len(plan(reader, at, ReadMaxBytes(half))[0]) <= 50


def test_what_travels_with_a_task_is_of_limited_size(ticker: Ticker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_streaming, "PART_BYTES", 150)
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    ticker.wanted = 80
    until_there_are(reader, 80)
    end = reader.latestOffset(at, ALL)
    found = reader.partitions(at, end)

    assert len(found) == 4
    assert [row for one in found for row in column(list(reader.read(one)), "data")] == ticks(0, 80)


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


def test_a_volume_for_which_there_is_no_room_is_not_waited_for(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(bufferBytes=1000, minRowsPerTrigger=10**6), None)
    at = reader.initialOffset()
    ticker.wanted = 10**9
    reader.latestOffset(at, ReadMaxRows(10**6))

    eventually(lambda: plan(reader, at, ReadMaxRows(10**6))[0] != [])


def test_a_channel_is_read_as_a_stream_is(ticker: Ticker) -> None:
    reader = LiveStreamReader(wanted(interaction="channel"), None)
    at = reader.initialOffset()
    ticker.wanted = ticker.completes_at = 10
    reader.latestOffset(at, ALL)
    eventually(lambda: came(reader).is_over)

    assert plan(reader, at)[0] == ticks(0, 10)
    assert came(reader).error is None


def test_a_connection_that_breaks_is_made_again(ticker: Ticker, caplog: pytest.LogCaptureFixture) -> None:
    reader = LiveStreamReader(wanted(), None)
    ticker.breaks_at, ticker.wanted = 50, 80
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    until_there_are(reader, 80)

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
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()
    reader.latestOffset(at, ALL)
    eventually(lambda: came(reader).is_over)

    rows, at = plan(reader, at)
    assert rows == [b"one"]
    with pytest.raises(SourceError, match="route 'ticks' at memory://spark refused: no more"):
        reader.latestOffset(at, ALL)


def test_a_route_that_is_not_there_is_an_error(serving: Serving) -> None:
    serving(Responder())
    reader = LiveStreamReader(wanted(), None)
    at = reader.initialOffset()

    with pytest.raises(SourceError, match="option 'route': there is no route 'ticks'"):
        eventually(lambda: reader.latestOffset(at, ALL) != at)


def test_the_trigger_available_now_is_refused() -> None:
    with pytest.raises(OptionError, match="availableNow needs positions=server"):
        LiveStreamReader(wanted(), None).prepareForTriggerAvailableNow()


def test_what_was_planned_is_lost_with_its_process(ticker: Ticker) -> None:
    print_ = wanted().fingerprint
    start, end = {"v": 1, "f": print_, "n": 5}, {"v": 1, "f": print_, "n": 9}

    with pytest.raises(DataLossError, match="elements 5 to 8 were planned and are not there any more"):
        LiveStreamReader(wanted(), None).partitions(start, end)

    lenient = LiveStreamReader(wanted(failOnDataLoss="false"), None)
    assert lenient.partitions(start, end) == []
    ticker.wanted = 3
    lenient.latestOffset(end, ALL)
    until_there_are(lenient, 12)
    assert plan(lenient, end)[0] == ticks(0, 3)


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        (0, 20, Chunk(5, [b"a", b"b", b"c"], None, 1)),
        (6, 7, Chunk(6, [b"b"], None, 1)),
        (0, 6, Chunk(5, [b"a"], None, 1)),
        (8, 9, Chunk(8, [], None, 1)),
        (0, 5, Chunk(5, [], None, 1)),
    ],
)
def test_a_part_of_a_chunk_is_what_lies_between_two_numbers(start: int, end: int, kept: Chunk) -> None:
    assert within(Chunk(5, [b"a", b"b", b"c"], None, 1), start, end) == kept


async def test_empty_elements_need_room_as_well(autojump_clock: MockClock) -> None:
    async with served(Responder()) as connections:
        buffer = LiveBuffer(connections, wanted(bufferBytes=1000), 0)
        await buffer.add(Chunk(0, [b""] * 9, None, 1))
        with trio.move_on_after(10) as waiting:
            await buffer.add(Chunk(0, [b""], None, 1))
        assert waiting.cancelled_caught

        await buffer.release(9)
        await buffer.add(Chunk(0, [b""] * 8, None, 1))
        assert (buffer.begin, buffer.end) == (9, 18)


async def test_a_producer_that_comes_and_goes_gets_no_credit_without_room(autojump_clock: MockClock) -> None:
    responder, subscribed = Responder(), []

    @responder.request_stream("ticks")
    async def flap(request: Payload, out: Outgoing) -> None:
        subscribed.append(trio.current_time())
        for _ in range(20):
            await out.send(bytes(100))
        raise Rejected("closing")

    chosen = options(Use.STREAM_READ, route="ticks", positions="none", credit=50, bufferBytes=3000)
    async with served(responder) as connections, trio.open_nursery() as nursery:
        buffer = LiveBuffer(connections, chosen, 0)
        nursery.start_soon(buffer.receive)
        await trio.sleep(1000)
        assert (len(subscribed), buffer.end) == (1, 20)
        await buffer.release(20)
        await trio.sleep(1000)
        assert (len(subscribed), buffer.end) == (2, 40)
        nursery.cancel_scope.cancel()
