"""Writes to Kafka in transactions: all records of one, over several partitions and topics, become visible or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.replay import kafka_client
from rsocket_trio.replay.element_metadata import RECORD_METADATA
from rsocket_trio.replay.elements import Element, check_element
from rsocket_trio.replay.errors import NotWritten
from rsocket_trio.replay.kafka_client import REQUEST_SECONDS, Cluster, is_any, kafka, passes, timed_out

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

T = TypeVar("T")


class UnknownOutcome(Exception):
    """A transaction may be committed or not: to take over its id anew settles it."""


class Fenced(Exception):
    """Another producer has taken over the transactional id: nothing of the transaction was committed."""


@attrs.define(eq=False)
class Rows:
    """The elements of one partition of a topic, and the offset of the first once it is delivered."""

    topic: str
    partition: int
    elements: Iterable[Element]
    first: int | None = None

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Note the offset of the first element."""
        if error is None:
            self.first = message.offset()


class TransactionalProducer:
    """The producer of a transactional id: to begin it ends or settles the transactions of any other with that id.

    ``transactional_id`` is its id, ``seconds`` the age at which the broker aborts a transaction whose producer is gone.
    It begins with the first write, and again with the first one behind a failure.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, seconds: float) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._seconds = seconds
        # No other name has it: tracebacks that librdkafka's errors keep would, and it would never end.
        self._producer: Any = None
        self._problem: KafkaError | None = None
        self._heard = 0.0
        # Held by a write, so that ``close``, in another thread, waits for its end.
        self._busy = threading.Lock()
        self._is_closing = False

    async def begin(self) -> None:
        """Take over the transactional id, unless that is done. Raise ``Rejected`` if no broker answers."""
        if self._is_closing:
            raise trio.ClosedResourceError("nothing was written: the log was closed")
        if self._producer is None:
            name, milliseconds = self.transactional_id, round(self._seconds * 1000)
            settings = self._cluster.settings_of(
                kafka_client.PRODUCER, transactional_id=name, transaction_timeout_ms=milliseconds
            )
            self._producer = await trio.to_thread.run_sync(kafka_client.made, kafka().Producer, settings)
            try:
                begin = partial(self._producer.init_transactions, REQUEST_SECONDS)
                await self._cluster.ask(begin, f"transactions of {name!r}")
            except BaseException:
                # Raised again at once: this producer can write nothing.
                await self.drop()
                raise

    async def write(self, rows: Sequence[Rows], check: Callable[[], None] | None = None) -> None:
        """Write ``rows`` in one transaction. ``check`` is called in a thread before the commit, and may raise.

        Raise ``NotWritten`` if nothing was written, ``Fenced``, ``UnknownOutcome``, and what the elements or ``check``
        raise; then nothing was written either.
        """
        await self.begin()
        try:
            await trio.to_thread.run_sync(self._write, rows, check)
        except (Fenced, UnknownOutcome, NotWritten):
            await self.drop()
            raise

    def stop(self) -> None:
        """End a write that goes on in another thread, and let no other begin."""
        self._is_closing = True

    async def aclose(self) -> None:
        """Close the producer, and drop what it had not sent. A write that goes on is ended."""
        self.stop()
        await self.drop()

    async def drop(self) -> None:
        """Close the client. Its own ``close`` would abort a transaction, and warn where it was fenced."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._drop)

    def _drop(self) -> None:
        with self._busy:
            try:
                if self._producer is not None:
                    self._producer.purge()
                    self._producer.flush(0)
            except kafka().KafkaException:
                # A fatal error, which is told again: the write that met it has raised.
                pass
            finally:
                self._producer = None

    def _write(self, rows: Iterable[Rows], check: Callable[[], None] | None) -> None:
        with self._busy:
            if self._producer is None or self._is_closing:
                raise NotWritten("nothing was written: the log was closed")
            self._heard, self._problem = time.monotonic(), None
            try:
                self._producer.begin_transaction()
                for group in rows:
                    self._produce(group)
                while self._producer.flush(REQUEST_SECONDS):
                    self._check()
                self._check()
                if check is not None:
                    check()
            except kafka().KafkaException as error:
                raise self._given_up(error.args[0]) from error
            except BaseException:
                # Raised again at once: the producer can begin no transaction before this one is aborted.
                self._abort()
                raise
            self._commit()

    def _produce(self, rows: Rows) -> None:
        topic, partition = rows.topic, rows.partition
        delivered: Callable[..., None] = rows.delivered
        for number, element in enumerate(rows.elements):
            check_record(element)
            headers = headers_of(element)
            while True:
                try:
                    self._producer.produce(topic, element.data, element.key, partition, delivered, headers=headers)
                    break
                except BufferError:
                    # The queue is full: wait until the broker has taken some.
                    self._producer.poll(0.1)
                    self._check()
            delivered = self._delivered
            if not number % 10_000:
                self._producer.poll(0)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._heard = time.monotonic()
        if error is not None and self._problem is None:
            self._problem = error

    def _check(self) -> None:
        """Raise ``KafkaException`` for a failure, and if the broker took nothing for too long."""
        if self._problem is not None:
            raise kafka().KafkaException(self._problem)
        if self._is_closing:
            raise timed_out("the log was closed")
        if time.monotonic() > self._heard + self._cluster.patience:
            raise timed_out("no broker took the records")

    def _commit(self) -> None:
        deadline = time.monotonic() + self._cluster.patience
        while True:
            try:
                self._producer.commit_transaction(REQUEST_SECONDS)
            except kafka().KafkaException as error:
                problem: KafkaError = error.args[0]
                if problem.txn_requires_abort():
                    raise self._given_up(problem) from error
                if not passes(problem) or self._is_closing or time.monotonic() > deadline:
                    raise UnknownOutcome(problem.str()) from error
                time.sleep(kafka_client.PAUSE)
            else:
                return

    def _given_up(self, problem: KafkaError) -> Exception:
        """Abort, and return the error that says so."""
        if is_any(problem, "_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"):
            return Fenced(problem.str())
        try:
            self._abort()
        except UnknownOutcome as error:
            return error
        cause = self._problem or problem
        if is_any(cause, "MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"):
            return ValueError(f"a record is larger than the topic allows: {cause.str()}")
        return NotWritten(f"nothing was written: {cause.str()}")

    def _abort(self) -> None:
        """Abort the transaction. Raise ``UnknownOutcome`` if the broker does not confirm it."""
        try:
            self._producer.abort_transaction(REQUEST_SECONDS if self._is_closing else self._cluster.patience)
        except kafka().KafkaException as error:
            raise UnknownOutcome(error.args[0].str()) from error


