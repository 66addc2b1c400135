"""Logs and ledgers on a real broker of Kafka."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from rsocket_trio import Invalid, open_connection
from rsocket_trio.replay import (
    Commit,
    Element,
    KafkaLedger,
    KafkaLog,
    NotStaged,
    PositionAhead,
    PositionExpired,
    Record,
    UnknownPartition,
)
from rsocket_trio.replay.elements import arrow
from rsocket_trio.replay.kafka_client import Rows, TransactionalProducer
from tests.blocks import page, snippets
from tests.kafka.broker import Broker

if TYPE_CHECKING:
    from confluent_kafka import Producer

pytestmark = pytest.mark.filterwarnings("error")
MOMENT = 1_700_000_000_000
"""A time in milliseconds."""


def producer(broker: Broker, name: str | None = None) -> Producer:
    """A producer of somebody else's, transactional with a name."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": broker.servers, "log_level": 0}
    if name is None:
        return Producer(settings)
    made = Producer({**settings, "transactional.id": name})
    made.init_transactions(30)
    return made


async def everything(log: KafkaLog, partition: int = 0, start: int = 0) -> list[Record]:
    # A commit returns before its records can be read.
    end = await log._settled_end(partition)
    return [record async for record in log.read(partition, start, end)]


async def stage(
    ledger: KafkaLedger, sink: str, attempt: str, rows: Iterable[bytes | Element], partition: int = 0, **terms: Any
) -> None:
    staged = await ledger.begin(sink, attempt, partition, **terms)
    await staged.add(*[Element(row) if isinstance(row, bytes) else row for row in rows])
    await staged.seal()


# The log


async def test_what_is_appended_is_read_with_key_headers_metadata_and_the_brokers_time(
    broker: Broker, topic: str
) -> None:
    async with KafkaLog(broker.servers, topic, 2) as log:
        first = await log.append(b"one", b"meta", key=b"k", headers=[("h", b"1"), ("i", b"")])
        begins = await log.append_all({0: [Element(b"two"), Element(b"three")], 1: [Element(b"four", key=b"")]})

        [one, two, three] = await everything(log)
        [four] = await everything(log, 1)

    assert (first, one.position) == (0, 0)
    assert one == Record(0, b"one", b"meta", 1, b"k", [("h", b"1"), ("i", b"")])
    # A transaction ends with a marker, which takes a position.
    assert begins == {0: two.position, 1: four.position} == {0: 2, 1: 0}
    assert (two, three) == (Record(2, b"two"), Record(3, b"three"))
    assert (four.data, four.key) == (b"four", b"")
    times = [record.timestamp for record in (one, two, three)]
    assert None not in times
    assert times == sorted(times, key=int)  # type: ignore[arg-type]


