"""Scenes whose outcome the tests judge, and whose times ``python -m qa.times`` does: where nothing else runs."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import trio
import trustme

from rsocket_trio import Connection, ConnectionLost, Keepalive, Limits, Payload, Responder, open_connection, serve
from tests.conformance import raw
from tests.reliability.processes import server_process

CALLS = 32
SETUP_TIMEOUT = 1.0
HANDSHAKES = 200
PATIENCE = 60.0
"""Seconds after which a scene hangs."""
SILENCE = 1.0
"""Seconds after which a server that is stopped counts as dead."""


async def kill_a_server(wait: float) -> list[float]:
    """Kill a server on which half of the calls wait for an answer, the others for items.

    Return the seconds after which each of them raised.
    """
    raised: list[float] = []
    killed = 0.0

    async def ask(connection: Connection) -> None:
        with pytest.raises(ConnectionLost):
            await connection.request_response()
        raised.append(time.monotonic() - killed)

    async def read(connection: Connection) -> None:
        with pytest.raises(ConnectionLost):  # noqa: PT012
            async with connection.request_stream(b"1000000", initial_request_n=8) as items:
                async for _ in items:
                    pass
        raised.append(time.monotonic() - killed)

    async with server_process() as (process, uri), open_connection(uri) as connection:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(CALLS):
                    nursery.start_soon(read if number % 2 else ask, connection)
                await trio.sleep(wait)
                killed = time.monotonic()
                process.kill()
    return raised


async def stop_a_server() -> list[float]:
    """Stop a server, which answers nothing then. Return the seconds after which each waiting call raised."""
    failed: list[float] = []
    async with server_process() as (process, uri):
        async with open_connection(uri, keepalive=Keepalive(interval=0.3, max_lifetime=SILENCE)) as connection:
            await connection.ping()
            process.send_signal(signal.SIGSTOP)
            started = time.monotonic()

            async def call() -> None:
                with pytest.raises(ConnectionLost, match="silent"):
                    await connection.request_response()
                failed.append(time.monotonic() - started)

            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    for _ in range(CALLS):
                        nursery.start_soon(call)
        process.send_signal(signal.SIGCONT)
    return failed


# What clients do to a listener

ATTACKS: dict[str, bytes] = {
    "garbage": bytes(range(256)) * 10,
    "a frame without end": b"\xff\xff\xff" + bytes(100),
    "reset": b"",
    "SETUP, then reset": raw.prefixed(raw.setup(), raw.ask(1)),
    "SETUP, then garbage": raw.prefixed(raw.setup()) + b"\x00\x00\x01\x00",
    "silence": b"",
    "half a SETUP": raw.prefixed(raw.setup())[:20],
    "HTTP": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "half a handshake": b"\x16\x03\x01\x02\x00\x01\x00",
    "half a request": b"GET /rsocket HTTP/1.1\r\nHost:",
    "half a preface": b"PRI * HTTP/2.0\r\n\r\nSM",
}
"""What clients say, and nothing after it; those with reset in their names end the connection so."""


async def until_closed(port: int, begin: bytes, *, resets: bool = False) -> float:
    """Return the seconds after which the server has closed a connection that began like this."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    started = time.monotonic()
    try:
        if begin:
            await stream.send_all(begin)
        if resets:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await trio.aclose_forcefully(stream)
        while await stream.receive_some():
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(stream)
    return time.monotonic() - started


async def attack_a_listener(
    scheme: str, attacks: Sequence[str], count: int, descriptors: Callable[[], int]
) -> tuple[list[float], list[float], int]:
    """Make each attack so often at once, and well-behaved requests until all attackers are gone.

    Return the seconds of each attacker and of each request, connection included, and how many descriptors are left.
    """
    authority = trustme.CA()
    there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(there)
    authority.configure_trust(here)
    secure = scheme in ("tls", "wss", "h2s")
    uri = f"{scheme}://127.0.0.1:0" + ("/rsocket" if scheme.startswith("ws") else "")
    responder = Responder()
    lasted: list[float] = []
    asked: list[float] = []

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    async def attacker(port: int, attack: str) -> None:
        lasted.append(await until_closed(port, ATTACKS[attack], resets="reset" in attack))

    async def ask_all_the_while(uri: str) -> None:
        while len(lasted) < count * len(attacks):
            started = time.monotonic()
            async with open_connection(uri, ssl_context=here if secure else None) as connection:
                assert (await connection.request_response(b"alive")).data == b"alive"
            asked.append(time.monotonic() - started)

    async with trio.open_nursery() as nursery:
        options = {"ssl_context": there if secure else None, "limits": Limits(setup_timeout=SETUP_TIMEOUT)}
        (bound,) = await nursery.start(partial(serve, responder, [uri], grace=0.1, **options))  # type: ignore[arg-type]
        port = int(bound.split(":")[2].split("/")[0])
        before = descriptors()
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as clients:
                for attack in attacks:
                    for _ in range(count):
                        clients.start_soon(attacker, port, attack)
                clients.start_soon(ask_all_the_while, bound)
            while (left := descriptors() - before) > 0:  # noqa: ASYNC110  # the server closes in tasks of its own
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return lasted, asked, left


async def fall_silent(clients: int, lifetime: float) -> list[float]:
    """Connect so many clients over TCP that say SETUP and then nothing. Return the seconds until each was closed."""
    lasted: list[float] = []
    setup = raw.prefixed(raw.setup(keepalive=500, lifetime=round(lifetime * 1000)))

    async def client(port: int) -> None:
        lasted.append(await until_closed(port, setup))

    async with trio.open_nursery() as nursery:
        (uri,) = await nursery.start(serve, Responder(), ["tcp://127.0.0.1:0"])
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as silent:
                for _ in range(clients):
                    silent.start_soon(client, int(uri.rpartition(":")[2]))
        nursery.cancel_scope.cancel()
    return lasted
