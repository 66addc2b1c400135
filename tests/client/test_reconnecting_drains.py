"""Where do calls go while a connection drains? Open ones stay, new ones go to the next connection."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Connection, Responder, Setup, connect_forever
from tests.client.reconnecting import EXACT, URI, Told, busy_responder, service
from tests.connection.pairs import settle


def remembering(accepted: list[Connection]) -> Responder:
    """A busy responder, and the connections that it accepted."""
    responder = busy_responder([])

    @responder.setup
    def remember(setup: Setup, connection: Connection) -> None:
        accepted.append(connection)

    return responder


async def test_open_streams_stay_with_a_connection_that_drains_and_new_calls_go_to_the_next(
    autojump_clock: MockClock,
) -> None:
    accepted: list[Connection] = []
    told = Told()
    async with (
        service(remembering(accepted)) as running,
        connect_forever(URI, backoff=EXACT, on_state=told) as client,
        trio.open_nursery() as nursery,
    ):
        async with client.request_stream() as items:
            assert (await anext(items)).data == b"1"
            first = client.connection
            nursery.start_soon(partial(accepted[0].drain, grace=5, announce=True))
            await settle()
            assert (await client.request_response(b"x")).data == b"done x"
            assert trio.current_time() == told.started
            assert first is not None
            assert first.status == "draining"
            assert client.connection is not first
            assert (await anext(items)).data == b"2"
            assert first.status == "draining"
        await trio.sleep(6)
        assert first.status == "closed"
        # Its end is nobody's loss.
        assert (await client.request_response(b"y")).data == b"done y"
        assert running.served == 2
        assert told.states == ["connecting", "connected", "draining", "connecting", "connected"]
        accepted.clear()
        del first


async def test_a_server_that_takes_nobody_any_more_is_not_hammered(autojump_clock: MockClock) -> None:
    responder, told = busy_responder([]), Told()

    @responder.setup
    async def turn_away(setup: Setup, connection: Connection) -> None:
        nursery.start_soon(partial(connection.drain, announce=True))

    async with (
        trio.open_nursery() as nursery,
        service(responder) as running,
        connect_forever(URI, backoff=EXACT, on_state=told),
    ):
        await trio.sleep(6.35)
        assert told.pauses == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
        assert running.served == 8


async def test_what_drains_ends_with_the_block(autojump_clock: MockClock) -> None:
    accepted: list[Connection] = []
    async with service(remembering(accepted)), trio.open_nursery() as nursery:
        with pytest.raises(KeyError):  # noqa: PT012
            async with connect_forever(URI, backoff=EXACT) as client, client.request_stream() as items:
                await anext(items)
                first = await client.connected()
                nursery.start_soon(partial(accepted[0].drain, grace=500, announce=True))
                await settle()
                assert await client.connected() is not first
                raise KeyError("own")
        assert first.status == "closed"
        await trio.sleep(1)
        assert [connection.status for connection in accepted] == ["closed", "closed"]
        accepted.clear()
        nursery.cancel_scope.cancel()
