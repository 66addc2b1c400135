"""Programs of asyncio: calls, streams and cancellation reach Trio and come back; the thread ends with the last."""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio

from rsocket_trio import Channel, ConnectionLost, Payload, Responder
from rsocket_trio.asyncio import connect_forever, open_connection, open_pool
from rsocket_trio.services import Service, Stream, TypedChannel, request_channel, request_response, request_stream
from tests.missing import missing_module, require
from tests.programs import run_program
from tests.threads import serving

TRANSPORTS = ("tcp://127.0.0.1:0", "ws://127.0.0.1:0", "h2://127.0.0.1:0")


class Served:
    """A server in a thread of its own. ``cancelled`` is set once a handler was."""

    def __init__(self) -> None:
        self.uri = ""
        self.cancelled = threading.Event()
        self.pushed: list[bytes] = []
        self.responder = responder = Responder()

        @responder.request_response("greet")
        def greet(request: Payload) -> str:
            return f"hello, {request.text}"

        @responder.request_response("fail")
        def fail(request: Payload) -> str:
            raise LookupError

        @responder.request_response("slow")
        async def slow(request: Payload) -> None:
            with self.noting_cancels():
                await trio.sleep_forever()

        @responder.request_stream("count")
        async def count(request: Payload) -> AsyncIterator[str]:
            with self.noting_cancels():
                for number in range(int(request.text)):
                    yield str(number)

        @responder.request_channel("echo")
        async def echo(channel: Channel) -> None:
            async for item in channel:
                await channel.send(item)

        @responder.metadata_push
        def pushed(metadata: bytes) -> None:
            self.pushed.append(metadata)

    @contextmanager
    def noting_cancels(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.cancelled.set()
            raise


@contextmanager
def server_at(uri: str = "tcp://127.0.0.1:0") -> Iterator[Served]:
    served = Served()
    with serving(served.responder, uri) as served.uri:
        yield served


@pytest.fixture
def server() -> Iterator[Served]:
    with server_at() as served:
        yield served


def threads_of_trio() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rsocket_trio.asyncio"]


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)
    assert threads_of_trio() == []


@pytest.mark.parametrize("uri", TRANSPORTS)
def test_every_interaction_is_awaited_on_the_loop(uri: str) -> None:
    if uri.startswith("h2"):
        require(missing_module("h2"))

    async def main() -> None:
        async with open_connection(served.uri) as connection:
            assert (await connection.request_response("Ada", route="greet")).text == "hello, Ada"
            async with connection.request_stream("3", route="count") as items:
                assert [item.text async for item in items] == ["0", "1", "2"]
            async with connection.request_channel(route="echo") as channel:
                await channel.send("a")
                await channel.send_many(["b", "c"])
                await channel.send_eof()
                assert [item.text async for item in channel] == ["a", "b", "c"]
            await connection.fire_and_forget("x", route="greet")
            await connection.metadata_push(b"new")
            await connection.ping()
            assert connection.status == "open"
        assert served.pushed == [b"new"]

    with server_at(uri) as served:
        run(main())


def test_an_error_of_the_handler_is_raised_where_the_call_is_awaited(server: Served) -> None:
    async def main() -> None:
        async with open_connection(server.uri) as connection:
            with pytest.raises(Exception, match="internal error"):
                await connection.request_response(route="fail")

    run(main())


def test_a_timeout_cancels_the_handler(server: Served) -> None:
    async def main() -> None:
        async with open_connection(server.uri) as connection:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await connection.request_response(route="slow")
            assert await asyncio.to_thread(server.cancelled.wait, 10)

    run(main())


def test_leaving_a_stream_cancels_it_and_credit_bounds_what_was_sent(server: Served) -> None:
    async def main() -> None:
        async with open_connection(server.uri) as connection:
            async with connection.request_stream("1000", route="count", initial_request_n=2, refill=False) as items:
                assert (await anext(items)).text == "0"
                assert (await anext(items)).text == "1"
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(items), 0.05)
                items.request_n(1)
                assert (await anext(items)).text == "2"
                with pytest.raises(ValueError, match="request_n"):
                    items.request_n(0)
            assert await asyncio.to_thread(server.cancelled.wait, 10)

    run(main())


def test_an_item_that_comes_while_its_reader_is_cancelled_is_not_lost(server: Served) -> None:
    async def main() -> None:
        received: list[str] = []
        async with (
            open_connection(server.uri) as connection,
            connection.request_stream("200", route="count", initial_request_n=1) as items,
        ):
            while len(received) < 200:
                reader = asyncio.ensure_future(anext(items))
                await asyncio.sleep(0)
                reader.cancel()
                await asyncio.wait([reader])
                item = await anext(items) if reader.cancelled() else reader.result()
                received.append(item.text)
        assert received == [str(number) for number in range(200)]

    run(main())


class Sums(Service, Protocol, route="sums"):
    @request_response
    async def add(self, a: int, b: int) -> int: ...

    @request_stream
    def up_to(self, end: int) -> Stream[int]: ...

    @request_channel
    def running(self) -> TypedChannel[int, int]: ...


