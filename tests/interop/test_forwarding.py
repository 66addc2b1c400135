"""Foreign clients and servers with a forwarder between them.

rsocket-java's own tests of a transport ask a forwarder, which asks the tests' server: one test of each interaction in
``make test``, and the whole class with ``RSOCKET_TRIO_ALL_CASES`` in the environment, as ``make peers`` sets it. And
clients of other dialects and libraries reach one Spring server through one process of ``rsocket-trio forward``.
"""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import trio

from rsocket_trio import Backoff, Responder, connect_forever, forwarding, open_connection, serve
from tests.analytics.browser import browser, require_browser
from tests.cli.commands import started
from tests.each_row import some, whole
from tests.interop.orders_peers import OrdersKind, running
from tests.interop.peers import FOLDER, ROOT, Kind, client_peer, missing_for
from tests.interop.proxies import free_ports
from tests.missing import require

BUILD: Final = ROOT / "build" / "transport-test"
JAVA: Final = ["java", "-cp", f"{BUILD / 'classes'}:{BUILD / 'dependency'}/*", "ForwardedTransportTest"]
ESBUILD: Final = ROOT / "examples" / "web_chat" / "node_modules" / ".bin" / "esbuild"
BUFFER: Final = ROOT / "examples" / "web_chat" / "src" / "buffer.ts"
MIME: Final = "application/binary"
"""The type of data and metadata that the tests' client sends, and its server takes."""
BACKOFF: Final = Backoff(first_delay=0.02, longest_delay=0.1)
"""Each test starts a server of its own."""
EACH_INTERACTION: Final = (
    "requestResponse10",
    "fireAndForget10",
    "requestStream5",
    "requestStreamDelayedRequestN",
    "requestChannel3",  # whose demand must be handed through
    "metadataPush10",
)
ENABLED: Final = 19
"""The tests of the class, without the one of two million items."""
PATIENCE: Final = 120.0
PATIENCE_WITH_ALL: Final = 3600.0
"""Seconds: the largest test sends 260,000 items both ways, while twelve threads of its client never sleep."""

WAYS: Final = [
    pytest.param(("tcp", "ws"), id="tcp to ws"),
    pytest.param(("ws", "tcp"), id="ws to tcp"),
    pytest.param(("tcp", "h2", "tcp"), id="h2 between two forwarders"),
]


@pytest.fixture
def java() -> None:
    found = shutil.which("java") and (BUILD / "classes" / "ForwardedTransportTest.class").is_file()
    require(None if found else "rsocket-java's tests are missing: make build/transport-test/.built, with mvn and a JDK")


async def forward(far: str, scheme: str, *, task_status: trio.TaskStatus[str]) -> None:
    """Forward to what is, or will be, at ``far``, until this is cancelled."""
    options = {"data_mime": MIME, "metadata_mime": MIME}
    async with connect_forever(far, backoff=BACKOFF, **options) as connection, trio.open_nursery() as nursery:  # type: ignore[arg-type]
        responder = Responder()
        responder.include(forwarding(connection))
        [uri] = await nursery.start(serve, responder, f"{scheme}://127.0.0.1:0")
        task_status.started(uri)


async def transport_tests(schemes: tuple[str, ...], *names: str) -> list[str]:
    """Run these tests, or all of the class, over these transports from client to server. Return what is printed."""
    *between_both, last = schemes
    server = uri = f"{last}://127.0.0.1:{free_ports()[0]}"
    async with trio.open_nursery() as nursery:
        for scheme in reversed(between_both):
            uri = await nursery.start(forward, uri, scheme)
        command = ["nice", *JAVA, server, uri, *names]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        nursery.cancel_scope.cancel()
    assert done.returncode == 0, f"{done.stdout.decode()}\n{done.stderr.decode()}"
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("schemes", some(WAYS, 1))
@pytest.mark.usefixtures("java")
async def test_each_interaction_of_rsocket_java_passes_through_a_forwarder(schemes: tuple[str, ...]) -> None:
    with trio.fail_after(PATIENCE):
        *_, result = await transport_tests(schemes, *EACH_INTERACTION)
    assert result == f"{len(EACH_INTERACTION)} of {len(EACH_INTERACTION)}"


@whole
@pytest.mark.parametrize("schemes", WAYS)
@pytest.mark.timeout(PATIENCE_WITH_ALL)
@pytest.mark.usefixtures("java")
async def test_rsocket_javas_tests_of_a_transport_pass_through_a_forwarder(schemes: tuple[str, ...]) -> None:
    *_, result = await transport_tests(schemes)
    assert result == f"{ENABLED} of {ENABLED}"


# One Spring server for clients of every kind


async def forwarded_to_spring(stack: AsyncExitStack, *options: str) -> list[str]:
    """Return the URIs of one forwarder, over TCP and WebSocket, to the Spring server that the tests share."""
    spring = (await running("spring")).uris[0]
    listen = ("--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0")
    process = await stack.enter_async_context(
        started("forward", *listen, "--to", spring, "--route-to", "greet", *options)
    )
    return [(await process.line()).removeprefix("listening ").strip() for _ in range(2)]


@pytest.mark.parametrize(("orders", "kind"), [("spring", "js")])
async def test_clients_of_other_dialects_and_libraries_reach_one_spring_server(orders: OrdersKind, kind: Kind) -> None:
    async with AsyncExitStack() as stack:
        tcp, ws = await forwarded_to_spring(stack)
        async with open_connection(tcp, dialect="reactivesocket/0.1") as client:
            assert (await client.request_response(b"Ada", route="greet")).text == "Hello Ada"
        async with client_peer(kind, ws) as peer:
            reply = await peer.do("request_response", route="greet", data=b"Ada")
            assert reply["data"] == b"Hello Ada"
        async with open_connection(ws, dialect="streamux/1") as client:
            assert (await client.request_response(b"Ada")).text == "Hello Ada"  # under the route of the forwarder


@whole
@pytest.mark.parametrize("orders", ["spring"])
async def test_rsocket_js_in_a_browser_reaches_a_spring_server(orders: OrdersKind, tmp_path: Path) -> None:
    require(missing_for("js"))
    require_browser()
    require(None if ESBUILD.exists() else "esbuild is missing: make setup")
    script, page = tmp_path / "page.js", tmp_path / "page.html"
    source = FOLDER / "js" / "forwarded_page.js"
    await trio.run_process([ESBUILD, source, "--bundle", f"--inject:{BUFFER}", f"--outfile={script}"], stderr=None)
    page.write_text(f"<script src={script.name}></script>")

    async with AsyncExitStack() as stack:
        _, ws = await forwarded_to_spring(stack, "--origin", "*")

        def asked() -> str:
            with browser(tmp_path / "profile") as one:
                return str(one.open(page).run(f"greet({ws!r}, 'Ada')"))

        assert await trio.to_thread.run_sync(asked) == "Hello Ada"
