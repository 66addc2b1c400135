"""A task's part of the load: all begin or none does, and it ends when the driver says so."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
import trustme

from rsocket_trio import Invalid, Payload, Responder, open_connection
from rsocket_trio.loadgen.load_task import STOPPING, Part, perform
from rsocket_trio.loadgen.spark_load import Address, serve_stop
from tests.each_row import each_row
from tests.loadgen.loads import plan, rows_of, served, summary_of, usual
from tests.serving import running_server

PATIENCE = 60.0


async def test_no_task_begins_where_one_cannot(autojump_clock: trio.testing.MockClock) -> None:
    async def ready(problem: str) -> tuple[str, float]:
        await trio.lowlevel.checkpoint()
        return "ConnectionLost: the other one", 0.0

    arrived: list[Payload] = []
    responder = Responder()
    responder.fire_and_forget("log")(arrived.append)
    async with served(responder):
        rows = await perform(Part(plan=plan(route="log", interaction="fnf"), task=0, seed=1), ready)

    assert rows == [(0, "failed", "ConnectionLost: the other one", None, 1)]
    assert arrived == []


@each_row(
    ("terms", "said"),
    [
        ({"route": "nowhere"}, "Rejected: no request_response handler for route 'nowhere'"),
        ({"route": "never", "timeout": 2.0}, "TooSlowError: the first request was not answered within 2 s"),
        ({"route": "echo", "trust": "/nowhere.pem"}, "cannot use the certificates and keys of /nowhere.pem: no such"),
    ],
    ids=["route", "silence", "certificates"],
)
async def test_a_first_request_that_fails_says_why(
    terms: dict[str, object], said: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with served(usual()):
        [(_, measure, name, _, _)] = await rows_of(plan(probe=True, **terms))

    assert measure == "failed"
    assert name.startswith(said)


@pytest.mark.parametrize("trusts", [True, False])
async def test_a_server_is_trusted_by_the_certificates_of_a_file(trusts: bool, tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("localhost").configure_cert(context)
    with trio.fail_after(PATIENCE):
        async with running_server(usual(), "tls://localhost:0", ssl_context=context, grace=0) as uri:
            trust = str(tmp_path / "ca.pem") if trusts else None
            rows = await rows_of(plan(uri=uri, route="echo", seconds=0.2, rate=50, trust=trust))

    found = {measure: name for _, measure, name, _, _ in rows}
    assert ("ok" in found) is trusts
    assert trusts or "certificate" in found["failed"]


def settings(conf: dict[str, str]) -> Any:
    """Return a session of Spark, as far as a driver's addresses go."""
    return SimpleNamespace(conf=conf)


@asynccontextmanager
async def driver(stop: trio.Event) -> AsyncIterator[Address]:
    """A driver that answers tasks once the event is set."""
    async with trio.open_nursery() as nursery:
        yield await serve_stop(nursery, settings({}), stop)
        nursery.cancel_scope.cancel()


async def test_a_load_that_is_stopped_says_what_there_is_and_what_is_missing() -> None:
    responder, arrived, stop = usual(), list[bytes](), trio.Event()

    @responder.request_response("halting")
    async def halting(request: Payload) -> bytes:
        arrived.append(request.data)
        if len(arrived) == 5:
            stop.set()
        if len(arrived) >= 5:
            await trio.sleep_forever()
        return b""

    wanted = plan(route="halting", seconds=1000.0, rate=50.0)
    with trio.fail_after(PATIENCE):
        async with served(responder), driver(stop) as address:
            summary = summary_of(wanted, await rows_of(wanted, address))

    total = summary.total
    assert total.ok == 4
    assert total.unfinished == total.due - 4 >= 1
    assert (total.failed, total.dropped) == (0, 0)
    assert summary.measured < PATIENCE - STOPPING


async def test_another_token_is_told_nothing() -> None:
    with trio.fail_after(PATIENCE):
        async with driver(trio.Event()) as address, open_connection(address[0]) as connection:
            with pytest.raises(Invalid, match="another token"):
                await connection.request_response(b"guess", route="stop")
