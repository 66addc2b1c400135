"""``--auth-simple`` and ``--auth-bearer`` reach a server that asks for credentials, from every command of a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rsocket_trio import Channel, Payload, Responder
from rsocket_trio.services import Bearer, Simple, current_user
from tests.cli.commands import hosting, run
from tests.rows import Rows

AUTHENTICATION = "message/x.rsocket.authentication.v0"
ADMITTED = ("--auth-bearer", "sesame")
COMMANDS: list[tuple[str, int, str]] = [
    ("request URI -r whoami", 0, "ann\n"),
    ("request URI -r whoami --dialect 0.1", 0, "ann\n"),
    ("stream URI -r users", 0, "ann\n"),
    ("channel URI -r users", 0, "ann\n"),
    ("fnf URI -r log -d note", 0, ""),
    ("push URI -d pushed", 0, ""),
    ("routes URI", 0, "log "),
    ("sources URI", 5, ""),
    ("readers URI whoami", 5, ""),
    ("ping URI -n 1", 0, "ping 1: "),
    ("load URI -r whoami --rate 100 -n 2 -q", 0, "second"),
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

    async with hosting(responder) as uri:
        yield uri, sent


async def test_every_command_of_a_client_is_admitted_with_credentials_and_refused_without() -> None:
    with Rows() as row:
        async with guarded() as (uri, sent):
            for words, code, begin in COMMANDS:
                with row(words):
                    typed = words.replace("URI", uri).split()
                    admitted = await run(*typed, *ADMITTED)
                    assert admitted.code == code, admitted.stderr
                    assert admitted.stdout.startswith(begin)
                    if typed[0] == "request":
                        continue  # it is tried below
                    # A ping may be answered before the server has decided.
                    is_ping = typed[0] == "ping"
                    refused = await run(*typed, *(("-n", "1000", "--interval", "60") if is_ping else ()))
                    assert (refused.code, refused.stderr) == (4, "RejectedSetup: not allowed\n")
                    assert refused.stdout == "" or (is_ping and refused.stdout.startswith("ping 1: "))

    assert sent == [b"note", b"pushed"]
