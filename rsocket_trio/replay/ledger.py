"""Which rows count: attempts are staged, a batch promotes those that won, and each batch counts once."""

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
    """What became of a commit: whether it promoted, how many rows, and the last batch of its sink."""

    promoted: bool
    rows: int
    last: int


class Stage:
    """One attempt: rows that count for nothing until a commit names it.

    ``rows``, ``elements`` and ``size`` say what it holds so far, ``sealed`` whether that is all.
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

        Raises ``Rejected`` where there is no room for it or the attempt has expired, ``ValueError`` for what can't be
        a record, ``OSError`` where the disk is full.
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
        """This is all: from now on a commit may name it. Raises as ``add`` does."""
        await self.finish()
        if self.dropped:
            raise Rejected(f"attempt {self.attempt} is staged no longer: it was too old, or was aborted")
        self.sealed = True

    # Where the rows are

    async def keep(self, element: Element) -> None:
        """Hold an element."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._kept.append(element)

    async def finish(self) -> None:
        """Make what is held as safe as the ledger is."""
        await trio.lowlevel.checkpoint()

    def remove(self) -> None:
        """Let go of what is held. Runs where it may block."""
        self._kept.clear()

    def content(self) -> Iterable[Element]:
        """The elements, in order; can be read more than once."""
        return self._kept


@attrs.define
class Chain:
    """What several attempts hold, one after the other; can be read more than once, as a generator can't."""

    parts: list[Iterable[Element]] = attrs.field(factory=list)

    def __iter__(self) -> Iterator[Element]:
        for part in self.parts:
            yield from part


class Ledger:
    """Which batches of which sinks are in a log, kept in memory: it ends with its process.

    ``log`` is where promoted rows go, a ``MemoryLog`` if none is given; nobody else should write to it. Attempts
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
        """Make it ready. Does nothing the second time."""
        await self.log.open()

    async def aclose(self) -> None:
        """Close it. Does nothing the second time."""
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

    # What it knows

    def last(self, sink: str) -> int | None:
        """The last batch of a sink that was promoted, None before the first."""
        return self._sinks.last(sink)

    @property
    def sinks(self) -> Mapping[str, int]:
        """The last batch of each sink, without those that write but once."""
        return dict(self._sinks.lasting)

    @property
    def staged(self) -> Sequence[str]:
        """The attempts that are staged, complete or not."""
        return list(self._stages)

    # What writers ask

    async def write(self, elements: Mapping[int, Sequence[Element]]) -> None:
        """Append rows at once, by partition: they may come twice when their writer tries again.

        A partition that the log lacks is counted round. Raises what the log's ``append_all`` raises.
        """
        groups: dict[int, list[Element]] = {}
        for partition, some in elements.items():
            groups.setdefault(self._target(partition), []).extend(some)
        async with self._gate.together():
            await self.log.append_all(groups)

    async def begin(self, sink: str, attempt: str, partition: int) -> Stage:
        """Begin to stage an attempt. Raises ``Rejected`` for one that is staged already, or one too many."""
        await self.expire()
        if attempt in self._stages:
            raise Rejected(f"attempt {attempt} is staged already")
        if len(self._stages) >= self._most_attempts:
            raise Rejected(f"{len(self._stages)} attempts are staged: that is the limit")
        stage = self._new_stage(sink, attempt, partition, trio.current_time() + self._seconds)
        self._stages[attempt] = stage
        return stage

    async def discard(self, stage: Stage) -> None:
        """Forget an attempt, whatever it is cancelled by."""
        with trio.CancelScope(shield=True):
            await self._drop([stage])

    async def commit(self, sink: str, batch: int, attempts: Mapping[str, int], *, once: bool = False) -> Commit:
        """Promote these attempts, each with its number of rows, as one batch: all or nothing, and once.

        A batch that is not above the last of its sink promotes nothing, and its attempts are dropped. ``once``: this
        sink will never have another batch, and no other attempts, so that it may be forgotten after some thousand
        others. Once it has begun to promote it can't be cancelled. Raises ``NotStaged``, ``Rejected`` for one sink too
        many, and what the log raises; then nothing was promoted (or, after a failure of the disk, the next opening
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
        """Forget the last batch of a sink that will never be written to again; whether there was one.

        Should it be written to all the same, its batches count anew from 0 on. Raises what the disk raises.
        """
        async with self._gate.alone():
            if self.last(sink) is None:
                return False
            with trio.CancelScope(shield=True):
                await self._note_forgotten(sink)
                self._sinks.forget(sink)
        return True

    async def abort(self, sink: str, attempts: Iterable[str]) -> int:
        """Drop attempts of a sink; how many there were."""
        dropped = 0
        async with self._gate.alone():
            with trio.CancelScope(shield=True):
                dropped = await self._drop(self._of_sink(sink, attempts))
        return dropped

    async def expire(self) -> None:
        """Drop the attempts that are too old. Each call of a writer does."""
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        old = [stage for stage in self._stages.values() if stage.deadline <= now]
        if old:
            async with self._gate.alone():
                with trio.CancelScope(shield=True):
                    await self._drop(old)

    # What differs where it is kept on files

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
        """Count bytes that are to be staged. Raises ``Rejected`` where there is no room for them."""
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
