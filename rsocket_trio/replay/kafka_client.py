"""Clients of Kafka: their settings, their requests about topics, their transactions, and their errors in our terms.

confluent-kafka is loaded by the first client that is made. All functions that block say so; they run in threads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import attrs
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.extras import install_command
from rsocket_trio.replay.elements import RECORD_METADATA, Element
from rsocket_trio.replay.errors import NotWritten, TopicGone
from rsocket_trio.replay.log import OpenedByBlock, check_begin

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

T = TypeVar("T")

log = logging.getLogger("rsocket_trio.replay")
librdkafka_log = logging.getLogger("rsocket_trio.replay.kafka")
# To be fenced is fatal for librdkafka, and usual here.
librdkafka_log.setLevel(logging.CRITICAL + 1)

MAX_ANSWER_SECONDS = 30.0
"""Seconds for which a request goes on while no broker answers."""
REQUEST_SECONDS = 2.0
"""Seconds that one try of a request blocks its thread, at most."""
PAUSE = 0.2
"""Seconds between two tries."""
GONE_SECONDS = 2.0
"""Seconds for which a topic that was there is looked for before it is gone: a broker may be about to learn of it."""
CONSUMER = {
    "group.id": "rsocket-trio",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    # KiB that a consumer fetches ahead.
    "queued.max.messages.kbytes": 4096,
    # So long it waits to learn that nothing is behind a marker.
    "fetch.wait.max.ms": 100,
    # Without it a consumer whose queue was full once fetches nothing for a second.
    "fetch.queue.backoff.ms": 2,
}
"""Settings of a consumer that is told what to read."""
PRODUCER = {
    # A commit of few records waits for it, and longer does not make larger batches.
    "linger.ms": 0.5,
    "batch.size": 2**20,
    # The broker's own limit is usually lower, and decides.
    "message.max.bytes": 68 * 2**20,
    # KiB that wait for the broker.
    "queue.buffering.max.kbytes": 32 * 1024,
    "queue.buffering.max.messages": 200_000,
}
# fmt: off
REFUSALS = (
    "_AUTHENTICATION", "_AUTO_OFFSET_RESET", "_FENCED", "_INVALID_ARG", "_NOT_IMPLEMENTED", "_SSL",
    "_UNSUPPORTED_FEATURE", "CLUSTER_AUTHORIZATION_FAILED", "INVALID_CONFIG", "INVALID_MSG", "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR", "INVALID_REQUEST", "OFFSET_OUT_OF_RANGE", "POLICY_VIOLATION",
    "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION",
)
# fmt: on
"""Errors that do not pass. While a broker is away, starts or hands over to another, brokers answer with many others."""


class Topic(NamedTuple):
    """A topic: its ``id``, which no other one of its name ever has, and the number of its ``partitions``."""

    id: str = ""
    partitions: int = 0


@attrs.define(eq=False, slots=False)
class Cluster:
    """The servers of a cluster of Kafka, ``settings`` of librdkafka for all clients, and ``patience`` in seconds.

    ``ask`` waits for an answer. The other methods, its requests about topics, block, and raise ``KafkaException``.
    """

    servers: str
    settings: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    patience: float = MAX_ANSWER_SECONDS

    def client(
        self,
        kind: Callable[[dict[str, object]], T],
        settings: Mapping[str, object] | None = None,
        fixed: Mapping[str, object] | None = None,
    ) -> T:
        """Return a new client with ``settings``, the user's above them, and ``fixed`` ones. It blocks.

        Raise ``ValueError`` for a setting that librdkafka refuses.
        """
        common = {
            "bootstrap.servers": self.servers,
            "client.id": "rsocket-trio",
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            # Errors are raised; librdkafka would print them, too.
            "log_level": 0,
            "logger": librdkafka_log,
        }
        try:
            return kind({**common, **(settings or {}), **self.settings, **(fixed or {})})
        except kafka().KafkaException as error:
            raise ValueError(f"Kafka refuses the settings: {error.args[0].str()}") from error

    async def ask(self, function: Callable[[], T], what: str) -> T:
        """Run ``function`` in a thread until it succeeds: while no broker answers, it is tried again.

        Raise ``Rejected`` after ``patience`` seconds, naming ``what`` was tried, ``TopicGone`` if it goes on to miss a
        topic, and a translated error at once if a broker refuses.
        """
        began = trio.current_time()
        missing_since = math.inf
        while True:
            try:
                return await trio.to_thread.run_sync(function)
            except kafka().KafkaException as error:
                problem, now = error.args[0], trio.current_time()
                if problem.fatal() or is_any(problem, *REFUSALS):
                    raise ValueError(f"Kafka refuses {what}: {problem.str()}") from error
                missing_since = min(missing_since, now) if is_any(problem, "UNKNOWN_TOPIC_OR_PART") else math.inf
                if now >= missing_since + GONE_SECONDS:
                    raise TopicGone(f"the topic is gone: {what}") from error
                if now >= began + self.patience:
                    # Peers may see the error: only the log names the servers.
                    reason = f"no answer from Kafka for {self.patience:g} s: {what}"
                    log.warning("%s: %s: %s", self.servers, reason, problem)
                    raise Rejected(reason) from error
            await trio.sleep(PAUSE)

    @cached_property
    def _admin(self) -> Any:
        return self.client(kafka().admin.AdminClient)

    def close(self) -> None:
        """Close the client of these requests; the next one makes another."""
        vars(self).pop("_admin", None)

    def describe(self, topic: str, least: int = 0) -> Topic:
        """Return what ``topic`` is: one without partitions if there is no such topic.

        One that was made just now has at least so many: a broker learns of one after the other.
        """
        # Asked for in this way a broker does not make the topic.
        asked = self._admin.describe_topics(kafka().TopicCollection([topic]), request_timeout=REQUEST_SECONDS)
        found = Topic()
        try:
            described = asked[topic].result()
            found = Topic(str(described.topic_id), len(described.partitions))
        except kafka().KafkaException as error:
            if not is_any(error.args[0], "UNKNOWN_TOPIC_OR_PART"):
                raise
        if found.partitions < least:
            raise failed("_TIMED_OUT", "it is being made")
        return found

    def make(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        """Make ``topic``, unless it is there: ``replication`` -1 is the broker's default."""
        new = kafka().admin.NewTopic(topic, partitions, replication, config=dict(config))
        [made] = self._admin.create_topics([new], request_timeout=10.0).values()
        try:
            made.result()
        except kafka().KafkaException as error:
            if not is_any(error.args[0], "TOPIC_ALREADY_EXISTS"):
                raise

    def look(self, name: str, known: Topic) -> tuple[Topic, dict[int, tuple[int, int]]]:
        """Return what topic ``name`` is and, if it is ``known``, the bounds of its partitions.

        They are the first offset and the one behind the last stable record. The topic is looked at behind the offsets:
        if it is still the same one, so are they.
        """
        specs, numbers = kafka().admin.OffsetSpec, range(known.partitions)
        bounds, problem = {}, None
        try:
            earliest, latest = [self.offsets(name, numbers, spec) for spec in (specs.earliest(), specs.latest())]
            bounds = {number: (earliest[number], latest[number]) for number in numbers}
        except kafka().KafkaException as error:
            problem = error  # a partition that is not there has one of several codes
        if not (topic := self.describe(name)).partitions:
            raise failed("UNKNOWN_TOPIC_OR_PART", "there is no such topic")
        if problem is not None and topic.id == known.id:
            raise problem
        return topic, bounds

    def offsets(self, topic: str, partitions: Iterable[int], spec: Any, is_stable: bool = True) -> dict[int, int]:
        """Return the offset by partition that an ``OffsetSpec`` asks for, -1 if there is none.

        The latest is that behind the last record, or if ``is_stable`` before the first open transaction.
        """
        level = kafka().IsolationLevel.READ_COMMITTED if is_stable else kafka().IsolationLevel.READ_UNCOMMITTED
        places = {kafka().TopicPartition(topic, partition): spec for partition in partitions}
        asked = self._admin.list_offsets(places, isolation_level=level, request_timeout=REQUEST_SECONDS)
        try:
            offsets = {place.partition: future.result().offset for place, future in asked.items()}
        except kafka().KafkaException:
            # Of a topic that was made just now the client may go on believing that there is none: learn of all anew.
            self._admin.list_topics(timeout=REQUEST_SECONDS)
            raise
        if any(offset < -1 for offset in offsets.values()):
            # Of a broker that is silent librdkafka may tell offsets that are none, and no error.
            raise failed("_TIMED_OUT", "no broker told the offsets")
        return offsets

    def delete_below(self, topic: str, partition: int, offset: int) -> None:
        places = [kafka().TopicPartition(topic, partition, offset)]
        for done in self._admin.delete_records(places, request_timeout=REQUEST_SECONDS).values():
            done.result()


