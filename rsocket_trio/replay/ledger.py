"""Makes each batch of rows count once: attempts are staged, and a commit promotes those of its batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import attrs
import trio

from rsocket_trio import Rejected
from rsocket_trio.replay.errors import NotStaged
from rsocket_trio.replay.gate import Gate
from rsocket_trio.replay.log import Element, ReplayableLog, check_element
from rsocket_trio.replay.memory import OVERHEAD, MemoryLog
from rsocket_trio.replay.sinks import Sinks
from rsocket_trio.values import value

STAGED_BYTES = 64 * 2**20
STAGED_SECONDS = 3600.0
STAGED_ATTEMPTS = 10_000


@value
class Commit:
    """The outcome of a commit: whether it promoted, how many rows, and the last batch of its sink."""

    promoted: bool
    rows: int
    last: int


class Stage:
    """One attempt: its rows are not in the log until a commit names it.

    ``rows``, ``elements`` and ``size`` count its content so far, ``sealed`` says whether it is complete.
    """

    def __init__(self, ledger: Ledger, sink: str, attempt: str, partition: int, deadline: float) -> None:
        self.ledger = ledger
        self.sink = sink
        self.attempt = attempt
        self.partition = partition
        self.deadline = deadline
        self.rows = self.elements = self.size = 0
        self.sealed = self.dropped = False
        self._kept: list[Element] = []

    async def add(self, element: Element) -> None:
        """Stage one element.

        Raise ``Rejected`` if there is no room for it or the attempt has expired, ``ValueError`` if it can't be a
        record, ``OSError`` if the disk is full.
        """
        check_element(element)
        if self.dropped:
            raise Rejected(f"attempt {self.attempt} is staged no longer: it was too old, or was aborted")
        size = element.size + OVERHEAD
        self.ledger.charge(size)
        self.rows += element.count
        self.elements += 1
        self.size += size
        await self.keep(element)

    async def seal(self) -> None:
        """Mark the attempt as complete: from now on a commit may name it. Raise as ``add`` does."""
        await self.finish()
        if self.dropped:
            raise Rejected(f"attempt {self.attempt} is staged no longer: it was too old, or was aborted")
        self.sealed = True

    # Storage of the rows: subclasses override these

    async def keep(self, element: Element) -> None:
        """Hold an element."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._kept.append(element)

    async def finish(self) -> None:
        """Make the held elements as durable as the ledger is."""
        await trio.lowlevel.checkpoint()

    def remove(self) -> None:
        """Drop the held elements. It runs in a place where it may block."""
        self._kept.clear()

    def content(self) -> Iterable[Element]:
        """Return the elements in order; they can be read more than once."""
        return self._kept


@attrs.define
class Chain:
    """The elements of several attempts in order; unlike a generator it can be read more than once."""

    parts: list[Iterable[Element]] = attrs.field(factory=list)

    def __iter__(self) -> Iterator[Element]:
        for part in self.parts:
            yield from part