def test_the_methods_of_a_contract_are_awaited() -> None:
    class Implementation:
        @request_response
        async def add(self, a: int, b: int) -> int:
            return a + b

        @request_stream
        async def up_to(self, end: int) -> AsyncIterator[int]:
            for number in range(end):
                yield number

        @request_channel
        async def running(self, channel: TypedChannel[int, int]) -> None:
            total = 0
            async for number in channel:
                total += number
                await channel.send(total)

    async def main() -> None:
        async with open_connection(served.uri, data_mime="application/json") as connection:
            sums = connection.remote(Sums)
            assert await sums.add(2, b=3) == 5
            async with sums.up_to(3) as numbers:
                assert [number async for number in numbers] == [0, 1, 2]
            async with sums.running() as totals:
                await totals.send_many([1, 2])
                await totals.send_eof()
                assert [total async for total in totals] == [1, 3]

    with server_at() as served:
        served.responder.serve_as(Sums, Implementation())
        run(main())


def test_all_connections_of_a_loop_share_a_thread_that_ends_with_the_last(server: Served) -> None:
    async def main() -> None:
        async with open_connection(server.uri) as first:
            async with connect_forever(server.uri) as second, open_pool([server.uri], 2) as third:
                for client in (first, second, third):
                    assert (await client.request_response("Ada", route="greet")).text == "hello, Ada"
                assert len(third.members) == 2
                assert len(threads_of_trio()) == 1
            assert len(threads_of_trio()) == 1
        assert threads_of_trio() == []
        async with open_connection(server.uri):
            assert len(threads_of_trio()) == 1

    run(main())


def test_a_server_that_is_not_there_is_a_lost_connection() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost, match="connection refused"):
            async with open_connection("tcp://127.0.0.1:1"):
                pytest.fail("connected")

    run(main())


def test_a_block_that_fails_in_trio_cancels_the_task_in_it(server: Served) -> None:
    async def lists() -> AsyncIterator[list[str]]:
        yield [server.uri]
        raise LookupError("no more lists")

    async def main() -> None:
        with pytest.raises(LookupError, match="no more lists"):
            async with open_pool(lists()):
                await asyncio.sleep(3600)

    run(main())


def test_the_error_of_a_block_is_raised_at_its_end_also_if_a_call_in_it_heard_first(server: Served) -> None:
    may_fail = threading.Event()

    async def lists() -> AsyncIterator[list[str]]:
        yield [server.uri]
        await trio.to_thread.run_sync(may_fail.wait)
        raise LookupError("no more lists")

    async def main() -> None:
        async def ask() -> None:
            async with open_pool(lists()) as pool:
                await pool.request_response("Ada", route="greet")
                may_fail.set()
                await pool.request_response(route="slow")

        with pytest.raises(LookupError, match="no more lists"):
            await ask()
        await asyncio.sleep(0)  # where a cancellation that was left over would be heard

    run(main())


def test_a_stream_that_was_forgotten_cancels_nobody(server: Served) -> None:
    async def main() -> None:
        async with open_connection(server.uri) as connection:

            async def numbers() -> AsyncGenerator[str, None]:
                async with connection.request_stream("1000", route="count", initial_request_n=2) as items:
                    async for item in items:
                        yield item.text

            kept = numbers()
            assert await anext(kept) == "0"
        await asyncio.sleep(0)  # where a cancellation would be heard
        await kept.aclose()

    run(main())


def test_states_are_told_and_a_lease_can_be_looked_at(server: Served) -> None:
    states: list[str] = []

    async def main() -> None:
        async with open_connection(server.uri) as connection:
            connection.on_state(states.append)
            assert connection.lease is None
            await connection.ping()
            await connection.drain()

    run(main())
    assert states[-1] == "closed"


def test_a_copy_of_a_connection_has_its_members(server: Served) -> None:
    block = open_connection(server.uri)
    assert vars(copy.copy(block)) == vars(block)


def test_a_block_is_left_in_its_own_loop(server: Served) -> None:
    loop = asyncio.new_event_loop()
    block = open_connection(server.uri)
    connection = loop.run_until_complete(block.__aenter__())

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await connection.request_response("Ada", route="greet")
        with pytest.raises(RuntimeError, match="another event loop"):
            await block.__aexit__(None, None, None)

    asyncio.run(elsewhere())
    loop.run_until_complete(block.__aexit__(None, None, None))
    loop.close()

    assert threads_of_trio() == []


FORGOTTEN = """
import asyncio, threading
from rsocket_trio.asyncio import open_connection

async def forget():
    connection = await open_connection({uri!r}).__aenter__()
    print((await connection.request_response("Ada", route="greet")).text)
    return connection

loop = asyncio.new_event_loop()
connection = {run}
[thread] = [each for each in threading.enumerate() if each.name == "rsocket_trio.asyncio"] or [None]
{then}
print("the end")
"""


@pytest.mark.parametrize(
    ("run", "then"),
    [
        pytest.param("asyncio.run(forget())", "assert thread is None", id="asyncio.run"),
        pytest.param(
            "loop.run_until_complete(forget())",
            "loop.close(); thread.join(2); assert not thread.is_alive()",
            id="closed",
        ),
        pytest.param("loop.run_until_complete(forget())", "assert thread.is_alive()", id="open at exit"),
    ],
)
async def test_a_block_that_was_forgotten_holds_nobody_up(tmp_path: Path, run: str, then: str) -> None:
    program = tmp_path / "forgetful.py"
    with server_at() as served:
        program.write_text(FORGOTTEN.format(uri=served.uri, run=run, then=then))
        done = await run_program(program, cwd=tmp_path)

    assert (done.code, done.stdout) == (0, "hello, Ada\nthe end\n")
    assert ("closed before its connections" in done.stderr) == ("loop.close" in then)


def test_a_plain_client_loads_nothing_of_asyncio() -> None:
    assert "rsocket_trio.asyncio" in sys.modules  # by this file
    import rsocket_trio

    assert "asyncio" not in rsocket_trio.__all__
