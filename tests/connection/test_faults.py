"""A fault costs the connection that it happened on: it is heard of, and nothing of it is left to harm others."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import ConnectionLost, Keepalive, Responder, open_connection_over
from rsocket_trio.connection.engine import Engine
from rsocket_trio.server.accept import Server
from rsocket_trio.server.serve import serve
from tests.connection.pairs import settle, silent
from tests.connection.resuming import OPTIONS, Network

LIFETIME = 3


class Broken(trio.abc.Stream):
    """A stream of somebody else's that raises what no stream may, once it is told to."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self._reading = trio.CancelScope()
        self.is_faulty = False

    def fail(self) -> None:
        self.is_faulty = True
        self._reading.cancel()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        with trio.CancelScope() as self._reading:
            return await self._inner.receive_some(max_bytes)
        raise OSError("a fault of the stream")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """The servers that the test starts."""
    started: list[Server] = []
    begin = Server.__init__

    def remember(self: Server, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(Server, "__init__", remember)
    return started


async def test_a_deadline_that_fails_ends_its_connection_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    servers: list[Server],
    autojump_clock: MockClock,
) -> None:
    expire = Engine._expire

    def fail(self: Engine, now: float) -> None:
        if not self.session.client and self.connection.setup.payload.data == b"bad":
            raise KeyError("a fault of ours")
        expire(self, now)

    monkeypatch.setattr(Engine, "_expire", fail)
    network = Network()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve(Responder(), [network], grace=0, task_status=task_status))
        beating = Keepalive(interval=1, max_lifetime=LIFETIME)
        mute = silent(LIFETIME)
        async with (
            open_connection_over(await network.connect(), setup=b"good", keepalive=beating) as good,
            open_connection_over(await network.connect(), setup=b"bad", keepalive=mute) as bad,
        ):
            assert isinstance(await bad.wait_closed(), ConnectionLost)
            await trio.sleep(10 * LIFETIME)
            assert good.status == "open"
            (server,) = servers
            assert server.deadlines is not None
            assert (len(server.connections), len(server.deadlines)) == (1, 1)
        nursery.cancel_scope.cancel()
    assert "a connection failed" in caplog.text
    assert "a fault of ours" in caplog.text


@pytest.mark.parametrize("resume", [None, OPTIONS])
async def test_nothing_is_left_of_a_connection_whose_stream_raised_what_it_may_not(
    resume: object, caplog: pytest.LogCaptureFixture, servers: list[Server], autojump_clock: MockClock
) -> None:
    there, here = trio.testing.memory_stream_pair()
    broken = Broken(here)
    network = Network()
    network._send.send_nowait(broken)

    async def connect() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if broken.is_faulty:
            raise OSError("the network is down")
        return there

    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: serve(Responder(), [network], grace=0, resume=resume, task_status=task_status)  # type: ignore[arg-type]
        )
        over = there if resume is None else connect
        async with open_connection_over(
            over,
            keepalive=silent(LIFETIME),
            resume=resume,  # type: ignore[arg-type]
        ):
            await settle()
            (server,) = servers
            assert server.deadlines is not None
            assert (len(server.connections), len(server.deadlines)) == (1, 1)
            broken.fail()
            for seconds in (0.1, 10 * LIFETIME):
                await trio.sleep(seconds)
                assert (len(server.connections), len(server.deadlines)) == (0, 0)
                if server.sessions is not None:
                    assert (server.sessions.waiting, len(server.sessions)) == (0, 0)
        nursery.cancel_scope.cancel()
    assert "a fault of the stream" in caplog.text
