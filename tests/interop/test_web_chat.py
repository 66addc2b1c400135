"""The chat in a browser: two tabs of Chromium talk, one does not keep up, the server is killed and comes back."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from tests.analytics.browser import require_browser
from tests.blocks import ROOT
from tests.interop.peers import missing_for
from tests.missing import require

FOLDER = ROOT / "examples" / "web_chat"
DRIVER = Path(__file__).parent / "js" / "web_chat.js"
PATIENCE = 90


@asynccontextmanager
async def served(page: str, uri: str) -> AsyncIterator[tuple[str, str, trio.Process]]:
    """Serve the chat; where its page and its WebSocket are."""
    command = [sys.executable, str(FOLDER / "serve.py"), "--port", page, "--listen", uri]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, check=False))
        try:
            line = await line_of(process)
            [url, listening] = re.findall(r"https?://\S+|ws://\S+", line)
            yield url, listening, process
        finally:
            process.kill()


async def line_of(process: trio.Process) -> str:
    """Return the next line that a process prints."""
    line = b""
    assert process.stdout is not None
    while not line.endswith(b"\n"):
        more = await process.stdout.receive_some(1)
        assert more, f"the program ended behind {line!r}"
        line += more
    return line.decode().rstrip("\n")


async def test_two_tabs_talk_keep_their_own_pace_and_come_back(tmp_path: Path) -> None:
    require(missing_for("js"))
    chromium = require_browser()
    require(None if (FOLDER / "public" / "chat.js").exists() else "the bundle of the web chat is missing: make setup")

    with trio.fail_after(PATIENCE):
        async with served("0", "ws://127.0.0.1:0/chat") as (url, uri, server), trio.open_nursery() as nursery:
            command = ["node", str(DRIVER), chromium, url, str(tmp_path)]
            run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
            tabs = await nursery.start(run)
            assert await line_of(tabs) == "refused: the name 'ada' is taken"
            assert await line_of(tabs) == "they talk"
            paused = re.fullmatch(r"bob paused: (\d+) lines came; then: (.*)", await line_of(tabs))
            assert paused is not None
            # Eight by the page's credit at most; sixteen waited at the server; it counted the others.
            assert int(paused[1]) <= 8
            assert re.fullmatch(r"\* you did not keep up and missed \d+ lines", paused[2])
            assert await line_of(tabs) == "cut"
            server.kill()
            assert await line_of(tabs) == "both have lost the connection"
            port = re.findall(r":(\d+)/", url)[0]
            async with served(port, uri):
                await tabs.stdin.send_all(b"\n")
                assert await line_of(tabs) == "they talk again"
                assert await tabs.wait() == 0

    assert {path.name for path in pictures(tmp_path)} == {"web-chat-400.png", "web-chat-1280.png"}


def pictures(folder: Path) -> list[Path]:
    return list(folder.glob("*.png"))


def test_without_the_bundle_the_program_says_who_makes_it(tmp_path: Path) -> None:
    for name in ("examples/chat.py", "examples/web_chat/serve.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))

    command = [sys.executable, "examples/web_chat/serve.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "examples/web_chat/public/chat.js is missing: npm makes it, by 'make setup'\n"
