"""A client of many servers: which one gets a request, what goes to another one, and how the list changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Backoff,
    Channel,
    ConnectionLost,
    Lease,
    Payload,
    Pool,
    Rejected,
    RejectedSetup,
    Responder,
    ResumeOptions,
    RSocketError,
    Setup,
    open_pool,
    serve,
)
from tests.connection.pairs import settle

EXACT = Backoff(jitter=0.0)


class Servers:
    """Servers by name, which can be stopped, and drained, one by one; ``counts`` are the requests that each ran."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.counts: Counter[str] = Counter()
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    def responder(self, name: str, seconds: float = 0.0) -> Responder:
        """Return what serves at ``name``: every answer takes so many seconds, and is the name."""
        responder = Responder()

        @responder.request_response("name")
        async def answer(request: Payload) -> str:
            self.counts[name] += 1
            await trio.sleep(float(request.text or seconds))
            return name

        @responder.request_stream("names")
        async def names(request: Payload) -> AsyncIterator[str]:
            self.counts[name] += 1
            for _ in range(3):
                yield name

        @responder.request_channel("echo")
        async def echo(channel: Channel) -> None:
            async for item in channel:
                await channel.send(f"{name}: {item.text}")

        return responder

    async def start(self, name: str, responder: Responder | None = None, **options: Any) -> str:
        """Serve at ``name``, and return its URI."""
        uri = f"memory://{name}"
        await self._nursery.start(self._run, name, responder or self.responder(name), uri, options)
        return uri

    async def stop(self, name: str) -> None:
        """End a server in good order: its connections drain."""
        self._scopes.pop(name).cancel()
        await settle()

    async def _run(
        self, name: str, responder: Responder, uri: str, options: dict[str, Any], *, task_status: trio.TaskStatus[None]
    ) -> None:
        async with trio.open_nursery() as nursery:
            self._scopes[name] = nursery.cancel_scope
            await nursery.start(lambda **status: serve(responder, uri, **options, **status))
            task_status.started()


@asynccontextmanager
async def servers(*names: str) -> AsyncIterator[tuple[Servers, list[str]]]:
    """Provide servers with these names, and their URIs."""
    async with trio.open_nursery() as nursery:
        running = Servers(nursery)
        yield running, [await running.start(name) for name in names]
        nursery.cancel_scope.cancel()


async def ask(pool: Pool, times: int, at_once: int = 8) -> None:
    """Make so many requests, some at once."""

    async def work() -> None:
        for _ in range(times // at_once):
            await pool.request_response(route="name")

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)


# Which one gets a request


async def test_equal_servers_get_equal_shares(autojump_clock: MockClock) -> None:
    async with servers("a", "b", "c", "d") as (running, uris), open_pool(uris) as pool:
        await settle()
        await ask(pool, 4000)
    assert sum(running.counts.values()) == 4000
    assert all(0.2 <= count / 4000 <= 0.3 for count in running.counts.values())


async def test_a_slow_server_gets_few_requests(autojump_clock: MockClock) -> None:
    async with servers() as (running, _):
        uris = [await running.start(name, running.responder(name, 0.01)) for name in "abc"]
        uris.append(await running.start("slow", running.responder("slow", 0.1)))
        async with open_pool(uris) as pool:
            await settle()
            await ask(pool, 2000, at_once=40)
    assert running.counts["slow"] < 200


