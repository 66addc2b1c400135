"""Connections over Aeron: all dialects and interactions, in one process and in two, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import pytest
import trio

from rsocket_trio import (
    ConnectionLost,
    Limits,
    LocalProtocolError,
    Payload,
    Responder,
    ResumeOptions,
    open_connection,
    serve,
)
from rsocket_trio.transports.aeron import media_driver, open_media_driver
from rsocket_trio.transports.aeron.media_driver import MediaDriver
from rsocket_trio.transports.aeron.message_transport import AeronTransport
from rsocket_trio.transports.aeron.publications import Publication
from rsocket_trio.transports.connect import open_transport
from tests.each_row import whole
from tests.transports.aeron.crowd import crowd
from tests.transports.aeron.echo_server import responder
from tests.transports.aeron.processes import echo_server
from tests.transports.pairs import receive_frames, transport_pair

MIB = 1024 * 1024
DIALECTS = (
    "rsocket/1.0",
    "rsocket/2.0-draft",
    "reactivesocket/0.2",
    "reactivesocket/0.1",
    "reactivesocket/0.0",
    "streamux/1",
)


@pytest.mark.parametrize("dialect", DIALECTS)
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


async def test_twenty_connections_share_a_server(
    uri: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rsocket_trio.transports.aeron.handshake.HANDSHAKE_TIMEOUT", 60)  # on a busy machine
    (bound,) = await nursery.start(serve, responder, uri)
    answers: list[bytes] = []

    async def ask(number: int) -> None:
        async with open_connection(bound) as connection:
            for _ in range(5):
                answers.append(bytes((await connection.request_response(b"%d" % number)).data))

    async with trio.open_nursery() as clients:
        for number in range(20):
            clients.start_soon(ask, number)

    assert sorted(answers) == sorted(b"%d" % number for number in range(20) for _ in range(5))
    nursery.cancel_scope.cancel()


@whole
async def test_a_hundred_clients_connect_four_at_a_time_while_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsocket_trio.transports.aeron.handshake.HANDSHAKE_TIMEOUT", 60)  # on a busy machine
    async with crowd() as clients:
        await clients.open(100)
        await clients.come_and_go(20)


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


async def test_the_term_length_of_the_uri_says_how_large_a_frame_may_be() -> None:
    uri = "aeron:udp?endpoint=127.0.0.1:0|term-length=16m"
    frame = bytes(2 * MIB)
    async with transport_pair(uri) as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(client.send, [frame])
        assert await receive_frames(server, 1) == [frame]


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


async def test_a_cancelled_receive_loses_nothing(uri: str) -> None:
    async with transport_pair(uri) as (client, server):
        with trio.move_on_after(0.01) as scope:
            await server.receive()
        assert scope.cancelled_caught
        await client.send([b"frames"])
        assert await receive_frames(server, 1) == [b"frames"]


async def test_all_connections_of_a_process_share_one_driver(nursery: trio.Nursery) -> None:
    (bound,) = await nursery.start(serve, responder, "aeron:udp?endpoint=127.0.0.1:0")
    async with open_transport(bound) as one, open_transport(bound) as two:
        assert isinstance(one, AeronTransport)
        assert isinstance(two, AeronTransport)
        assert one.driver is two.driver
    nursery.cancel_scope.cancel()


async def test_a_driver_is_opened_for_a_block_and_given_to_both_sides(directory: str) -> None:
    async with open_media_driver(directory=directory) as driver, trio.open_nursery() as nursery:
        assert isinstance(driver, MediaDriver)
        await nursery.start(lambda task_status: serve(responder, "aeron:ipc", over=driver, task_status=task_status))
        async with open_connection("aeron:ipc", over=driver) as connection:
            assert await connection.request_response(b"hello") == Payload(b"hello")
        nursery.cancel_scope.cancel()


async def test_nobody_at_the_other_end_is_a_lost_connection_with_a_reason(directory: str) -> None:
    with pytest.raises(ConnectionLost, match=f"no media driver runs in {directory}"):
        async with open_connection(f"aeron:ipc?directory={directory}"):
            pass


async def test_a_server_that_stops_answers_what_it_was_asked(uri: str) -> None:
    asked = trio.Event()
    slow = Responder()

    @slow.request_response
    async def answer(payload: Payload) -> bytes:
        asked.set()
        await trio.sleep(0.1)
        return b"done"

    async with trio.open_nursery() as servers:
        (bound,) = await servers.start(serve, slow, uri)

        async def stop() -> None:
            await asked.wait()
            servers.cancel_scope.cancel()

        async with trio.open_nursery() as clients, open_connection(bound) as connection:
            clients.start_soon(stop)
            assert await connection.request_response(b"") == Payload(b"done")
            await connection.wait_closed()


async def test_a_session_resumes_over_a_new_connection(uri: str, nursery: trio.Nursery) -> None:
    resume = ResumeOptions()
    (bound,) = await nursery.start(partial(serve, responder, uri, resume=resume))
    driver = next(iter(media_driver._DRIVERS.get().values()))
    async with open_connection(bound, resume=resume) as connection:
        assert await connection.request_response(b"one") == Payload(b"one")
        for publication in [each for each in driver.resources if isinstance(each, Publication)]:
            publication.close()
        assert await connection.request_response(b"two") == Payload(b"two")
    nursery.cancel_scope.cancel()


async def test_the_command_serves_and_asks(uri: str) -> None:
    command = [sys.executable, "-c", "from rsocket_trio.cli.entry import main; main()"]
    serving = [*command, "serve", "tests.transports.aeron.echo_server:responder", "--listen", uri]
    process = await trio.lowlevel.open_process(serving, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = b""
        while b"\n" not in line:
            line += await process.stdout.receive_some()
        bound = line.split(b"\n")[0].decode().removeprefix("listening ")
        done = await trio.run_process([*command, "request", bound, "--data", "hello"], capture_stdout=True)
        assert done.stdout == b"hello\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()


async def test_a_second_server_at_a_port_is_refused(nursery: trio.Nursery) -> None:
    (bound,) = await nursery.start(serve, responder, "aeron:udp?endpoint=127.0.0.1:0")
    with pytest.raises(OSError, match=r"cannot listen on aeron:.*: address already in use"):
        await serve(responder, bound)
    nursery.cancel_scope.cancel()


async def test_two_servers_over_the_memory_of_one_driver_share_its_clients(
    directory: str, nursery: trio.Nursery
) -> None:
    uri = f"aeron:ipc?directory={directory}"
    for _ in range(2):
        await nursery.start(serve, responder, uri)
    for _ in range(3):
        async with open_connection(uri) as connection:
            assert await connection.request_response(b"hello") == Payload(b"hello")
    nursery.cancel_scope.cancel()
