"""A ledger: attempts of a batch are staged, and one commit promotes them, so that each row counts once."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Self

import attrs
import trio

from rsocket_trio import Rejected
from rsocket_trio.replay.elements import Element
from rsocket_trio.replay.errors import NotStaged
from rsocket_trio.replay.locking import SharedLock
from rsocket_trio.replay.log import ReplayableLog
from rsocket_trio.replay.memory_log import MemoryLog
from rsocket_trio.replay.packs import Pack
from rsocket_trio.replay.staged_attempts import StagedAttempt
from rsocket_trio.values import value

SINK_BYTES = 16 * 2**20
"""Bytes of the names of remembered sinks, and ``NAME_BYTES`` more for each."""
SINK_SECONDS = 30 * 86400.0
"""Seconds for which a sink that goes on is remembered at least after its last batch."""
NAME_BYTES = 100
STAGED_BYTES = 64 * 2**20
"""Bytes that all attempts together may hold in memory."""
STAGED_SECONDS = 3600.0
"""Seconds after which an attempt that was not committed is dropped."""
LARGEST_BATCH = 2**63 - 1
"""The largest number of a batch."""
STAGED_ATTEMPTS = 10_000
"""Attempts that may be staged at a time."""

logger = logging.getLogger("rsocket_trio.replay")


@attrs.define
class CommittedBatches:
    """The last batch by sink: ``lasting`` holds sinks that go on, ``one_time`` those of a single batch.

    Their names take up to ``most_bytes``. Beyond, the oldest sinks of a single batch are forgotten, and then those that
    have not committed for ``seconds``. ``times`` are those of the last commits, in seconds since 1970; both kinds are
    in their order.
    """

    most_bytes: int = SINK_BYTES
    seconds: float = SINK_SECONDS
    lasting: dict[str, int] = attrs.field(factory=dict)
    one_time: dict[str, int] = attrs.field(factory=dict)
    times: dict[str, float] = attrs.field(factory=dict)
    size: int = 0

    def last(self, sink: str) -> int | None:
        """Return the last batch of a sink, ``None`` before the first."""
        found = self.lasting.get(sink)
        return self.one_time.get(sink) if found is None else found

    def check_room(self, sink: str, now: float | None = None) -> None:
        """Raise ``Rejected`` if one more sink would exceed the limit."""
        if sink in self.times:
            return
        over = self.size + cost(sink) - self.most_bytes
        too_old = (time.time() if now is None else now) - self.seconds
        for one in chain(self.one_time, self.lasting):
            if over <= 0 or (one in self.lasting and self.times[one] > too_old):
                break
            over -= cost(one)
        if over > 0:
            raise Rejected(
                f"{len(self.lasting)} sinks have committed, their names take {self.size} bytes: the limit is "
                f"{self.most_bytes}. Tell Ledger.forget of one; one that has not committed for {self.seconds:g} s goes"
            )

    def remember(self, sink: str, batch: int, once: bool, now: float | None = None) -> None:
        """Record a batch that was promoted ``now``, in seconds since 1970, and forget others where there is no room."""
        now = time.time() if now is None else now
        group = self.one_time if once and sink not in self.lasting else self.lasting
        self.forget(sink)
        group[sink] = batch
        self.times[sink] = now
        self.size += cost(sink)
        while self.size > self.most_bytes:
            oldest = next(iter(self.one_time), None) or next(iter(self.lasting))
            if oldest == sink or (oldest in self.lasting and self.times[oldest] > now - self.seconds):
                return
            if oldest in self.lasting:
                logger.warning("sink %s is forgotten: it was not written to for %g s", oldest, now - self.times[oldest])
            self.forget(oldest)

    def forget(self, sink: str) -> None:
        """Remove all that is known of a sink."""
        if self.times.pop(sink, None) is not None:
            self.size -= cost(sink)
        self.lasting.pop(sink, None)
        self.one_time.pop(sink, None)


def cost(sink: str) -> int:
    """Return the bytes that a remembered sink counts."""
    return len(sink.encode()) + NAME_BYTES


@value
class Commit:
    """The outcome of a commit: whether it ``promoted`` rows, how many ``rows``, and the ``last`` batch of its sink."""

    promoted: bool
    rows: int
    last: int


@attrs.define
class Chain:
    """The elements of several attempts in order; unlike a generator it can be read more than once."""

    parts: list[Iterable[Element | Pack]] = attrs.field(factory=list)

    def __iter__(self) -> Iterator[Element | Pack]:
        for part in self.parts:
            yield from part


class Ledger:
    """Tracks in memory which batches of which sinks are in a log; it ends with its process.

    ``log`` receives the promoted rows, a ``MemoryLog`` if none is given; nothing else should write to it. Attempts
    together hold at most ``staged_bytes``, there are at most ``staged_attempts``, and one that was not committed for
    ``staged_seconds`` is dropped. The names of the sinks whose last batch it knows take up to ``sink_bytes``, and 100
    bytes more for each. Beyond, it forgets sinks of a single batch, then those without a commit for ``sink_seconds``,
    the oldest first, and refuses new ones while there are none. Use it under ``async with``; a log that it made itself
    is opened and closed with it.
    """

    def __init__(
        self,
        log: ReplayableLog | None = None,
        *,
        staged_bytes: int = STAGED_BYTES,
        staged_seconds: float = STAGED_SECONDS,
        staged_attempts: int = STAGED_ATTEMPTS,
        sink_bytes: int = SINK_BYTES,
        sink_seconds: float = SINK_SECONDS,
    ) -> None:
        self._owns_log = log is None
        self.log = self._own_log() if log is None else log
        self._most_bytes = staged_bytes
        self._seconds = staged_seconds
        self._most_attempts = staged_attempts
        self._stages: dict[str, StagedAttempt] = {}
        self._committed = CommittedBatches(sink_bytes, sink_seconds)
        self._write_lock = SharedLock()
        self.staged_bytes = 0

    def _own_log(self) -> ReplayableLog:
        return MemoryLog()

    async def open(self) -> None:
        """Open the ledger and its log. Do nothing the second time."""
        await self.log.open()

    async def aclose(self) -> None:
        """Close the ledger, and a log that it made itself. Do nothing the second time."""
        if self._owns_log:
            await self.log.aclose()
        else:
            await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()

    # State

    def last(self, sink: str) -> int | None:
        """Return the last promoted batch of ``sink``, ``None`` before the first."""
        return self._committed.last(sink)

    @property
    def sinks(self) -> Mapping[str, int]:
        """Return the last batch of each sink, without sinks that write only once."""
        return dict(self._committed.lasting)

    @property
    def staged(self) -> Sequence[str]:
        """Return the names of the staged attempts, complete or not."""
        return list(self._stages)

    # Requests of writers

    async def write(self, elements: Mapping[int, Sequence[Element | Pack]]) -> None:
        """Append ``elements`` at once, by partition, without staging: a writer that tries again may write them twice.

        A partition number is taken modulo the partitions of the log. Raise the errors of the log's ``append_all``.
        """
        groups: dict[int, list[Element | Pack]] = {}
        for partition, some in elements.items():
            groups.setdefault(self._target(partition), []).extend(some)
        # Shared: plain writes may run together, but none between the decision and the rows of a commit.
        async with self._write_lock.shared():
            await self.log.append_all(groups)

    async def begin(self, sink: str, attempt: str, partition: int) -> StagedAttempt:
        """Begin to stage ``attempt`` for ``sink``: rows of one ``partition``. Raise ``Rejected`` if it is staged
        already, or too many are.
        """
        await self._expire()
        if attempt in self._stages:
            raise Rejected(f"attempt {attempt} is staged already")
        if len(self._stages) >= self._most_attempts:
            raise Rejected(f"{len(self._stages)} attempts are staged: that is the limit")
        stage = self._new_stage(sink, attempt, partition, trio.current_time() + self._seconds)
        self._stages[attempt] = stage
        return stage

    async def discard(self, stage: StagedAttempt) -> None:
        """Drop the attempt of ``stage``, also while the task is being cancelled."""
        with trio.CancelScope(shield=True):
            await self._drop([stage])

    async def commit(self, sink: str, batch: int, attempts: Mapping[str, int], *, once: bool = False) -> Commit:
        """Promote ``attempts`` of ``sink``, each with its number of rows, as the batch numbered ``batch``: all or
        nothing, and once.

        A batch that is not above the last of its sink promotes nothing, and its attempts are dropped. ``once``: this
        sink will never have another batch, and no other attempts, so that it may be forgotten after some thousand
        others. Once it has begun to promote it can't be cancelled. Raise ``NotStaged``, ``Rejected`` for one sink too
        many, and the errors of the log; then nothing was promoted (or, after a failure of the disk, the next opening
        settles it), and the same may be tried again.
        """
        await self._expire()
        async with self._write_lock.exclusive():
            await self._prepare(sink, batch, attempts)
            last = self.last(sink)
            if last is not None and batch <= last:
                with trio.CancelScope(shield=True):
                    await self._drop(self._of_sink(sink, attempts))
                return Commit(promoted=False, rows=0, last=last)
            self._committed.check_room(sink)
            stages = [self._checked(sink, attempt, rows) for attempt, rows in attempts.items()]
            with trio.CancelScope(shield=True):
                await self._promote(sink, batch, stages, once)
                self._committed.remember(sink, batch, once)
                await self._drop(stages)
        return Commit(promoted=True, rows=sum(stage.rows for stage in stages), last=batch)

    async def forget(self, sink: str) -> bool:
        """Forget the last batch of ``sink``, which will never be written to again. Return whether there was one.

        If it is written to all the same, its batches count anew from 0 on. Raise the ``OSError`` of the disk.
        """
        async with self._write_lock.exclusive():
            await self._prepare(sink, batch=LARGEST_BATCH, attempts=())
            if self.last(sink) is None:
                return False
            with trio.CancelScope(shield=True):
                await self._note_forgotten(sink)
                self._committed.forget(sink)
        return True

    async def abort(self, sink: str, attempts: Iterable[str]) -> int:
        """Drop ``attempts`` of ``sink``. Return how many were staged."""
        dropped = 0
        async with self._write_lock.exclusive():
            with trio.CancelScope(shield=True):
                dropped = await self._drop(self._of_sink(sink, attempts))
        return dropped

    async def _expire(self) -> None:
        """Drop the attempts that are too old. ``begin`` and ``commit`` call this first."""
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        old = [stage for stage in self._stages.values() if stage.deadline <= now]
        if old:
            async with self._write_lock.exclusive():
                with trio.CancelScope(shield=True):
                    await self._drop(old)

    # Overridden by the ledgers on files and on Kafka

    async def _prepare(self, sink: str, batch: int, attempts: Collection[str]) -> None:
        """Learn the last batch of a sink before ``batch`` is compared with it, if other servers may write it, too."""

    def _new_stage(self, sink: str, attempt: str, partition: int, deadline: float) -> StagedAttempt:
        return StagedAttempt(self._charge, sink, attempt, partition, deadline)

    async def _promote(self, sink: str, batch: int, stages: Sequence[StagedAttempt], once: bool) -> None:
        await self.log.append_all(self._chains(stages))

    async def _note_forgotten(self, sink: str) -> None:
        await trio.lowlevel.checkpoint()

    async def _remove(self, stages: Sequence[StagedAttempt]) -> None:
        await trio.lowlevel.checkpoint()
        for stage in stages:
            stage.remove()

    # Staged attempts

    def _charge(self, size: int) -> None:
        """Count ``size`` bytes that are to be staged. Raise ``Rejected`` if there is no room for them."""
        if self.staged_bytes + size > self._most_bytes:
            raise Rejected(
                f"{self.staged_bytes} bytes are staged and {size} more do not fit: the limit is {self._most_bytes}"
            )
        self.staged_bytes += size

    def _checked(self, sink: str, attempt: str, rows: int) -> StagedAttempt:
        stage = self._stages.get(attempt)
        if stage is None or stage.sink != sink:
            raise NotStaged(f"attempt {attempt} is not staged for sink {sink}")
        if not stage.sealed:
            raise NotStaged(f"attempt {attempt} is not complete")
        if stage.rows != rows:
            raise NotStaged(f"attempt {attempt} has {stage.rows} rows, not {rows}")
        return stage

    def _of_sink(self, sink: str, attempts: Iterable[str]) -> list[StagedAttempt]:
        found = [self._stages.get(attempt) for attempt in dict.fromkeys(attempts)]
        return [stage for stage in found if stage is not None and stage.sink == sink]

    def _chains(self, stages: Iterable[StagedAttempt]) -> dict[int, Chain]:
        chains: dict[int, Chain] = {}
        for stage in stages:
            chains.setdefault(self._target(stage.partition), Chain()).parts.append(stage.content())
        return chains

    def _target(self, partition: int) -> int:
        return partition % len(self.log.partitions())

    async def _drop(self, stages: Sequence[StagedAttempt]) -> int:
        dropped = [stage for stage in stages if not stage.dropped]
        for stage in dropped:
            stage.dropped = True
            self.staged_bytes -= stage.size
            del self._stages[stage.attempt]
        if dropped:
            await self._remove(dropped)
        return len(dropped)
