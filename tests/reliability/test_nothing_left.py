"""Nothing is left: no payload of a stream that ended, no cycle on the hot paths, and the checker finds what is."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Channel, Connection, Payload, Rejected, Responder, open_connection, serve
from tests.connection.pairs import connected_pair, settle

ROOT = Path(__file__).parents[2]

LEAKS = """
import os
import trio
from rsocket_trio import Responder
from tests.connection.pairs import connected_pair

kept = []

def echoing():
    responder = Responder()

    @responder.request_response
    async def echo(request):
        return request

    return responder

async def test_tidy(autojump_clock):
    async with connected_pair(echoing()) as pair:
        await pair.client.request_response(b"x")

async def test_connection(autojump_clock):
    async with connected_pair(echoing()) as pair:
        kept.append(pair.client)

async def test_session(autojump_clock):
    async with connected_pair(echoing()) as pair:
        kept.append(pair.client._engine.session)

async def test_stream(autojump_clock):
    async with connected_pair(echoing()) as pair:
        async with pair.client.request_stream() as items:
            kept.append(items._stream)

async def test_descriptor():
    kept.append(os.dup(0))

async def test_task(autojump_clock):
    trio.lowlevel.spawn_system_task(trio.sleep_forever)
"""


def test_the_checker_fails_whoever_leaves_a_connection_a_session_a_stream_a_task_or_a_descriptor(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text("utf-8"), "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n", "utf-8")
    (tmp_path / "test_leaks.py").write_text(LEAKS, "utf-8")

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""},
    )

    failed = {line.split("::")[1].split(" ")[0] for line in run.stdout.splitlines() if line.startswith(("FAI", "ERR"))}
    assert failed == {"test_connection", "test_session", "test_stream", "test_task", "test_descriptor"}, run.stdout


def busy() -> Responder:
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    @responder.request_response("inline")
    def inline(request: Payload) -> Payload:
        return request

    @responder.request_response("fail")
    async def fail(request: Payload) -> Payload:
        raise Rejected("no")

    @responder.request_response("never")
    async def never(request: Payload) -> Payload:
        await trio.sleep_forever()

    @responder.request_stream
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        for _ in range(5):
            yield request.data

    @responder.request_channel
    async def chat(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    @responder.fire_and_forget
    async def note(request: Payload) -> None:
        pass

    return responder


async def respond(connection: Connection, data: bytes) -> None:
    await connection.request_response(data)


async def respond_inline(connection: Connection, data: bytes) -> None:
    await connection.request_response(data, route="inline")


async def fail(connection: Connection, data: bytes) -> None:
    try:
        await connection.request_response(data, route="fail")
    except Rejected:
        return


async def cancel(connection: Connection, data: bytes) -> None:
    with trio.move_on_after(0.1):
        await connection.request_response(data, route="never")


async def stream(connection: Connection, data: bytes) -> None:
    async with connection.request_stream(data, initial_request_n=2) as items:
        async for _ in items:
            pass


async def leave_stream(connection: Connection, data: bytes) -> None:
    async with connection.request_stream(data, initial_request_n=2) as items:
        await anext(items)


async def channel(connection: Connection, data: bytes) -> None:
    async with connection.request_channel(data) as channel:
        await channel.send(data)
        await anext(channel)
        await channel.send_eof()


async def forget(connection: Connection, data: bytes) -> None:
    await connection.fire_and_forget(data)


async def ping(connection: Connection, data: bytes) -> None:
    await connection.ping()
    await connection.metadata_push(data)


CALLS = [respond, respond_inline, fail, cancel, stream, leave_stream, channel, forget, ping]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_a_stream_that_ended_keeps_no_payload_alive(call: object, autojump_clock: MockClock) -> None:
    assert callable(call)
    async with connected_pair(busy()) as pair:
        gc.collect()
        gc.disable()
        try:
            await call(pair.client, b"marked" * 10)
            await settle()
            alive = [one for one in gc.get_objects() if type(one) is Payload and one.data.startswith(b"marked")]
            assert alive == []
        finally:
            gc.enable()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_a_connection_that_is_over_leaves_no_cycles(call: object) -> None:
    assert callable(call)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, busy(), "tcp://127.0.0.1:0")

        async def connect() -> None:
            async with open_connection(uri) as connection:
                await call(connection, b"data")
            await trio.testing.wait_all_tasks_blocked()

        await connect()
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                await connect()
            found = gc.collect()
        finally:
            gc.enable()
        assert found < 10
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_what_is_called_often_makes_no_cycles(call: object, autojump_clock: MockClock) -> None:
    assert callable(call)
    async with connected_pair(busy()) as pair:
        pair.client_wire.forget()
        pair.server_wire.forget()
        await call(pair.client, b"warm")
        await settle()
        gc.collect()
        gc.disable()
        try:
            for _ in range(200):
                await call(pair.client, b"data")
            await settle()
            # Not nought: Trio's own machinery makes a few, but not with each call.
            assert gc.collect() < 100
        finally:
            gc.enable()