async def test_gaps_of_aborted_transactions_and_markers_are_no_loss(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log:
        theirs = await trio.to_thread.run_sync(producer, broker, f"{topic}-theirs")
        for rows, committed in ((2, True), (3, False), (1, True), (2, False)):
            theirs.begin_transaction()
            for row in range(rows):
                theirs.produce(topic, b"%d of %d" % (row, rows))
            theirs.flush()
            await trio.to_thread.run_sync(theirs.commit_transaction if committed else theirs.abort_transaction)
        records = await everything(log)
        packs = list(await log.read_packs(0, 0))
        tail = list(await log.read_some(0, 8))
        tail_packs = list(await log.read_packs(0, 8))
        cut = list(await log.read_some(0, 3, 6))

        assert log.bounds(0) == (0, 12)
        assert [(record.position, record.data) for record in records] == [
            (0, b"0 of 2"),
            (1, b"1 of 2"),
            (7, b"0 of 1"),
        ]
        assert [one for pack in packs for one in arrow().rows_of(pack) if one.count] == records
        # A range of markers and aborted rows only: nothing is there up to its end, or to where the broker says so.
        assert [(8 < one.position <= 12, one.count) for one in tail] == [(True, 0)]
        assert [(pack.position, 8 < pack.end <= 12, pack.data) for pack in tail_packs] == [(8, True, b"")]
        assert [(one.position, one.count) for one in cut] == [(6, 0)]


async def test_rows_of_an_open_transaction_are_not_there(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log:
        theirs = await trio.to_thread.run_sync(producer, broker, f"{topic}-theirs")
        theirs.begin_transaction()
        theirs.produce(topic, b"theirs")
        theirs.flush()
        assert await log.append(b"ours") == 1
        await log.open()
        assert log.bounds(0) == (0, 0)
        with pytest.raises(PositionAhead):
            await log.read_some(0, 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.wait_beyond, 0, 1)
            await trio.to_thread.run_sync(theirs.commit_transaction)
        assert [record.data for record in await everything(log)] == [b"theirs", b"ours"]


async def test_a_reader_at_the_end_gets_what_comes_and_twenty_share_one_consumer(broker: Broker, topic: str) -> None:
    found: list[list[bytes | None]] = []

    async def follow(log: KafkaLog) -> None:
        mine: list[bytes | None] = []
        found.append(mine)
        async with aclosing(log.read(0, 0)) as records:
            async for record in records:
                mine.append(record.data)
                if len(mine) == 30:
                    return

    async with KafkaLog(broker.servers, topic, 1, consumers=1) as log, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(follow, log)
        for number in range(3):
            await log.append_all({0: [Element(b"%d" % (10 * number + row)) for row in range(10)]})

    assert found == [[b"%d" % number for number in range(30)]] * 20


async def test_bounds_times_and_trimming(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 2) as log:
        theirs = producer(broker)
        await log.append(b"now")
        await log.wait_beyond(0, 0)
        # The topic was made here: the broker's time counts.
        theirs.produce(topic, b"old", timestamp=MOMENT, partition=0)
        theirs.flush()
        [now, old] = await everything(log)
        assert now.timestamp is not None
        assert old.timestamp is not None
        assert old.timestamp >= now.timestamp > MOMENT * 1000
        assert await log.position_at(0, 0) == 0
        assert await log.position_at(0, now.timestamp) == 0
        assert await log.position_at(0, old.timestamp + 1) == log.bounds(0)[1] == 3
        assert await log.position_at(1, 0) == 0

        await log.trim(0, 2)

        assert log.bounds(0) == (2, 3)
        with pytest.raises(PositionExpired):
            await log.read_some(0, 0)
        await log.trim(0, 100)
        assert log.bounds(0) == (3, 3)
        assert list(await log.read_some(0, 3)) == []
        with pytest.raises(UnknownPartition):
            log.bounds(2)


async def test_an_append_is_all_or_nothing(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 2) as log:
        with pytest.raises(ValueError, match=r"a record of Kafka has one position"):
            await log.append_all({0: [Element(b"fine")], 1: [Element(b"two rows", count=2)]})
        with pytest.raises(ValueError, match=r"larger than the topic allows"):
            await log.append_all({0: [Element(b"fine")], 1: [Element(bytes(2**21))]})
        with pytest.raises(ValueError, match=r"ends at \d+, not at 7"):
            await log.append_all({0: [Element(b"fine")], 1: [Element(b"fine")]}, at={1: 7})
        position = await log.append(b"good")

        assert [(record.position, record.data) for record in await everything(log)] == [(position, b"good")]
        assert await everything(log, 1) == []


# The ledger


async def test_a_batch_counts_once_wherever_it_is_committed(broker: Broker, topic: str) -> None:
    async with (
        KafkaLog(broker.servers, topic, 2) as log,
        KafkaLog(broker.servers, topic) as same,
        KafkaLedger(log) as a,
        KafkaLedger(same) as b,
    ):
        await stage(a, "s", "a0", [b"0", b"1"])
        await stage(a, "s", "a1", [b"2"], partition=1)
        assert await a.commit("s", 0, {"a0": 2, "a1": 1}) == Commit(promoted=True, rows=3, last=0)
        # Its answer was lost: the writer asks another server, which takes the sink over.
        assert await b.commit("s", 0, {"a0": 2, "a1": 1}) == Commit(promoted=False, rows=0, last=0)
        await stage(a, "s", "a2", [b"other rows"], batch=1)
        with pytest.raises(NotStaged, match=r"attempt b2 is not staged for sink s"):
            await b.commit("s", 1, {"b2": 1})
        await stage(b, "s", "b2", [b"3"])
        assert await b.commit("s", 1, {"b2": 1}) == Commit(promoted=True, rows=1, last=1)
        # This server was fenced, does not know of batch 1 yet, and has staged other rows of it.
        assert await a.commit("s", 1, {"a2": 1}) == Commit(promoted=False, rows=0, last=1)
        await stage(a, "s", "a3", [b"4"])
        assert (await a.commit("s", 2, {"a3": 1})).promoted

        assert [record.data for record in await everything(log)] == [b"0", b"1", b"3", b"4"]
        assert [record.data for record in await everything(same, 1)] == [b"2"]


async def test_any_server_commits_what_others_have_staged(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 2) as log:
        async with KafkaLedger(log) as a, KafkaLedger(log) as b:
            await stage(a, "s", "a0", [b"0", b"1"])
            await stage(b, "s", "b0", [b"2"], partition=1)
            staged = await a.begin("s", "packs", 0)
            for first in (0, 3):
                await staged.add(
                    next(arrow().packs_of([Element(b"%d" % row, b"m", key=b"k") for row in range(first, first + 3)]))
                )
            await staged.seal()
            assert (await b.commit("s", 0, {"a0": 2, "b0": 1, "packs": 6})).promoted
            await stage(a, "s", "left", [b"left"])
        # After a restart of both.
        async with KafkaLedger(log) as c:
            assert (await c.commit("s", 1, {"left": 1})).promoted
            assert c.staged == []
            with pytest.raises(NotStaged):
                await c.commit("s", 2, {"left": 1})

        found = await everything(log)
        assert [record.data for record in found] == [b"0", b"1", *[b"%d" % row for row in range(6)], b"left"]
        assert (found[2].key, found[2].metadata) == (b"k", b"m")
        assert [record.data for record in await everything(log, 1)] == [b"2"]


async def test_a_ledger_knows_the_last_batches_after_a_restart(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log:
        async with KafkaLedger(log) as ledger:
            for sink in ("s", "t"):
                for batch in range(3):
                    await stage(ledger, sink, f"{sink}{batch}", [b"%d" % batch])
                    await ledger.commit(sink, batch, {f"{sink}{batch}": 1})
            await ledger.commit("once", 0, {}, once=True)
            await ledger.commit("owned", 7, {}, query="one")
            assert (await ledger.commit("owned", 0, {}, query="two", take_over=True)).promoted
        async with KafkaLedger(log) as ledger:
            assert ledger.sinks == {"s": 2, "t": 2, "owned": 0}
            with pytest.raises(Invalid, match="sink 'owned' was taken over from query one by query two"):
                await ledger.commit("owned", 9, {}, query="one")
            assert ledger.last("once") == 0
            assert not (await ledger.commit("s", 2, {"s2": 1})).promoted
            assert (await ledger.commit("t", 3, {})).promoted
        assert len(await everything(log)) == 6


async def test_only_a_complete_attempt_survives_its_server_and_no_file_is_written(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with KafkaLog(broker.servers, topic, 1) as log:
        async with KafkaLedger(log) as ledger:
            await stage(ledger, "s", "kept", [b"1", b"2"])
            unfinished = await ledger.begin("s", "unfinished", 0)
            await unfinished.add(Element(b"3"))
            assert ledger.staged == ["kept", "unfinished"]
            with pytest.raises(NotStaged, match="attempt unfinished is not complete"):
                await ledger.commit("s", 0, {"kept": 2, "unfinished": 1})
        async with KafkaLedger(log) as ledger:
            assert ledger.staged == ["kept"]
            assert (await ledger.commit("s", 0, {"kept": 2})).promoted
        assert os.listdir(tmp_path) == []
        assert [record.data for record in await everything(log)] == [b"1", b"2"]


async def test_null_and_headers_stay_as_they_are_whoever_writes(broker: Broker, topic: str) -> None:
    rows = [
        Element(None, key=b"a"),
        Element(b"", b"about it", key=b"b", headers=[("h", b"2"), ("g", None), ("h", b"1"), ("h", b"2")]),
        Element(None, headers=[("h", b"")]),
    ]
    async with KafkaLog(broker.servers, topic, 1) as log, KafkaLedger(log) as a, KafkaLedger(log) as b:
        await log.append_all({0: rows})
        await log.append_all({0: [next(arrow().packs_of(rows))]})
        for number, row in enumerate(rows):
            await stage(a, "s", f"a{number}", [row])
        await stage(a, "s", "together", rows)
        assert (await b.commit("s", 0, {"a0": 1, "a1": 1, "a2": 1, "together": 3})).promoted

        found = await everything(log)
        packs = list(await log.read_packs(0, 0))

    assert [record.element for record in found] == rows * 4
    assert [one.element for pack in packs for one in arrow().rows_of(pack) if one.count] == rows * 4
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": broker.servers, "group.id": topic, "log_level": 0})
    reader.assign([TopicPartition(topic, 0, 0)])
    theirs = reader.consume(3, 30)
    reader.close()
    assert [message.value() for message in theirs] == [None, b"", None]
    assert theirs[1].headers()[:4] == rows[1].headers  # type: ignore[index]


async def test_a_later_planning_of_a_batch_is_the_only_one_at_every_server(broker: Broker, topic: str) -> None:
    async with (
        KafkaLog(broker.servers, topic, 1) as log,
        KafkaLog(broker.servers, topic) as same,
        KafkaLedger(log) as a,
        KafkaLedger(same) as b,
    ):
        epochs = [await one.epoch("s") for one in (a, b, a)]
        assert epochs == sorted(set(epochs))
        early, late, latest = epochs
        await stage(a, "s", "early", [b"early"], batch=0, epoch=early)
        unfinished = await a.begin("s", "unfinished", 0, batch=0, epoch=early)
        await stage(b, "s", "late", [b"late"], batch=0, epoch=late)
        for ledger in (a, b):
            with pytest.raises(NotStaged, match=f"batch 0 of sink .s. is written by epoch {late}, which was planned"):
                await ledger.commit("s", 0, {"early": 1}, epoch=early)
        with pytest.raises(NotStaged, match="planned after this one"):
            await unfinished.seal()
        # Attempts of one planning stand beside each other, whoever has them.
        await stage(a, "s", "more", [b"more"], batch=0, epoch=late)
        assert (await a.commit("s", 0, {"late": 1, "more": 1}, epoch=late)).rows == 2
        assert not (await b.commit("s", 0, {"late": 1}, epoch=latest)).promoted
        # A server that was not there knows it, too.
        async with KafkaLedger(log) as c:
            with pytest.raises(NotStaged):
                await c.commit("s", 0, {}, epoch=early)
        assert [record.data for record in await everything(log)] == [b"late", b"more"]


async def test_an_epoch_that_has_only_staged_is_known_to_all_servers_and_after_a_restart(
    broker: Broker, topic: str
) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log:
        async with KafkaLedger(log) as a, KafkaLedger(log) as b:
            early, late = await a.epoch("s"), await b.epoch("s")
            await stage(b, "s", "early", [b"early"], batch=0, epoch=early)
            await a.begin("s", "unfinished", 0, batch=0, epoch=late)
            await everything(b._batches, b._place_of("s"))
            with pytest.raises(NotStaged, match=f"is written by epoch {late}, which was planned after this one"):
                await b.begin("s", "more", 0, batch=0, epoch=early)
            assert b.staged == []
        async with KafkaLedger(log) as c:
            with pytest.raises(NotStaged, match="planned after this one"):
                await c.begin("s", "more", 0, batch=0, epoch=early)
            with pytest.raises(NotStaged, match="planned after this one"):
                await c.commit("s", 0, {}, epoch=early)
            await stage(c, "s", "late", [b"late"], batch=0, epoch=late)
            assert (await c.commit("s", 0, {"late": 1}, epoch=late)).promoted
        assert [record.data for record in await everything(log)] == [b"late"]


async def test_a_server_that_is_slow_behind_its_commit_forgets_no_later_batch_of_others(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(TransactionalProducer):
        async def write(self, rows: Sequence[Rows]) -> None:
            await super().write(rows)
            monkeypatch.undo()
            assert (await b.commit("s", 1, {})).promoted
            await everything(a._batches, a._place_of("s"))
            await a.begin("s", "next", 0)

    async with KafkaLog(broker.servers, topic, 1) as log, KafkaLedger(log) as a, KafkaLedger(log) as b:
        monkeypatch.setattr("rsocket_trio.replay.kafka_ledger.TransactionalProducer", Slow)
        assert (await a.commit("s", 0, {})).promoted
        assert (a.last("s"), b.last("s")) == (1, 1)
        assert not (await a.commit("s", 1, {})).promoted


async def test_attempts_that_are_too_old_are_forgotten_with_the_next_opening(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log:
        async with KafkaLedger(log) as ledger:
            ledger._clock = lambda: 1_000_000
            await stage(ledger, "s", "old", [b"old"])
            place = ledger._place_of("s")
        async with KafkaLedger(log) as ledger:
            await everything(ledger._batches, place)
        async with KafkaLedger(log) as ledger:
            assert ledger.staged == []
            notes = [(record.key, record.data is None) for record in await everything(ledger._batches, place)]
        assert notes == [(b"s\0old", False), (b"s\0old", True)]


async def test_a_commit_of_rows_that_are_gone_writes_nothing(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log, KafkaLedger(log) as ledger:
        await stage(ledger, "s", "kept", [b"1"])
        await stage(ledger, "s", "gone", [b"2"])
        async with KafkaLog(broker.servers, f"{topic}.batches.staged") as attempts:
            await attempts.trim(0, 2)  # as the retention of the topic does
        with pytest.raises(NotStaged, match="rows of the batch are staged no longer"):
            await ledger.commit("s", 0, {"kept": 1, "gone": 1})
        await stage(ledger, "s", "again", [b"1", b"2"])
        assert (await ledger.commit("s", 0, {"again": 2})).promoted
        assert [record.data for record in await everything(log)] == [b"1", b"2"]


async def test_the_page_serves_topics(broker: Broker) -> None:
    names: dict[str, Any] = {}
    for block in snippets(page("docs/howto/replay.md")):
        exec(block.text, names)

    async def serve_topics(*, task_status: trio.TaskStatus[list[str]]) -> None:
        await names["serve_topics"](broker.servers, task_status)

    async with KafkaLog(broker.servers, "orders", 1) as log, trio.open_nursery() as nursery:
        await log.append(b"an order")
        await log.wait_beyond(0, 0)
        [uri] = await nursery.start(serve_topics)
        async with open_connection(uri) as client:
            await client.request_response("a total", route="totals")
        assert await names["read_orders"](uri) == [(0, b"an order")]
        nursery.cancel_scope.cancel()


def test_a_log_without_confluent_kafka_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[kafka\]'"):
        KafkaLog("127.0.0.1:9092", "orders")
    assert logging.getLogger("rsocket_trio.replay.kafka").level > logging.CRITICAL
