"""Ledgers in memory and in files: a batch counts once, whole, for one query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import Invalid, Rejected
from rsocket_trio.replay import Commit, Element, Ledger, Log, NotStaged, ReplayableLog
from tests.each_row import each_row
from tests.replay.stored import KINDS, data_of, new_ledger, new_log

HOUR = 3_600_000_000


async def stage(
    ledger: Ledger, attempt: str, rows: Iterable[bytes], *, sink: str = "sink", partition: int = 0, **plan: Any
) -> None:
    staged = await ledger.begin(sink, attempt, partition, **plan)
    await staged.add(*[Element(row) for row in rows])
    await staged.seal()


class Clock:
    """Microseconds since 1970 that a test sets."""

    def __init__(self, ledger: Ledger) -> None:
        self.now = 10**15
        ledger._clock = lambda: self.now


@pytest.fixture(params=KINDS)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    """Return a ledger of two partitions of each kind, whose log the test opens."""
    return new_ledger(request.param, tmp_path, 2)


# What is staged, and what a commit does with it


async def test_a_commit_promotes_the_attempts_that_it_names_in_order(ledger: Ledger) -> None:
    async with ledger.log:
        await stage(ledger, "loser", [b"never"])
        await stage(ledger, "b", [b"3", b"4"])
        await stage(ledger, "a", [b"1", b"2"])
        await stage(ledger, "c", [b"5"], partition=3)
        assert await data_of(ledger.log) == []

        assert await ledger.commit("sink", 7, {"a": 2, "b": 2, "c": 1}) == Commit(promoted=True, rows=5, last=7)

        assert await data_of(ledger.log) == [b"1", b"2", b"3", b"4"]
        assert await data_of(ledger.log, 1) == [b"5"]
        assert (list(ledger.staged), ledger.last("sink"), ledger.last("other")) == (["loser"], 7, None)
        assert await ledger.abort("sink", ["loser", "a", "unknown"]) == 1
        assert (list(ledger.staged), ledger.staged_bytes) == ([], 0)


async def test_bodies_are_neither_copied_nor_read_by_a_commit(tmp_path: Path) -> None:
    async with new_log("file", tmp_path) as log:
        ledger = Ledger(log)
        await stage(ledger, "a", [b"1", b"2"])
        before = ledger._tables._ask("SELECT id, data FROM bodies")
        ledger._tables._ask("UPDATE bodies SET data = x'00'")
        await ledger.commit("sink", 1, {"a": 2})
        assert [body for body, _ in before] == [body for (body,) in ledger._tables._ask("SELECT body FROM places")]
        ledger._tables._ask("UPDATE bodies SET data = ?", before[0][1])
        assert await data_of(log) == [b"1", b"2"]


async def test_a_batch_counts_once_for_its_sink(ledger: Ledger) -> None:
    async with ledger.log:
        await stage(ledger, "a", [b"1"])
        await ledger.commit("sink", 5, {"a": 1})
        await stage(ledger, "again", [b"1"])
        await stage(ledger, "other", [b"2"], sink="other")

        assert await ledger.commit("sink", 5, {"again": 1}) == Commit(promoted=False, rows=0, last=5)
        assert list(ledger.staged) == ["other"]
        with pytest.raises(Invalid, match="batch 4 of sink 'sink' is below the last one, 5: another checkpoint wrote"):
            await ledger.commit("sink", 4, {})
        assert await ledger.commit("other", 5, {"other": 1}) == Commit(promoted=True, rows=1, last=5)
        # A function of foreachBatch may skip batches.
        assert await ledger.commit("sink", 9, {}) == Commit(promoted=True, rows=0, last=9)
        assert await ledger.commit("sink", 9, {}) == Commit(promoted=False, rows=0, last=9)
        assert await data_of(ledger.log) == [b"1", b"2"]


async def test_a_commit_that_does_not_fit_what_is_staged_promotes_nothing(ledger: Ledger) -> None:
    async with ledger.log:
        await stage(ledger, "a", [b"1", b"2"])
        await stage(ledger, "foreign", [b"3"], sink="other")
        open_one = await ledger.begin("sink", "open", 0)
        await open_one.add(Element(b"4"))

        for attempts, reason in (
            ({"a": 2, "unknown": 1}, "attempt unknown is not staged for sink sink"),
            ({"a": 2, "foreign": 1}, "attempt foreign is not staged for sink sink"),
            ({"a": 2, "open": 1}, "attempt open is not complete"),
            ({"a": 3}, "attempt a has 2 rows, not 3"),
        ):
            with pytest.raises(NotStaged, match=reason) as caught:
                await ledger.commit("sink", 1, attempts)
            assert caught.value.code == 0x320
        assert (await data_of(ledger.log), ledger.last("sink")) == ([], None)
        assert (await ledger.commit("sink", 1, {"a": 2})).promoted
        await ledger.discard(open_one)


async def test_an_attempt_that_was_aborted_takes_no_more_rows(ledger: Ledger) -> None:
    async with ledger.log:
        unfinished = await ledger.begin("sink", "a", 0)
        await unfinished.add(Element(b"1"))
        assert await ledger.abort("sink", ["a"]) == 1
        # Its name may be used again, and is another attempt then.
        await stage(ledger, "a", [b"2"])
        with pytest.raises(Rejected, match="attempt a is staged no longer: it was too old, or was aborted"):
            await unfinished.seal()
        await ledger.discard(unfinished)
        assert ledger.staged == ["a"]
        assert (await ledger.commit("sink", 1, {"a": 1})).promoted


async def test_a_commit_is_one_transaction(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger.log:
        await stage(ledger, "a", [b"1"])
        await stage(ledger, "b", [b"2"], partition=1)
        with monkeypatch.context() as broken:

            def fail(*_: object) -> None:
                raise OSError(5, "the disk has gone")

            # The last step: rows have their places by then, and the staged are gone.
            broken.setattr(ledger, "_remember", fail)
            with pytest.raises(OSError, match="the disk has gone"):
                await ledger.commit("sink", 1, {"a": 1, "b": 1})
        assert (await data_of(ledger.log), await data_of(ledger.log, 1), ledger.last("sink")) == ([], [], None)
        assert sorted(ledger.staged) == ["a", "b"]
        assert (await ledger.commit("sink", 1, {"a": 1, "b": 1})).promoted
        assert (await data_of(ledger.log), await data_of(ledger.log, 1)) == ([b"1"], [b"2"])


# To which query the batches of a sink belong


async def test_the_batches_of_a_sink_belong_to_one_query(ledger: Ledger) -> None:
    async with ledger.log:
        await stage(ledger, "a", [b"1"])
        assert (await ledger.commit("sink", 3, {"a": 1}, query="one")).promoted
        await stage(ledger, "b", [b"2"])
        for query, batch in (("two", 4), ("two", 3), ("two", 0), (None, 4)):
            name = "query two" if query else "writes outside of queries"
            with pytest.raises(
                Invalid, match=f"belongs to query one, not to {name}: use another sinkId, or .*takeOver"
            ):
                await ledger.commit("sink", batch, {"b": 1}, query=query)
        # Nobody outside of queries takes it over, but a query that of writes outside of queries.
        with pytest.raises(Invalid, match="belongs to query one"):
            await ledger.commit("sink", 4, {"b": 1}, take_over=True)
        for batch in (1, 2):
            assert (await ledger.commit("free", batch, {})).promoted
        with pytest.raises(Invalid, match="belongs to writes outside of queries, not to query one"):
            await ledger.commit("free", 3, {}, query="one")
        assert (await ledger.commit("free", 0, {}, query="one", take_over=True)).promoted
        assert (list(ledger.staged), ledger.last("sink")) == (["b"], 3)
        assert (await ledger.commit("sink", 4, {"b": 1}, query="one")).promoted
        assert await data_of(ledger.log) == [b"1", b"2"]


async def test_a_sink_that_was_taken_over_begins_anew_and_never_goes_back(ledger: Ledger) -> None:
    async with ledger.log:
        await ledger.commit("sink", 7, {}, query="one")
        assert await ledger.commit("sink", 0, {}, query="two", take_over=True) == Commit(True, 0, 0)
        # The option of the query that has it by now changes nothing: its rules are those of every sink.
        assert not (await ledger.commit("sink", 0, {}, query="two", take_over=True)).promoted
        assert (await ledger.commit("sink", 1, {}, query="two", take_over=True)).promoted
        with pytest.raises(Invalid, match="batch 0 of sink 'sink' is below the last one, 1"):
            await ledger.commit("sink", 0, {}, query="two", take_over=True)
        for take_over in (False, True):
            with pytest.raises(Invalid, match="was taken over from query one by query two: write to another sink"):
                await ledger.commit("sink", 8, {}, query="one", take_over=take_over)
        await ledger.commit("sink", 5, {}, query="three", take_over=True)
        for query in ("one", "two"):
            with pytest.raises(Invalid, match=f"taken over from query {query} by query three"):
                await ledger.commit("sink", 9, {}, query=query, take_over=True)
        assert ledger.last("sink") == 5
        # Before it has sent its rows, if it says who it is.
        with pytest.raises(Invalid, match="taken over from query two by query three"):
            await ledger.begin("sink", "a", 0, query="two")
        await ledger.discard(await ledger.begin("sink", "a", 0, query="four"))


# A writer that was killed is in nobody's way


async def test_a_later_epoch_drops_what_lower_ones_have_staged_for_the_batch(ledger: Ledger) -> None:
    async with ledger.log:
        first, second = await ledger.epoch("sink"), await ledger.epoch("sink")
        assert first < second
        await stage(ledger, "killed", [b"old"] * 10, batch=3, epoch=first)
        await stage(ledger, "other-batch", [b"other"], batch=4, epoch=first)
        await stage(ledger, "other-sink", [b"other"], sink="other", batch=3, epoch=first)
        await stage(ledger, "no-batch", [b"other"])
        unfinished = await ledger.begin("sink", "unfinished", 0, batch=3, epoch=first)

        await stage(ledger, "new", [b"new"], batch=3, epoch=second)
        assert list(ledger.staged) == ["other-batch", "other-sink", "no-batch", "new"]
        # Attempts of one epoch, such as those of speculation, stand beside each other.
        await stage(ledger, "beside", [b"new"], batch=3, epoch=second)

        await late(ledger, 3, first, f"is written by epoch {second}", {"killed": 10})
        with pytest.raises(NotStaged, match="which was planned after this one"):
            await unfinished.seal()
        await ledger.discard(unfinished)
        assert (await ledger.commit("sink", 3, {"new": 1}, epoch=second)).promoted
        assert await data_of(ledger.log) == [b"new"]
        # A commit drops them as well.
        assert (await ledger.commit("sink", 4, {}, epoch=second)).promoted
        assert "other-batch" not in ledger.staged


async def late(ledger: Ledger, batch: int, epoch: int, why: str, attempts: Mapping[str, int] | None = None) -> None:
    """A batch can be neither staged nor committed with this epoch, for another that was planned after it."""
    for call in (
        partial(ledger.begin, "sink", "late", 0, batch=batch, epoch=epoch),
        partial(ledger.commit, "sink", batch, attempts or {}, epoch=epoch),
    ):
        with pytest.raises(NotStaged, match=f"{why}, which was planned after this one"):
            await call()


async def test_a_lower_epoch_is_late_also_when_the_sink_has_gone_on(ledger: Ledger) -> None:
    async with ledger.log:
        first, second = await ledger.epoch("sink"), await ledger.epoch("sink")
        await ledger.commit("sink", 5, {}, epoch=second)
        await ledger.commit("sink", 6, {}, epoch=second)
        await late(ledger, 5, first, f"is written by epoch {second}")


async def test_a_lower_epoch_is_late_also_when_what_the_higher_one_staged_is_gone(ledger: Ledger) -> None:
    async with ledger.log:
        first, second = await ledger.epoch("sink"), await ledger.epoch("sink")
        await stage(ledger, "aborted", [b"new"], batch=3, epoch=second)
        assert await ledger.abort("sink", ["aborted"]) == 1
        await late(ledger, 3, first, f"is written by epoch {second}")
        await stage(ledger, "next", [b"next"], batch=4, epoch=first)


async def test_the_epochs_of_so_many_batches_are_remembered(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsocket_trio.replay.ledger.MAX_PLANS", 2)
    async with ledger.log:
        for batch in range(3):
            await ledger.discard(await ledger.begin("sink", "a", 0, batch=batch, epoch=9))
        await ledger.discard(await ledger.begin("sink", "a", 0, batch=0, epoch=1))
        with pytest.raises(NotStaged):
            await ledger.begin("sink", "a", 0, batch=2, epoch=1)


async def test_stages_of_another_query_drop_nothing_of_the_owners(ledger: Ledger) -> None:
    async with ledger.log:
        await ledger.commit("sink", 0, {}, query="owner")
        first, second = await ledger.epoch("sink"), await ledger.epoch("sink")
        await stage(ledger, "right", [b"right"], batch=1, epoch=first, query="owner")
        await stage(ledger, "wrong", [b"wrong"], batch=1, epoch=second, query="other")
        with pytest.raises(Invalid, match="belongs to query owner"):
            await ledger.commit("sink", 1, {"wrong": 1}, epoch=second, query="other")
        assert (await ledger.commit("sink", 1, {"right": 1}, epoch=first, query="owner")).promoted
        assert await data_of(ledger.log) == [b"right"]


# Bounds


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_staged_is_bounded(kind: str, tmp_path: Path) -> None:
    ledger = new_ledger(kind, tmp_path, staged_bytes=5000, staged_attempts=2)
    async with ledger.log:
        await stage(ledger, "a", [bytes(1000)])
        staged = await ledger.begin("sink", "b", 0)
        await staged.add(Element(bytes(2000)))
        with pytest.raises(Rejected, match=r"bytes are staged and \d+ more do not fit: the limit is 5000"):
            await staged.add(Element(bytes(2000)))
        with pytest.raises(Rejected, match="attempt a is staged already"):
            await ledger.begin("sink", "a", 0)
        with pytest.raises(Rejected, match="2 attempts are staged: that is the limit"):
            await ledger.begin("sink", "c", 0)
        await ledger.discard(staged)
        await stage(ledger, "c", [bytes(2000)])
        await ledger.abort("sink", ["a"])
        last = await ledger.begin("sink", "last", 0)
        with pytest.raises(ValueError, match="a record of"):
            await last.add(Element(bytes(64 * 2**20 + 1)))
        await ledger.abort("sink", ["c", "last"])
        assert ledger.staged_bytes == 0


async def test_attempts_expire(ledger: Ledger) -> None:
    clock = Clock(ledger)
    async with ledger.log:
        await stage(ledger, "old", [b"1"])
        unfinished = await ledger.begin("sink", "unfinished", 0)
        clock.now += HOUR // 2
        await stage(ledger, "young", [b"2"])
        clock.now += HOUR // 2
        with pytest.raises(NotStaged, match="attempt old is not staged"):
            await ledger.commit("sink", 1, {"old": 1})
        assert (await ledger.commit("sink", 1, {"young": 1})).rows == 1
        for late in (unfinished.add(Element(b"late")), unfinished.seal()):
            with pytest.raises(Rejected, match="is staged no longer"):
                await late
        await ledger.discard(unfinished)
        assert (ledger.staged_bytes, ledger.staged) == (0, [])
        assert len(ledger._tables._ask("SELECT id FROM bodies")) == 1


async def test_sealed_attempts_and_last_batches_survive_the_process(tmp_path: Path) -> None:
    async with new_log("file", tmp_path, 2) as log:
        ledger = Ledger(log)
        await stage(ledger, "a", [b"1"])
        await ledger.commit("sink", 3, {"a": 1})
        await ledger.commit("owned", 1, {}, query="one")
        await stage(ledger, "sealed", [b"2", b"3"], partition=1)
        size, epoch = ledger.staged_bytes, await ledger.epoch("sink")
    async with new_log("file", tmp_path) as log:
        ledger = Ledger(log)
        assert (ledger.last("sink"), list(ledger.staged), ledger.staged_bytes) == (3, ["sealed"], size)
        assert await ledger.abort("other", ["sealed"]) == 0
        assert await ledger.epoch("other") > epoch
        with pytest.raises(Invalid, match="belongs to query one"):
            await ledger.commit("owned", 2, {})
        assert (await ledger.commit("sink", 4, {"sealed": 2})).promoted
        assert (await data_of(log), await data_of(log, 1)) == ([b"1"], [b"2", b"3"])


async def test_an_argument_of_another_type_is_refused_and_damages_nothing(ledger: Ledger) -> None:
    async with ledger.log:
        for sink, name, batch, terms, problem in (
            (5, "a", 0, {}, r"Expected `str`, got `int` - at `\$\.sink`"),
            ("sink", "a", True, {}, r"Expected `int.*`, got `bool` - at `\$\.batch`"),
            ("sink", "a", -1, {}, r"Expected `int.*` >= 0 - at `\$\.batch`"),
            ("sink", "a", 0, {"epoch": 1.0}, r"Expected `int \| null`, got `float` - at `\$\.epoch`"),
        ):
            with pytest.raises(ValueError, match=problem):
                await ledger.begin(sink, name, 0, batch=batch, **terms)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=problem):
                await ledger.commit(sink, batch, {name: 0}, **terms)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"Expected `str`, got `bytes` - at `\$\.attempt`"):
            await ledger.begin("sink", b"a", 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"Expected `str \| null`, got `int` - at `\$\.query`"):
            await ledger.commit("sink", 0, {}, query=5)  # type: ignore[arg-type]
        await stage(ledger, "a", [b"1"])
        assert (await ledger.commit("sink", 0, {"a": 1})).promoted


# Sinks are remembered up to a number


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sink_that_has_not_committed_for_long_makes_room_for_a_new_one(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = new_ledger(kind, tmp_path, max_sinks=3)
    clock = Clock(ledger)
    async with ledger.log:
        for sink in "abc":
            clock.now += 1
            await ledger.commit(sink, 1, {})
        clock.now += 600 * HOUR
        await ledger.commit("a", 2, {})
        clock.now += 200 * HOUR
        await ledger.commit("d", 1, {})

        assert ledger.sinks == {"c": 1, "a": 2, "d": 1}
        assert "sink b is forgotten" in caplog.text
        await ledger.commit("e", 1, {})
        with pytest.raises(Rejected, match="until one has not for 30 days"):
            await ledger.commit("f", 1, {})
        assert ledger.sinks == {"a": 2, "d": 1, "e": 1}


@pytest.mark.parametrize("kind", KINDS)
async def test_sinks_that_write_but_once_never_run_out(kind: str, tmp_path: Path) -> None:
    ledger = new_ledger(kind, tmp_path, max_sinks=4)
    async with ledger.log:
        await ledger.commit("stream", 7, {})
        for number in range(10):
            await stage(ledger, f"a{number}", [b"%d" % number], sink=f"job{number}")
            assert (await ledger.commit(f"job{number}", 0, {f"a{number}": 1}, once=True)).promoted
        # The writer that did not hear the answer.
        assert not (await ledger.commit("job9", 0, {"a9": 1}, once=True)).promoted
        # Nobody asks after so many others. Should one, nothing counts twice.
        with pytest.raises(NotStaged):
            await ledger.commit("job0", 0, {"a0": 1}, once=True)
        assert [ledger.last(sink) for sink in ("stream", "job0", "job7")] == [7, None, 0]
        assert ledger.sinks == {"stream": 7}
        assert await data_of(ledger.log) == [b"%d" % number for number in range(10)]


# Its log


async def test_a_ledger_has_a_log_in_memory_where_none_is_given() -> None:
    ledger = Ledger()
    with pytest.raises(trio.ClosedResourceError, match="use it under 'async with'"):
        await ledger.begin("sink", "a", 0)
    async with ledger:
        await stage(ledger, "a", [b"1"])
        await ledger.commit("sink", 1, {"a": 1})
        assert await data_of(ledger.log) == [b"1"]
    with pytest.raises(trio.ClosedResourceError, match="the log was closed"):
        ledger.log.bounds(0)
    async with Log() as given:
        async with Ledger(given):
            pass
        assert given.bounds(0) == (0, 0)


@each_row("log", [object(), "rows.log"])
def test_another_kind_of_log_is_refused(log: Any) -> None:
    with pytest.raises(TypeError, match=f"writes to a Log, not to a {type(log).__name__}: for Kafka there is"):
        Ledger(log)
    assert issubclass(Log, ReplayableLog)
