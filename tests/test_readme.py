"""What the README says is true: its programs run as they stand there, its commands and its links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from rsocket_trio import Invalid, Responder
from rsocket_trio.testing import connected_pair
from tests.blocks import ROOT, blocks, links, page, with_free_ports

README = page("README.md")
PATIENCE = 20.0


def test_the_client_of_the_readme_talks_to_its_server(tmp_path: Path) -> None:
    text = with_free_ports(README)
    server, client, _typed = (block.text for block in blocks(text) if block.language == "python")
    [uri] = re.findall(r'"(tcp://\S+)"', client)
    assert uri in server

    with running(tmp_path / "server.py", server):
        # The server of the README says nothing, so the client tries until it is there.
        deadline = monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                [sys.executable, "-c", client], capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            if done.returncode == 0 or monotonic() > deadline:
                break
            sleep(0.1)

    assert (done.stdout, done.stderr) == ("hello, Ada\n0\n1\n2\n", "")


async def test_the_typed_service_of_the_readme_answers() -> None:
    [typed] = (block.text for block in blocks(README) if block.heading == "A typed service")
    names: dict[str, Any] = {"responder": Responder()}
    exec(compile(typed, "README.md", "exec", dont_inherit=True), names)
    said = " ".join(README.split())
    [serving] = re.findall(r"`(responder\.serve_as\(.*?)`", said)
    [call] = re.findall(r"`await (connection\.remote\(.*?)`", said)
    [text] = re.findall(r"answered by `(.*?)`", said)

    eval(serving, names)
    async with connected_pair(names["responder"]) as (client, _server):
        assert await eval(call, names | {"connection": client}) == 25.0
        with pytest.raises(Invalid, match=re.escape(text)):
            await client.request_response({"symbol": "ACME", "amount": "ten"}, route="orders.place")


def test_server_and_client_are_short() -> None:
    for block in blocks(README):
        if block.language == "python" and block.heading != "A typed service":
            assert len([line for line in block.text.splitlines() if line.strip()]) <= 11


def test_the_commands_of_the_readme_exist() -> None:
    makefile = page("Makefile")
    commands = [line for block in blocks(README) if block.language == "sh" for line in block.text.splitlines()]

    for target in ("demo", "test"):
        assert any(line.startswith(f"make {target} ") for line in commands)
        assert f"\n{target}: " in makefile
    for extra in re.findall(r"'\.\[(\w+)\]'", README):
        assert f"\n{extra} = [" in page("pyproject.toml")


def test_the_links_of_the_readme_resolve() -> None:
    assert [link for link in links(README) if "://" not in link and not (ROOT / link).exists()] == []


@contextmanager
def running(path: Path, source: str) -> Iterator[None]:
    path.write_text(source)
    with subprocess.Popen([sys.executable, path]) as process:
        try:
            yield
        finally:
            process.kill()
