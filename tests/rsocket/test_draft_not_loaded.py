"""Connections that do not speak the extension draft do not load it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SESSIONS = """
from tests.rsocket.pairs import SessionPair
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload

pair = SessionPair()
pair.client.commands.open(Interaction.REQUEST_RESPONSE, Payload(b"x", b"y"))
pair.exchange()
"""

CONNECTIONS = """
import trio
from rsocket_trio import Responder, open_connection, serve

responder = Responder()

@responder.request_response()
def echo(request):
    return request

async def main():
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        async with open_connection(uri) as connection:
            await connection.request_response(b"x")
        nursery.cancel_scope.cancel()

trio.run(main)
"""

CHECK = """
import sys

drafts = ("rsocket_trio.rsocket.extensions", "rsocket_trio.rsocket.layouts.v2")
loaded = [name for name in sys.modules if name.startswith(drafts)]
assert loaded == [], loaded
"""


@pytest.mark.parametrize("program", [SESSIONS, CONNECTIONS], ids=["sessions", "connections"])
def test_a_program_that_speaks_1_0_does_not_load_the_extension_draft(program: str) -> None:
    command = [sys.executable, "-c", program + CHECK]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
