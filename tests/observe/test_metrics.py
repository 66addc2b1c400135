"""Metrics of calls and connections: what is counted, and in which time series."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ApplicationError, Connection, Payload, Rejected, Responder, observe, open_connection, serve
from tests.cli.commands import PATIENCE, app_served
from tests.connection.pairs import settle
from tests.missing import missing_module, require
from tests.serving import running_server

require(missing_module("prometheus_client"))

from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.multiprocess import MultiProcessCollector  # noqa: E402

URI = "memory://watched"
ECHO = {"interaction": "request_response", "route": "echo"}


class Watched:
    """A server and its registry; ``number`` reads a metric."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = observe.prometheus(self.registry)
        self.responder = responder = Responder()
        responder.around(self.metrics)

        @responder.request_response("echo")
        async def echo(request: Payload) -> Payload:
            await trio.sleep(float(request.text or 0))
            return request

        @responder.request_response("orders.{number}")
        async def order(number: int) -> int:
            return number

        @responder.request_response("fail")
        async def fail(request: Payload) -> bytes:
            raise ApplicationError("no")

        @responder.request_response("bug")
        async def bug(request: Payload) -> bytes:
            raise ZeroDivisionError

        @responder.request_stream("numbers")
        async def numbers(request: Payload) -> AsyncIterator[bytes]:
            await trio.sleep(1)
            for number in range(int(request.text)):
                yield b"%d" % number

    def number(self, name: str, **labels: str) -> float:
        """Return the value of a metric, 0 if it has none yet."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def run(self, nursery: trio.Nursery, **options: Any) -> None:
        """Serve in the nursery."""
        await nursery.start(lambda **status: serve(self.responder, URI, **options, **status))


async def test_requests_are_counted_by_outcome_on_both_sides(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with trio.open_nursery() as nursery:
        await watched.run(nursery)
        async with open_connection(URI, around=[watched.metrics]) as client:
            await client.request_response("2", route="echo")
            with pytest.raises(ApplicationError):
                await client.request_response(route="fail")
            with trio.move_on_after(1):
                await client.request_response("9", route="echo")
            await settle()
        nursery.cancel_scope.cancel()

    for side in ("server", "client"):
        for outcome, route in (("completed", "echo"), ("cancelled", "echo"), ("failed", "fail")):
            labels = {"interaction": "request_response", "route": route, "side": side, "outcome": outcome}
            assert watched.number("rsocket_requests_total", **labels) == 1
        assert watched.number("rsocket_request_seconds_count", **ECHO, side=side) == 2
        assert watched.number("rsocket_request_seconds_sum", **ECHO, side=side) == 3


async def test_items_are_counted_without_requests(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with trio.open_nursery() as nursery:
        await watched.run(nursery)
        async with (
            open_connection(URI) as client,
            client.request_stream("600", route="numbers", initial_request_n=3, refill=False) as items,
        ):
            for _ in range(3):
                await anext(items)
            await trio.sleep(5)
            items.request_n(1000)
            assert len([item async for item in items]) == 597
        nursery.cancel_scope.cancel()

    assert watched.number("rsocket_items_total", direction="sent") == 600
    assert watched.number("rsocket_items_total", direction="received") == 0
    stream = {"interaction": "request_stream", "route": "numbers", "side": "server"}
    assert watched.number("rsocket_first_item_seconds_sum", **stream) == 1
    assert watched.number("rsocket_waiting_for_credit_seconds_total") == 5


async def test_routes_are_those_of_the_application(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with trio.open_nursery() as nursery:
        await watched.run(nursery)
        async with open_connection(URI, around=[watched.metrics]) as client:
            for number in range(120):
                await client.request_response(route=f"orders.{number}")
            with pytest.raises(Rejected):
                await client.request_response(route="a peer's text")
        nursery.cancel_scope.cancel()

    server = {"interaction": "request_response", "side": "server"}
    assert watched.number("rsocket_requests_total", **server, route="orders.{number}", outcome="completed") == 120
    assert watched.number("rsocket_requests_total", **server, route="other", outcome="failed") == 1
    client_side = {"interaction": "request_response", "side": "client", "outcome": "completed"}
    assert watched.number("rsocket_requests_total", **client_side, route="orders.99") == 1
    assert watched.number("rsocket_requests_total", **client_side, route="other") == 20


async def test_a_route_that_no_page_can_show_is_counted_as_other(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with trio.open_nursery() as nursery:
        await watched.run(nursery)
        async with open_connection(URI, around=[watched.metrics]) as client:
            for route in ("\ud800", "r" * 300):
                with pytest.raises(ValueError, match=r".+"):
                    await client.request_response(route=route)
        nursery.cancel_scope.cancel()

    labels = {"interaction": "request_response", "side": "client", "route": "other", "outcome": "failed"}
    assert watched.number("rsocket_requests_total", **labels) == 2
    assert b"ud800" not in generate_latest(watched.registry)


async def test_connections_and_faults_are_counted(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with trio.open_nursery() as nursery:
        await watched.run(nursery)
        async with open_connection(URI) as client:
            with pytest.raises(ApplicationError):
                await client.request_response(route="bug")
            await client.metadata_push(b"nobody takes it")
            await settle()
            assert watched.number("rsocket_connections") == 1
        await settle()
        assert watched.number("rsocket_connections") == 0
        nursery.cancel_scope.cancel()

    assert watched.number("rsocket_connections_ended_total", cause="ConnectionLost") == 1
    assert watched.number("rsocket_faults_total", kind="handler") == 1
    assert watched.number("rsocket_faults_total", kind="dropped") == 1


@pytest.mark.parametrize("scheme", ["tcp", "ws", "h2"])
async def test_metrics_and_records_are_the_same_over_every_transport(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    async with (
        running_server(watched.responder, f"{scheme}://127.0.0.1:0", grace=0) as uri,
        open_connection(uri, around=[watched.metrics]) as client,
    ):
        await client.request_response("0", route="echo")
        with pytest.raises(ApplicationError):
            await client.request_response(route="bug")
        assert watched.number("rsocket_connections") == 2  # both ends are watched

    for side in ("server", "client"):
        assert watched.number("rsocket_requests_total", **ECHO, side=side, outcome="completed") == 1
    assert watched.number("rsocket_faults_total", kind="handler") == 1
    assert watched.number("rsocket_connections") == 0
    [record] = [vars(each) for each in caplog.records if each.levelname == "ERROR"]
    assert (record["route"], record["stream_id"], record["dialect"]) == ("bug", 3, "rsocket/1.0")
    assert "127.0.0.1" in record["peer"]
    assert record["connection"].startswith("<Connection rsocket/1.0 server")


async def test_one_registry_has_one_set_of_metrics() -> None:
    registry = CollectorRegistry()
    assert observe.prometheus(registry) is observe.prometheus(registry)
    assert observe.prometheus(CollectorRegistry()) is not observe.prometheus(registry)


async def test_what_raises_when_it_hears_of_a_connection_costs_nobody_anything(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def call_ended(self, call: object) -> None:
            raise ZeroDivisionError

        def connected(self, connection: Connection) -> None:
            raise ZeroDivisionError

        def ended(self, connection: Connection, cause: Exception) -> None:
            raise ZeroDivisionError

    responder = Responder()
    responder.around(Broken())

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    async with running_server(responder, URI), open_connection(URI) as client:
        assert (await client.request_response(b"x")).data == b"x"
    failed = [record.getMessage() for record in caplog.records]
    assert [text.split(" failed;")[0].rpartition(" ")[2] for text in failed] == ["connected", "call_ended", "ended"]


PROGRAM = """
import os
from rsocket_trio import Responder, observe

responder = Responder()
responder.around(observe.prometheus())

@responder.request_response("which")
async def which(request):
    return str(os.getpid())
"""


async def test_one_page_adds_what_each_worker_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    (tmp_path / "app.py").write_text(PROGRAM)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(counts))
    asked, answered_by = 0, set[str]()

    with trio.fail_after(PATIENCE):
        async with app_served(tmp_path, "--listen", "tcp://127.0.0.1:0", "--workers", "2") as (_, [uri]):
            while len(answered_by) < 2:
                async with open_connection(uri) as client:
                    answered_by.add((await client.request_response(route="which")).text)
                    asked += 1
            # The answer is on its way before the call ends.
            page = CollectorRegistry()
            MultiProcessCollector(page, path=str(counts))  # type: ignore[no-untyped-call]
            labels = {"interaction": "request_response", "route": "which", "side": "server", "outcome": "completed"}
            while page.get_sample_value("rsocket_requests_total", labels) != asked:
                await trio.lowlevel.checkpoint()
