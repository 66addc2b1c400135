"""What a wrong word was meant to be: commands, options, dialects, and routes of a server that describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from rsocket_trio import Channel, Payload, Rejected, Responder, serve
from rsocket_trio.cli.help_page import nearest
from rsocket_trio.services import Bearer
from tests.cli.commands import run
from tests.rows import Rows

WORDS = [
    ("strem", "rsocket-trio: no such command 'strem': did you mean 'stream'?"),
    ("Request", "rsocket-trio: no such command 'Request': did you mean 'request'?"),
    ("frames decod", "rsocket-trio frames: no such command 'decod': did you mean 'decode'?"),
    ("request tcp://h:1 --rout x", "rsocket-trio request: no such option '--rout': did you mean '--route'?"),
    ("request tcp://h:1 --dialect rsoket/1.0", "'rsoket/1.0': did you mean 'rsocket/1.0'? the known ones are "),
    ("serve app:responder --dialect streamux/2", "'streamux/2': did you mean 'streamux/1'? the known ones are "),
]


async def test_a_wrong_word_is_answered_with_the_one_that_is_like_it() -> None:
    with Rows() as row:
        for words, text in WORDS:
            with row(words):
                result = await run(*words.split())
                assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
                assert text in result.stderr


async def test_a_word_that_is_like_none_gets_no_hint() -> None:
    with Rows() as row:
        for words in ("xyzzy", "frames xyzzy", "request tcp://h:1 --xyzzy", "request tcp://h:1 --dialect 9"):
            with row(words):
                result = await run(*words.split())
                assert result.code == 2
                assert "did you mean" not in result.stderr


def test_case_does_not_count_and_the_name_is_written_as_it_is_known() -> None:
    assert nearest("ECHO", ["Echo", "log"]) == "Echo"
    assert nearest("echo", []) is None


def echoing(*, describe: bool) -> Responder:
    responder = Responder(describe=describe, auth_required=True)
    responder.authenticate(lambda credentials, where: "ann" if credentials == Bearer("sesame") else None)
    responder.request_response("echo")(lambda request: request)
    responder.request_response("orders.{number}.price")(lambda request: b"")
    responder.fire_and_forget("both")(lambda request: None)

    @responder.request_response("busy")
    def busy(request: Payload) -> bytes:
        raise Rejected("'busy' is busy")

    @responder.request_stream("ticks.{symbol}")
    @responder.request_stream("both")
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        yield b"tick"

    @responder.request_channel("chat")
    async def chat(channel: Channel) -> None:
        return

    return responder


@asynccontextmanager
async def serving(responder: Responder) -> AsyncIterator[str]:
    """Serve in the test, and give the URI."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        yield uri
        nursery.cancel_scope.cancel()


NO_REQUEST = "Rejected: no request_response handler for route"
INTERACTIONS = [
    ("request chat", f"{NO_REQUEST} 'chat': it is a channel\n"),
    ("request ticks.ACME", f"{NO_REQUEST} 'ticks.ACME': it is a stream\n"),
    ("request both", f"{NO_REQUEST} 'both': it is a fire-and-forget and a stream\n"),
    ("stream echo", "Rejected: no request_stream handler for route 'echo': it is a request/response\n"),
    ("channel echo", "Rejected: no request_channel handler for route 'echo': it is a request/response\n"),
]
ROUTES = [
    ("request ecko", f"{NO_REQUEST} 'ecko': did you mean 'echo'?\n"),
    ("stream tick.ACME", "Rejected: no request_stream handler for route 'tick.ACME'"),
    ("channel Chat", "Rejected: no request_channel handler for route 'Chat': did you mean 'chat'?\n"),
    (
        "request order.{number}.price",
        f"{NO_REQUEST} 'order.{{number}}.price': did you mean 'orders.{{number}}.price'?\n",
    ),
    ("request xyzzy", f"{NO_REQUEST} 'xyzzy'\n"),
    ("request busy", "Rejected: 'busy' is busy\n"),
]


async def test_a_route_of_another_interaction_is_said_to_be_one() -> None:
    with Rows() as row:
        for describe in (False, True):
            async with serving(echoing(describe=describe)) as uri:
                for words, text in INTERACTIONS:
                    command, route = words.split()
                    with row(f"{words}, described: {describe}"):
                        result = await run(command, uri, "-r", route, "--auth-bearer", "sesame")
                        assert (result.code, result.stdout, result.stderr) == (5, "", text)


async def test_a_route_that_nobody_serves_is_answered_with_the_one_that_is_like_it() -> None:
    with Rows() as row:
        async with serving(echoing(describe=True)) as uri:
            for words, text in ROUTES:
                command, route = words.split()
                with row(words):
                    result = await run(command, uri, "-r", route, "--auth-bearer", "sesame")
                    assert (result.code, result.stdout) == (5, "")
                    assert result.stderr.startswith(text)


async def test_a_server_that_describes_nothing_gives_no_hint() -> None:
    async with serving(echoing(describe=False)) as uri:
        result = await run("request", uri, "-r", "ecko", "--auth-bearer", "sesame")

    assert (result.code, result.stderr) == (5, f"{NO_REQUEST} 'ecko'\n")
