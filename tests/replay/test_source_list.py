"""The list of a server's sources, as a client asks for it."""

from __future__ import annotations

import errno

import pytest
from trio.testing import MockClock

from rsocket_trio import Invalid, Payload, Responder
from rsocket_trio.replay import Log, ReplayableLog, add_source
from rsocket_trio.replay.elements import SOURCES_ROUTE, Bounds, Source, is_like, read_sources
from rsocket_trio.testing import connected_pair
from tests.each_row import each_row


class Unopened(Log):
    """A log whose disk has gone."""

    async def open(self) -> None:
        """Fail."""
        raise OSError(errno.EIO, "the disk has gone", "/secret/place")


def responder(**logs: ReplayableLog) -> Responder:
    found = Responder()
    for name, log in logs.items():
        add_source(found, name.replace("_", "."), log)
    return found


async def asked(server: Responder, data: bytes = b"") -> dict[str, Source]:
    async with connected_pair(server) as (client, _):
        return read_sources((await client.request_response(data, route=SOURCES_ROUTE)).data)


async def test_a_server_lists_its_sources_with_their_bounds(autojump_clock: MockClock) -> None:
    orders, sensors = Log(partitions=2), Log()
    await orders.open()
    await orders.append(b"one", partition=1)
    server = responder(sensors_b=sensors, orders=orders)

    one = Source({0: Bounds(0, 0)})
    assert await asked(server) == {"orders": Source({0: Bounds(0, 0), 1: Bounds(0, 1)}), "sensors.b": one}
    await orders.append(b"two", partition=1)
    await orders.trim(1, 1)
    add_source(server, "later", Log())
    changed = Source({0: Bounds(0, 0), 1: Bounds(1, 2)})
    assert list((await asked(server)).items()) == [("later", one), ("orders", changed), ("sensors.b", one)]
    assert await asked(server, b'{"pattern": "sensors.*"}') == {"sensors.b": one}
    assert await asked(server, b'{"pattern": "none"}') == {}


async def test_a_log_that_cannot_be_opened_hides_no_other(autojump_clock: MockClock) -> None:
    found = await asked(responder(a=Unopened(), b=Log()))
    assert found == {"a": Source(problem="the log can't be opened: OSError"), "b": Source({0: Bounds(0, 0)})}


@each_row("data", [b"nothing", b'{"pattern": "%s"}' % (b"*" * 256)])
async def test_a_malformed_request_is_refused(data: bytes, autojump_clock: MockClock) -> None:
    async with connected_pair(responder(a=Log())) as (client, _):
        with pytest.raises(Invalid):
            await client.request_response(Payload(data), route=SOURCES_ROUTE)


@each_row(
    ("route", "pattern", "like"),
    [
        *(("sensors.a", "sensors.*", True), ("sensors", "sensors.*", False), ("sensorsXa", "sensors.*", False)),
        *(("sensors.", "sensors.*", True), ("sensors.a.b", "sensors.*", True), ("sensors.a", "*", True)),
        *(("", "*", True), ("", "", True), ("a", "", False), ("ab", "a?", True), ("a", "a?", False)),
        *(("a.temp", "*.temp", True), ("a.temp.b", "*.temp", False), ("abcbd", "a*b?", True), ("aXbXc", "a*b*c", True)),
        *(("a*", "a*", True), ("a+b", "a+b", True), ("aab", "a+b", False), ("a" * 255, "*a" * 127 + "b", False)),
    ],
)
def test_a_star_is_any_text_and_a_question_mark_one_character(route: str, pattern: str, like: bool) -> None:
    assert is_like(route, pattern) is like


@each_row(
    "answer",
    [
        *(b"", b"{}", b'{"sources": {"a": {}}}', b"[" * 100_000),
        b'{"sources": {"a": {"partitions": {"x": {"earliest": 1, "latest": 2}}}}}',
        b'{"sources": {"a": {"partitions": {"0": {"earliest": 2, "latest": 1}}}}}',
    ],
)
def test_an_answer_that_is_no_list_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match="not a list of sources"):
        read_sources(answer)


def test_what_else_a_later_server_says_is_ignored() -> None:
    assert read_sources(b'{"version": 2, "sources": {"a": {"partitions": {"0": {"earliest": 1, "latest": 2}}}}}') == {
        "a": Source({0: Bounds(1, 2)})
    }
