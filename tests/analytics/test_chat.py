"""The chat of the examples under load, captured by its server: what the report says is what the chat did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from examples import chat
from rsocket_trio import Rejected, RejectedSetup, serve
from rsocket_trio.analytics.report import render
from rsocket_trio.analytics.views import Answer, answers, open_duckdb
from rsocket_trio.capture import Capture

MEMBERS, LINES, TIMES, REFUSED = 6, 50, 20, 3


@attrs.define
class Chat:
    """The requests that the members made, counted by route, and the folder of the server's capture."""

    directory: Path
    asked: Counter[str] = attrs.field(factory=Counter)
    heard: int = 0
    all_asked: trio.Event = attrs.field(factory=trio.Event)
    """Nobody leaves before: each member is among the users that the others are told of."""


async def talk(uri: str, name: str, done: Chat, everybody: trio.Event, ready: trio.MemorySendChannel[None]) -> None:
    """One member: says lines, hears those of all, asks for the time and for the users, and for somebody unknown."""
    async with chat.joined(name, uri, initial_request_n=32) as (connection, channel):
        done.asked["chat"] += 1
        assert name in (await anext(channel)).text
        await ready.send(None)
        await everybody.wait()

        own, seen = trio.open_memory_channel[None](1)

        async def hear() -> None:
            lines = 0
            while lines < MEMBERS * LINES:
                text = (await anext(channel)).text
                lines += re.match(r"m\d: line", text) is not None
                if text.startswith(f"{name}: line"):
                    await own.send(None)
            done.heard += lines

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            for number in range(LINES):
                await channel.send(f"line {number}")
                # One at a time, or the chat leaves out lines for those who do not keep up.
                await seen.receive()
            for _ in range(TIMES):
                await connection.request_response(route="time")
                done.asked["time"] += 1
            async with connection.request_stream(route="users") as users:
                assert len([user async for user in users]) == MEMBERS
            done.asked["users"] += 1
            with pytest.raises(Rejected, match="nobody here"):
                await connection.request_response("nobody hello", route="msg")
            done.asked["msg"] += 1
            if done.asked["msg"] == MEMBERS:
                done.all_asked.set()
            await done.all_asked.wait()


async def converse(directory: Path) -> Chat:
    """Everything that the members do, with a server that is captured."""
    done = Chat(directory)
    with Capture(directory) as capture:
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(partial(serve, chat.responder, ["tcp://127.0.0.1:0"], capture=capture, grace=0))
            everybody, (send, receive) = trio.Event(), trio.open_memory_channel[None](0)
            async with trio.open_nursery() as members:
                for number in range(MEMBERS):
                    members.start_soon(talk, uri, f"m{number}", done, everybody, send)
                for _ in range(MEMBERS):
                    await receive.receive()
                for _ in range(REFUSED):
                    with pytest.raises(RejectedSetup):
                        async with chat.joined("not a name", uri) as (_, channel):
                            await anext(channel)
                everybody.set()
            nursery.cancel_scope.cancel()
        assert (capture.dropped, capture.error) == (0, None)
    return done


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return trio.run(converse, tmp_path_factory.mktemp("chat") / "capture")


@pytest.fixture(scope="module")
def found(done: Chat) -> Mapping[str, Answer]:
    """All tables, as the command reads them."""
    with open_duckdb(done.directory) as engine:
        return {answer.view: answer for answer in (*answers(engine), engine.ask("fan_in"), engine.ask("frame_sizes"))}


@pytest.fixture(scope="module")
def told(found: Mapping[str, Answer]) -> dict[str, list[dict[str, Any]]]:
    """Their rows."""
    return {name: [dict(row) for row in answer.dicts()] for name, answer in found.items()}


def responded(rows: list[dict[str, Any]], column: str) -> dict[str, int]:
    """A column, added up by route, of what was asked of the server."""
    found: Counter[str] = Counter()
    for row in rows:
        if row["role"] == "responder":
            found[row["route"]] += row[column]
    return dict(found)


def test_the_chat_was_heard_by_all(done: Chat) -> None:
    assert done.heard == MEMBERS * MEMBERS * LINES
    assert done.asked == {"chat": MEMBERS, "time": MEMBERS * TIMES, "users": MEMBERS, "msg": MEMBERS}


def test_every_request_is_counted_by_its_route(done: Chat, told: dict[str, list[dict[str, Any]]]) -> None:
    requests, errors = responded(told["red"], "requests"), responded(told["red"], "errors")
    # Who was refused may have said already what for.
    assert errors["chat"] <= REFUSED
    requests["chat"] -= errors["chat"]
    assert requests == done.asked
    assert responded(told["route_latency"], "n").keys() == done.asked.keys()
    # The server asks each member for its clock.
    requesters = [row for row in told["red"] if row["role"] == "requester"]
    assert sum(row["requests"] for row in requesters) == MEMBERS
    assert {row["route"] for row in requesters} == {"time"}


def test_refusals_are_errors_of_their_routes(told: dict[str, list[dict[str, Any]]]) -> None:
    errors = responded(told["red"], "errors")
    assert (errors["msg"], errors["time"], errors["users"]) == (MEMBERS, 0, 0)
    named: Counter[tuple[str, str]] = Counter()
    for row in told["errors"]:
        named[row["level"], row["error_name"]] += row["n"]
    assert named == {("stream", "Rejected"): MEMBERS, ("connection", "RejectedSetup"): REFUSED}


def test_each_connection_is_in_the_timeline(told: dict[str, list[dict[str, Any]]]) -> None:
    streams = sorted(row["streams"] for row in told["connection_timeline"])
    # A member's chat, users, msg and times, and its clock that the server asked for.
    assert streams[REFUSED:] == [TIMES + 4] * MEMBERS
    assert max(streams[:REFUSED]) <= 1


def test_the_chat_carried_most_frames(told: dict[str, list[dict[str, Any]]]) -> None:
    routes = {row["name"]: row for row in told["fan_in"] if row["kind"] == "route"}
    assert max(routes, key=lambda name: routes[name]["frames"]) == "chat"
    assert routes["chat"]["frames"] >= MEMBERS * LINES * (MEMBERS + 1)


def test_the_capture_is_whole(told: dict[str, list[dict[str, Any]]]) -> None:
    [health] = told["capture_health"]
    wanted = {"connections": MEMBERS + REFUSED, "drops": 0, "missing_rows": 0, "unreadable": 0, "unpaired": 0}
    assert {name: health[name] for name in wanted} == wanted
    assert health["requests"] == health["interactions"] == sum(row["requests"] for row in told["red"])


def test_the_page_shows_them(found: Mapping[str, Answer], done: Chat) -> None:
    page = render(found, title="the chat")

    assert all(f">{route}<" in page for route in done.asked)
