"""Clients of Kafka: their settings, their requests about topics, and their errors in our terms.

confluent-kafka is loaded by the first client that is made. All functions that block say so; they run in threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import attrs
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")

log = logging.getLogger("rsocket_trio.replay")
librdkafka_log = logging.getLogger("rsocket_trio.replay.kafka")
# To be fenced is fatal for librdkafka, and usual here.
librdkafka_log.setLevel(logging.CRITICAL + 1)

PATIENCE = 30.0
"""Seconds for which a request goes on while no broker answers."""
REQUEST_SECONDS = 2.0
"""Seconds that one try of a request blocks its thread, at most."""
PAUSE = 0.2
"""Seconds between two tries."""
QUEUED_KBYTES = 4096
"""KiB that a consumer fetches ahead."""
PRODUCER_KBYTES = 32 * 1024
"""KiB that wait in a producer for the broker."""
NO_SUCH_TIME = -1
"""The offset of a time behind the last record."""
LONGEST_MESSAGE = 68 * 2**20
"""Bytes of a message that a producer sends: the broker's own limit is usually lower, and decides."""


@attrs.frozen
class Cluster:
    """The servers of a cluster of Kafka, ``settings`` of librdkafka for all clients, and ``patience`` in seconds."""

    servers: str
    settings: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    patience: float = PATIENCE

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "client.id": "rsocket-trio",
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            # Errors are raised; librdkafka would print them, too.
            "log_level": 0,
            "logger": librdkafka_log,
        }

    def for_admin(self) -> dict[str, Any]:
        """Return the settings of a client that asks about topics."""
        return self._common() | dict(self.settings)

    def for_consumer(self) -> dict[str, Any]:
        """Return the settings of a consumer that is told what to read, and sees committed records only."""
        return {
            **self._common(),
            "group.id": "rsocket-trio",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": QUEUED_KBYTES,
            "fetch.wait.max.ms": 100,
            # Without it a consumer whose queue was full once fetches nothing for a second.
            "fetch.queue.backoff.ms": 2,
            **self.settings,
            "isolation.level": "read_committed",
        }

    def for_producer(self, transactional_id: str, seconds: float) -> dict[str, Any]:
        """Return the settings of a producer whose transactions last ``seconds`` at most."""
        return {
            **self._common(),
            "linger.ms": 2,
            "batch.size": 2**20,
            "message.max.bytes": LONGEST_MESSAGE,
            "queue.buffering.max.kbytes": PRODUCER_KBYTES,
            "queue.buffering.max.messages": 200_000,
            **self.settings,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(seconds * 1000),
        }

    async def ask(self, function: Callable[[], T], what: str) -> T:
        """Run ``function`` in a thread until it succeeds: while no broker answers, it is tried again.

        Raise ``Rejected`` after ``patience`` seconds, naming ``what`` was tried, and a translated error at once if a
        broker refuses.
        """
        from confluent_kafka import KafkaException

        deadline = trio.current_time() + self.patience
        while True:
            try:
                return await trio.to_thread.run_sync(function)
            except KafkaException as error:
                problem = error_of(error)
                if not passes(problem):
                    raise ValueError(f"Kafka refuses {what}: {problem.str()}") from error
                if trio.current_time() >= deadline:
                    raise self.no_answer(what, problem) from error
            await trio.sleep(PAUSE)

    def no_answer(self, what: str, problem: KafkaError | None) -> Rejected:
        """Return the error for a request that got no answer. Peers may see it: only the log names the servers."""
        reason = "nothing came" if problem is None else problem.str()
        log.warning("no answer from Kafka at %s for %g s: %s: %s", self.servers, self.patience, what, reason)
        return Rejected(f"no answer from Kafka for {self.patience:g} s: {what}")


