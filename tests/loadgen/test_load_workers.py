"""Loads from worker processes: one schedule, counts that add up, and a plain word when a process is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio import Payload, Responder
from rsocket_trio.loadgen import WorkerError, run_workers
from rsocket_trio.loadgen.plan import Plan
from tests.blocks import page, snippets
from tests.cli.commands import hosting

PATIENCE = 60.0
"""Seconds that processes may take on a machine that has much else to do."""


@asynccontextmanager
async def noting(moments: list[float]) -> AsyncIterator[str]:
    """Run a server that notes the time of each request, and yield its URI."""
    responder = Responder()

    @responder.request_response("note")
    def note(request: Payload) -> bytes:
        moments.append(trio.current_time())
        return b""

    async with hosting(responder) as uri:
        yield uri


def workers() -> list[int]:
    """Return the processes that this one has started and not yet waited for."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(number) for path in found for number in path.read_text().split()]


async def test_workers_begin_hosting_moment_and_keep_one_schedule() -> None:
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


async def test_a_worker_that_dies_ends_the_load() -> None:
    before = set(workers())
    harmed: list[int] = []
    responder, answered = Responder(), 0

    @responder.request_response("work")
    def work(request: Payload) -> bytes:
        nonlocal answered
        answered += 1
        if answered == 20:
            harmed.append(max(set(workers()) - before))
            os.kill(harmed[0], signal.SIGKILL)
        return b""

    with trio.fail_after(PATIENCE):
        async with hosting(responder) as uri:
            with pytest.raises(WorkerError) as caught:
                await run_workers(Plan(uri=uri, route="work", rate=50, seconds=1000, tasks=2))

    text = str(caught.value)
    assert "was ended by SIGKILL" in text
    assert f"of 2 (process {harmed[0]})" in text
    assert set(workers()) == before


async def test_a_generator_that_cannot_do_more_says_that_it_was_the_limit(uri: str) -> None:
    with trio.fail_after(PATIENCE):
        summary = await run_workers(Plan(uri=uri, route="echo", rate=60_000, seconds=0.5, timeout=0.3))

    assert summary.limited
    assert "the generator was the limit: " in str(summary)
    assert summary.to_dict()["generator"]["limit"] is True


async def test_the_page_shows_what_works(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    snippet, _ = snippets(page("docs/howto/loadgen.md"))
    names: dict[str, Any] = {}
    exec(compile(snippet.text, "docs/howto/loadgen.md", "exec"), names)

    with trio.fail_after(PATIENCE):
        await names["measure"](uri)

    said = capsys.readouterr().out
    assert "requests/s answered of" in said