class Ledger:
    """Tracks in memory which batches of which sinks are in a log; it ends with its process.

    ``log`` receives the promoted rows, a ``MemoryLog`` if none is given; nothing else should write to it. Attempts
    together hold at most ``staged_bytes``, there are at most ``staged_attempts``, and one that was not committed for
    ``staged_seconds`` is dropped. It knows the last batch of 10,000 sinks, and refuses more until one is forgotten. Use
    it under ``async with``; a log that it made itself is opened and closed with it.
    """

    def __init__(
        self,
        log: ReplayableLog | None = None,
        *,
        staged_bytes: int = STAGED_BYTES,
        staged_seconds: float = STAGED_SECONDS,
        staged_attempts: int = STAGED_ATTEMPTS,
    ) -> None:
        self._owns_log = log is None
        self.log = self._own_log() if log is None else log
        self._most_bytes = staged_bytes
        self._seconds = staged_seconds
        self._most_attempts = staged_attempts
        self._stages: dict[str, Stage] = {}
        self._sinks = Sinks()
        self._gate = Gate()
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
        """Return the last promoted batch of a sink, ``None`` before the first."""
        return self._sinks.last(sink)

    @property
    def sinks(self) -> Mapping[str, int]:
        """Return the last batch of each sink, without sinks that write only once."""
        return dict(self._sinks.lasting)

    @property
    def staged(self) -> Sequence[str]:
        """Return the names of the staged attempts, complete or not."""
        return list(self._stages)

    # Requests of writers

    async def write(self, elements: Mapping[int, Sequence[Element]]) -> None:
        """Append rows at once, by partition, without staging: a writer that tries again may write them twice.

        A partition number is taken modulo the partitions of the log. Raise the errors of the log's ``append_all``.
        """
        groups: dict[int, list[Element]] = {}
        for partition, some in elements.items():
            groups.setdefault(self._target(partition), []).extend(some)
        async with self._gate.together():
            await self.log.append_all(groups)

    async def begin(self, sink: str, attempt: str, partition: int) -> Stage:
        """Begin to stage an attempt. Raise ``Rejected`` if it is staged already, or too many are."""
        await self.expire()
        if attempt in self._stages:
            raise Rejected(f"attempt {attempt} is staged already")
        if len(self._stages) >= self._most_attempts:
            raise Rejected(f"{len(self._stages)} attempts are staged: that is the limit")
        stage = self._new_stage(sink, attempt, partition, trio.current_time() + self._seconds)
        self._stages[attempt] = stage
        return stage

    async def discard(self, stage: Stage) -> None:
        """Drop an attempt, also while the task is being cancelled."""
        with trio.CancelScope(shield=True):
            await self._drop([stage])

    async def commit(self, sink: str, batch: int, attempts: Mapping[str, int], *, once: bool = False) -> Commit:
        """Promote these attempts, each with its number of rows, as one batch: all or nothing, and once.

        A batch that is not above the last of its sink promotes nothing, and its attempts are dropped. ``once``: this
        sink will never have another batch, and no other attempts, so that it may be forgotten after some thousand
        others. Once it has begun to promote it can't be cancelled. Raise ``NotStaged``, ``Rejected`` for one sink too
        many, and the errors of the log; then nothing was promoted (or, after a failure of the disk, the next opening
        settles it), and the same may be tried again.
        """
        await self.expire()
        async with self._gate.alone():
            last = self.last(sink)
            if last is not None and batch <= last:
                with trio.CancelScope(shield=True):
                    await self._drop(self._of_sink(sink, attempts))
                return Commit(promoted=False, rows=0, last=last)
            self._sinks.check_room(sink, once)
            stages = [self._checked(sink, attempt, rows) for attempt, rows in attempts.items()]
            with trio.CancelScope(shield=True):
                await self._promote(sink, batch, stages, once)
                self._sinks.remember(sink, batch, once)
                await self._drop(stages)
        return Commit(promoted=True, rows=sum(stage.rows for stage in stages), last=batch)

    async def forget(self, sink: str) -> bool:
        """Forget the last batch of a sink that will never be written to again. Return whether there was one.

        If it is written to all the same, its batches count anew from 0 on. Raise the ``OSError`` of the disk.
        """
        async with self._gate.alone():
            if self.last(sink) is None:
                return False
            with trio.CancelScope(shield=True):
                await self._note_forgotten(sink)
                self._sinks.forget(sink)
        return True

    async def abort(self, sink: str, attempts: Iterable[str]) -> int:
        """Drop attempts of a sink. Return how many were staged."""
        dropped = 0
        async with self._gate.alone():
            with trio.CancelScope(shield=True):
                dropped = await self._drop(self._of_sink(sink, attempts))
        return dropped

    async def expire(self) -> None:
        """Drop the attempts that are too old. ``begin`` and ``commit`` call this first."""
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        old = [stage for stage in self._stages.values() if stage.deadline <= now]
        if old:
            async with self._gate.alone():
                with trio.CancelScope(shield=True):
                    await self._drop(old)

    # Overridden by the ledger on files

    def _new_stage(self, sink: str, attempt: str, partition: int, deadline: float) -> Stage:
        return Stage(self, sink, attempt, partition, deadline)

    async def _promote(self, sink: str, batch: int, stages: Sequence[Stage], once: bool) -> None:
        await self.log.append_all(self._chains(stages))

    async def _note_forgotten(self, sink: str) -> None:
        await trio.lowlevel.checkpoint()

    async def _remove(self, stages: Sequence[Stage]) -> None:
        await trio.lowlevel.checkpoint()
        for stage in stages:
            stage.remove()

    # Staged attempts

    def charge(self, size: int) -> None:
        """Count bytes that are to be staged. Raise ``Rejected`` if there is no room for them."""
        if self.staged_bytes + size > self._most_bytes:
            raise Rejected(
                f"{self.staged_bytes} bytes are staged and {size} more do not fit: the limit is {self._most_bytes}"
            )
        self.staged_bytes += size

    def _checked(self, sink: str, attempt: str, rows: int) -> Stage:
        stage = self._stages.get(attempt)
        if stage is None or stage.sink != sink:
            raise NotStaged(f"attempt {attempt} is not staged for sink {sink}")
        if not stage.sealed:
            raise NotStaged(f"attempt {attempt} is not complete")
        if stage.rows != rows:
            raise NotStaged(f"attempt {attempt} has {stage.rows} rows, not {rows}")
        return stage

    def _of_sink(self, sink: str, attempts: Iterable[str]) -> list[Stage]:
        found = [self._stages.get(attempt) for attempt in dict.fromkeys(attempts)]
        return [stage for stage in found if stage is not None and stage.sink == sink]

    def _chains(self, stages: Iterable[Stage]) -> dict[int, Chain]:
        chains: dict[int, Chain] = {}
        for stage in stages:
            chains.setdefault(self._target(stage.partition), Chain()).parts.append(stage.content())
        return chains

    def _target(self, partition: int) -> int:
        return partition % len(self.log.partitions())

    async def _drop(self, stages: Sequence[Stage]) -> int:
        dropped = [stage for stage in stages if not stage.dropped]
        for stage in dropped:
            stage.dropped = True
            self.staged_bytes -= stage.size
            del self._stages[stage.attempt]
        if dropped:
            await self._remove(dropped)
        return len(dropped)