def kafka() -> ModuleType:
    """Return confluent-kafka. Raise ``ModuleNotFoundError`` naming the extra if it is not installed."""
    try:
        import_module("confluent_kafka.admin")
        return import_module("confluent_kafka")
    except ModuleNotFoundError:
        what = f"logs on Kafka need confluent-kafka: {install_command('kafka')}"
        raise ModuleNotFoundError(what, name="confluent_kafka") from None


def is_any(error: KafkaError, *names: str) -> bool:
    return error.code() in {getattr(kafka().KafkaError, name) for name in names}


def failed(code: str, what: str) -> Exception:
    error: Exception = kafka().KafkaException(kafka().KafkaError(getattr(kafka().KafkaError, code), what))
    return error


# Transactions: all records of one write, over several partitions and topics, become visible or none


class OutcomeUnknown(NotWritten):
    """A transaction may be committed or not: to take over its id anew settles it."""


@attrs.define(eq=False)
class Rows:
    """Elements of a topic with their partitions, and the offset of the first of each partition once it is delivered.

    ``at`` are the offsets that the first ones must have.
    """

    topic: str
    elements: Iterable[tuple[int, Element]]
    at: Mapping[int, int] | None = None
    firsts: dict[int, int] = attrs.field(factory=dict)


@attrs.define(eq=False)
class TransactionalProducer(OpenedByBlock):
    """The producer of the transactional ``id``: to open it ends or settles the transactions of any other with that id.

    ``seconds`` is the age at which the broker aborts a transaction whose producer is gone. The first write opens it,
    and the first one behind a failure.
    """

    _cluster: Cluster
    _id: str
    _seconds: float
    # No other name keeps it: tracebacks of librdkafka's errors would, too, and it would never end.
    _producer: Any = None
    _busy: trio.Lock = attrs.field(factory=trio.Lock)

    async def open(self) -> None:
        """Take over the transactional id, unless that is done. Raise ``Rejected`` if no broker answers."""
        if self._producer is None:
            settings = {
                "transactional.id": self._id,
                "transaction.timeout.ms": round(self._seconds * 1000),
                # A broker that takes nothing for so long is away.
                "message.timeout.ms": round(min(self._seconds, self._cluster.patience) * 1000),
            }
            client = partial(self._cluster.client, kafka().Producer, PRODUCER, settings)
            self._producer = await trio.to_thread.run_sync(client)
            try:
                begin = partial(self._producer.init_transactions, REQUEST_SECONDS)
                await self._cluster.ask(begin, f"transactions of {self._id!r}")
            except BaseException:
                # Raised again at once: this producer can write nothing.
                await self._drop()
                raise

    async def write(self, rows: Sequence[Rows]) -> None:
        """Write ``rows`` in one transaction.

        Raise ``NotWritten`` if nothing was written, ``OutcomeUnknown``, ``ValueError`` if a row would not be where it
        must, and what the elements raise; then nothing was written either.
        """
        async with self._busy:
            try:
                await self.open()
                await trio.to_thread.run_sync(self._write, rows)
            except BaseException as error:
                # Raised again at once: this producer can write nothing before the transaction has ended.
                await self._drop()
                if isinstance(error, Rejected):
                    raise NotWritten(f"nothing was written: {error}") from error
                raise

    async def aclose(self) -> None:
        """Close the client, behind a write that goes on: the next write opens it anew."""
        with trio.CancelScope(shield=True):
            async with self._busy:
                await self._drop()

    async def _drop(self) -> None:
        """Abort a transaction that is open, and close the client. If no broker confirms that, one does it later.

        Its own ``close`` would warn where it was fenced.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            with trio.CancelScope(shield=True):
                # Errors that are told here say that nothing is open, or were raised by the write that met them.
                with suppress(kafka().KafkaException):
                    await trio.to_thread.run_sync(producer.abort_transaction, self._cluster.patience)
                producer.purge()
                with suppress(kafka().KafkaException):
                    await trio.to_thread.run_sync(producer.flush, 0)

    def _write(self, rows: Sequence[Rows]) -> None:
        problems: list[KafkaError] = []
        is_committing = False
        try:
            self._producer.begin_transaction()
            for group in rows:
                self._produce(group, problems)
            self._producer.flush()  # what the broker does not take in time ends as a problem
            for problem in problems:
                raise kafka().KafkaException(problem)
            for group in rows:
                for partition, first in group.firsts.items():
                    check_begin(partition, group.at, first)
            is_committing = True
            self._producer.commit_transaction(self._cluster.patience)
        except kafka().KafkaException as error:
            if is_committing and not error.args[0].txn_requires_abort():
                raise OutcomeUnknown(f"nobody knows what was written: {error.args[0].str()}") from error
            cause = [*problems, error.args[0]][0]
            if is_any(cause, "MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"):
                raise ValueError(f"a record is larger than the topic allows: {cause.str()}") from error
            raise NotWritten(f"nothing was written: {cause.str()}") from error

    def _produce(self, rows: Rows, problems: list[KafkaError]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                problems.append(error)
            else:
                rows.firsts.setdefault(message.partition() or 0, message.offset() or 0)

        for number, (partition, element) in enumerate(rows.elements):
            if element.count != 1:
                raise ValueError(
                    f"an element of {element.count} rows: a record of Kafka has one position, so it holds one row"
                )
            headers: list[tuple[str, str | bytes | None]] = [*(element.headers or ())]
            if element.metadata is not None:
                headers.append((RECORD_METADATA, element.metadata))
            while True:
                try:
                    self._producer.produce(
                        rows.topic, element.data, element.key, partition, delivered, headers=headers or None
                    )
                    break
                except BufferError:
                    # The queue is full: wait until the broker has taken some.
                    self._producer.poll(0.1)
            if not number % 10_000:
                self._producer.poll(0)


async def twice(function: Callable[[], Awaitable[T]]) -> T:
    """Run a function that writes, once more if it writes nothing: a broker went away, or another server took over."""
    try:
        return await function()
    except OutcomeUnknown:
        raise
    except NotWritten:
        return await function()
