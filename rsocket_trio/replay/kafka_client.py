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
    from confluent_kafka import KafkaError

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
NO_SUCH_TIME = -1
"""The offset of a time behind the last record."""
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


@attrs.frozen
class Cluster:
    """The servers of a cluster of Kafka, ``settings`` of librdkafka for all clients, and ``patience`` in seconds."""

    servers: str
    settings: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    patience: float = PATIENCE

    def client(self, kind: Callable[[dict[str, Any]], T], settings: Mapping[str, Any] | None = None, **fixed: Any) -> T:
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
        named = {name.replace("_", "."): setting for name, setting in fixed.items()}
        try:
            return kind({**common, **(settings or {}), **self.settings, **named})
        except kafka().KafkaException as error:
            raise ValueError(f"Kafka refuses the settings: {error.args[0].str()}") from error

    async def ask(self, function: Callable[[], T], what: str) -> T:
        """Run ``function`` in a thread until it succeeds: while no broker answers, it is tried again.

        Raise ``Rejected`` after ``patience`` seconds, naming ``what`` was tried, and a translated error at once if a
        broker refuses.
        """
        deadline = trio.current_time() + self.patience
        while True:
            try:
                return await trio.to_thread.run_sync(function)
            except kafka().KafkaException as error:
                if not passes(error.args[0]):
                    raise ValueError(f"Kafka refuses {what}: {error.args[0].str()}") from error
                if trio.current_time() >= deadline:
                    # Peers may see the error: only the log names the servers.
                    reason = f"no answer from Kafka for {self.patience:g} s: {what}"
                    log.warning("%s: %s: %s", self.servers, reason, error.args[0])
                    raise Rejected(reason) from error
            await trio.sleep(PAUSE)


def kafka() -> Any:
    """Return confluent-kafka. Raise ``ModuleNotFoundError`` naming the extra if it is not installed."""
    try:
        return import_module("confluent_kafka")
    except ModuleNotFoundError:
        what = f"logs on Kafka need confluent-kafka: {install_command('kafka')}"
        raise ModuleNotFoundError(what, name="confluent_kafka") from None


def is_any(error: KafkaError, *names: str) -> bool:
    """Return whether an error has one of these codes."""
    return error.code() in {getattr(kafka().KafkaError, name) for name in names}


def passes(error: KafkaError) -> bool:
    """Return whether the same request may succeed later."""
    return not error.fatal() and not is_any(error, *REFUSALS)


def admin() -> Any:
    """Return the part of confluent-kafka that asks about topics."""
    return import_module("confluent_kafka.admin")


class Topic(NamedTuple):
    """A topic: its ``id``, which no other one of its name ever has, and the number of its ``partitions``."""

    id: str
    partitions: int


class Topics:
    """Asks about topics and makes them. Every method blocks, and raises ``KafkaException``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client: Any = None

    @property
    def _open_client(self) -> Any:
        if self._client is None:
            self._client = self._cluster.client(admin().AdminClient)
        return self._client

    def close(self) -> None:
        """Close the client; the next request makes another one."""
        self._client = None

    def describe(self, topic: str) -> Topic:
        """Return what ``topic`` is: one without partitions if there is no such topic."""
        # Asked for in this way a broker does not make the topic.
        asked = self._open_client.describe_topics(kafka().TopicCollection([topic]), request_timeout=REQUEST_SECONDS)
        try:
            found = asked[topic].result()
        except kafka().KafkaException as error:
            if is_any(error.args[0], "UNKNOWN_TOPIC_OR_PART"):
                return Topic("", 0)
            raise
        return Topic(str(found.topic_id), len(found.partitions))

    def make(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        """Make ``topic``, unless it is there: ``replication`` -1 is the broker's default."""
        wanted = admin().NewTopic(topic, partitions, replication, config=dict(config))
        [made] = self._open_client.create_topics([wanted], request_timeout=10.0).values()
        try:
            made.result()
        except kafka().KafkaException as error:
            if not is_any(error.args[0], "TOPIC_ALREADY_EXISTS"):
                raise

    def look(self, name: str, known: Topic) -> tuple[Topic, dict[int, tuple[int, int]]]:
        """Return what topic ``name`` is and, if it may be as ``known``, the bounds of its partitions.

        They are the first offset and the one behind the last stable record. The topic is looked at behind the offsets:
        if it is still the same one, so are they.
        """
        specs = admin().OffsetSpec
        try:
            latest, earliest = self._offsets(name, range(known.partitions), specs.latest(), specs.earliest())
        except kafka().KafkaException as error:
            # A partition that is not there has one of several codes.
            if not passes(error.args[0]) or (found := self.describe(name)) == known:
                raise
            return found, {}
        return self.describe(name), {partition: (earliest[partition], latest[partition]) for partition in latest}

    def ends(self, topic: str, partitions: Iterable[int], stable: bool = False) -> dict[int, int]:
        """Return the offsets behind the last records by partition; unless ``stable`` also of open transactions."""
        [found] = self._offsets(topic, partitions, admin().OffsetSpec.latest(), stable=stable)
        return found

    def at_time(self, topic: str, partition: int, milliseconds: int) -> int:
        """Return the first offset whose record is not older than a time, -1 if there is none."""
        [found] = self._offsets(topic, [partition], admin().OffsetSpec.for_timestamp(milliseconds))
        return found[partition]

    def delete_below(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records below an offset."""
        wanted = [kafka().TopicPartition(topic, partition, offset)]
        for done in self._open_client.delete_records(wanted, request_timeout=REQUEST_SECONDS).values():
            done.result()

    def _offsets(self, topic: str, partitions: Iterable[int], *specs: Any, stable: bool = True) -> list[dict[int, int]]:
        """Return the offsets of each of ``specs``, all asked for at once, by partition."""
        level = kafka().IsolationLevel.READ_COMMITTED if stable else kafka().IsolationLevel.READ_UNCOMMITTED
        places = [kafka().TopicPartition(topic, partition) for partition in partitions]
        asked = [
            self._open_client.list_offsets(
                dict.fromkeys(places, spec), isolation_level=level, request_timeout=REQUEST_SECONDS
            )
            for spec in specs
        ]
        try:
            found = [{place.partition: one.result().offset for place, one in some.items()} for some in asked]
        except kafka().KafkaException:
            # Of a topic that was made just now the client may go on believing that there is none: learn of all anew.
            self._open_client.list_topics(timeout=REQUEST_SECONDS)
            raise
        if any(offset < NO_SUCH_TIME for some in found for offset in some.values()):
            # Of a broker that is silent librdkafka may tell offsets that are none, and no error.
            error = kafka().KafkaError
            raise kafka().KafkaException(error(error._TIMED_OUT, "no broker told the offsets"))
        return found
