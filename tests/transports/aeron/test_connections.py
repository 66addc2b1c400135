"""Connections over Aeron: all dialects and interactions, in one process and in two, and how they end."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest
import trio

from rsocket_trio import Limits, LocalProtocolError, Payload, ResumeOptions, open_connection, serve
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.transports.aeron import media_driver
from rsocket_trio.transports.aeron.publications import AeronPublication
from tests.transports.aeron.echo_server import responder
from tests.transports.aeron.processes import echo_server
from tests.transports.pairs import receive_frames, transport_pair

MIB = 1024 * 1024


@pytest.mark.parametrize("dialect", ALL)
async def test_every_dialect_has_its_interactions(uri: str, dialect: str, nursery: trio.Nursery) -> None:
    (bound,) = await nursery.start(serve, responder, uri)

    async with open_connection(bound, dialect=dialect) as connection:
        assert await connection.request_response(b"hello") == Payload(b"hello")
        if dialect != "streamux/1":
            async with connection.request_stream(b"3") as stream:
                assert [bytes(item.data) async for item in stream] == [b"0", b"1", b"2"]
        if dialect not in ("streamux/1", "reactivesocket/0.0"):
            async with connection.request_channel(b"a") as channel:
                assert (await anext(channel)).data == b"a"
                await channel.send(b"b")
                assert (await anext(channel)).data == b"b"

    nursery.cancel_scope.cancel()


async def test_a_server_in_another_process_answers_with_a_mebibyte(uri: str) -> None:
    data = os.urandom(MIB)
    async with echo_server(uri) as (process, bound):
        async with open_connection(bound) as connection:
            assert (await connection.request_response(data)).data == data
            async with connection.request_stream(b"1000") as stream:
                assert len([item async for item in stream]) == 1000
        process.send_signal(signal.SIGINT)
        await process.wait()


async def test_messages_are_frames_and_the_end_comes_behind_them(uri: str) -> None:
    frames = [os.urandom(size) for size in (6, 1408, 100_000)]
    async with transport_pair(uri) as (client, server):
        await client.send(frames)
        assert await receive_frames(server, 3) == frames
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.finish)
            assert not await server.receive()
            await server.finish()


async def test_a_frame_beyond_an_eighth_of_a_term_is_refused_by_number(uri: str) -> None:
    async with transport_pair(uri) as (client, server):
        with pytest.raises(LocalProtocolError, match=r"frame of 131073 bytes, limit 131072.*term-length, 1048576"):
            await client.send([bytes(131_073)])
        await client.send([bytes(131_072)])
        assert await receive_frames(server, 1) == [bytes(131_072)]


async def test_a_message_beyond_the_limit_ends_the_connection_by_number(uri: str) -> None:
    async with transport_pair(uri, limits=Limits(frame_size=1000)) as (client, server):
        await client.send([bytes(1001)])
        with pytest.raises(Exception, match="message of 1001 bytes, limit 1000"):
            await server.receive()


async def test_a_slow_subscriber_presses_its_peer_back_and_loses_nothing(uri: str) -> None:
    sent = 0
    async with transport_pair(uri) as (client, server):

        async def send_all() -> None:
            nonlocal sent
            for number in range(200):
                await client.send([number.to_bytes(4, "big") + bytes(60_000)])
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            await trio.sleep(0.2)
            assert 0 < sent < 200
            frames = await receive_frames(server, 200)
    assert [int.from_bytes(frame[:4], "big") for frame in frames] == list(range(200))


async def test_a_session_resumes_over_a_new_connection(uri: str, nursery: trio.Nursery) -> None:
    resume = ResumeOptions()
    (bound,) = await nursery.start(partial(serve, responder, uri, resume=resume))
    driver = next(iter(media_driver._DRIVERS.get().values()))
    async with open_connection(bound, resume=resume) as connection:
        assert await connection.request_response(b"one") == Payload(b"one")
        for publication in [each for each in driver.resources if isinstance(each, AeronPublication)]:
            publication.close()
        assert await connection.request_response(b"two") == Payload(b"two")
    nursery.cancel_scope.cancel()
