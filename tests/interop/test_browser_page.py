"""The page on browsers: its client, of rsocket-js, talks to its server; node stands in for the browser."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.blocks import blocks, definitions, opening, page
from tests.interop.peers import missing_for
from tests.missing import require
from tests.serving import running_server

PAGE = page("docs/howto/browser.md")
MODULES = Path(__file__).parent / "node_modules"
PATIENCE = 20


@pytest.fixture
def rsocket_js() -> None:
    require(missing_for("js"))


@pytest.mark.usefixtures("rsocket_js")
async def test_the_client_of_the_page_talks_to_its_server(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "for_browsers"}
    program = definitions(opening(PAGE).programs["for_browsers.py"])
    exec(compile(program, "docs/howto/browser.md", "exec", dont_inherit=True), names)
    [client] = [block.text for block in blocks(PAGE) if block.language == "js" and "RSocketConnector" in block.text]
    (tmp_path / "node_modules").symlink_to(MODULES)

    with trio.fail_after(PATIENCE):
        async with running_server(names["responder"], "ws://127.0.0.1:0/rsocket") as uri:
            (tmp_path / "client.mjs").write_text(client.replace("ws://127.0.0.1:7878/rsocket", uri))
            command = ["node", "--experimental-websocket", "--no-warnings", "client.mjs"]
            run = partial(trio.run_process, cwd=tmp_path, stdin=subprocess.DEVNULL, check=False)
            done = await run(command, capture_stdout=True, capture_stderr=True)

    assert (done.stdout.decode(), done.stderr.decode()) == ("hello, Ada\n0\n1\n2\n", "")