def made(kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
    """Return a new client. Raise ``ValueError`` for a setting that librdkafka refuses. It blocks."""
    from confluent_kafka import KafkaException

    try:
        return kind(settings)
    except KafkaException as error:
        raise ValueError(f"Kafka refuses the settings: {error_of(error).str()}") from error


def require_kafka() -> None:
    """Raise ``ModuleNotFoundError`` naming the extra, unless confluent-kafka is installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"logs on Kafka need confluent-kafka: {install_command('kafka')}", name="confluent_kafka"
        ) from None


def error_of(error: KafkaException) -> KafkaError:
    """Return the error within an exception."""
    problem: KafkaError = error.args[0]
    return problem


def passes(error: KafkaError) -> bool:
    """Return whether the same request may succeed later: a broker is away, starts, or hands over to another.

    While that goes on brokers answer with many codes, so these are the others.
    """
    from confluent_kafka import KafkaError

    return not error.fatal() and error.code() not in {
        KafkaError._AUTHENTICATION,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._FENCED,
        KafkaError._INVALID_ARG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._SSL,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REQUEST,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
    }


class Topic(NamedTuple):
    """A topic: its ``id``, which no other one of its name ever has, and the number of its ``partitions``."""

    id: str
    partitions: int


class Topics:
    """Asks about topics and makes them. Every method blocks, and raises ``KafkaException``."""

    def __init__(self, cluster: Cluster) -> None:
        self._admin: Any = import_module("confluent_kafka.admin")
        self._client: Any = made(self._admin.AdminClient, cluster.for_admin())

    def close(self) -> None:
        """Close the client."""
        self._client = None

    def describe(self, topic: str) -> Topic:
        """Return what ``topic`` is: one without partitions if there is no such topic."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        # Asked for in this way a broker does not make the topic.
        asked = self._client.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_SECONDS)
        try:
            found = asked[topic].result()
        except KafkaException as error:
            if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return Topic("", 0)
            raise
        return Topic(str(found.topic_id), len(found.partitions))

    def look(self, name: str, known: Topic) -> tuple[Topic, dict[int, tuple[int, int]]]:
        """Return what topic ``name`` is and, if it is as ``known``, the bounds of its partitions.

        The topic is looked at behind the offsets: if it is still the same one, so are they.
        """
        from confluent_kafka import KafkaException

        try:
            bounds = self.bounds(name, range(known.partitions))
        except KafkaException as error:
            # A partition that is not there has one of several codes.
            if not passes(error_of(error)) or (found := self.describe(name)) == known:
                raise
            return found, {}
        return self.describe(name), bounds

    def make(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        """Make ``topic``, unless it is there: ``replication`` -1 is the broker's default."""
        from confluent_kafka import KafkaError, KafkaException

        wanted = self._admin.NewTopic(topic, partitions, replication, config=dict(config))
        [made] = self._client.create_topics([wanted], request_timeout=10.0).values()
        try:
            made.result()
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def bounds(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the first offset and the one behind the last stable record, by partition."""
        from confluent_kafka import TopicPartition

        wanted = [TopicPartition(topic, partition) for partition in partitions]
        latest = self._offsets({one: self._admin.OffsetSpec.latest() for one in wanted}, stable=True)
        earliest = self._offsets({one: self._admin.OffsetSpec.earliest() for one in wanted}, stable=True)
        return {partition: (earliest[partition], latest[partition]) for partition in latest}

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offsets behind the last records by partition, those of open transactions among them."""
        from confluent_kafka import TopicPartition

        return self._offsets(
            {TopicPartition(topic, partition): self._admin.OffsetSpec.latest() for partition in partitions},
            stable=False,
        )

    def at_time(self, topic: str, partition: int, milliseconds: int) -> int:
        """Return the first offset whose record is not older than a time, -1 if there is none."""
        from confluent_kafka import TopicPartition

        wanted = {TopicPartition(topic, partition): self._admin.OffsetSpec.for_timestamp(milliseconds)}
        return self._offsets(wanted, stable=True)[partition]

    def delete_below(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records below an offset."""
        from confluent_kafka import TopicPartition

        [done] = self._client.delete_records(
            [TopicPartition(topic, partition, offset)], request_timeout=REQUEST_SECONDS
        ).values()
        done.result()

    def _offsets(self, wanted: Mapping[Any, Any], *, stable: bool) -> dict[int, int]:
        from confluent_kafka import IsolationLevel, KafkaError, KafkaException

        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        asked = self._client.list_offsets(dict(wanted), isolation_level=level, request_timeout=REQUEST_SECONDS)
        try:
            offsets = {one.partition: found.result().offset for one, found in asked.items()}
        except KafkaException:
            # Of a topic that was made just now the client may go on believing that there is none: learn of all anew.
            self._client.list_topics(timeout=REQUEST_SECONDS)
            raise
        if min(offsets.values(), default=0) < NO_SUCH_TIME:
            # Of a broker that is silent librdkafka may tell offsets that are none, and no error.
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker told the offsets"))
        return offsets
