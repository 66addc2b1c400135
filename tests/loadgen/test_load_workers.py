"""Loads from worker processes: one schedule, counts that add up, and a plain word when a process is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio import Payload, Responder, serve
from rsocket_trio.loadgen import LoadError, WorkerError, run_workers
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.server.processes import supervisor
from tests.blocks import page, snippets
from tests.each_row import whole
from tests.loadgen.loads import summary_of

PATIENCE = 60.0
"""Seconds that processes may take on a machine that has much else to do."""


@asynccontextmanager
async def serving(responder: Responder) -> AsyncIterator[str]:
    """Serve for the block, and yield the URI."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, ["tcp://127.0.0.1:0"], grace=0))
        yield uri
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def noting(moments: list[float]) -> AsyncIterator[str]:
    """Run a server that notes the time of each request, and yield its URI."""
    responder = Responder()

    @responder.request_response("note")
    def note(request: Payload) -> bytes:
        moments.append(trio.current_time())
        return b""

    async with serving(responder) as uri:
        yield uri


def workers() -> list[int]:
    """Return the processes that this one has started and not yet waited for."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(number) for path in found for number in path.read_text().split()]


async def test_workers_begin_at_one_moment_and_keep_one_schedule() -> None:
    moments: list[float] = []
    with trio.fail_after(PATIENCE):
        async with noting(moments) as uri:
            summary = await run_workers(Plan(uri=uri, route="note", rate=20, seconds=1.5, tasks=2, arrivals="constant"))

    total = summary.total
    assert (total.due, total.ok, total.errors, summary.measured) == (30, 30, {}, 1.5)
    assert total.times["latency"].total == total.times["behind"].total == 30
    assert not summary.interrupted
    # The first two are probes; from then on requests of the two take turns.
    assert moments[-1] - moments[2] == pytest.approx(29 / 20, abs=1.0)
    assert sum(counts.due for counts in summary.seconds.values()) == 30


@whole
async def test_where_one_cannot_begin_none_does(uri: str) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(LoadError) as caught:
        await run_workers(Plan(uri=uri, route="nowhere", rate=10, seconds=1, tasks=2))

    assert str(caught.value) == "Rejected: no request_response handler for route 'nowhere'"


async def test_invalid_terms_and_files_start_nothing(uri: str) -> None:
    with pytest.raises(ValueError, match="rate is missing"):
        await run_workers(Plan(uri=uri))
    with pytest.raises(ValueError, match=r"cannot use the certificates of /nowhere.pem"):
        await run_workers(Plan(uri=uri, rate=1, trust="/nowhere.pem"))


async def test_a_load_that_is_stopped_has_what_was_counted_until_then() -> None:
    stop, responder = trio.Event(), Responder()
    answered = 0

    @responder.request_response("work")
    def work(request: Payload) -> bytes:
        nonlocal answered
        answered += 1
        if answered == 10:
            stop.set()
        return b""

    with trio.fail_after(PATIENCE):
        async with serving(responder) as uri:
            summary = await run_workers(Plan(uri=uri, route="work", rate=50, seconds=1000), stop=stop)

    assert summary.interrupted
    assert 0 < summary.measured < PATIENCE
    assert summary.total.ok == summary.total.due > 0


@whole
async def test_a_load_that_is_stopped_before_it_began_is_empty(uri: str) -> None:
    stop = trio.Event()
    stop.set()

    with trio.fail_after(PATIENCE):
        summary = await run_workers(Plan(uri=uri, rate=1), stop=stop)

    assert (summary.interrupted, summary.total.due, summary.measured) == (True, 0, 0)


async def test_a_worker_that_dies_ends_the_load_and_its_counts_are_kept() -> None:
    before = set(workers())
    harmed: list[int] = []
    responder, answered = Responder(), 0

    @responder.request_response("work")
    def work(request: Payload) -> bytes:
        nonlocal answered
        answered += 1
        # After two seconds each worker has delivered counts.
        if answered == 100:
            harmed.append(max(set(workers()) - before))
            os.kill(harmed[0], signal.SIGKILL)
        return b""

    with trio.fail_after(PATIENCE):
        async with serving(responder) as uri:
            with pytest.raises(WorkerError) as caught:
                await run_workers(Plan(uri=uri, route="work", rate=50, seconds=1000, tasks=2))

    text = str(caught.value)
    assert "was ended by SIGKILL" in text
    assert f"of 2 (process {harmed[0]})" in text
    summary = caught.value.summary
    assert summary.total.ok > 30
    assert 0 < summary.measured < PATIENCE
    assert set(workers()) == before


async def test_a_worker_that_cannot_run_says_why_in_a_line(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BOOT", "raise SystemExit('no room\\nfor this')")

    with trio.fail_after(PATIENCE), pytest.raises(WorkerError) as caught:
        await run_workers(Plan(uri=uri, rate=1))

    assert "worker 1 of 1" in str(caught.value)
    assert str(caught.value).endswith("ended with code 1: for this")


async def test_a_generator_that_cannot_do_more_says_that_it_was_the_limit(uri: str) -> None:
    with trio.fail_after(PATIENCE):
        summary = await run_workers(Plan(uri=uri, route="echo", rate=60_000, seconds=0.5, timeout=0.3))

    assert summary.limited
    assert "the generator was the limit: " in str(summary)
    assert summary.to_dict()["generator"]["limit"] is True


@whole
async def test_a_server_that_can_do_no_more_is_not_the_generators_limit(uri: str) -> None:
    with trio.fail_after(PATIENCE):
        summary = await run_workers(
            Plan(uri=uri, route="never", rate=50, seconds=0.5, timeout=0.2, in_flight=2, probe=False)
        )

    assert summary.total.late > 0
    assert not summary.limited


def test_counts_up_to_now_make_a_summary_like_those_of_the_end(uri: str) -> None:
    plan = Plan(uri=uri, rate=1)

    assert summary_of(plan, []).to_dict().keys() == summary_of(plan, [(0, "due", "", None, 1)]).to_dict().keys()


async def test_the_page_shows_what_works(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    snippet, _ = snippets(page("docs/howto/loadgen.md"))
    names: dict[str, Any] = {}
    exec(compile(snippet.text, "docs/howto/loadgen.md", "exec"), names)

    with trio.fail_after(PATIENCE):
        await names["measure"](uri)

    said = capsys.readouterr().out
    assert "requests/s answered of" in said
