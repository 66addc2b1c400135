"""rsocket-kotlin as a server and as a client: what it can, and what ``peer="rsocket-kotlin/0.20"`` is for."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import Any, Final

import attrs
import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    ConnectionLost,
    LocalProtocolError,
    Payload,
    RejectedSetup,
    Responder,
    Setup,
    open_connection,
)
from tests.interop.both_ways import serving
from tests.interop.peers import COMMAND_TIMEOUT, ROOT, LineProcess, pattern, shared, start
from tests.missing import require

NAME = "rsocket-kotlin/0.20"
LARGEST = 2**24 - 1 - 6
"""Bytes of the largest request/response in one frame."""


BUILD: Final = ROOT / "build" / "kotlin"
COMMAND: Final = [
    "java",
    # It lives for seconds: quick code counts less than a quick start.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-cp",
    f"{BUILD / 'classes'}:{BUILD / 'dependency'}/*",
    "PeerKt",
]


def missing_kotlin() -> str | None:
    """Return why the peer can't run here, or ``None``."""
    if shutil.which("java") is None:
        return "java is missing: no Kotlin peer"
    if not (BUILD / "classes" / "PeerKt.class").is_file():
        return "the Kotlin peer is missing: make build/kotlin/.built, which needs mvn and a JDK"
    return None


@attrs.define(eq=False)
class KotlinPeer(LineProcess):
    """The running process. One test at a time talks to it."""

    async def do(self, line: str) -> str:
        """Have it do what the line says, and return its answer."""
        with self.deadline(COMMAND_TIMEOUT):
            await self.tell(line)
            return await self.line()

    async def listen(self, fragment: int = 0) -> str:
        """Have it serve, with frames of at most so many bytes, 0 for any. Return the URI."""
        return f"tcp://127.0.0.1:{(await self.do(f'listen {fragment}')).removeprefix('port ')}"

    async def try_to_connect(self, uri: str, fragment: int = 0) -> str:
        """Connect its client, which is asked from now on, to a server of ours. Return "done" or the error."""
        return await self.do(f"connect {uri.rpartition(':')[2]} {fragment}")

    async def connect(self, uri: str, fragment: int = 0) -> None:
        assert await self.try_to_connect(uri, fragment) == "done"


def shared_kotlin() -> KotlinPeer:
    """Return the process that the tests share."""
    return shared("kotlin", KotlinPeer, lambda: start(KotlinPeer, "the Kotlin peer", COMMAND))


@pytest.fixture(autouse=True, scope="module")
def running() -> None:
    """Have the process run before anything looks at what a test leaves behind."""
    require(missing_kotlin())
    shared_kotlin()


@pytest.fixture
def kotlin() -> KotlinPeer:
    return shared_kotlin()


async def texts(items: Any) -> list[str]:
    return [item.text async for item in items]


async def test_its_server_serves_a_client_that_names_it(kotlin: KotlinPeer) -> None:
    async with open_connection(await kotlin.listen(), peer=NAME) as connection:
        for size in 1, 100_000, LARGEST:
            assert (await connection.request_response(pattern(size))).data == pattern(size)
        answer = await connection.request_response(Payload(b"data", b"metadata"))
        assert (answer.data, answer.metadata) == (b"data", b"metadata")
        with pytest.raises(ApplicationError, match="as asked for") as failed:
            await connection.request_response(b"fail")
        assert failed.value.code == 0x301
        async with connection.request_stream(b"10", initial_request_n=3) as items:
            assert await texts(items) == [str(number) for number in range(10)]
        async with connection.request_stream(b"1000000", initial_request_n=3) as items:
            assert [(await anext(items)).text for _ in range(5)] == ["0", "1", "2", "3", "4"]
        async with connection.request_channel(b"first") as channel:
            await channel.send(pattern(1_000_000))
            await channel.send_eof()
            assert [len(item.data) async for item in channel] == [5, 1_000_000]
        await connection.fire_and_forget(pattern(100_000))
        assert await kotlin.line() == "noted 100000"
        await connection.metadata_push(b"hello")
        assert await kotlin.line() == "pushed hello"
        assert connection.faults.peer_faults == 0


async def test_a_request_in_fragments_ends_the_connection_and_its_name_prevents_that(kotlin: KotlinPeer) -> None:
    uri = await kotlin.listen()
    async with open_connection(uri) as connection:
        with pytest.raises(ConnectionLost):
            await connection.request_response(pattern(100_000))
    async with open_connection(uri, peer=NAME) as connection:
        with pytest.raises(LocalProtocolError, match="can't be fragmented: the peer takes requests whole"):
            await connection.request_response(pattern(LARGEST + 1))
        assert (await connection.request_response(b"still here")).text == "still here"


def answering() -> Responder:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        if request.data == b"fail":
            raise ApplicationError("as asked for")
        return request

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[str]:
        for number in range(int(request.text)):
            yield str(number)

    @responder.request_channel
    async def back(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    return responder


async def test_its_client_is_served(kotlin: KotlinPeer) -> None:
    noted = trio.Event()
    responder = answering()
    responder.fire_and_forget(lambda request: noted.set())
    async with serving("tcp", responder) as uri:
        await kotlin.connect(uri)
        assert await kotlin.do("ask 5 3") == "same"
        assert await kotlin.do("ask 1000000") == "same"
        assert await kotlin.do("fail") == "error 513 as asked for"
        assert await kotlin.do("items 10") == "0 1 2 3 4 5 6 7 8 9"
        assert await kotlin.do("some 3") == "0 1 2"
        assert await kotlin.do("channel 4") == "1 2 3"  # the first is the request's
        assert await kotlin.do("note 100") == "done"
        await noted.wait()
        assert await kotlin.do("leave") == "done"


async def test_its_client_hears_a_refusal_at_once(kotlin: KotlinPeer) -> None:
    responder = Responder()

    @responder.setup
    def gate(setup: Setup, connection: Connection) -> None:
        raise RejectedSetup("not you")

    async with serving("tcp", responder) as uri:
        with trio.fail_after(15):  # its keepalives last 90 s
            answer = await kotlin.try_to_connect(uri)
            if answer == "done":  # its client sends the SETUP and waits for no answer
                answer = await kotlin.do("end")
            assert answer == "error 3 not you"