async def until_known(patience: float, function: Callable[[], Awaitable[T]]) -> T:
    """Run a function that writes, again for ``patience`` seconds while nothing was written or that is not known.

    Another server took over the id, or the broker went away: the next round takes it over anew, and has to look whether
    the round before has written. Raise ``NotWritten``, which says whether that is known, and what the function raises.
    """
    deadline = trio.current_time() + patience
    unknown: Exception | None = None
    while True:
        try:
            return await function()
        except (Fenced, UnknownOutcome) as error:
            unknown = error
            if trio.current_time() > deadline:
                raise NotWritten(f"nobody knows what was written: {error}") from error
        except NotWritten:
            if trio.current_time() > deadline:
                raise
        except (Rejected, trio.ClosedResourceError) as error:
            if unknown is None:
                raise
            raise NotWritten(f"nobody knows what was written: {unknown}") from error


def check_record(element: Element) -> None:
    """Raise ``ValueError`` for an element that can't be a record of Kafka."""
    check_element(element)
    if element.count != 1:
        raise ValueError(f"an element of {element.count} rows: a record of Kafka has one position, so it holds one row")


def headers_of(element: Element) -> list[tuple[str, str | bytes | None]] | None:
    """Return the headers of a record: those of the element, and its metadata as one more."""
    headers: list[tuple[str, str | bytes | None]] = [*(element.headers or ())]
    if element.metadata is not None:
        headers.append((RECORD_METADATA, element.metadata))
    return headers or None