async def test_a_session_without_a_transport_is_the_last_choice(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        running = Servers(nursery)
        uris = [await running.start(name, resume=ResumeOptions()) for name in ("a", "b")]
        async with open_pool(uris, resume=ResumeOptions()) as pool:
            await settle()
            suspended, other = (member._usable() for member in pool.members)
            assert suspended is not None
            assert other is not None
            suspended.replace_link(ConnectionLost("no transport"))
            assert {pool._usable() for _ in range(20)} == {other}
            assert pool._usable([other]) is suspended
        nursery.cancel_scope.cancel()


async def test_each_uri_gets_so_many_connections(autojump_clock: MockClock) -> None:
    async with servers("a", "b") as (_, uris), open_pool([*uris, *uris], connections=3) as pool:
        await settle()
        assert Counter((member.uri, member.state) for member in pool.members) == dict.fromkeys(
            [(uri, "connected") for uri in uris], 3
        )
        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(partial(pool.request_response, "1", route="name"))
            await settle()
            assert sum(member.load for member in pool.members) == 60
            assert all(5 <= member.load <= 15 for member in pool.members)
        assert not any(member.load for member in pool.members)


# What goes to another one


def requests_of(pool: Pool) -> dict[str, Any]:
    """Return one request of each interaction that tells who served it."""

    async def stream() -> str:
        async with pool.request_stream(route="names") as items:
            return {item.text async for item in items}.pop()

    async def channel() -> str:
        async with pool.request_channel(route="echo") as both:
            await both.send(b"x")
            return (await anext(both)).text[0]

    async def response() -> str:
        return (await pool.request_response(route="name")).text

    return {"response": response, "stream": stream, "channel": channel}


@pytest.mark.parametrize("interaction", ["response", "stream", "channel"])
async def test_a_request_that_one_server_rejects_goes_to_another(interaction: str, autojump_clock: MockClock) -> None:
    async with servers("a") as (running, uris):
        uris += [await running.start(name, Responder()) for name in ("b", "c")]
        async with open_pool(uris) as pool:
            await settle()
            assert [await requests_of(pool)[interaction]() for _ in range(8)] == ["a"] * 8


async def test_what_is_granted_while_a_stream_opens_again_counts(autojump_clock: MockClock) -> None:
    send, receive = trio.open_memory_channel[list[str]](0)
    async with servers() as (running, _), open_pool(receive, lease=True) as pool:
        empty, late = Responder(), running.responder("late")
        empty.lease_at_rate(10, 10)

        @late.lease
        async def grant(setup: Setup) -> AsyncIterator[Lease]:
            await trio.sleep(5)
            yield Lease(10, 10)
            await trio.sleep_forever()

        first, second = await running.start("empty", empty), await running.start("late", late)
        await send.send([first])
        async with pool.request_stream(route="names", initial_request_n=1, refill=False) as items:
            await send.send([first, second])
            await settle()

            async def more() -> None:
                await trio.sleep(1)
                items.request_n(2)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(more)
                with trio.fail_after(20):
                    assert [item.text async for item in items] == ["late"] * 3


async def test_what_all_servers_reject_is_the_callers(autojump_clock: MockClock) -> None:
    async with servers("a", "b") as (_, uris), open_pool(uris) as pool:
        with pytest.raises(Rejected, match="nowhere"):
            await pool.request_response(route="nowhere")
        async with pool.request_stream(route="nowhere") as items:
            with pytest.raises(Rejected, match="nowhere"):
                await anext(items)


async def test_what_may_have_run_goes_nowhere_else(autojump_clock: MockClock) -> None:
    async with servers() as (running, _):
        responder = Responder()

        @responder.request_response("name")
        async def fail(request: Payload) -> bytes:
            running.counts["failed"] += 1
            raise ApplicationError("no")

        uris = [await running.start(name, responder) for name in "ab"]
        async with open_pool(uris) as pool:
            with pytest.raises(ApplicationError, match="no"):
                await pool.request_response(route="name")
    assert running.counts["failed"] == 1


async def test_a_server_that_stops_in_good_order_fails_no_request(autojump_clock: MockClock) -> None:
    async with servers("a", "b") as (running, uris), open_pool(uris, backoff=EXACT) as pool:
        await settle()

        async def restart() -> None:
            for name in "abab":
                await running.stop(name)
                await trio.sleep(1)
                await running.start(name)
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            for _ in range(100):
                for call in requests_of(pool).values():
                    await call()
                await trio.sleep(0.1)


async def test_a_member_comes_back(autojump_clock: MockClock) -> None:
    async with servers("a") as (running, uris), open_pool(uris, backoff=EXACT) as pool:
        await settle()
        await running.stop("a")
        [member] = pool.members
        assert (member.state, member.load) == ("connecting", 0)
        with pytest.raises(trio.TooSlowError), trio.fail_after(1):
            await pool.request_response(route="name")
        await running.start("a")
        assert (await pool.request_response(route="name")).text == "a"
        assert member.state == "connected"


async def test_without_a_server_a_request_that_does_not_wait_is_lost(autojump_clock: MockClock) -> None:
    async with open_pool(["memory://nobody"], wait=False) as pool:
        await settle()
        with pytest.raises(ConnectionLost, match="no server of the pool is connected"):
            await pool.request_response()


async def test_when_all_servers_refuse_every_request_says_why(autojump_clock: MockClock) -> None:
    async with servers() as (running, _):
        responder = Responder()

        @responder.setup
        async def refuse(setup: object, connection: object) -> None:
            raise RejectedSetup("not you")

        uris = [await running.start(name, responder) for name in "ab"]
        async with open_pool(uris) as pool:
            for _ in range(2):
                with pytest.raises(RejectedSetup, match="not you"):
                    await pool.request_response(route="name")
            assert {member.state for member in pool.members} == {"closed"}


async def test_after_the_block_nothing_is_sent(autojump_clock: MockClock) -> None:
    async with servers("a") as (_, uris):
        async with open_pool(uris) as pool:
            await pool.request_response(route="name")
        with pytest.raises(RSocketError, match="the pool was closed"):
            await pool.request_response(route="name")


# How the list changes


async def test_lists_come_and_go(autojump_clock: MockClock) -> None:
    send, receive = trio.open_memory_channel[list[str]](0)
    async with servers("a", "b", "c") as (_, [a, b, c]), open_pool(receive) as pool:
        with trio.move_on_after(1) as scope:
            await pool.request_response(route="name")
        assert scope.cancelled_caught  # there is no list yet
        await send.send([a])
        assert (await pool.request_response(route="name")).text == "a"

        async with trio.open_nursery() as nursery:
            answers: list[str] = []

            async def long() -> None:
                answers.append((await pool.request_response("5", route="name")).text)

            nursery.start_soon(long)
            await settle()
            await send.send([b, c])
            await settle()
            assert {(member.uri, member.state) for member in pool.members} == {
                (a, "draining"), (b, "connected"), (c, "connected"),
            }  # fmt: skip
            assert {(await pool.request_response(route="name")).text for _ in range(20)} == {"b", "c"}
        assert answers == ["a"]  # its connection drained, and the request was done
        await trio.sleep(2)
        assert {member.uri for member in pool.members} == {b, c}
        await send.send([])
        await trio.sleep(2)
        assert pool.members == ()


async def test_an_error_of_the_lists_ends_the_block() -> None:
    async def lists() -> AsyncIterator[list[str]]:
        yield ["tcp://127.0.0.1:1"]
        raise LookupError("no registry")

    with pytest.raises(LookupError, match="no registry"):
        async with open_pool(lists()):
            await trio.sleep_forever()


@pytest.mark.parametrize(
    ("uris", "options", "error", "message"),
    [
        ([], {}, ValueError, "a pool needs the URI of a server"),
        ("tcp://a:1", {}, TypeError, "a pool takes a list of URIs"),
        ([b"tcp://a:1"], {}, TypeError, "a URI is a str, not bytes"),
        (["tcp//a:1"], {}, ValueError, "tcp//a:1"),
        (["tcp://a:1"], {"connections": 0}, ValueError, "at least 1"),
        (["tcp://a:1"], {"backoff": 1}, TypeError, "backoff is a Backoff, not int"),
    ],
)
async def test_wrong_arguments_are_refused(
    uris: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await open_pool(uris, **options).__aenter__()
