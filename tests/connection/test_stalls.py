"""A process that stalls finds what its peers said in time in its sockets, and reads it before it judges anybody."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import product
from typing import Any, Protocol

import hpack
import trio
import trustme
from trio.testing import MockClock

from rsocket_trio import (
    Keepalive,
    Payload,
    Responder,
    ResumeOptions,
    open_connection_over,
    serve,
)
from rsocket_trio.testing import deterministic_scheduling
from tests.conformance import old_frames, raw
from tests.connection.pairs import settle
from tests.each_row import ALL_CASES, each_row
from tests.transports.websocket.test_transport import upgrade

LAYERS = ("tls", "ws", "wss", "h2", "h2s")

Dial = Callable[..., Awaitable[socket.socket]]
LIFETIME = 1.5
STALL = 2.5
CLIENTS = 40
SETUP = raw.prefixed(raw.setup(keepalive=500, lifetime=1500))
BEAT, BEATEN = raw.prefixed(raw.keepalive()), raw.prefixed(raw.keepalive(respond=False))


class Says(Protocol):
    def sendall(self, data: bytes, /) -> None: ...


class Stalling(Responder):
    """Blocks the loop for ``seconds`` when it is told to; meanwhile ``others`` go on."""

    def __init__(self, clock: MockClock, seconds: float = STALL) -> None:
        super().__init__()
        self.others: Callable[[], object] = lambda: None

        @self.fire_and_forget
        def stall(request: Payload) -> None:
            clock.jump(seconds / 2)
            self.others()
            clock.jump(seconds / 2)

        @self.request_response
        def echo(request: Payload) -> Payload:
            return request


@asynccontextmanager
async def serving(responder: Responder, *uris: str, **options: Any) -> AsyncIterator[Any]:
    """The port of a server of ours, or those of its listeners."""
    async with trio.open_nursery() as nursery:
        wanted = uris or ("tcp://127.0.0.1:0",)
        bound = await nursery.start(partial(serve, responder, wanted, grace=0, **options))
        ports = [int(uri.rpartition(":")[2].strip("/")) for uri in bound]
        yield ports[0] if len(ports) == 1 else ports
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def dialling(port: int) -> AsyncIterator[Dial]:
    """Dials clients that nothing runs for: each says what it is given, and more whenever a test wants it to."""
    with ExitStack() as stack:

        async def dial(said: bytes = b"", at: int = port) -> socket.socket:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", at)))
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(said)
            await settle()
            return client

        yield dial


def say(clients: Iterable[Says], data: bytes) -> None:
    """Have each of them say this."""
    for client in clients:
        client.sendall(data)


async def heard(client: socket.socket) -> bytes:
    """Return what has come, and nothing at the end."""
    await settle()
    try:
        return client.recv(65536)
    except BlockingIOError:
        return b"nothing yet"


@each_row("seed", range(10))
async def test_of_forty_clients_whose_keepalives_lie_in_the_sockets_none_is_taken_for_dead(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock)
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            clients = [await dial(SETUP) for _ in range(CLIENTS)]
            responder.others = lambda: say(clients, BEAT)
            clients[seed].sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert [await heard(client) for client in clients] == [BEATEN] * CLIENTS
            await trio.sleep(LIFETIME - 0.01)
            assert [await heard(client) for client in clients] == [b"nothing yet"] * CLIENTS


@each_row("seed", range(5))
async def test_who_was_silent_while_the_server_stalled_is_told_as_soon_as_it_goes_on(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock)
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            clients = [await dial(SETUP) for _ in range(CLIENTS)]
            live = clients[::3]
            responder.others = lambda: say(live, BEAT)
            began = trio.current_time()
            live[0].sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert trio.current_time() == began + STALL
            for client in clients:
                said = await heard(client)
                if client in live:
                    assert said == BEATEN
                else:
                    assert raw.parsed(said[3:]).error_code == raw.CONNECTION_ERROR
                    assert b"no frame came for 1.5 s" in said


@each_row("seed", range(5))
async def test_a_keepalive_behind_a_large_frame_counts(seed: int, autojump_clock: MockClock) -> None:
    responder = Stalling(autojump_clock)
    large = raw.prefixed(raw.frame(raw.EXT, raw.I, 0, raw.u32(1) + bytes(1_500_000)))
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            clients = [await dial(SETUP) for _ in range(4)]

            def pour() -> None:
                for client in clients:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(large))
                    client.sendall(large + BEAT)

            responder.others = pour
            clients[0].sendall(raw.prefixed(raw.forget(1)))
            await trio.sleep(1)
            assert [await heard(client) for client in clients] == [BEATEN] * 4


class Client:
    """A client of bytes over TLS, or without it, that says something at any moment."""

    def __init__(self, bare: socket.socket, trusting: ssl.SSLContext | None) -> None:
        self._bare = bare
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None
        if trusting is not None:
            self._tls = trusting.wrap_bio(self._coming, self._going, server_hostname="127.0.0.1")

    async def shake_hands(self) -> None:
        while self._tls is not None:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._bare.sendall(self._going.read())
                self._coming.write(await heard(self._bare))
            else:
                self._bare.sendall(self._going.read())
                return

    def sendall(self, data: bytes) -> None:
        if self._tls is None:
            self._bare.sendall(data)
        else:
            self._tls.write(data)
            self._bare.sendall(self._going.read())

    async def hear(self) -> bytes:
        said = await heard(self._bare)
        if self._tls is None:
            return said
        self._coming.write(said)
        data = b""
        with suppress(ssl.SSLWantReadError):
            while chunk := self._tls.read(65536):
                data += chunk
        return data


REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "here"),
    (":path", "/"),
    ("content-type", "application/rsocket"),
]


def http2_frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    """RFC 9113, 4.1."""
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + body


def http2_beginning() -> bytes:
    """The preface, SETTINGS and the request of stream 1, whose header block is whole."""
    head = hpack.Encoder().encode(REQUEST)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, b"") + http2_frame(1, 4, 1, head)


@each_row(
    ("scheme", "seed"),
    [(scheme, seed) for seed, scheme in product(range(5), LAYERS) if ALL_CASES or seed == LAYERS.index(scheme)],
)
async def test_under_other_layers_a_keepalive_counts_as_well(scheme: str, seed: int, autojump_clock: MockClock) -> None:
    responder = Stalling(autojump_clock)
    ca = trustme.CA()
    context, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.configure_trust(trusting)
    secure, framed, carried = scheme in ("tls", "wss", "h2s"), scheme in ("ws", "wss"), scheme in ("h2", "h2s")
    if carried:
        trusting.set_alpn_protocols(["h2"])

    def message(frame: bytes) -> bytes:
        if carried:
            return http2_frame(0, 0, 1, raw.prefixed(frame))
        # RFC 6455, 5.2: a whole binary message under a mask of nought.
        return bytes((0x82, 0x80 | len(frame), 0, 0, 0, 0)) + frame if framed else raw.prefixed(frame)

    options = {"ssl_context": context} if secure else {}
    with deterministic_scheduling(seed):
        async with serving(responder, f"{scheme}://127.0.0.1:0", **options) as port, dialling(port) as dial:
            clients = [Client(await dial(), trusting if secure else None) for _ in range(10)]
            for client in clients:
                await client.shake_hands()
                if framed:
                    client.sendall(upgrade("/"))
                    assert b" 101 " in await client.hear()
                if carried:
                    client.sendall(http2_beginning())
                client.sendall(message(raw.setup(keepalive=500, lifetime=1500)))
            await settle()
            responder.others = lambda: say(clients, message(raw.keepalive(b"alive")))
            clients[0].sendall(message(raw.forget(1)))
            await settle()
            for client in clients:
                assert (await client.hear()).endswith(raw.keepalive(b"alive", respond=False))


# Beginnings


@each_row("seed", range(5))
async def test_whose_setup_came_while_the_server_stalled_is_let_in(seed: int, autojump_clock: MockClock) -> None:
    responder = Stalling(autojump_clock, 30)
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            first = await dial(SETUP)
            late = [await dial(SETUP[:number]) for number in range(10)]
            await trio.sleep(1)

            def go_on() -> None:
                for number, client in enumerate(late):
                    client.sendall(SETUP[number:] + BEAT)

            responder.others = go_on
            first.sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert [await heard(client) for client in late] == [BEATEN] * 10


@each_row("seed", range(5))
async def test_a_handshake_that_goes_on_while_the_server_stalls_is_not_cut(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock, 30)
    with deterministic_scheduling(seed):
        uris = ["tcp://127.0.0.1:0", "ws://127.0.0.1:0"]
        async with serving(responder, *uris) as (plain, framed), dialling(framed) as dial:
            first = await dial(SETUP, plain)
            late = [await dial(upgrade("/")[:20]) for _ in range(5)]
            silent = await dial()
            responder.others = lambda: say(late, upgrade("/")[20:])
            first.sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert [(await heard(client))[:12] for client in late] == [b"HTTP/1.1 101"] * 5
            await trio.sleep(1.1)  # which is what a stall of any length gives at most
            assert await heard(silent) == b""


# Who has no lifetime


@each_row("seed", range(5))
async def test_the_rest_of_a_frame_that_came_while_the_server_stalled_counts(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock, 300)
    wire = old_frames.RS00
    begun, rest = wire.prefixed(wire.setup(), wire.ask(2, b"are you there?"))[:-4], b"ere?"
    with deterministic_scheduling(seed):
        async with serving(responder) as port, dialling(port) as dial:
            first = await dial(raw.prefixed(raw.setup(lifetime=1_000_000)))
            halves = [await dial(begun) for _ in range(10)]
            silent = await dial(begun)
            await trio.sleep(85)
            responder.others = lambda: say(halves, rest)
            first.sendall(raw.prefixed(raw.forget(1)))
            await settle()
            for client in halves:
                assert (await heard(client)).endswith(b"are you there?")
            assert await heard(silent) == b""


# Clients


@asynccontextmanager
async def asked(keepalive: Keepalive) -> AsyncIterator[tuple[socket.socket, Callable[[], object]]]:
    """A server of bytes, and what asks our client whether it is connected."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    async with open_connection_over(
        trio.SocketStream(trio.socket.from_stdlib_socket(ours)),
        keepalive=keepalive,
    ) as connection:
        await settle()
        theirs.recv(65536)
        yield theirs, lambda: connection.status
    theirs.close()


