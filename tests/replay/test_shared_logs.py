"""A log in a file has any number of objects and processes at a time, and one lock for those that write."""

from __future__ import annotations

import errno
import pickle
import signal
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from rsocket_trio import Responder
from rsocket_trio.replay import Element, Ledger, Log, add_sink, add_source, sqlite_log
from rsocket_trio.testing import connected_pair
from tests.programs import PATIENCE, program
from tests.replay.stored import PEER, data_of, locked, opened, rows_of


async def test_what_one_object_has_appended_is_there_at_once_for_another(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    async with Log(path, 2) as one, Log(path) as other:
        assert list(other.partitions()) == [0, 1]
        for number in range(20):
            writer, reader = (one, other) if number % 2 else (other, one)
            assert await writer.append(b"%d" % number) == number
            assert reader.bounds(0) == (0, number + 1)
            reader.check_range(0, 0, number + 1)
        await one.trim(0, 15)
        assert other.bounds(0) == (15, 20)
        await one.acknowledge("reader", {0: 17})
        assert other.lowest(0) == 17
        async with Log(path, 3) as third:
            # Partitions that another adds are there as well.
            await third.append(b"new", partition=2)
            assert other.bounds(2) == (0, 1)
            assert await one.append(b"second", partition=2) == 1


async def test_processes_share_a_file_and_each_append_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    async with Log(path) as log, program(PEER, path, 50) as one, program(PEER, path, 50) as other:
        for number in range(50):
            await log.append_all({0: [Element(b"ours %d" % number)] * 2})
        for peer in (one, other):
            before = int(await peer.line())
            assert log.bounds(0)[1] >= before >= 100
        assert log.bounds(0) == (0, 300)
        rows = await data_of(log)
        # What was appended together stands together, and that of each process is in order.
        assert rows[::2] == rows[1::2]
        for writer in {(row or b"").split()[0] for row in rows}:
            numbers = [int(row.split()[1]) for row in rows[::2] if row and row.split()[0] == writer]
            assert numbers == list(range(50))

        await one.write(b"last\n")
        assert await one.line() == "301"
        assert log.bounds(0) == (0, 301)
        one.process.send_signal(signal.SIGKILL)
        await one.process.wait()
        await other.write(b"after it\n")
        assert await other.line() == "302"
        assert (await data_of(log))[-2:] == [b"last", b"after it"]
    with opened(path) as connection:
        assert connection.pragma("integrity_check") == "ok"


async def test_readers_hear_of_rows_of_another_process(tmp_path: Path) -> None:
    path, heard = tmp_path / "rows.log", []
    async with Log(path) as log, program(PEER, path, 0) as peer:
        assert await peer.line() == "0"
        async with trio.open_nursery() as nursery:

            async def follow(name: str) -> None:
                await log.wait_beyond(0, 0)
                heard.append(name)

            nursery.start_soon(follow, "one")
            nursery.start_soon(follow, "two")
            with trio.move_on_after(0) as cancelled:
                # The one that looks may be cancelled: another looks on.
                await log.wait_beyond(0, 0)
            assert cancelled.cancelled_caught
            await peer.write(b"row\n")
            with trio.fail_after(PATIENCE):
                while len(heard) < 2:  # it is woken by looking, in real time
                    await trio.lowlevel.checkpoint()
        assert await peer.line() == "1"
        assert sorted(heard) == ["one", "two"]


async def test_no_reader_that_waits_keeps_a_transaction_open(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    async with Log(path) as log, trio.open_nursery() as nursery:
        await log.append(b"x")
        records = log.read(0, 0)
        await anext(records)
        nursery.start_soon(log.wait_beyond, 0, 1)
        await trio.testing.wait_all_tasks_blocked()
        with opened(path) as connection:
            # It is refused while anybody reads the WAL; a connection that has read nothing knows of none.
            assert connection.pragma("journal_mode") == "wal"
            assert connection.execute("SELECT count(*) FROM places").get == 1
            assert connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
        nursery.cancel_scope.cancel()
    await records.aclose()


# The lock


async def test_appends_that_wait_for_the_lock_are_written_once_it_is_free_but_for_those_that_were_cancelled(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.log"
    async with Log(path) as log, trio.open_nursery() as nursery:
        with locked(path):
            async with trio.open_nursery() as first:
                first.start_soon(log.append, b"never")
                await trio.testing.wait_all_tasks_blocked()
                first.start_soon(log.append, b"never behind it")
                for _ in range(3):
                    nursery.start_soon(log.append, b"row")
                await trio.testing.wait_all_tasks_blocked()
                first.cancel_scope.cancel()
            # Reads go on meanwhile.
            assert (log.bounds(0), await rows_of(log)) == ((0, 0), [])
        with trio.fail_after(PATIENCE):
            await log.wait_beyond(0, 2)
        assert await data_of(log) == [b"row"] * 3


async def test_a_lock_that_is_held_for_too_long_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "LOCK_SECONDS", 0.1)
    path = tmp_path / "rows.log"

    async def fail(attempt: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(OSError, match="somebody else holds its lock") as caught:
            await attempt
        assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, str(path))

    async with Log(path) as log:
        with locked(path):
            async with trio.open_nursery() as nursery:
                for attempt in (Ledger(log).commit("sink", 0, {}), log.acknowledge("reader", {})):
                    nursery.start_soon(fail, attempt)
                for _ in range(3):
                    nursery.start_soon(fail, log.append(b"late"))
        assert await log.append(b"first") == 0


def test_a_log_and_its_ledger_are_not_pickled() -> None:
    for thing in (Log(), Ledger()):
        with pytest.raises(TypeError, match="a log can't be pickled: open it where it is used"):
            pickle.dumps(thing)


async def test_a_log_that_was_not_opened_is_opened_by_the_first_request(tmp_path: Path) -> None:
    path, responder = tmp_path / "rows.log", Responder()
    log = Log(path)
    add_source(responder, "rows", log)
    add_sink(responder, "new", Ledger(log))
    assert not path.exists()
    async with connected_pair(responder) as (client, _):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(partial(client.request_response, b"row", route="new"))
        assert (await client.request_response(route="rows.offsets")).text == '{"0":{"earliest":0,"latest":3}}'
    await log.aclose()


async def test_a_log_that_was_opened_is_not_taken_across_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Log(tmp_path / "rows.log") as log:
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: 1)
            problem = pytest.raises(RuntimeError, match="was opened before this process was forked: open it here")
            for attempt in (partial(log.append, b"x"), partial(log.read_some, 0, 0), log.open):
                with problem:
                    await attempt()
            with problem:
                log.bounds(0)
        assert await log.append(b"ours") == 0
