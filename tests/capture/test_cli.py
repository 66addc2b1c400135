"""``--capture DIR`` on the command line: a server's and a client's, and what is said where it can't be."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from rsocket_trio import open_connection
from tests.capture.reading import read
from tests.cli.commands import PATIENCE, run, started

APP = """
from rsocket_trio import Responder

responder = Responder()

@responder.request_response("shout")
def shout(request):
    return request.text.upper()
"""
LISTEN = ("--listen", "tcp://127.0.0.1:0")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A directory with the module ``app``."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.mark.parametrize("more", [(), ("--capture-format", "jsonl")])
async def test_a_server_and_a_client_record_what_passes(more: tuple[str, ...], app: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with started("serve", "app:responder", *LISTEN, "--capture", "server", *more, cwd=app) as server:
            uri = (await server.line()).removeprefix("listening ")
            asked = await run("request", uri, "--route", "shout", "--data", "a", "--capture", "client", cwd=app)
            async with open_connection(uri) as connection:
                await connection.request_response(b"b", route="shout")
            server.process.send_signal(signal.SIGTERM)
            assert await server.end() == (0, "")

    assert (asked.code, asked.stdout) == (0, "A\n")
    assert [row["outcome"] for row in read(app / "client", "interactions")] == ["complete"]
    assert [(row["route"], row["side"]) for row in read(app / "server", "interactions")] == [("shout", "server")] * 2
    assert len(list((app / "server").rglob("part-*.jsonl"))) == (3 if more else 0)


async def test_a_capture_that_is_not_complete_says_so_at_the_end(app: Path) -> None:
    (app / "fail.py").write_text(
        "import rsocket_trio.capture.writers as writers\n"
        "def full(*arguments):\n"
        "    raise OSError(28, 'No space left on device')\n"
        "writers.TableWriter.add = full\n"
        "from app import responder\n"
    )
    with trio.fail_after(PATIENCE):
        async with started("serve", "fail:responder", *LISTEN, "--capture", "c", "--log", "error", cwd=app) as server:
            uri = (await server.line()).removeprefix("listening ")
            async with open_connection(uri) as connection:
                assert (await connection.request_response(b"b", route="shout")).data == b"B"
            server.process.send_signal(signal.SIGTERM)
            code, said = await server.end()
    first, last = said.splitlines()

    assert code == 0
    assert first.endswith("capture into c failed, and records nothing more: [Errno 28] No space left on device")
    assert last.startswith("rsocket-trio: the capture lacks ")
    assert last.endswith(" frames: [Errno 28] No space left on device")
