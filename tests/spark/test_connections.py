"""The pool: shared connections, the next URI when one fails, credentials in SETUP, and nothing secret in errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Connection, ConnectionLost, Payload, Responder, serve
from rsocket_trio.spark.connections import Tries, target_of
from tests.spark.serving import options, pool, served


def answering(name: str) -> Responder:
    responder = Responder()

    @responder.request_response("who")
    def who(request: Payload) -> str:
        return name

    return responder


async def ask(connection: Connection) -> str:
    return (await connection.request_response(route="who")).text


async def test_a_connection_is_shared_and_ends_when_nobody_uses_it(autojump_clock: MockClock) -> None:
    target = target_of(options(connection_idle_timeout=30.0))
    async with served(answering("a")) as connections:
        async with connections.connection(target) as first, connections.connection(target) as second:
            assert first is second
        await trio.sleep(29)
        async with connections.connection(target) as third:
            assert third is first
            await trio.sleep(100)
            assert first.status == "open"
        await trio.sleep(29)
        assert len(connections._pooled) == 1
        await trio.sleep(2)
        assert len(connections._pooled) == 0
        assert first.status == "closed"


async def test_a_distrusted_connection_is_not_given_again_and_ends_with_its_users(autojump_clock: MockClock) -> None:
    target = target_of(options())
    async with served(answering("a")) as connections:
        async with connections.connection(target) as first:
            connections.distrust(first)
            async with connections.connection(target) as second:
                assert second is not first
            assert first.status == "open"
        await trio.sleep(1)
        assert first.status == "closed"


async def test_the_next_uri_is_tried_and_remembered(autojump_clock: MockClock) -> None:
    target = target_of(options(path="memory://nobody,memory://somebody"))
    async with served(answering("somebody"), "memory://somebody") as connections:
        async with connections.connection(target) as connection:
            assert await ask(connection) == "somebody"
            connections.distrust(connection)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, answering("nobody"), ["memory://nobody"])
            async with connections.connection(target) as connection:
                assert await ask(connection) == "somebody"
            nursery.cancel_scope.cancel()


async def test_the_query_of_a_uri_is_in_no_error() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    async with pool() as connections:
        with pytest.raises(ConnectionLost) as caught:
            async with connections.connection(target_of(options(path=f"ws://127.0.0.1:{port}/x?token=hidden"))):
                pass

    assert "hidden" not in str(caught.value)
    assert "/x?..." in str(caught.value)


@pytest.mark.parametrize(("name", "option"), [("tls_ca", "tls.ca"), ("tls_cert", "tls.cert")])
async def test_a_tls_file_that_is_not_there_is_named_by_its_option(name: str, option: str, tmp_path: Path) -> None:
    wanted = options(path="tls://127.0.0.1:1", **{name: tmp_path / "hidden.pem"})
    async with pool() as connections:
        with pytest.raises(ValueError, match=f"option '{option}' does not work: No such file") as caught:
            async with connections.connection(target_of(wanted)):
                pass

    assert "hidden" not in str(caught.value)


async def test_tries_double_their_pauses_and_end(autojump_clock: MockClock) -> None:
    tries = Tries(options(reconnectMaxAttempts=7), "asking")
    pauses = []
    for _ in range(7):
        began = trio.current_time()
        await tries.failed(ConnectionLost("gone"))
        pauses.append(trio.current_time() - began)
    with pytest.raises(ConnectionLost, match="asking: given up after 8 tries: gone"):
        await tries.failed(ConnectionLost("gone"))

    longest = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert all(0.8 * most <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    tries.succeeded()
    assert tries.number == 0
