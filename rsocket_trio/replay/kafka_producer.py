"""A transactional producer: all records of one write, over several partitions and topics, become visible or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.replay.element_metadata import RECORD_METADATA
from rsocket_trio.replay.elements import Element, check_element
from rsocket_trio.replay.errors import NotWritten
from rsocket_trio.replay.kafka_client import PRODUCER, REQUEST_SECONDS, Cluster, is_any, kafka
from rsocket_trio.replay.log import check_begin

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


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


class TransactionalProducer:
    """The producer of a transactional id: to begin it ends or settles the transactions of any other with that id.

    ``seconds`` is the age at which the broker aborts a transaction whose producer is gone. It begins with the first
    write, and again with the first one behind a failure.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, seconds: float) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._seconds = seconds
        # No other name keeps it: tracebacks of librdkafka's errors would, too, and it would never end.
        self._producer: Any = None
        self._problem: KafkaError | None = None
        self._busy = trio.Lock()
        self._is_closing = False

    async def begin(self) -> None:
        """Take over the transactional id, unless that is done. Raise ``Rejected`` if no broker answers."""
        if self._is_closing:
            raise trio.ClosedResourceError("nothing was written: the log was closed")
        if self._producer is None:
            client = partial(
                self._cluster.client,
                kafka().Producer,
                PRODUCER,
                transactional_id=self._id,
                transaction_timeout_ms=round(self._seconds * 1000),
                # A broker that takes nothing for so long is away.
                message_timeout_ms=round(min(self._seconds, self._cluster.patience) * 1000),
            )
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
                await self.begin()
                await trio.to_thread.run_sync(self._write, rows)
                await self._commit()
            except NotWritten:
                await self._drop()
                raise
            except Rejected as error:
                raise NotWritten(f"nothing was written: {error}") from error

    def stop(self) -> None:
        """End a write that goes on in another thread, and let no other begin."""
        self._is_closing = True

    async def aclose(self) -> None:
        """Close the producer, and drop what it had not sent. A write that goes on is ended."""
        self.stop()
        await self.drop()

    async def drop(self) -> None:
        """Close the client, behind a write that goes on: the next write begins anew."""
        with trio.CancelScope(shield=True):
            async with self._busy:
                await self._drop()

    async def _drop(self) -> None:
        """Close the client. Its own ``close`` would abort a transaction, and warn where it was fenced."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with trio.CancelScope(shield=True), suppress(kafka().KafkaException):
                # A fatal error is told again: the write that met it has raised.
                await trio.to_thread.run_sync(producer.flush, 0)

    def _write(self, rows: Sequence[Rows]) -> None:
        self._problem = None
        try:
            self._producer.begin_transaction()
            for group in rows:
                self._produce(group)
            while self._producer.flush(REQUEST_SECONDS):
                self._check()
            self._check()
            for group in rows:
                for partition, first in group.firsts.items():
                    check_begin(partition, group.at, first)
        except kafka().KafkaException as error:
            raise self._given_up(error.args[0]) from error
        except BaseException:
            # Raised again at once: the producer can begin no transaction before this one is aborted.
            self._abort()
            raise

    def _produce(self, rows: Rows) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._problem = self._problem or error
            else:
                rows.firsts.setdefault(message.partition() or 0, message.offset() or 0)

        for number, (partition, element) in enumerate(rows.elements):
            check_record(element)
            headers = headers_of(element)
            while True:
                try:
                    self._producer.produce(rows.topic, element.data, element.key, partition, delivered, headers=headers)
                    break
                except BufferError:
                    # The queue is full: wait until the broker has taken some.
                    self._producer.poll(0.1)
                    self._check()
            if not number % 10_000:
                self._producer.poll(0)
        self._producer.poll(0)

    def _check(self) -> None:
        """Raise ``KafkaException`` for a failure, ``NotWritten`` if the log is being closed."""
        if self._problem is not None:
            raise kafka().KafkaException(self._problem)
        if self._is_closing:
            raise NotWritten("nothing was written: the log was closed")

    async def _commit(self) -> None:
        try:
            await self._cluster.ask(self._try_to_commit, f"to commit for {self._id!r}")
        except (Rejected, ValueError) as error:
            raise OutcomeUnknown(f"nobody knows what was written: {error}") from error

    def _try_to_commit(self) -> None:
        try:
            self._producer.commit_transaction(REQUEST_SECONDS)
        except kafka().KafkaException as error:
            if error.args[0].txn_requires_abort():
                raise self._given_up(error.args[0]) from error
            if self._is_closing:
                raise OutcomeUnknown("nobody knows what was written: the log was closed") from error
            raise

    def _given_up(self, problem: KafkaError) -> Exception:
        """Abort a transaction that was not committed, and return the error that says so."""
        if not problem.fatal():
            self._abort()
        cause = self._problem or problem
        if is_any(cause, "MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE"):
            return ValueError(f"a record is larger than the topic allows: {cause.str()}")
        return NotWritten(f"nothing was written: {cause.str()}")

    def _abort(self) -> None:
        """Abort the transaction. Raise ``NotWritten`` if no broker confirms it: then one does it later, by itself."""
        try:
            self._producer.abort_transaction(REQUEST_SECONDS if self._is_closing else self._cluster.patience)
        except kafka().KafkaException as error:
            raise NotWritten(f"nothing was written: {error.args[0].str()}") from error


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
