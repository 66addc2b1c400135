"""``forward`` as a process: between transports and dialects, and when the servers behind it go."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rsocket_trio import Payload, RejectedSetup, Responder, open_connection
from rsocket_trio.cli.exit_codes import MISUSED
from tests.cli.commands import run, started
from tests.serving import running_server

responder = Responder()


@responder.request_response("shop")
async def shop(request: Payload) -> bytes:
    return b"shop " + request.data


@responder.request_stream("numbers")
async def numbers(request: Payload) -> AsyncIterator[bytes]:
    for number in range(1000):
        yield b"%d" % number


@asynccontextmanager
async def forwarding(*listen: str, behind: str, more: tuple[str, ...] = ()) -> AsyncIterator[list[str]]:
    """Provide the URIs of a forwarder to a server at ``behind``, which ends with SIGINT."""
    async with running_server(responder, behind, grace=0) as uri:
        words = [word for address in listen for word in ("--listen", address)]
        async with started("forward", "--to", uri, *words, *more) as process:
            yield [(await process.line()).removeprefix("listening ").strip() for _ in listen]
            process.process.send_signal(signal.SIGINT)
            assert await process.process.wait() == 0


@pytest.mark.parametrize(
    ("near", "behind"), [("tcp", "ws"), ("ws", "tcp"), ("h2", "h2")], ids=["tcp to ws", "ws to tcp", "h2 to h2"]
)
async def test_requests_pass_between_transports(near: str, behind: str) -> None:
    async with (
        forwarding(f"{near}://127.0.0.1:0", behind=f"{behind}://127.0.0.1:0") as [uri],
        open_connection(uri) as client,
    ):
        assert (await client.request_response(b"x", route="shop")).data == b"shop x"
        async with client.request_stream(route="numbers", initial_request_n=8) as items:
            assert [int(item.data) async for item in items] == list(range(1000))


async def test_requests_without_a_route_get_one_for_every_dialect() -> None:
    addresses = ("tcp://127.0.0.1:0", "ws://127.0.0.1:0")
    async with forwarding(*addresses, behind="tcp://127.0.0.1:0", more=("--route-to", "shop")) as [tcp, ws]:
        for uri, dialect in ((tcp, "reactivesocket/0.1"), (ws, "rsocket/1.0"), (ws, "streamux/1")):
            async with open_connection(uri, dialect=dialect) as client:
                assert (await client.request_response(b"x")).data == b"shop x"


async def test_servers_of_another_dialect_and_type_of_data_are_asked_so() -> None:
    more = ("--dialect-to", "0.2", "--data-mime", "application/json")
    async with forwarding("tcp://127.0.0.1:0", behind="tcp://127.0.0.1:0", more=more) as [uri]:
        async with open_connection(uri, data_mime="application/json") as client:
            assert (await client.request_response(b"1", route="shop")).data == b"shop 1"
        with pytest.raises(RejectedSetup, match="octet-stream"):
            async with open_connection(uri) as client:
                await client.request_response(b"1", route="shop")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--to", "tcp://127.0.0.1:9"), "missing option '--listen'"),
        (("--listen", "tcp://127.0.0.1:0"), "missing option '--to'"),
        (("--listen", "tls://127.0.0.1:0", "--to", "tcp://127.0.0.1:9"), "needs a certificate: --listen-cert"),
        (("--listen", "tcp://127.0.0.1:0", "--to", "there"), "'there'"),
        (("--listen", "tcp://127.0.0.1:0", "--to", "tcp://127.0.0.1:9", "--dialect-to", "7"), "7"),
    ],
)
async def test_a_mistake_is_one_line(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    result = await run("forward", *words, cwd=tmp_path)
    assert (result.code, result.stdout, result.stderr.count("\n")) == (MISUSED, "", 1)
    assert text in result.stderr