BEATS = Keepalive(interval=0.5, max_lifetime=LIFETIME)


async def test_a_client_that_stalls_reads_what_its_server_said_meanwhile(autojump_clock: MockClock) -> None:
    async with asked(BEATS) as (server, status):
        autojump_clock.jump(1)
        server.sendall(BEATEN)
        autojump_clock.jump(1)
        await settle()
        assert status() == "open"


async def test_a_server_that_was_not_asked_while_its_client_stalled_is_asked_first(autojump_clock: MockClock) -> None:
    async with asked(BEATS) as (server, status):
        autojump_clock.jump(10)
        await settle()
        assert server.recv(65536).endswith(BEAT)
        await trio.sleep(LIFETIME - BEATS.interval - 0.01)
        assert status() == "open"
        server.sendall(BEATEN)
        await trio.sleep(LIFETIME - 0.02)
        assert status() == "open"


async def test_a_server_that_is_dead_is_given_up_as_soon_after_a_stall_as_after_any_beat(
    autojump_clock: MockClock,
) -> None:
    async with asked(BEATS) as (_, status):
        await trio.sleep(0.2)
        autojump_clock.jump(10)
        await trio.sleep(LIFETIME - BEATS.interval - 0.001)
        assert status() == "open"
        await trio.sleep(0.002)
        assert status() == "closed"


