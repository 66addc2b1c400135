"""A query of several routes, as Spark calls it: which it reads, offsets by route, and routes that come and go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Payload, Rejected, Responder
from rsocket_trio.replay import Element, Log, add_source
from rsocket_trio.replay.elements import SOURCES_ROUTE
from rsocket_trio.spark import ListedSource, list_sources
from rsocket_trio.spark.background import background
from rsocket_trio.spark.batch_reader import BatchReader
from rsocket_trio.spark.errors import DataLossError, OptionError, SourceError
from rsocket_trio.spark.options import Options, Use, parse_options
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.server_sources import ask_places
from tests.spark.serving import URI, column, filled, options, served
from tests.spark.test_reading import ranges, read_all
from tests.spark.test_streaming import PATIENCE, Query

Serving = Callable[[Responder], None]


def given(**more: object) -> Options:
    """Options of a stream without the route of other tests."""
    return parse_options(
        {"path": URI, "positions": "server"} | {name: str(value) for name, value in more.items()}, Use.STREAM_READ
    )


def several(**more: Any) -> Options:
    """Checked options of a batch."""
    return options(route=None, **more)


@pytest.fixture
def logs(serving: Serving) -> dict[str, Log]:
    """The routes ``sensors.a`` with two partitions, ``sensors.b``, and ``orders``; ``server`` is for more."""
    found = {
        "sensors.a": trio.run(filled, {0: 100, 1: 50}),
        "sensors.b": trio.run(filled, {0: 10}),
        "orders": trio.run(filled, {0: 5}),
    }
    responder = Responder()
    for route, log in found.items():
        add_source(responder, route, log)
    serving(responder)
    SERVERS.append(responder)
    return found


SERVERS: list[Responder] = []
"""The server of the test, the last one: more routes may come."""


def add(route: str, rows: int) -> Log:
    log = trio.run(filled, {0: rows})
    add_source(SERVERS[-1], route, log)
    return log


def append(log: Log, partition: int, count: int) -> None:
    async def run() -> None:
        await log.append_all({partition: [Element(b"more")] * count})

    background().run(run)


# Streams


@pytest.mark.parametrize("which", [{"routes": "sensors.b, sensors.a"}, {"routePattern": "sensors.*"}], ids=str)
def test_a_query_reads_every_partition_of_every_route(which: dict[str, str], logs: dict[str, Log]) -> None:
    query = Query(given(**which, startingPosition="earliest"))

    assert query.at == {"v": 2, "f": query.fingerprint, "p": {"sensors.a": {"0": 0, "1": 0}, "sensors.b": {"0": 0}}}
    assert query.plan() == [Range(0, 0, 100, "sensors.a"), Range(1, 0, 50, "sensors.a"), Range(0, 0, 10, "sensors.b")]
    append(logs["sensors.a"], 1, 2)
    append(logs["orders"], 0, 2)
    assert query.plan() == [Range(1, 50, 52, "sensors.a")]
    assert query.plan() == []


def test_rows_of_a_range_are_those_of_its_route(logs: dict[str, Log]) -> None:
    query = Query(given(routes="orders,sensors.b", startingPosition="earliest"))
    before = query.at
    query.plan()

    [part] = query.reader.partitions(before, query.at)
    assert repr(part) == "RangePartition(orders, 0: 0 to 5, sensors.b, 0: 0 to 10)"
    batches = list(query.reader.read(part))
    assert column(batches, "position") == [*range(5), *range(10)]
    assert column(batches, "route") == ["orders"] * 5 + ["sensors.b"] * 10


def test_a_route_that_comes_later_is_read_from_its_earliest_position(logs: dict[str, Log]) -> None:
    query = Query(given(routePattern="sensors.*"))
    assert query.plan() == []
    before = query.at
    late = add("sensors.c", 20)
    background().run(partial(late.trim, 0, 5))

    assert query.plan() == [Range(0, 5, 20, "sensors.c")]
    # The batch is planned the same by another process, from its offsets alone.
    again = Query(given(routePattern="sensors.*"))
    assert [repr(one) for one in again.reader.partitions(before, query.at)] == ["RangePartition(sensors.c, 0: 5 to 20)"]
    assert query.plan() == []


def test_a_route_that_goes_is_named(logs: dict[str, Log]) -> None:
    query = Query(given(routePattern="*", startingPosition="earliest"))
    query.plan()
    fewer = Query(given(routePattern="sensors.*"))
    fewer.at = query.at

    with pytest.raises(DataLossError, match="route 'orders' is gone: it was read up to position 5 of partition 0, "):
        fewer.plan()
    lenient = Query(given(routePattern="sensors.*", failOnDataLoss="false"))
    lenient.at = query.at
    append(logs["sensors.b"], 0, 1)
    assert lenient.plan() == [Range(0, 10, 11, "sensors.b")]
    assert lenient.at["p"]["orders"] == {"0": 5}


def test_more_routes_may_be_named_with_the_same_checkpoint(logs: dict[str, Log]) -> None:
    first = Query(given(routes="sensors.b", startingPosition="earliest"))
    first.plan()
    more = Query(given(routes="sensors.b,orders"))
    more.at = first.at

    assert more.plan() == [Range(0, 0, 5, "orders")]


def test_each_route_hears_of_its_own_commits(serving: Serving) -> None:
    heard: dict[str, dict[int, int]] = {}
    done = trio.Event()
    responder = Responder()

    for route in ("a", "b"):

        def on_ack(partition: int, end: int, route: str = route) -> None:
            heard.setdefault(route, {})[partition] = end
            if len(heard) == 2:
                done.set()

        add_source(responder, route, trio.run(filled, {0: 3}), on_ack=on_ack)
    serving(responder)
    query = Query(given(routes="a,b", startingPosition='{"a": {"0": 1}}', ackRoute="*.ack"))
    query.plan()
    query.reader.commit(query.at)

    async def wait() -> None:
        with trio.fail_after(PATIENCE):
            await done.wait()

    background().run(wait)
    assert heard == {"a": {0: 3}, "b": {0: 3}}


# Batches


def test_a_batch_reads_all_routes_between_its_positions(logs: dict[str, Log]) -> None:
    chosen = several(
        routes="sensors.a,orders", startingPosition='{"sensors.a": {"0": 98}}', endingPosition='{"sensors.a": {"1": 1}}'
    )
    reader = BatchReader(chosen, None)

    assert ranges(reader) == [Range(0, 0, 5, "orders"), Range(0, 98, 100, "sensors.a"), Range(1, 0, 1, "sensors.a")]
    assert column(read_all(reader), "position") == [*range(5), 98, 99, 0]


# What the server does not have


async def test_an_empty_pattern_names_what_there_is(autojump_clock: MockClock) -> None:
    responder = Responder()
    for number in range(22):
        add_source(responder, f"r{number:02}", Log())
    async with served(responder) as pool:
        with pytest.raises(SourceError, match=r"'routePattern': no source at .* is like 's\*'.*r00, r01.* and 12 more"):
            await ask_places(pool, several(routePattern="s*"))


async def test_a_server_that_cannot_list_is_told_from_one_that_is_away(autojump_clock: MockClock) -> None:
    def old(request: Payload) -> bytes:
        raise Rejected(f"no request_response handler for {SOURCES_ROUTE!r}")

    responder = Responder()
    responder.request_response(SOURCES_ROUTE)(old)
    async with served(responder) as pool:
        with pytest.raises(OptionError, match=r"'routePattern': the server at .* lists no sources.* 'routes' takes"):
            await ask_places(pool, several(routePattern="*"))
    async with served(Responder()) as pool:
        with pytest.raises(OptionError, match=r"'routePattern': the server at .* lists no sources"):
            await ask_places(pool, several(routePattern="*"))


def test_the_sources_of_a_server_are_listed(logs: dict[str, Log]) -> None:
    assert list_sources(URI) == [
        ListedSource("orders", 0, 0, 5),
        ListedSource("sensors.a", 0, 0, 100),
        ListedSource("sensors.a", 1, 0, 50),
        ListedSource("sensors.b", 0, 0, 10),
    ]
    assert list_sources(URI, "sensors.?", {"readTimeout": "5s"})[-1] == ("sensors.b", 0, 0, 10)
    with pytest.raises(SourceError, match="no source"):
        list_sources(URI, "prices")


# Options


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"routes": "a,b", "route": "a"}, "options 'route' and 'routes' exclude each other"),
        ({"routes": "a,,b"}, "'routes' of 'a,,b' has a route that is empty"),
        ({"routes": "a,b", "positions": "none"}, "'routes' needs positions=server, not none"),
        ({"routes": "a", "startingPosition": '{"0": 1}'}, "'startingPosition' of several routes names them"),
        ({"route": "a", "positions": "server", "startingPosition": '{"a": {"0": 1}}'}, "names its partitions only"),
        ({"routes": "a,b", "ackRoute": "ack"}, r"'ackRoute' of several routes has a \*"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_options_that_do_not_fit_are_named(more: dict[str, str], message: str, ends_background: None) -> None:
    with pytest.raises(OptionError, match=message):
        Query(given(**more))
