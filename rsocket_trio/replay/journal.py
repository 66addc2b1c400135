"""A ledger on files, and its journal: a batch that was decided is promoted, however often the process is killed.

A batch is decided when its record in the journal is on the disk. The record says where in the log its rows begin, so
that after a crash it is known which of them are there, and the others are appended. Each record is a JSON object of
one kind::

    {"decided": ...}     a batch is promoted, see ``Decision``
    {"done": ...}        its rows are in the log
    {"forgotten": sink}  nothing is known of a sink any more
    {"last": {sink: [batch, time], ...}}, {"once": {...}}
                         sinks that go on, and those of one batch, when the journal began anew; each may come several
                         times. Older journals have the batch alone
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import attrs
import trio

from rsocket_trio.errors import RSocketError
from rsocket_trio.replay.elements import Element
from rsocket_trio.replay.file_log import FileLog
from rsocket_trio.replay.filesystem import SYSTEM, FileSystem
from rsocket_trio.replay.ledger import SINK_BYTES, SINK_SECONDS, STAGED_ATTEMPTS, STAGED_SECONDS, Ledger
from rsocket_trio.replay.locking import DirectoryLock
from rsocket_trio.replay.log import ReplayableLog
from rsocket_trio.replay.packs import Pack, elements_of
from rsocket_trio.replay.segments import Segments
from rsocket_trio.replay.staged_attempts import FileStagedAttempt, StagedAttempt, remove_all, restored_attempts

STAGED_BYTES = 2**30
"""Bytes that all attempts together may hold on the disk."""
JOURNAL_BYTES = 2**20
"""Bytes of a journal after which it begins anew, with the last batch of each sink."""
ENTRY_SINKS = 10_000
"""Sinks in one record of a journal that begins anew."""


@attrs.frozen
class Decision:
    """A batch that is promoted: its attempts in order, and the positions where its rows begin and end by partition."""

    sink: str
    batch: int
    attempts: list[str]
    begins: dict[int, int]
    ends: dict[int, int]
    once: bool = False


def entry(kind: str, content: object) -> Element:
    """Return a record for the journal."""
    return Element(json.dumps({kind: content}).encode())


def read_journal(journal: Segments) -> Iterator[tuple[str, Any]]:
    """Yield the records of a journal, each with its kind."""
    position = journal.earliest
    while position < journal.latest:
        for record in journal.read(position):
            [(kind, content)] = json.loads(record.data).items()
            yield kind, content
            position = record.end


def decision_of(content: dict[str, Any]) -> Decision:
    """Return the decision that a record of the journal holds."""
    content |= {name: {int(key): number for key, number in content[name].items()} for name in ("begins", "ends")}
    return Decision(**content)


class LedgerMismatch(RSocketError):
    """The log differs from the journal: another program wrote to it, it was replaced, or it lost rows that were
    safe."""


class FileLedger(Ledger):
    """A ledger in a folder, which one process at a time can open; sealed attempts survive the end of the process.

    ``directory`` is the folder. ``log`` should be as durable: a ``FileLog`` that is opened before. Without one there is
    a ``FileLog`` of ``partitions`` partitions in the folder. ``staged_bytes``, ``staged_seconds``,
    ``staged_attempts``, ``sink_bytes`` and ``sink_seconds`` are those of ``Ledger``. Opening finishes what was decided
    and not done. It raises ``LogLocked``, ``CorruptLog``, ``LedgerMismatch`` and ``OSError``.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        log: ReplayableLog | None = None,
        *,
        partitions: int = 1,
        staged_bytes: int = STAGED_BYTES,
        staged_seconds: float = STAGED_SECONDS,
        staged_attempts: int = STAGED_ATTEMPTS,
        sink_bytes: int = SINK_BYTES,
        sink_seconds: float = SINK_SECONDS,
        filesystem: FileSystem = SYSTEM,
    ) -> None:
        if log is not None and log.has_gaps and not isinstance(log, FileLog):
            raise ValueError("a FileLedger counts the rows of its log: for one on Kafka there is KafkaLedger")
        self.directory = Path(directory)
        self._filesystem = filesystem
        self._log_partitions = partitions
        self._staged = self.directory / "staged"
        self._opening = trio.Lock()
        self._directory_lock: DirectoryLock | None = None
        self._journal: Segments | None = None
        self._longest_journal = JOURNAL_BYTES
        self._is_ready = self._closed = False
        self._undone: frozenset[str] = frozenset()
        super().__init__(
            log,
            staged_bytes=staged_bytes,
            staged_seconds=staged_seconds,
            staged_attempts=staged_attempts,
            sink_bytes=sink_bytes,
            sink_seconds=sink_seconds,
        )

    def _own_log(self) -> ReplayableLog:
        return FileLog(self.directory / "log", self._log_partitions, filesystem=self._filesystem)

    async def open(self) -> None:
        if self._is_ready:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        async with self._opening:
            if self._closed:
                raise trio.ClosedResourceError("the ledger was closed")
            if not self._is_ready:
                await self.log.open()
                try:
                    now, today = trio.current_time(), time.time()
                    decision = await trio.to_thread.run_sync(self._open, now - today)
                    if decision is not None:
                        await self._redo(decision)
                    self._is_ready = True
                except BaseException:
                    with trio.CancelScope(shield=True):
                        await self.aclose()
                    raise

    async def aclose(self) -> None:
        async with self._write_lock.exclusive():
            self._is_ready, self._closed = False, True
            await super().aclose()
            await trio.to_thread.run_sync(self._close)

    def _new_stage(self, sink: str, attempt: str, partition: int, deadline: float) -> StagedAttempt:
        self._opened()
        return FileStagedAttempt(self._charge, sink, attempt, partition, deadline, self._staged, self._filesystem)

    async def _remove(self, stages: Sequence[StagedAttempt]) -> None:
        await trio.to_thread.run_sync(remove_all, stages)

    # Promotion: decided, done, noted

    async def _promote(self, sink: str, batch: int, stages: Sequence[StagedAttempt], once: bool) -> None:
        journal = self._opened()
        if (failure := self.log.failure) is not None:
            # The end of the log is unknown, and a decision has to name the position where its rows begin.
            raise OSError(failure.errno, f"the log can't be written since a failure, open it anew: {failure}")
        rows: dict[int, int] = {}
        for stage in stages:
            target = self._target(stage.partition)
            rows[target] = rows.get(target, 0) + stage.rows
        begins = {partition: self.log.bounds(partition)[1] for partition in rows}
        ends = {partition: begins[partition] + rows[partition] for partition in rows}
        decision = Decision(sink, batch, [stage.attempt for stage in stages], begins, ends, once)
        await trio.to_thread.run_sync(self._decide, decision)
        try:
            await self.log.append_all(self._chains(stages), at=begins)
        except (OSError, ValueError, RSocketError, trio.ClosedResourceError):
            if self.log.failure is not None:
                self._leave_undone(decision)
                raise
            # Nothing is in the log, so the decision is undone. If that fails, the journal takes no more records.
            await trio.to_thread.run_sync(journal.roll_back)
            raise
        except BaseException:
            self._leave_undone(decision)
            raise
        await trio.to_thread.run_sync(self._note_done, decision)

    def _leave_undone(self, decision: Decision) -> None:
        """Keep a decision and its attempts: it is unknown which rows are in the log, and the next opening appends the
        rest."""
        self._undone = frozenset(decision.attempts)
        self._opened().give_up(OSError(errno.EIO, "a batch was half promoted: opening the ledger anew settles it"))

    async def _drop(self, stages: Sequence[StagedAttempt]) -> int:
        return await super()._drop([stage for stage in stages if stage.attempt not in self._undone])

    def _decide(self, decision: Decision) -> None:
        journal = self._opened()
        journal.begin()
        try:
            journal.write([entry("decided", attrs.asdict(decision))])
            journal.sync()
        except BaseException:
            journal.roll_back()
            raise

    def _note_done(self, decision: Decision) -> None:
        """Note that a decision is done. This may fail: the rows are in the log, so a redo would append nothing."""
        journal = self._opened()
        journal.commit()
        with suppress(OSError):
            journal.begin()
            try:
                done = {"sink": decision.sink, "batch": decision.batch, "once": decision.once, "time": time.time()}
                journal.write([entry("done", done)])
            except BaseException:
                journal.roll_back()
                raise
            journal.commit()
            if journal.size > self._longest_journal:
                self._committed.remember(decision.sink, decision.batch, decision.once)
                self._begin_journal_anew(journal)

    def _begin_journal_anew(self, journal: Segments) -> None:
        journal.roll()
        known = self._committed
        entries = [
            entry(kind, {sink: (batch, known.times[sink]) for sink, batch in some})
            for kind, group in (("last", known.lasting), ("once", known.one_time))
            for some in batched(group.items())
        ]
        journal.trim(journal.append(entries))
        self._longest_journal = max(JOURNAL_BYTES, 4 * journal.size)

    async def _note_forgotten(self, sink: str) -> None:
        await trio.to_thread.run_sync(self._opened().append, [entry("forgotten", sink)])

    async def _redo(self, decision: Decision) -> None:
        """Append the rows of a decision that the log lacks."""
        stages = [self._stages[attempt] for attempt in decision.attempts if attempt in self._stages]
        chains = self._chains(stages)
        missing: dict[int, Iterable[Element | Pack]] = {}
        for partition, begin in decision.begins.items():
            end, latest = decision.ends[partition], self.log.bounds(partition)[1]
            if latest < end:
                chain = chains.get(partition)
                if latest < begin or chain is None or len(stages) < len(decision.attempts):
                    what = "lost rows" if latest < begin else "lacks rows, and their attempts are gone"
                    raise LedgerMismatch(
                        f"{self.directory}: partition {partition} ends at {latest} and {what}: {decision}"
                    )
                missing[partition] = Remaining(chain, await self._check_there(chain, partition, begin, latest))
        if missing:
            await self.log.append_all(missing)
        await trio.to_thread.run_sync(self._note_done, decision)
        self._committed.remember(decision.sink, decision.batch, decision.once)
        await self._drop(stages)

    async def _check_there(self, promised: Iterable[Element | Pack], partition: int, begin: int, end: int) -> int:
        """Return how many of the promised elements are in the log. Raise ``LedgerMismatch`` if it holds others."""
        count, position, iterator = 0, begin, one_by_one(promised)
        while position < end:
            some = list(await self.log.read_some(partition, position, end))
            wanted = await trio.to_thread.run_sync(list, islice(iterator, len(some)))
            found = [record.element for record in some]
            if found != wanted or some[-1].end > end:
                raise LedgerMismatch(
                    f"{self.directory}: somebody else wrote to partition {partition} from {position} on"
                )
            count, position = count + len(some), some[-1].end
        return count

    # Opening and closing, in a thread

    def _open(self, epoch: float) -> Decision | None:
        """Read the files.

        Return a decision that is not done. ``epoch`` is the Trio clock's time, in seconds, at Unix time 0.
        """
        self._directory_lock = DirectoryLock(self.directory)
        self._staged.mkdir(exist_ok=True)
        self._journal = Segments(self.directory / "journal", filesystem=self._filesystem)
        decision: Decision | None = None
        for kind, content in read_journal(self._journal):
            if kind == "decided":
                decision = decision_of(content)
            elif kind == "done":
                self._committed.remember(
                    content["sink"], content["batch"], content.get("once", False), content.get("time")
                )
                decision = None
            elif kind == "forgotten":
                self._committed.forget(content)
            else:
                for sink, found in content.items():
                    # A journal of an earlier version has no times.
                    batch, at = found if isinstance(found, list) else (found, None)
                    self._committed.remember(sink, batch, kind == "once", at)
        for stage in restored_attempts(self._staged, self._filesystem, self._charge, epoch + self._seconds):
            self._stages[stage.attempt] = stage
            self.staged_bytes += stage.size
        return decision

    def _close(self) -> None:
        for stage in list(self._stages.values()):
            if not stage.sealed:
                stage.dropped = True
                stage.remove()
        self._stages.clear()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._directory_lock is not None:
            self._directory_lock.release()

    def _opened(self) -> Segments:
        if self._journal is None or self._closed:
            raise trio.ClosedResourceError("the ledger is not open: use it under 'async with'")
        return self._journal


def batched(items: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """Yield the items in lists of up to ``ENTRY_SINKS``."""
    iterator = iter(items)
    while some := list(islice(iterator, ENTRY_SINKS)):
        yield some


@attrs.frozen
class Remaining:
    """The elements behind the first ``skipped``; they can be read more than once."""

    elements: Iterable[Element | Pack]
    skipped: int

    def __iter__(self) -> Iterator[Element]:
        return islice(one_by_one(self.elements), self.skipped, None)


def one_by_one(elements: Iterable[Element | Pack]) -> Iterator[Element]:
    """Yield elements, those of packs as well."""
    for element in elements:
        if isinstance(element, Pack):
            yield from elements_of(element)
        else:
            yield element
