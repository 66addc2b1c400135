"""RSocket through real HTTP/2 proxies, with the configurations that the documentation shows."""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from rsocket_trio import (
    ConnectionLost,
    Keepalive,
    ResumeOptions,
    open_connection,
    open_shared,
    serve,
)
from tests.blocks import page
from tests.interop.ours import OurClient, Seen, our_responder
from tests.interop.peers import Kind, client_peer, pattern
from tests.interop.proxies import CLEAR, PAGE, PROGRAMS, Program, Proxy, in_front_of, require_program
from tests.missing import require

MIB = 1 << 20
PATIENCE = 60.0
RESUME = ResumeOptions(session_seconds=20, first_delay=0.02, longest_delay=0.1)
KEEPALIVE = Keepalive(interval=0.2, max_lifetime=5)

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=str)


@pytest.fixture(autouse=True)
def program_is_here(request: pytest.FixtureRequest) -> None:
    """Skip before Trio runs: a skip from inside its run would lose the reason."""
    callspec = getattr(request.node, "callspec", None)
    params = {} if callspec is None else callspec.params
    if "page" in request.node.name or "proxy_pass" in request.node.name:
        require(None if shutil.which("curl") else "curl is missing: make system-packages")
    for program in params.get("programs", [params["program"]] if "program" in params else []):
        require_program(program)


@attrs.define(eq=False)
class Served:
    """Our server and the proxy in front of it."""

    proxy: Proxy
    uri: str
    """That of the server itself."""
    seen: Seen
    drain: Callable[[], None]
    """Have the server finish what runs, and accept no more."""


@asynccontextmanager
async def behind(program: Program, folder: Path, *changes: tuple[str, str], **periods: str) -> AsyncIterator[Served]:
    """Our server behind a proxy, for as long as the block."""
    seen = Seen()
    responder = our_responder(seen)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            start = partial(serve, responder, ["h2://127.0.0.1:0/rsocket"], resume=RESUME, grace=5)
            server = trio.CancelScope()

            async def run(task_status: trio.TaskStatus[list[str]]) -> None:
                with server:
                    await start(task_status=task_status)

            (uri,) = await nursery.start(run)
            async with in_front_of(program, uri, folder, *changes, **periods) as proxy:
                yield Served(proxy, uri, seen, server.cancel)
            nursery.cancel_scope.cancel()


