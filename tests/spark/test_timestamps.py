"""Queries that begin or end at a time: what the options mean, and the positions that the server finds for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from rsocket_trio import Payload, Responder
from rsocket_trio.replay import Element, Log, add_source
from rsocket_trio.spark.batch_reader import BatchReader
from rsocket_trio.spark.errors import OptionError, SourceError
from rsocket_trio.spark.options import Use, checked, parse_options, read_times
from rsocket_trio.spark.ranges import Range
from tests.spark.serving import URI, column, options
from tests.spark.test_reading import ranges, read_all
from tests.spark.test_several_routes import given, several
from tests.spark.test_streaming import Query

Serving = Callable[[Responder], None]
NOON = 1_769_860_800_000_000
"""2026-01-31 12:00 UTC."""
SECOND = 1_000_000


@pytest.fixture
def logs(serving: Serving) -> dict[str, Log]:
    """Two routes with rows of each second from noon on: 10 and 4 in ``a``, 3 in ``b``."""
    found = {"a": Log(partitions=2), "b": Log()}
    rows = {("a", 0): 10, ("a", 1): 4, ("b", 0): 3}

    async def fill() -> None:
        for log in found.values():
            await log.open()
        for (route, partition), count in rows.items():
            elements = [Element(b"%d" % number, timestamp=NOON + number * SECOND) for number in range(count)]
            await found[route].append_all({partition: elements})

    trio.run(fill)
    responder = Responder()
    for route, log in found.items():
        add_source(responder, route, log)
    serving(responder)
    return found


@pytest.mark.parametrize(
    ("written", "times"),
    [
        ("5", ((("", None), 5),)),
        (str(NOON), ((("", None), NOON),)),
        ("2026-01-31T12:00:00Z", ((("", None), NOON),)),
        ("2026-01-31 12:00:00.000001", ((("", None), NOON + 1),)),
        ("2026-01-31T13:00+01:00", ((("", None), NOON),)),
        ("1970-01-01", ((("", None), 0),)),
        ('{"0": 5, "1": "1970-01-01T00:00:01Z"}', ((("", 0), 5), (("", 1), SECOND))),
        ('{"a": {"0": 5}, "b": "7"}', ((("a", 0), 5), (("b", None), 7))),
    ],
)
def test_a_time_is_a_number_of_microseconds_or_a_text(written: str, times: object) -> None:
    assert read_times(written) == times


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("1769860800000", "1769860800000 in milliseconds: it takes microseconds since 1970, such as 1769860800000000"),
        ('{"0": 1769860800000}', "in milliseconds"),
        ('{"a": {"0": "1769860800000"}}', "in milliseconds"),
        ("noon", "'noon': neither microseconds since 1970 nor a text such as"),
        ("-1", "neither microseconds"),
        ("1969-12-31", "must be between 1970 and"),
        ("9" * 30, "must be between 1970 and"),
        ("{", "is no JSON"),
        ("{}", "names no partition and no route"),
        ('{"": 5}', "names no partition and no route"),
        ('{"0": 1.5}', "1.5 that is neither a number nor a text"),
        ('{"0": true}', "True that is neither"),
        ('{"0": -5}', "must be between 1970 and"),
        ('{"00": 5}', "partition '00'"),
        ('{"a": {"x": 5}}', "partition 'x'"),
    ],
)
def test_what_is_no_time_is_refused(written: str, problem: str) -> None:
    with pytest.raises(OptionError, match=f"^option 'startingTimestamp'.*{problem}"):
        parse_options({"path": URI, "route": "a", "startingTimestamp": written}, Use.STREAM_READ)


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("2026-01-31T12:00:02Z", {"0": 2, "1": 2}),
        (str(NOON + 2 * SECOND + 1), {"0": 3, "1": 3}),
        ("0", {"0": 0, "1": 0}),
        ("2026-01-31T12:00:05Z", {"0": 5, "1": 4}),
        ("2099-01-01", {"0": 10, "1": 4}),
        (f'{{"1": {NOON + SECOND}}}', {"0": 0, "1": 1}),
    ],
)
def test_a_query_begins_with_the_first_row_of_a_time_or_a_later_one(
    written: str, start: dict[str, int], logs: dict[str, Log]
) -> None:
    query = Query(parse_options({"path": URI, "route": "a", "positions": "server", "startingTimestamp": written}))

    assert query.at["p"] == start
    expected = [Range(part, start[str(part)], end) for part, end in ((0, 10), (1, 4)) if start[str(part)] < end]
    assert query.plan() == expected


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("2026-01-31T12:00:02Z", {"a": {"0": 2, "1": 2}, "b": {"0": 2}}),
        (f'{{"a": {NOON + SECOND}}}', {"a": {"0": 1, "1": 1}, "b": {"0": 0}}),
        (f'{{"a": {{"1": {NOON + SECOND}}}, "b": "2099-01-01"}}', {"a": {"0": 0, "1": 1}, "b": {"0": 3}}),
    ],
)
def test_several_routes_begin_at_times_of_their_own(
    written: str, start: dict[str, dict[str, int]], logs: dict[str, Log]
) -> None:
    assert Query(given(routePattern="?", startingTimestamp=written)).at["p"] == start


def test_a_batch_begins_at_a_time(logs: dict[str, Log]) -> None:
    reader = BatchReader(several(routes="a,b", startingTimestamp="2026-01-31T12:00:02Z"), None)
    assert ranges(reader) == [Range(0, 2, 10, "a"), Range(1, 2, 4, "a"), Range(0, 2, 3, "b")]

    later = BatchReader(options(route="b", startingTimestamp="2099-01-01"), None)
    assert column(read_all(later), "position") == []


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        # The row of the time itself is the first of the next read.
        ("2026-01-31T12:00:02Z", [("a", 0, 2), ("a", 1, 2), ("b", 0, 2)]),
        (str(NOON + 2 * SECOND + 1), [("a", 0, 3), ("a", 1, 3), ("b", 0, 3)]),
        ("2099-01-01", [("a", 0, 10), ("a", 1, 4), ("b", 0, 3)]),
        (f'{{"a": {{"1": {NOON + SECOND}}}, "b": 0}}', [("a", 0, 10), ("a", 1, 1)]),
    ],
)
def test_a_batch_ends_before_the_first_row_of_a_time_or_a_later_one(
    written: str, ends: list[tuple[str, int, int]], logs: dict[str, Log]
) -> None:
    reader = BatchReader(several(routes="a,b", endingTimestamp=written), None)

    assert ranges(reader) == [Range(partition, 0, end, route) for route, partition, end in ends]


def test_a_batch_is_of_the_rows_between_two_times(logs: dict[str, Log]) -> None:
    def read(begin: int, end: int) -> list[int]:
        times = {"startingTimestamp": NOON + begin * SECOND, "endingTimestamp": NOON + end * SECOND}
        return column(read_all(BatchReader(options(route="b", **times), None)), "position")

    assert [read(0, 2), read(2, 5), read(1, 1), read(2, 1)] == [[0, 1], [2], [], []]


def test_a_stream_has_no_ending_time() -> None:
    with pytest.raises(OptionError, match=r"^option 'endingTimestamp' is not for readStream: it is for read$"):
        parse_options({"path": URI, "route": "a", "endingTimestamp": "5"}, Use.STREAM_READ)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"route": "a", "endingTimestamp": '{"5": 1}'}, r"names partition 5, the server has \[0, 1\]"),
        ({"route": "a", "endingTimestamp": '{"b": 1}'}, "of one route names its partitions only"),
        ({"route": "a", "endingTimestamp": "1", "endingPosition": "latest"}, "exclude each other"),
        ({"route": "a", "endingTimestamp": "1", "positions": "none"}, "needs positions=server, not none"),
    ],
)
def test_ending_times_that_do_not_fit_are_named(more: dict[str, str], message: str, logs: dict[str, Log]) -> None:
    given = parse_options({"path": URI, "positions": "server"} | more, Use.BATCH_READ)

    with pytest.raises(OptionError, match=f"'endingTimestamp'.* {message}"):
        BatchReader(checked(given, Use.BATCH_READ), None).partitions()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"route": "a", "startingTimestamp": '{"5": 1}'}, r"names partition 5, the server has \[0, 1\]"),
        ({"route": "a", "startingTimestamp": '{"b": 1}'}, "of one route names its partitions only"),
        ({"routes": "a,b", "startingTimestamp": '{"0": 1}'}, "of several routes names them, or is one time"),
        ({"routes": "a,b", "startingTimestamp": '{"c": 1}'}, "names route 'c', those that are read are a, b"),
        ({"routes": "a,b", "startingTimestamp": '{"c": {"0": 1}}'}, "names route 'c', those that are read are a, b"),
        ({"route": "a", "startingTimestamp": "1", "startingPosition": "earliest"}, "exclude each other"),
        ({"route": "a", "startingTimestamp": "1", "positions": "none"}, "needs positions=server, not none"),
    ],
)
def test_times_that_do_not_fit_are_named(more: dict[str, str], message: str, logs: dict[str, Log]) -> None:
    with pytest.raises(OptionError, match=f"'startingTimestamp'.* {message}"):
        Query(parse_options({"path": URI, "positions": "server"} | more))


def test_a_server_that_does_not_know_times_is_named(serving: Serving) -> None:
    responder = Responder()
    responder.request_response("old.offsets")(lambda request: b'{"0": {"earliest": 0, "latest": 5}}')
    serving(responder)
    old = parse_options({"path": URI, "route": "old", "positions": "server", "startingTimestamp": "5"})

    with pytest.raises(OptionError, match="does not look for times in partition 0, its version is too old"):
        Query(old)


@pytest.mark.parametrize("at", ["6", "-1", "true", '"1"'])
def test_an_impossible_position_of_a_time_is_refused(at: str, serving: Serving) -> None:
    def offsets(request: Payload) -> str:
        return f'{{"0": {{"earliest": 0, "latest": 5{f", {chr(34)}at{chr(34)}: {at}" if request.data else ""}}}}}'

    responder = Responder()
    responder.request_response("odd.offsets")(offsets)
    serving(responder)

    with pytest.raises(SourceError, match=r"not an answer about partitions: .*(a time at|\$\[...\]\.at)"):
        Query(parse_options({"path": URI, "route": "odd", "positions": "server", "startingTimestamp": "5"}))
