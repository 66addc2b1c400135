"""RSocket through real HTTP/2 proxies, with the configurations that the documentation shows."""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from rsocket_trio import ConnectionLost, Keepalive, ResumeOptions, open_connection, open_shared, serve
from tests.blocks import page
from tests.interop.ours import OurClient, Seen, our_responder
from tests.interop.peers import Kind, client_peer, pattern
from tests.interop.proxies import CLEAR, PAGE, PROGRAMS, Program, Proxy, in_front_of, require_program
from tests.missing import require
from tests.serving import until

PATIENCE = 60.0
RESUME = ResumeOptions(session_seconds=20, first_delay=0.02, longest_delay=0.1)
KEEPALIVE = Keepalive(interval=0.2, max_lifetime=5)

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=str)


@pytest.fixture(autouse=True)
def program_is_here(request: pytest.FixtureRequest) -> None:
    """Skip before Trio runs: a skip from inside its run would lose the reason."""
    if "page" in request.node.name:
        require(None if shutil.which("curl") else "curl is missing: make system-packages")
    require_program(request.node.callspec.params["program"])


@attrs.define(eq=False)
class Served:
    """Our server and the proxy in front of it."""

    proxy: Proxy
    seen: Seen
    drain: Callable[[], None]
    """Have the server finish what runs, and accept no more."""


@asynccontextmanager
async def behind(program: Program, folder: Path) -> AsyncIterator[Served]:
    """Our server behind a proxy, for as long as the block."""
    seen = Seen()
    server = trio.CancelScope()

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        with server:
            where = ["h2://127.0.0.1:0/rsocket"]
            await serve(our_responder(seen), where, resume=RESUME, grace=5, task_status=task_status)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            (uri,) = await nursery.start(run)
            async with in_front_of(program, uri, folder) as proxy:
                yield Served(proxy, seen, server.cancel)
            nursery.cancel_scope.cancel()


@each_program
async def test_all_interactions_pass_a_proxy_with_path_and_headers(program: Program, tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer x"}
    async with behind(program, tmp_path) as served, open_connection(served.proxy.uri, headers=headers) as connection:
        client = OurClient(connection)
        reply = await client.do("request_response", route="large", data=pattern(271_828))
        assert reply["data"] == pattern(314_159)

        reply = await client.do("request_response", route="error", data=b"too bad")
        assert (reply["ok"], reply["error"]) == (False, "too bad")

        reply = await client.do("request_stream", route="count", data=b"20", initial_n=5, later=[5, 10])
        assert (len(reply["items"]), reply["completed"], reply["surplus"]) == (20, True, 0)
        assert served.seen.credits == [5, 5, 10]

        reply = await client.do("request_channel", route="pingpong", items=[b"3"] * 50, pingpong=True)
        assert (reply["items"], reply["completed"]) == ([pattern(3)] * 50, True)

        reply = await client.do("request_stream", route="infinite", take=3)
        assert (len(reply["items"]), reply["cancelled"]) == (3, True)
        await until(lambda: served.seen.cancels == 1)

        await client.do("fire_and_forget", route="echo", data=b"noted")
        await until(lambda: served.seen.fnf == [b"noted".hex()])
        (setup,) = served.seen.setups
        assert (setup.path, setup.header("authorization")) == ("/rsocket", "Bearer x")

        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with open_connection(served.proxy.tls_uri, ssl_context=trusting) as encrypted:
            assert (await encrypted.request_response(b"hi", route="echo")).data == b"hi"


CONNECTIONS = 64
SESSIONS = 3


@each_program
async def test_many_connections_share_one_to_a_proxy(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served, open_shared(served.proxy.uri) as shared, AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(open_connection(served.proxy.uri, over=shared)) for _ in range(CONNECTIONS)
        ]

        async def ask(number: int) -> None:
            reply = await connections[number].request_response(b"%d" % number, route="echo")
            assert reply.data == b"%d" % number

        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS):
                nursery.start_soon(ask, number)

    assert len(served.seen.setups) == CONNECTIONS
    assert program.shares or len({setup.peer_address for setup in served.seen.setups}) == CONNECTIONS


@each_program
async def test_what_runs_ends_well_while_the_server_behind_a_proxy_drains(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served:
        async with (
            open_connection(served.proxy.uri) as connection,
            connection.request_stream(b"200", route="count", initial_request_n=10) as items,
        ):
            numbers = [int((await anext(items)).data) for _ in range(50)]
            served.drain()
            numbers += [int(item.data) async for item in items]
        assert numbers == list(range(200))

        with pytest.raises(ConnectionLost, match=r"50[234]"):
            async with open_connection(served.proxy.uri) as late:
                await late.request_response(b"", route="echo")


@each_program
async def test_sessions_that_share_a_connection_go_on_after_a_proxy_was_killed(
    program: Program, tmp_path: Path
) -> None:
    async with behind(program, tmp_path) as served, open_shared(served.proxy.uri) as shared:
        begun, killed = trio.Semaphore(0), trio.Event()

        async def take() -> None:
            async with (
                open_connection(served.proxy.uri, over=shared, resume=RESUME, keepalive=KEEPALIVE) as connection,
                connection.request_stream(b"400", route="count", initial_request_n=10) as items,
            ):
                numbers = []
                async for item in items:
                    numbers.append(int(item.data))
                    if len(numbers) == 100:
                        begun.release()
                        await killed.wait()
            assert numbers == list(range(400))

        async with trio.open_nursery() as nursery:
            for _ in range(SESSIONS):
                nursery.start_soon(take)
            for _ in range(SESSIONS):
                await begun.acquire()
            await served.proxy.kill()
            killed.set()
            await served.proxy.start()

    assert len(served.seen.setups) == SESSIONS


@each_program
@pytest.mark.parametrize("kind", ["js"])
async def test_a_stranger_s_client_passes_a_proxy(program: Program, kind: Kind, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served, client_peer(kind, served.proxy.uri, connections=2) as client:
        for connection in (0, 1):
            reply = await client.do("request_response", route="large", data=pattern(271_828), connection=connection)
            assert reply["data"] == pattern(314_159)


CHECKS = re.findall(r"^\$ (curl .*)\n(.*)$", page(PAGE), re.MULTILINE)


@each_program
async def test_the_checks_of_the_page_show_what_it_says(program: Program, tmp_path: Path) -> None:
    assert len(CHECKS) == 3
    async with behind(program, tmp_path) as served:
        for command, shown in CHECKS:
            assert await answered(command, served.proxy) == shown


async def answered(command: str, proxy: Proxy) -> str:
    """Return what a check of the page prints, at the proxy's own port."""
    words = [word.replace(f":{CLEAR}/", f":{proxy.clear}/") for word in shlex.split(command)]
    done = await trio.run_process(words, capture_stdout=True, check=False)
    return done.stdout.decode().rstrip("\n")