@each_program
async def test_all_interactions_pass_a_proxy(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served, open_connection(served.proxy.uri) as connection:
        client = OurClient(connection)
        reply = await client.do("request_response", route="echo", data=b"hi")
        assert reply["data"] == b"hi"

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


@each_program
async def test_a_mebibyte_each_way_passes_a_proxy(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served, open_connection(served.proxy.uri) as connection:
        client = OurClient(connection)
        for _ in range(3):
            reply = await client.do("request_response", route="echo", data=pattern(MIB))
            assert reply["data"] == pattern(MIB)


@each_program
async def test_payloads_through_tls_at_a_proxy(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with open_connection(served.proxy.tls_uri, ssl_context=trusting) as connection:
            reply = await OurClient(connection).do("request_response", route="large", data=pattern(271_828))
            assert reply["data"] == pattern(314_159)


@each_program
async def test_the_setup_handler_sees_headers_and_path(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served:
        async with open_connection(served.proxy.uri, headers={"Authorization": "Bearer x"}, setup=b"hi") as connection:
            await connection.request_response(b"", route="echo")
        (setup,) = served.seen.setups

    assert setup.path == "/rsocket"
    assert setup.header("authorization") == "Bearer x"
    assert setup.payload.data == b"hi"


CONNECTIONS = 64
SESSIONS = 3


@each_program
async def test_many_connections_share_one_to_a_proxy(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path) as served, open_shared(served.proxy.uri) as shared:
        answers = Counter[bytes]()
        open_at_once, all_open = 0, trio.Event()

        async def one(number: int) -> None:
            nonlocal open_at_once
            async with open_connection(served.proxy.uri, over=shared) as connection:
                answers[(await connection.request_response(b"%d" % number, route="echo")).data] += 1
                open_at_once += 1
                if open_at_once == CONNECTIONS:
                    all_open.set()
                await all_open.wait()
                reply = await OurClient(connection).do("request_stream", route="count", data=b"10", initial_n=3)
                assert len(reply["items"]) == 3

        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS):
                nursery.start_soon(one, number)

    assert answers == Counter(b"%d" % number for number in range(CONNECTIONS))
    peers = {setup.peer_address for setup in served.seen.setups}
    assert len(served.seen.setups) == CONNECTIONS
    assert program.shares or len(peers) == CONNECTIONS


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


@pytest.mark.parametrize("programs", [PROGRAMS], ids=["all"])
async def test_a_session_goes_on_over_the_workers_of_a_reload(programs: tuple[Program, ...], tmp_path: Path) -> None:
    async def go_on(program: Program) -> None:
        states: list[str] = []
        async with (
            behind(program, tmp_path / program.name, shutdown="1s") as served,
            open_connection(served.proxy.uri, resume=RESUME, keepalive=KEEPALIVE) as connection,
        ):
            connection.on_state(states.append)
            async with connection.request_stream(b"400", route="count", initial_request_n=10) as items:
                numbers = [int((await anext(items)).data) for _ in range(100)]
                while "suspended" not in states:
                    # A signal that comes before the main process is ready for it is lost.
                    served.proxy.reload()
                    with trio.move_on_after(2):
                        await until(lambda: "suspended" in states)
                numbers += [int(item.data) async for item in items]

        assert numbers == list(range(400))
        assert len(served.seen.setups) == 1

    async with trio.open_nursery() as nursery:
        for program in programs:
            nursery.start_soon(go_on, program)


@pytest.mark.parametrize("programs", [PROGRAMS], ids=["all"])
async def test_a_proxy_cuts_what_is_silent_for_longer_than_its_timeouts(
    programs: tuple[Program, ...], tmp_path: Path
) -> None:
    async def lives(program: Program) -> None:
        keepalive = Keepalive(interval=0.2, max_lifetime=10)
        async with (
            behind(program, tmp_path / f"{program}-speaking", silence="1s") as served,
            open_connection(served.proxy.uri, keepalive=keepalive) as connection,
        ):
            assert (await connection.request_response(b"1500", route="sleep")).data == b"slept"

    async def is_cut(program: Program) -> None:
        keepalive = Keepalive(interval=60, max_lifetime=90)
        async with (
            behind(program, tmp_path / f"{program}-silent", silence="1s") as served,
            open_connection(served.proxy.uri, keepalive=keepalive) as connection,
        ):
            with pytest.raises(ConnectionLost):
                await connection.request_response(b"60000", route="sleep")

    # Beside each other, for each takes seconds in which nothing is done.
    async with trio.open_nursery() as nursery:
        for program in programs:
            nursery.start_soon(lives, program)
            nursery.start_soon(is_cut, program)


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


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each.name == "nginx"], ids=str)
async def test_proxy_pass_of_nginx_does_not_work(program: Program, tmp_path: Path) -> None:
    async with behind(program, tmp_path, ("grpc_pass grpc://", "proxy_pass http://")) as served:
        command, granted = CHECKS[0]
        assert await answered(command, served.proxy) == "2 000" != granted


async def answered(command: str, proxy: Proxy) -> str:
    """Return what a check of the page prints, at the proxy's own port."""
    words = [word.replace(f":{CLEAR}/", f":{proxy.clear}/") for word in shlex.split(command)]
    done = await trio.run_process(words, capture_stdout=True, check=False)
    return done.stdout.decode().rstrip("\n")


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that another process has to do."""
    while not holds():  # noqa: ASYNC110
        await trio.sleep(0.01)
