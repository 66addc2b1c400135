"""Logs and ledgers on Kafka that are closed at bad moments, named badly, or meet what others wrote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio.errors import Invalid
from rsocket_trio.replay import Element, KafkaLedger, KafkaLog, NotWritten, TopicGone
from rsocket_trio.replay.kafka_client import Cluster, OutcomeUnknown
from rsocket_trio.replay.log import Appending
from tests.kafka.broker import Broker, require_kafka

pytestmark = pytest.mark.filterwarnings("error")


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


async def outcome_of(work: Callable[[], Awaitable[object]], found: list[object]) -> None:
    """Append what comes of some work: its result, or the class of its error."""
    try:
        found.append(await work())
    except (trio.ClosedResourceError, NotWritten) as error:
        found.append(type(error))


async def test_a_log_that_is_closed_ends_what_waits_for_it(broker: Broker, topic: str) -> None:
    found: list[object] = []

    async def follow() -> None:
        async with aclosing(log.read(0, 0)) as records:
            async for _ in records:
                pass

    async with KafkaLog(broker.servers, topic, 1) as log, trio.open_nursery() as nursery:
        rows = {0: [Element(bytes(100))] * 1000}
        for work in (follow, lambda: log.wait_beyond(0, 10**6), *[lambda: log.append_all(rows)] * 3):
            nursery.start_soon(outcome_of, work, found)
        await trio.testing.wait_all_tasks_blocked()
        await log.aclose()

    assert len(found) == 5
    assert trio.ClosedResourceError in found
    async with KafkaLog(broker.servers, topic) as log:
        # An append that was begun is there whole, and others not at all.
        assert len([record async for record in log.read(0, *log.bounds(0))]) % 1000 == 0


class Lost(KafkaLog):
    """A log of a broker that takes what is written and then says no more."""

    writes = 0

    async def _write_once(self, groups: Sequence[Appending]) -> list[dict[int, int]]:
        self.writes += 1
        await trio.sleep(1)
        raise OutcomeUnknown("nobody knows what was written")


async def test_appends_together_are_not_tried_again_when_they_may_be_written(
    topic: str, autojump_clock: trio.testing.MockClock
) -> None:
    require_kafka()
    log, found = Lost("127.0.0.1:1", topic), list[object]()
    log._bounds = {0: (0, 0)}

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(outcome_of, lambda number=number: log.append(b"%d" % number), found)

    assert found == [OutcomeUnknown] * 5
    assert log.writes == 1


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"partitions": None}, "has no topic"),
        ({"settings": {"nonsense": 1}}, 'Kafka refuses the settings: No such configuration property: "nonsense"'),
        ({"topic": "a b"}, "Kafka refuses topic 'a b'"),
    ],
    ids=["topic", "settings", "name"],
)
async def test_a_log_that_cannot_be_opened_says_why_and_leaves_no_thread(
    broker: Broker, topic: str, terms: dict[str, Any], said: str
) -> None:
    async with KafkaLog(broker.servers, topic, 1):
        pass
    before = threads()
    with pytest.raises(ValueError, match=said):
        await KafkaLog(broker.servers, **{"topic": f"{topic}-b", "partitions": 1, **terms}).open()
    assert threads() <= before


async def test_a_sink_with_a_zero_in_its_name_is_refused_and_harms_no_ledger(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log:
        async with KafkaLedger(log) as ledger:
            with pytest.raises(Invalid, match="takes no name with a character 0"):
                await ledger.begin("a\0b", "a0", 0)
            with pytest.raises(Invalid, match="takes no name with a character 0"):
                await ledger.commit("a\0b", 0, {})
        async with KafkaLedger(log) as ledger:
            assert ledger.sinks == {}


@pytest.mark.parametrize(("key", "content"), [(b"k", b"no JSON"), (b"k", b"[1]"), (b"\xff", b"{}"), (b"a\0b", b"{}")])
async def test_a_topic_that_is_none_of_batches_is_named(broker: Broker, topic: str, key: bytes, content: bytes) -> None:
    async with KafkaLog(broker.servers, topic, 1) as log:
        async with KafkaLog(broker.servers, f"{topic}.batches", 1) as other:
            await other.append(content, key=key)
        with pytest.raises(ValueError, match=f"topic '{topic}.batches' is none of batches: no ledger wrote"):
            await KafkaLedger(log).open()


def delete(broker: Broker, topic: str) -> None:
    """Delete a topic, and wait until the broker knows: its controller answers before."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result()
    while topic in admin.list_topics(timeout=10).topics:
        pass


def make(broker: Broker, topic: str, partitions: int = 1) -> None:
    cluster = Cluster(broker.servers)
    cluster.make(topic, partitions, 1, {})
    cluster.close()


async def test_a_topic_that_was_made_anew_never_shows_former_rows(broker: Broker, topic: str) -> None:
    ended: list[str] = []

    async def follow() -> None:
        try:
            async with aclosing(log.read(0, 0)) as records:
                async for _ in records:
                    pass
        except TopicGone as error:
            ended.append(str(error))

    async with KafkaLog(broker.servers, topic, 1) as log, trio.open_nursery() as nursery:
        for number in range(50):
            await log.append(b"former %d" % number)
        nursery.start_soon(follow)
        await log.wait_beyond(0, 98)
        assert [record async for record in log.read(0, 0, 99)][49].data == b"former 49"

        await trio.to_thread.run_sync(delete, broker, topic)
        await trio.to_thread.run_sync(make, broker, topic)
        for request in (log.open(), log.wait_beyond(0, 200)):
            with pytest.raises(TopicGone, match="was made anew: positions of before mean nothing"):
                await request
    assert ended == [f"topic '{topic}' was made anew: positions of before mean nothing"]
    async with KafkaLog(broker.servers, topic) as log:
        assert log.bounds(0)[0] == 0
        assert [record async for record in log.read(0, 0, 0)] == []


async def test_a_topic_that_is_gone_or_smaller_is_an_error_of_its_own(broker: Broker, topic: str) -> None:
    async with KafkaLog(broker.servers, topic, 2) as log:
        await log.append(b"row")
        await trio.to_thread.run_sync(delete, broker, topic)

        with pytest.raises(TopicGone, match=f"the topic is gone: the bounds of topic '{topic}'"):
            await log.open()

        await trio.to_thread.run_sync(make, broker, topic, 1)
        with pytest.raises(TopicGone, match=f"topic '{topic}' was made anew"):
            await log.open()
