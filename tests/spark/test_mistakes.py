"""First mistakes are explained in one line that names the option and the server."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import pyspark_rsocket
from rsocket_trio import Connection, Outgoing, Payload, Responder, Setup, UnsupportedSetup
from rsocket_trio.replay import Log, TopicGone, add_source
from rsocket_trio.spark import DataLossError, OptionError, SinkError, SourceError
from rsocket_trio.spark.batch_reader import BatchReader
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.errors import rows_in_one_line
from rsocket_trio.spark.installation import require_versions
from rsocket_trio.spark.live_reader import Reception
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.server_sources import ask_bounds, explaining
from tests.spark.serving import Collected, options, pool, served


def routes() -> Responder:
    """A replayable route ``log`` and a live one ``ticks``."""
    responder = Responder()
    add_source(responder, "log", Log())

    @responder.request_stream("ticks")
    async def tick(request: Payload, out: Outgoing) -> None:
        await out.send(b"tick")

    return responder


@pytest.mark.parametrize("route", ["nowhere", "ticks"])
async def test_a_route_without_positions_is_named_with_what_helps(route: str, autojump_clock: MockClock) -> None:
    chosen = options(route=route)
    async with served(routes()) as connections:
        with pytest.raises(
            SourceError, match=f"^option 'route': route '{route}' at memory://spark can't be "
        ) as caught:
            await explaining(connections, chosen, ask_bounds, connections, chosen)

    assert "or the server does not serve it with add_source (positions=none reads it as it comes)" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_live_read_of_a_replayable_route_is_told_the_option(autojump_clock: MockClock) -> None:
    chosen = options(positions="none")
    async with served(routes()) as connections:
        with pytest.raises(OptionError, match="'positions' must be set to server: route 'log' at memory://spark is"):
            await explaining(connections, chosen, receive, connections, chosen)


async def receive(connections: Pool, chosen: Options) -> None:
    await Reception(connections, chosen, None, 0, Collected()).run(is_batch=True)


class Deleted(Log):
    """A log whose topic is gone, as one on Kafka finds with each request."""

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()
        raise TopicGone("topic 'orders' is gone")


async def test_a_topic_that_is_gone_is_a_loss_of_data() -> None:
    responder = Responder()
    add_source(responder, "orders", Deleted())
    chosen = options(route="orders")
    async with served(responder) as connections:
        with pytest.raises(DataLossError, match=r"^'orders' at memory://spark: topic 'orders' is gone$"):
            await explaining(connections, chosen, ask_bounds, connections, chosen)


@pytest.mark.parametrize(
    ("route", "said"),
    [("logs", "; did you mean 'log'?"), ("nowhere", "; its sources are log, other")],
)
async def test_a_route_that_is_missing_is_told_beside_those_that_are_there(
    route: str, said: str, autojump_clock: MockClock
) -> None:
    responder = routes()
    add_source(responder, "other", Log())
    chosen = options(route=route)
    async with served(responder) as connections:
        with pytest.raises(SourceError) as caught:
            await explaining(connections, chosen, ask_bounds, connections, chosen)

    assert str(caught.value).endswith(said)


async def test_a_server_that_speaks_no_such_version_is_named(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.setup
    def refuse(setup: Setup, connection: Connection) -> None:
        raise UnsupportedSetup("version 1.0: known is 0.2")

    async with served(responder) as connections:
        with pytest.raises(SourceError, match=r"memory://spark refused .*: version 1.0.*too old.*option.* 'path'"):
            await explaining(connections, options(), ask_bounds, connections, options())


async def test_a_peer_that_is_no_server_of_rsocket_is_suspected(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:

        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            await stream.aclose()

        [listener] = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        chosen = options(path=uri, reconnectMaxAttempts=0)
        async with pool() as connections:
            with pytest.raises(SourceError, match=f"at {uri} failed.*is it a server of RSocket"):
                await explaining(connections, chosen, ask_bounds, connections, chosen)
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("ends_background")
def test_a_read_that_cant_be_planned_has_no_traceback_through_trio() -> None:
    reader = BatchReader(options(reconnectMaxAttempts=0), None)

    with pytest.raises(SourceError, match="route 'log' at memory://spark failed") as caught:
        reader.partitions()

    files = {Path(entry.path).name for entry in caught.traceback}
    assert files == {"test_mistakes.py", "errors.py"}
    assert caught.value.__cause__ is None


def test_rows_that_fail_are_closed_and_their_error_has_no_traceback() -> None:
    closed = []

    def rows() -> Iterator[int]:
        try:
            yield 1
            raise SinkError("no")
        finally:
            closed.append(True)

    stopped = rows_in_one_line(rows())
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]  # Spark closes what is a generator
    assert closed == [True]
    with pytest.raises(SinkError) as caught:
        list(rows_in_one_line(rows()))
    assert {Path(entry.path).name for entry in caught.traceback} == {"test_mistakes.py", "errors.py"}


@pytest.mark.parametrize("version", ["4.1.2", "3.5.0", "unheard of"])
def test_a_package_that_is_too_old_is_named_with_the_interpreter(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("a_package")
    old.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_package", old)

    with pytest.raises(ImportError, match=rf"needs a_package 4\.2 or newer, {sys.executable} has {version}: pip inst"):
        require_versions({"a_package": (4, 2)})


def test_a_source_without_its_packages_is_found_and_says_which_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dict(vars(pyspark_rsocket))
    monkeypatch.setitem(sys.modules, "rsocket_trio.spark.source", None)
    try:
        found: Any = importlib.reload(pyspark_rsocket).DefaultSource

        assert found.name() == "rsocket"
        with pytest.raises(ImportError, match=r"import of rsocket_trio\.spark\.source halted"):
            found({})
    finally:
        vars(pyspark_rsocket).clear()
        vars(pyspark_rsocket).update(whole)