async def test_stalls_without_end_keep_no_dead_server_alive(autojump_clock: MockClock) -> None:
    async with asked(BEATS) as (_, status):
        began = trio.current_time()
        while status() == "open":
            autojump_clock.jump(0.7)
            await trio.sleep(0.001)
        assert trio.current_time() - began < 5 * LIFETIME


# Sessions


@each_row("seed", range(5))
async def test_a_session_whose_client_came_back_while_the_server_stalled_goes_on(
    seed: int, autojump_clock: MockClock
) -> None:
    responder = Stalling(autojump_clock, 10)
    token = b"0123456789abcdef"
    with deterministic_scheduling(seed):
        options = ResumeOptions(session_seconds=5)
        async with serving(responder, resume=options) as port, dialling(port) as dial:
            other = await dial(SETUP)
            (await dial(raw.prefixed(raw.setup(token=token)))).close()
            await trio.sleep(1)
            back: list[socket.socket] = []

            def come_back() -> None:
                back.append(socket.create_connection(("127.0.0.1", port)))
                back[0].setblocking(False)
                back[0].sendall(raw.prefixed(raw.resume(token=token)))

            responder.others = come_back
            other.sendall(raw.prefixed(raw.forget(1)))
            await settle()
            assert raw.parsed((await heard(back[0]))[3:]).type == raw.RESUME_OK
            back[0].close()
