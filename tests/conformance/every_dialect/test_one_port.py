"""One port serves every dialect at once, however the first bytes are cut, and outlives those who speak none."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio_websocket

from rsocket_trio import (
    Connection,
    InvalidSetup,
    Limits,
    Responder,
    open_connection,
    open_connection_over,
    serve,
)
from rsocket_trio.connection.protocols import ALL, STREAMUX
from rsocket_trio.rsocket.dialects import DIALECTS
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.schemes import parse_uri
from tests.conformance import raw
from tests.conformance.every_dialect.worlds import CHANNEL, LACKS, PATIENCE, SUBSCRIPTION, Overheard, Seen, application

LISTENERS: Final = ("tcp://127.0.0.1:0", "ws://127.0.0.1:0/rsocket")
SPLITS: Final = range(1, 40)
"""Places to cut a client's first bytes at: the frame ends, and its request begins, before the last of them."""


@asynccontextmanager
async def one_server(responder: Responder, listen: str, *, limits: Limits | None = None) -> AsyncIterator[str]:
    """A server of all dialects."""
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(partial(serve, responder, [listen], limits=limits or Limits()))
            yield uri
            nursery.cancel_scope.cancel()


# Everybody at once


@pytest.mark.clause("DET-01", "DET-02", "DET-03", "DET-04", "DET-05", "DET-06", "DET-09")
@pytest.mark.parametrize("listen", LISTENERS, ids=lambda uri: uri.partition(":")[0])
async def test_one_port_serves_clients_of_every_dialect_at_the_same_time(listen: str) -> None:
    seen = Seen()
    here: set[str] = set()
    all_here = trio.Event()
    done: list[str] = []

    async def be_a_client(dialect: str) -> None:
        async with open_connection(uri, dialect=dialect, responder=application(Seen())) as connection:
            assert (await connection.request_response(dialect, route="greet")).text == f"hello, {dialect}"
            here.add(dialect)
            if here == set(ALL):
                all_here.set()
            await all_here.wait()
            await use(connection)
            done.append(dialect)

    async def speak_streamux() -> None:
        # It has no routes, and the default handler echoes.
        async with open_connection(uri, dialect=STREAMUX) as connection:
            here.add(STREAMUX)
            if here == set(ALL):
                all_here.set()
            await all_here.wait()
            assert (await connection.request_response(b"x" * 200_000)).data == b"x" * 200_000
            done.append(STREAMUX)

    async with one_server(application(seen), listen) as uri, trio.open_nursery() as nursery:
        for dialect in DIALECTS:
            for _ in range(3):
                nursery.start_soon(be_a_client, dialect)
        for _ in range(3):
            nursery.start_soon(speak_streamux)

    assert sorted(done) == sorted(3 * ALL)


async def use(connection: Connection) -> None:
    """A little of everything that the dialect has."""
    assert (await connection.request_response(b"3", route="watch back")).text == "0 1 2"
    async with connection.request_stream(b"50", route="count", initial_request_n=4) as items:
        assert [int(item.data) async for item in items] == list(range(50))
    if CHANNEL not in LACKS[connection.dialect]:
        async with connection.request_channel(b"one", route="shout") as channel:
            await channel.send(b"two")
            await channel.send_eof()
            assert [item.data async for item in channel] == [b"ONE", b"TWO"]
    if SUBSCRIPTION not in LACKS[connection.dialect]:
        async with connection.request_subscription(route="prices") as prices:
            assert (await anext(prices)).data == b"0"


# Cuts


