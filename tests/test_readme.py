"""What the README and the front page of the site say is true: their programs, their commands and their links."""

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
from tests.blocks import ROOT, blocks, commands, links, page, with_free_ports
from tests.test_docs import play

README = page("README.md")
PATIENCE = 20.0


def test_the_readme_has_what_a_reader_needs_in_this_order() -> None:
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)

    assert headings[:5] == ["Install", "A server", "A client", "Run", "Look"]
    assert README.startswith("# rsocket_trio\n\nRSocket for ")


def test_the_programs_and_commands_of_the_readme_show_what_it_says(tmp_path: Path) -> None:
    text = with_free_ports(README)
    server, client, _typed = (block.text for block in blocks(text) if block.language == "python")
    run, look = (commands(block.text) for block in blocks(text) if block.language == "console")
    [uri] = re.findall(r'"(tcp://\S+)"', client)
    assert uri in server
    assert [command for command, _ in run] == ["python server.py &", "python client.py"]

    with running(tmp_path / "server.py", server):
        done = run_until_served(client)
        for command, shown in look:
            play(f"$ {command}\n{shown}", tmp_path, [])

    assert (done.stdout, done.stderr) == (run[1][1], "")
    assert len(look) == 2


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
    rows = re.findall(r"^\| (`.+?`) \|", README.partition("\n## Extras\n")[2].partition("\n## ")[0], re.MULTILINE)
    extras = re.findall(r"`([\w-]+)`", " ".join(rows))
    assert len(extras) > 5
    for extra in [*re.findall(r"'\.\[([a-z]+)\]'", README), *extras]:
        assert f"\n{extra} = [" in page("pyproject.toml")


def test_the_links_of_the_readme_resolve() -> None:
    assert [link for link in links(README) if "://" not in link and not (ROOT / link).exists()] == []


def test_the_programs_of_the_front_page_show_what_it_says(tmp_path: Path) -> None:
    text = with_free_ports(page("docs/index.md"))
    server, client = (block.text for block in blocks(text) if block.language == "python")
    [session] = (commands(block.text) for block in blocks(text) if block.language == "console")

    with running(tmp_path / "server.py", server):
        done = run_until_served(client)

    assert session == [
        ("python server.py &", ""),
        ("python client.py", done.stdout),
    ]
    assert done.stderr == ""
    assert all(len([line for line in program.splitlines() if line]) <= 9 for program in (server, client))


def run_until_served(client: str) -> subprocess.CompletedProcess[str]:
    """Run a client again and again until its server is there, which says nothing itself."""
    deadline = monotonic() + PATIENCE
    while True:
        done = subprocess.run(
            [sys.executable, "-c", client], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if done.returncode == 0 or monotonic() > deadline:
            return done
        sleep(0.1)


@contextmanager
def running(path: Path, source: str) -> Iterator[None]:
    path.write_text(source)
    with subprocess.Popen([sys.executable, path]) as process:
        try:
            yield
        finally:
            process.kill()
