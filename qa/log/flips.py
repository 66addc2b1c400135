"""Flips of single bits in the file of a log and in its WAL: each is an error that the docs name, or changes nothing."""

from __future__ import annotations

import faulthandler
import inspect
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import trio

from qa.log.child import started
from rsocket_trio.replay import Ledger, Log
from rsocket_trio.replay.elements import Element, arrow
from rsocket_trio.replay.errors import CorruptLog, NotStaged
from rsocket_trio.replay.sqlite_log import PAGE_BYTES

PARTITIONS = 3
PATIENCE_SECONDS = 120
"""Seconds after which an opening hangs: then the stacks are printed, and the program ends."""
ALLOWED = (CorruptLog, OSError, NotStaged)

TIME = 2**51
"""Microseconds: the time of some rows, later than all others."""
ATTEMPTS = {"a-single": 20, "a-pack": 300}
State: TypeAlias = dict[str, Any]


def elements(tag: str, count: int) -> list[Element]:
    """Return rows of all kinds."""
    return [
        Element(
            None if number % 7 == 3 else f"{tag} {number}".encode() * (1 + number % 5),
            b"metadata" if number % 3 == 0 else None,
            key=b"key %d" % number if number % 2 else None,
            headers=[("name", b"value"), ("null", None)] if number % 5 == 0 else None,
        )
        for number in range(count)
    ]


async def fill(path: Path) -> None:
    """Make a log with all that there is: single bodies, Arrow bodies, long ones, staged attempts, sinks, readers."""
    async with Log(path, PARTITIONS, sync="never") as log, Ledger(log) as ledger:
        for number in range(120):
            for one in elements(f"single {number}", 1):
                await log.append_all({number % PARTITIONS: [one]})
        for partition in range(PARTITIONS):
            for number in range(4):
                await log.append(b"at a time", partition=partition, timestamp=TIME + number)
            await log.append_all({partition: elements("together", 500)})
            await log.append(os.urandom(9000), partition=partition)
        for sink in range(12):
            for batch in range(2):
                await stage(ledger, f"sink {sink}", f"{sink}-{batch}", batch, 5)
                await ledger.commit(f"sink {sink}", batch, {f"{sink}-{batch}": 5}, query=f"query {sink}", epoch=batch)
        await stage(ledger, "open", "a-single", 0, 1, elements("staged", 20))
        await stage(ledger, "open", "a-pack", 0, 1, [next(arrow().packs_of(elements("packed", 300)))])
        await ledger.begin("open", "not-complete", 2, batch=0, epoch=1)
        for reader in range(5):
            await log.acknowledge(f"reader{reader}", {0: 10 + reader, 1: 3})
        await log.trim(0, 7)


async def stage(ledger: Ledger, sink: str, attempt: str, batch: int, epoch: int, rows: Any = None) -> None:
    """Stage a complete attempt."""
    held = await ledger.begin(sink, attempt, batch, batch=batch, epoch=epoch if rows else batch)
    for element in elements(attempt, 5) if rows is None else rows:
        await held.add(element)
    await held.seal()


