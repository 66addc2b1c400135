"""``--auth-simple`` and ``--auth-bearer`` reach a server that asks for credentials, from every command of a client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from rsocket_trio import Channel, Payload, Responder, serve
from rsocket_trio.services import Bearer, Simple, current_user
from tests.cli.commands import run, serving
from tests.rows import Rows

AUTHENTICATION = "message/x.rsocket.authentication.v0"
SIMPLE = [AUTHENTICATION, "\x80\x00\x03annpw"]
BEARER = [AUTHENTICATION, "\x81sesame"]
FLAGS = {"bearer": ("--auth-bearer", "sesame"), "simple": ("--auth-simple", "ann:pw"), "short": ("-u", "ann:pw")}
COMMANDS: list[tuple[str, int, str]] = [
    ("request URI -r whoami", 0, "ann\n"),
    ("request URI -r whoami --dialect 0.0", 0, "ann\n"),
    ("request URI -r whoami --dialect 0.1", 0, "ann\n"),
    ("request URI -r whoami --dialect 0.2", 0, "ann\n"),
    ("request URI -r whoami --dialect ext", 0, "ann\n"),
    ("stream URI -r users", 0, "ann\n"),
    ("channel URI -r users", 0, "ann\n"),
    ("fnf URI -r log -d note", 0, ""),
    ("push URI -d pushed", 0, ""),
    ("push URI -m pushed", 0, ""),
    ("routes URI", 0, "log "),
    ("sources URI", 5, ""),
    ("readers URI whoami", 5, ""),
    ("ping URI -n 1", 0, "ping 1: "),
    ("load URI -r whoami --rate 100 -n 2 -q", 0, "second"),
    ("conformance URI --route echo=whoami --clause served-a-second-setup-of-another-version", 0, "        "),
]
"""Words, the exit code of a client that is admitted, and the beginning of its output."""


@asynccontextmanager
async def guarded() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve those alone who show credentials. Yield the URI, and the list of what was sent without an answer."""
    responder = Responder(auth_required=True, describe=True)
    sent: list[bytes] = []

    @responder.authenticate
    def find_user(credentials: object, where: object) -> str | None:
        return "ann" if credentials in (Bearer("sesame"), Simple("ann", "pw")) else None

    @responder.request_response("whoami")
    def whoami(request: Payload) -> str:
        return str(current_user())

    @responder.request_stream("users")
    async def users(request: Payload) -> AsyncIterator[str]:
        yield str(current_user())

    @responder.request_channel("users")
    async def users_of_a_channel(channel: Channel) -> None:
        await channel.send(str(current_user()))

    @responder.fire_and_forget("log")
    def log(request: Payload) -> None:
        sent.append(request.data)

    @responder.metadata_push
    def pushed(metadata: bytes) -> None:
        sent.append(metadata)

    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, ["tcp://127.0.0.1:0"], grace=0))
        yield uri, sent
        nursery.cancel_scope.cancel()


async def test_every_command_of_a_client_is_admitted_with_credentials_and_refused_without() -> None:
    with Rows() as row:
        async with guarded() as (uri, sent):
            for words, code, begin in COMMANDS:
                with row(words):
                    typed = words.replace("URI", uri).split()
                    admitted = await run(*typed, *FLAGS["bearer"])
                    assert admitted.code == code, admitted.stderr
                    assert admitted.stdout.startswith(begin)
                    if typed[0] in ("conformance", "request"):
                        continue  # the first tells it as a failed case, the other is tried below
                    # A ping may be answered before the server has decided.
                    is_ping = typed[0] == "ping"
                    refused = await run(*typed, *(("-n", "1000", "--interval", "60") if is_ping else ()))
                    assert (refused.code, refused.stderr) == (4, "RejectedSetup: not allowed\n")
                    assert refused.stdout == "" or (is_ping and refused.stdout.startswith("ping 1: "))

    # The push with data is what was given; the one with metadata is an entry of composite metadata.
    assert sent == [b"note", b"pushed", b"\xa1\x00\x00\x06pushed"]


async def test_each_option_is_in_the_setup_and_the_request() -> None:
    found: dict[str, dict[str, Any]] = {}
    async with serving() as served:
        for name, flags in FLAGS.items():
            found[name] = json.loads((await run("request", served.uri, "-r", "facts", *flags)).stdout)

    for name, credentials in (("bearer", BEARER), ("simple", SIMPLE), ("short", SIMPLE)):
        assert found[name]["setup_metadata"] == [credentials]
        assert credentials in found[name]["metadata"]


async def test_wrong_credentials_and_none_are_refused_with_the_setup() -> None:
    async with guarded() as (uri, _):
        results = [
            await run("request", uri, "-r", "whoami", *flags)
            for flags in ((), ("--auth-bearer", "guess"), ("-u", "ann:guess"))
        ]

    assert [(each.code, each.stderr) for each in results] == [(4, "RejectedSetup: not allowed\n")] * 3


async def test_a_dialect_without_credentials_says_so() -> None:
    async with guarded() as (uri, _):
        with Rows() as row:
            for command in ("request", "ping", "load --rate 1", "conformance"):
                with row(command):
                    result = await run(*command.split(), uri, "--dialect", "streamux", "--auth-bearer", "sesame")
                    assert result.code == 1
                    assert result.stdout == ""
                    assert "streamux/1 carries no credentials" in result.stderr
                    assert result.stderr.count("\n") == 1