class Cut(trio.abc.HalfCloseableStream):
    """A stream whose first bytes leave in two pieces, with time for the peer to look at the first alone."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, cut: int) -> None:
        self._stream = stream
        self.left = cut

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        first, rest = data[: self.left], data[self.left :]
        self.left -= len(first)
        await self._stream.send_all(first)
        if rest:
            await trio.sleep(0.001 if first else 0)
            await self._stream.send_all(rest)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.clause("DET-02", "DET-03", "DET-04", "DET-05", "DET-06")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_first_bytes_may_be_cut_anywhere(dialect: str) -> None:
    answers: dict[int, str] = {}

    async def ask(cut: int) -> None:
        stream = await trio.open_tcp_stream(where.host, where.port)
        async with open_connection_over(Cut(stream, cut), dialect=dialect) as connection:
            answers[cut] = (await connection.request_response(str(cut), route="greet")).text

    async with one_server(application(Seen()), "tcp://127.0.0.1:0") as uri, trio.open_nursery() as nursery:
        where = parse_uri(uri)
        for cut in SPLITS:
            nursery.start_soon(ask, cut)

    assert answers == {cut: f"hello, {cut}" for cut in SPLITS}


@pytest.mark.clause("DET-09")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_bytes_of_a_first_message_may_be_cut_anywhere_below_the_websocket(dialect: str) -> None:
    answers: dict[int, Any] = {}
    first, request = await spoken(dialect)

    async def ask(cut: int) -> None:
        stream = await trio.open_tcp_stream(where.host, where.port)
        # The handshake of HTTP goes in one piece of its own; from there on bytes are counted.
        cutter: Any = Cut(stream, 0)
        async with cutter, trio.open_nursery() as nursery:
            socket = await trio_websocket.wrap_client_stream(nursery, cutter, where.authority, where.path)
            cutter.left = cut
            await socket.send_message(first)
            await socket.send_message(request)
            answers[cut] = await socket.get_message()
            nursery.cancel_scope.cancel()

    async with one_server(application(Seen()), "ws://127.0.0.1:0/rsocket") as uri, trio.open_nursery() as nursery:
        where = parse_uri(uri)
        for cut in SPLITS:
            nursery.start_soon(ask, cut)

    assert {cut: answer[-10:] for cut, answer in answers.items()} == dict.fromkeys(SPLITS, b"the answer")


async def spoken(dialect: str) -> tuple[bytes, bytes]:
    """The first two frames of a client: its SETUP, and a request."""
    async with one_server(application(Seen()), "memory://recorded") as uri, open_transport(uri) as transport:
        wire = Overheard(transport)
        async with open_connection_over(wire, dialect=dialect) as connection:
            await connection.request_response(b"the answer")
    return wire.frames[0], wire.frames[1]


# Noise

# Their first bytes, and whether they could be a frame of 1.0 that is no SETUP: that is answered.
NOISE: Final[dict[str, tuple[bytes, bool]]] = {
    "a web browser": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", False),
    "a TLS client": (bytes.fromhex("16030100c8010000c40303") + bytes(189), False),
    "an SSH client": (b"SSH-2.0-OpenSSH_9.2\r\n", True),
    "zeros": (bytes(64), False),
    "ones": (b"\xff" * 64, False),
    "one byte": (b"\0", False),
    "a length and nothing else": (b"\0\0\x10", False),
    "nothing": (b"", False),
}


@pytest.mark.clause("DET-07")
@pytest.mark.parametrize("noise", NOISE)
async def test_who_speaks_no_dialect_is_closed_and_nobody_else_notices(
    noise: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        one_server(application(Seen()), "tcp://127.0.0.1:0") as uri,
        open_connection(uri) as connection,
    ):
        where = parse_uri(uri)
        data, answered = NOISE[noise]
        async with await trio.open_tcp_stream(where.host, where.port) as stream:
            await stream.send_all(data)
            await stream.send_eof()
            answer = b"".join([bytes(chunk) async for chunk in stream])
        assert answer[3:13] == (raw.error(0, raw.INVALID_SETUP) if answered else b"")
        assert (await connection.request_response(b"unharmed")).data == b"unharmed"
    assert len(caplog.records) <= 1
    caplog.clear()


@pytest.mark.clause("DET-07")
@pytest.mark.parametrize("listen", LISTENERS, ids=lambda uri: uri.partition(":")[0])
@pytest.mark.parametrize("mutate", [True, False], ids=["almost a client's", "of any kind"])
async def test_a_server_of_all_dialects_survives_garbage(
    listen: str, mutate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(f"{listen} {mutate}")
    starts = [await spoken(dialect) for dialect in DIALECTS]

    def garbage() -> bytes:
        if not mutate:
            return chance.randbytes(chance.randrange(1, 200))
        data = bytearray(b"".join(chance.choice(starts)) if "ws" in listen else prefixed(*chance.choice(starts)))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(min(len(data), 40))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        return bytes(data[: chance.choice([len(data), chance.randrange(1, len(data))])])

    shout: Callable[[str, bytes], Awaitable[None]] = shout_message if "ws" in listen else shout_bytes
    limits = Limits(setup_timeout=0.3, silence=0.3)
    async with one_server(application(Seen()), listen, limits=limits) as uri:
        async with open_connection(uri, dialect="reactivesocket/0.2") as connection:
            async with trio.open_nursery() as nursery:
                for _ in range(150):
                    nursery.start_soon(shout, uri, garbage())
            assert (await connection.request_response(b"unharmed")).data == b"unharmed"
        for dialect in DIALECTS:
            async with open_connection(uri, dialect=dialect) as connection:
                assert (await connection.request_response("you", route="greet")).text == "hello, you"
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    caplog.clear()


def prefixed(*frames: bytes) -> bytes:
    """With a length of 24 bits, or of 32 that count themselves where the frame begins with a type of 16."""
    if frames[0][:2] in {b"\0\1", b"\0\0"} and frames[0][4:6] != b"\4\0":
        return b"".join((len(frame) + 4).to_bytes(4, "big") + frame for frame in frames)
    return b"".join(len(frame).to_bytes(3, "big") + frame for frame in frames)


async def shout_bytes(uri: str, data: bytes) -> None:
    where = parse_uri(uri)
    try:
        async with await trio.open_tcp_stream(where.host, where.port) as stream:
            await stream.send_all(data)
            await stream.send_eof()
            async for _ in stream:
                pass
    except trio.BrokenResourceError:
        pass  # the server closed while we spoke


async def shout_message(uri: str, data: bytes) -> None:
    where = parse_uri(uri)
    async with await trio.open_tcp_stream(where.host, where.port) as stream, trio.open_nursery() as nursery:
        socket = await trio_websocket.wrap_client_stream(nursery, stream, where.authority, where.path)
        try:
            await socket.send_message(data)
            with trio.move_on_after(0.05):
                await socket.get_message()
        except trio_websocket.ConnectionClosed:
            pass  # the server closed while we spoke
        nursery.cancel_scope.cancel()


# Those whose dialect is not served


@pytest.mark.clause("DET-07")
@pytest.mark.parametrize("refused", DIALECTS)
async def test_a_client_of_a_dialect_that_is_not_served_hears_so_in_its_own(refused: str, tmp_path: Path) -> None:
    others = [name for name in DIALECTS if name != refused]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(partial(serve, application(Seen()), [f"unix://{tmp_path}/s"], dialects=others))
            async with open_connection(uri, dialect=refused) as connection:
                with pytest.raises(InvalidSetup, match="served here"):
                    await connection.request_response(b"x")
            nursery.cancel_scope.cancel()