async def observe(path: Path) -> State:
    """Return what the log at ``path`` says, by question: an answer, or the error in its place."""
    found: State = {}

    async def note(name: str, ask: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        try:
            answer = ask(*arguments, **more)
            found[name] = await answer if inspect.isawaitable(answer) else answer
        except ALLOWED as error:
            found[name] = error

    async def rows(partition: int, with_times: bool = True) -> list[tuple[Any, ...]]:
        begin, end = log.bounds(partition)
        return [  # the times of what is appended here differ
            (one.position, one.data, one.metadata, one.count, one.key, one.headers, one.timestamp if with_times else 0)
            async for one in log.read(partition, begin, end)
        ]

    def sinks() -> Any:
        return ledger.sinks, [ledger.last(f"sink {sink}") for sink in range(12)]

    async def both() -> None:
        for partition in range(PARTITIONS):
            await note(f"rows {partition}", rows, partition)
            await note(f"middle {partition}", log.position_at, partition, TIME + 2)
        await note("readers", log.readers)
        await note("sinks", sinks)
        await note("again", ledger.commit, "sink 3", 1, {}, query="query 3", epoch=1)
        await note("commit", ledger.commit, "open", 0, ATTEMPTS, epoch=1)
        if isinstance(found["commit"], Exception):
            return
        await note("append", log.append_all, {partition: [Element(b"new")] for partition in range(PARTITIONS)})
        for partition in range(0 if isinstance(found["append"], Exception) else PARTITIONS):
            await note(f"then {partition}", rows, partition, False)

    try:
        async with Log(path, PARTITIONS, sync="never") as log, Ledger(log) as ledger:
            await both()
    except ALLOWED as error:
        found["open"] = error
    return found


def compared(right: State, found: State) -> list[str]:
    """Return a line for each answer that is neither right nor an error."""
    return [
        f"{name}: {str(answer)[:200]} instead of {str(right[name])[:200]}"
        for name, answer in found.items()
        if not isinstance(answer, Exception) and answer != right[name]
    ]


def flip(path: Path, place: int, bit: int) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def pages_of(path: Path) -> list[list[int]]:
    """Return where the pages of each table and index begin: bodies take the most, and the others decide more."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    found: dict[str, list[int]] = {}
    for name, number in connection.execute("SELECT name, pageno FROM dbstat"):
        found.setdefault(name, []).append((number - 1) * PAGE_BYTES)
    connection.close()
    return list(found.values())


def played(original: Path, places: int, chance: random.Random, right: State) -> tuple[Counter[str], list[str]]:
    """Flip bits in copies of a closed log. Return how often what came of it, and what is wrong."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    copy = original.with_name("copy")
    pages = pages_of(original)
    for number in range(places):
        copied(original, copy)
        place = chance.choice(pages[number % len(pages)]) + chance.randrange(PAGE_BYTES)
        bit = chance.randrange(8)
        flip(copy, place, bit)
        faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
        try:
            found = trio.run(observe, copy)
        except BaseException as error:  # whatever it is, it is none that is named
            lines = [repr(error)]
        else:
            lines = compared(right, found)
            outcomes["error" if any(isinstance(one, Exception) for one in found.values()) else "nothing"] += 1
        wrong += [f"byte {place}, bit {bit}: {line}" for line in lines]
    return outcomes, wrong


async def bounds_of(path: Path) -> tuple[Any, ...]:
    """Return the rows and last batch of a log that a writer of ``child.in_steps`` left."""
    async with Log(path, sync="never") as log, Ledger(log) as ledger:
        rows = []
        for partition in log.partitions():
            begin, end = log.bounds(partition)
            rows.append([one.data async for one in log.read(partition, begin, end)])
        return tuple(rows), ledger.last("sink")


def cut(folder: Path, places: int, chance: random.Random) -> tuple[Counter[str], list[str]]:
    """Flip bits in the WAL of a killed writer: what is left is what the log had after one of its commits."""
    path, copy = folder / "killed", folder / "copy"
    with started("in_steps", path) as child:
        assert child.stdout is not None
        steps = [(None, line)[1] for line in iter(child.stdout.readline, b"done\n")]
        child.send_signal(signal.SIGKILL)
        child.wait()
    states = {tuple(map(int, step.split())) for step in steps}
    [whole, last] = trio.run(bounds_of, copied(path, copy))
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for _ in range(places):
        copied(path, copy)
        wal = Path(f"{copy}-wal")
        place, bit = chance.randrange(wal.stat().st_size), chance.randrange(8)
        flip(wal, place, bit)
        faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
        try:
            rows, batch = trio.run(bounds_of, copy)
        except ALLOWED:
            outcomes["error"] += 1
            continue
        state = (*map(len, rows), -1 if batch is None else batch)
        if not any(rows) and len(state) < 3:
            outcomes["empty"] += 1
        elif state not in states or any(some != all_[: len(some)] for some, all_ in zip(rows, whole, strict=True)):
            wrong.append(f"byte {place} of the WAL, bit {bit}: {state}")
        else:
            outcomes["nothing" if rows == whole and batch == last else "cut"] += 1
    return outcomes, wrong


def copied(path: Path, copy: Path) -> Path:
    """Copy the files of a log that nobody has open in the place of an earlier copy. Return the copy's path."""
    for end in ("", "-wal", "-shm"):
        Path(f"{copy}{end}").unlink(missing_ok=True)
        if end != "-shm" and Path(f"{path}{end}").exists():
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    return copy


def play(folder: Path, places: int = 2000, seed: int = 1) -> list[str]:
    """Flip a bit at so many places, a quarter of them in a WAL. Return what is wrong."""
    chance = random.Random(seed)
    path = folder / "log"
    trio.run(fill, path)
    right = trio.run(observe, copied(path, folder / "copy"))
    failed = [f"without a flip: {name}: {one}" for name, one in right.items() if isinstance(one, Exception)]
    in_file, wrong = played(path, places - places // 4, chance, right)
    in_wal, more = cut(folder, places // 4, chance)
    faulthandler.cancel_dump_traceback_later()
    print(f"flips in a file of {path.stat().st_size} bytes: {dict(in_file)}; in a WAL: {dict(in_wal)}", flush=True)
    return failed + wrong + more
