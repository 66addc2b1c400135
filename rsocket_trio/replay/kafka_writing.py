"""Writes to Kafka in transactions: all records of one, over several partitions and topics, become visible or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from rsocket_trio.replay.element_metadata import RECORD_METADATA
from rsocket_trio.replay.elements import Element, check_element
from rsocket_trio.replay.errors import NotWritten
from rsocket_trio.replay.kafka_client import PAUSE, REQUEST_SECONDS, Cluster, error_of, made, passes

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer


class UnknownOutcome(Exception):
    """A transaction may be committed or not: the producer must be replaced, which settles it."""


class Fenced(Exception):
    """Another producer has taken over the transactional id: nothing of the transaction was committed."""


@attrs.define(eq=False)
class Rows:
    """The elements of one partition of a topic, and the offset of the first once it is delivered.

    ``deletes``: their keys are to be deleted from a compacted topic.
    """

    topic: str
    partition: int
    elements: Iterable[Element]
    deletes: bool = False
    first: int | None = None

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Note the offset of the first element."""
        if error is None:
            self.first = message.offset()


class TransactionalProducer:
    """The producer of a transactional id: to begin it ends or settles the transactions of any other with that id.

    ``transactional_id`` is its id, ``seconds`` the age at which the broker aborts a transaction whose producer is gone.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, seconds: float) -> None:
        from confluent_kafka import Producer

        self.transactional_id = transactional_id
        self._cluster = cluster
        self._producer: Producer = made(Producer, cluster.for_producer(transactional_id, seconds))
        self._problem: KafkaError | None = None
        # Held by a write, so that ``close``, in another thread, waits for its end.
        self._busy = threading.Lock()
        self._is_closing = False

    async def begin(self) -> None:
        """Take over the transactional id. Raise ``Rejected`` if no broker answers."""
        await self._cluster.ask(
            partial(self._producer.init_transactions, REQUEST_SECONDS), f"transactions of {self.transactional_id!r}"
        )

    def write(self, rows: Iterable[Rows], check: Callable[[], None] | None = None) -> None:
        """Write ``rows`` in one transaction. ``check`` is called before the commit and may raise. It blocks.

        Raise ``NotWritten`` if nothing was written, ``Fenced``, ``UnknownOutcome``, and what the elements or ``check``
        raise; then nothing was written either.
        """
        with self._busy:
            if self._is_closing:
                raise NotWritten("nothing was written: the log was closed")
            self._write(rows, check)

    def _write(self, rows: Iterable[Rows], check: Callable[[], None] | None) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._cluster.patience
        self._problem = None
        try:
            self._producer.begin_transaction()
            for group in rows:
                self._produce(group, deadline)
            self._flush(deadline)
            if check is not None:
                check()
        except KafkaException as error:
            raise self._given_up(error_of(error)) from error
        except BaseException:
            # Raised again at once: the producer can begin no transaction before this one is aborted.
            self._abort()
            raise
        self._commit(deadline)

    def stop(self) -> None:
        """End a write that goes on in another thread, and let no other begin."""
        self._is_closing = True

    def close(self) -> None:
        """Close the producer, and drop what it had not sent. A write that goes on is ended. It blocks.

        Its own ``close`` would abort a transaction, and warn where it was fenced.
        """
        from confluent_kafka import KafkaException

        self.stop()
        with self._busy:
            try:
                self._producer.purge()
                self._producer.flush(0)
            except KafkaException:
                # A fatal error, which is told again: the write that met it has raised.
                pass
            finally:
                del self._producer

    def _produce(self, rows: Rows, deadline: float) -> None:
        topic, partition = rows.topic, rows.partition
        delivered: Callable[..., None] = rows.delivered
        for number, element in enumerate(rows.elements):
            check_record(element)
            headers, content = headers_of(element), None if rows.deletes else element.data
            while True:
                try:
                    self._producer.produce(topic, content, element.key, partition, delivered, headers=headers)
                    break
                except BufferError:
                    # The queue is full: wait until the broker has taken some.
                    self._producer.poll(0.1)
                    self._check(deadline)
            delivered = self._delivered
            if not number % 10_000:
                self._producer.poll(0)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._problem is None:
            self._problem = error

    def _flush(self, deadline: float) -> None:
        while self._producer.flush(REQUEST_SECONDS):
            self._check(deadline)
        self._check(float("inf"))

    def _check(self, deadline: float) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if self._problem is not None:
            raise KafkaException(self._problem)
        if self._is_closing:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the log was closed"))
        if time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker took the records"))

    def _commit(self, deadline: float) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                self._producer.commit_transaction(REQUEST_SECONDS)
            except KafkaException as error:
                problem = error_of(error)
                if problem.txn_requires_abort():
                    raise self._given_up(problem) from error
                if not passes(problem) or self._is_closing or time.monotonic() > deadline:
                    raise UnknownOutcome(problem.str()) from error
                time.sleep(PAUSE)
            else:
                return

    def _given_up(self, problem: KafkaError) -> Exception:
        """Abort, and return the error that says so."""
        from confluent_kafka import KafkaError

        if problem.code() in {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}:
            return Fenced(problem.str())
        try:
            self._abort()
        except UnknownOutcome as error:
            return error
        cause = self._problem or problem
        if cause.code() in {
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.INVALID_MSG_SIZE,
            KafkaError.RECORD_LIST_TOO_LARGE,
        }:
            return ValueError(f"a record is larger than the topic allows: {cause.str()}")
        return NotWritten(f"nothing was written: {cause.str()}")

    def _abort(self) -> None:
        """Abort the transaction. Raise ``UnknownOutcome`` if the broker does not confirm it."""
        from confluent_kafka import KafkaException

        try:
            self._producer.abort_transaction(REQUEST_SECONDS if self._is_closing else self._cluster.patience)
        except KafkaException as error:
            raise UnknownOutcome(error_of(error).str()) from error


async def begun(
    cluster: Cluster, transactional_id: str, seconds: float, check: Callable[[], object]
) -> TransactionalProducer:
    """Return a producer that has taken over ``transactional_id``, for transactions of ``seconds``.

    ``check`` is called then, and may raise. Raise ``Rejected`` if no broker answers.
    """
    producer = await trio.to_thread.run_sync(TransactionalProducer, cluster, transactional_id, seconds)
    try:
        await producer.begin()
        check()
    except BaseException:
        # Raised again at once: nobody else knows of this producer.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(producer.close)
        raise
    return producer


async def write_rows(
    producer: TransactionalProducer, rows: Iterable[Rows], check: Callable[[], None] | None = None
) -> None:
    """Write ``rows`` in a thread. Raise as ``TransactionalProducer.write``."""
    await trio.to_thread.run_sync(producer.write, rows, check)


def check_record(element: Element) -> None:
    """Raise ``ValueError`` for an element that can't be a record of Kafka."""
    check_element(element)
    if element.count != 1:
        raise ValueError(f"an element of {element.count} rows: a record of Kafka has one position, so it holds one row")


def headers_of(element: Element) -> list[tuple[str, str | bytes | None]] | None:
    """Return the headers of a record: those of the element, and its metadata as one more."""
    headers: list[tuple[str, str | bytes | None]] | None = None
    if element.headers is not None:
        headers = list(element.headers.items())
    if element.metadata is not None:
        headers = [*(headers or ()), (RECORD_METADATA, element.metadata)]
    return headers
