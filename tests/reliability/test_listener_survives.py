"""Whatever a client does to a listener, the next one is served meanwhile, and no descriptor stays."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trustme

from rsocket_trio import Limits, Payload, Responder, open_connection, serve
from tests.conformance import raw

SETUP_TIMEOUT = 1.0
Attack = Callable[[trio.SocketStream], Awaitable[None]]


def echoing() -> Responder:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    return responder


async def garbage(stream: trio.SocketStream) -> None:
    await stream.send_all(bytes(range(256)) * 10)


async def a_frame_without_end(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\xff\xff\xff" + bytes(100))


async def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(stream)


async def setup_then_reset(stream: trio.SocketStream) -> None:
    await stream.send_all(raw.prefixed(raw.setup(), raw.ask(1)))
    await reset(stream)


async def setup_then_garbage(stream: trio.SocketStream) -> None:
    await stream.send_all(raw.prefixed(raw.setup()) + b"\x00\x00\x01\x00")


async def silence(stream: trio.SocketStream) -> None:
    return


async def half_a_setup(stream: trio.SocketStream) -> None:
    await stream.send_all(raw.prefixed(raw.setup())[:20])


async def http(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")


async def half_a_handshake(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\x16\x03\x01\x02\x00\x01\x00")


ATTACKS = [
    garbage,
    a_frame_without_end,
    reset,
    setup_then_reset,
    setup_then_garbage,
    silence,
    half_a_setup,
    http,
    half_a_handshake,
]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss"])
async def test_a_listener_survives_any_client(scheme: str) -> None:
    authority = trustme.CA()
    there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(there)
    authority.configure_trust(here)
    secure = scheme in ("tls", "wss")
    uri = f"{scheme}://127.0.0.1:0" + ("/rsocket" if scheme.startswith("ws") else "")

    async def attack(port: int, attack: Attack) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        try:
            await attack(stream)
            while await stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(
            lambda task_status: serve(
                echoing(),
                [uri],
                ssl_context=there if secure else None,
                limits=Limits(setup_timeout=SETUP_TIMEOUT),
                grace=0.1,
                task_status=task_status,
            )
        )
        port = int(bound.split(":")[2].split("/")[0])
        before = descriptors()
        started = time.monotonic()
        slowest = 0.0
        with trio.fail_after(10):
            async with trio.open_nursery() as attackers:
                for one in ATTACKS:
                    for _ in range(5):
                        attackers.start_soon(attack, port, one)
                # A probe is served all the while.
                while time.monotonic() - started < SETUP_TIMEOUT:
                    asked = time.monotonic()
                    async with open_connection(bound, ssl_context=here if secure else None) as connection:
                        assert (await connection.request_response(b"alive")).data == b"alive"
                    slowest = max(slowest, time.monotonic() - asked)
        # Everybody was closed by the setup timeout and the second that a goodbye may take.
        assert time.monotonic() - started <= SETUP_TIMEOUT + 2
        assert slowest <= 1.0
        await trio.sleep(0.2)
        assert descriptors() <= before
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", ["tls", "ws"])
async def test_two_hundred_handshakes_that_never_end_block_nobody(scheme: str) -> None:
    authority = trustme.CA()
    there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(there)
    authority.configure_trust(here)
    secure = scheme == "tls"
    lasted: list[float] = []

    async def begin(port: int) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        started = time.monotonic()
        async with stream:
            await stream.send_all(b"\x16\x03\x01\x02\x00" if secure else b"GET /rsocket HTTP/1.1\r\nHost:")
            try:
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        lasted.append(time.monotonic() - started)

    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(
            lambda task_status: serve(
                echoing(),
                [f"{scheme}://127.0.0.1:0/" if scheme == "ws" else f"{scheme}://127.0.0.1:0"],
                ssl_context=there if secure else None,
                limits=Limits(setup_timeout=SETUP_TIMEOUT),
                grace=0.1,
                task_status=task_status,
            )
        )
        port = int(bound.split(":")[2].split("/")[0])
        with trio.fail_after(10):
            async with trio.open_nursery() as clients:
                for _ in range(200):
                    clients.start_soon(begin, port)
                await trio.sleep(0.3)
                asked = time.monotonic()
                async with open_connection(bound, ssl_context=here if secure else None) as connection:
                    await connection.request_response()
                assert time.monotonic() - asked <= 0.6
        nursery.cancel_scope.cancel()

    assert len(lasted) == 200
    assert max(lasted) <= SETUP_TIMEOUT + 2
