"""Foreign peers of a side that drains: they bear the sign, what is under way goes on, and what is new is refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing

from benchmarks.libraries import JAVA, UNDER_JAVA
from qa.peers.rows import BY_NAME, ENVIRONMENT, EXAMPLES
from rsocket_trio import Connection, Payload, Responder, Setup, current_connection, open_connection
from tests.interop.both_ways import PATIENCE, eventually, serving
from tests.interop.orders import Tick, orders_responder, ticks_of
from tests.interop.orders_peers import OrdersKind, running
from tests.interop.peers import ROOT, require_peer
from tests.missing import require
from tests.serving import running_program

GO: Final = next(library for library in UNDER_JAVA if library.name == "go")


def program(kind: str, folder: Path) -> list[str]:
    """Return what starts the program of a kind, which is compiled into this folder if it has to be, up to its role."""
    if kind == "java":
        require(JAVA.missing())
        jars = ROOT / "build" / "rsocket-java" / "dependency"
        run("javac", "-cp", f"{jars}/*", "-d", f"{folder}", f"{EXAMPLES / 'rsocket_java' / 'Peer.java'}")
        return ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{folder}:{jars}/*", "Peer"]
    if kind == "go":
        require(GO.missing())
        modules = ROOT / "build" / "rsocket-go" / "go.mod"
        build = ["go", "build", "-mod=mod", f"-modfile={modules}", "-o", f"{folder / 'peer'}", "."]
        run(*build, cwd=EXAMPLES / "rsocket_go")
        return [str(folder / "peer")]
    require_peer("py" if kind == "py" else "js")
    return []


def command(kind: str, started_by: list[str], role: str) -> list[str]:
    """Return what starts the client or the server of a kind."""
    return [*started_by, *([role, "0"] if role == "server" else [role])] if started_by else BY_NAME[kind].command(role)


def run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Draining:
    """A server that gives the sign while a client's first request is under way, and refuses the next one."""

    def __init__(self) -> None:
        self.accepted: list[Connection] = []
        self.signed: list[str] = []
        self.responder = responder = Responder()

        @responder.setup
        def meet(setup: Setup, connection: Connection) -> None:
            self.accepted.append(connection)

        @responder.request_response
        async def answer(request: Payload) -> bytes:
            await self.sign("request")
            return b"answer"

        @responder.request_stream
        async def items(request: Payload) -> AsyncIterator[bytes]:
            yield b"1"
            await self.sign("stream")
            yield b"2"

    async def sign(self, where: str) -> None:
        """Take no more requests, and say so; return when the client has read that, and is well."""
        connection = current_connection()
        # The beginning of ``Connection.drain``, which would close the connection behind this request.
        connection._engine.drain(announce=False)
        assert connection.status == "draining"
        await connection.ping()
        self.signed.append(where)

    async def refused(self) -> Connection:
        """Wait until a request was refused. Return its connection."""

        async def has_refused() -> bool:
            return any(connection._engine.session.receiver.refused for connection in self.accepted)  # type: ignore[attr-defined]

        assert await eventually(has_refused), "the client sends no second request"
        return self.accepted.pop()


@pytest.mark.parametrize("kind", ["js", "js-0027", "py", "java", "go"])
async def test_a_foreign_peer_bears_both_signs_and_goes_on(kind: str, tmp_path: Path) -> None:
    start = program(kind, tmp_path)
    await its_server_goes_on(command(kind, start, "server"))
    for asks in ("request", "stream"):
        draining = Draining()
        async with serving("tcp", draining.responder) as uri:
            environment = os.environ | ENVIRONMENT | {"RSOCKET_URI": uri, "RSOCKET_ASKS": asks, "RSOCKET_WITH": ""}
            process = await trio.lowlevel.open_process(
                command(kind, start, "client"), env=environment, stdin=subprocess.DEVNULL
            )
            try:
                connection = await draining.refused()
                # The refusal is the other sign. The client had its answer or all items before it asked again.
                assert draining.signed == [asks]
                await connection.ping()
                assert (connection.status, process.poll()) == ("draining", None)
                assert connection.faults.peer_faults == 0
                await connection.drain()
                del connection
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()


async def its_server_goes_on(start: list[str]) -> None:
    """A server of this program goes on with a stream whose client drains."""
    environment = os.environ | ENVIRONMENT | {"RSOCKET_WITH": ""}
    silent = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    async with (
        running_program(*start, env=environment, **silent) as (_, line),
        open_connection(line.removeprefix("listening "), metadata_mime="application/octet-stream") as connection,
        trio.open_nursery() as nursery,
        connection.request_stream(b"100", initial_request_n=2) as items,
    ):
        await anext(items)
        nursery.start_soon(partial(connection.drain, grace=PATIENCE))
        await trio.testing.wait_all_tasks_blocked()
        await connection.ping()
        assert connection.status == "draining"
        assert len([item async for item in items]) == 99


@pytest.mark.parametrize("orders", ["spring"])
async def test_a_client_of_spring_bears_both_signs_and_goes_on(orders: OrdersKind) -> None:
    peer = await running(orders)
    responder = orders_responder()

    @responder.request_stream("drain")
    async def drain() -> AsyncIterator[Tick]:
        connection = current_connection()
        first, *others = ticks_of("ACME")
        yield first
        nursery.start_soon(partial(connection.drain, grace=PATIENCE))
        while connection.status == "open":
            await trio.lowlevel.checkpoint()
        for tick in others:
            yield tick
        await connection.ping()

    async with serving("tcp", responder) as uri, trio.open_nursery() as nursery:
        await peer.check("drain", uri, "application/json")
