"""Checks what a release would bring: ``make release-check`` builds sdist and wheel, and tries the wheel.

In an empty environment of each Python that is found the wheel is installed alone, and every program and command of the
README must print what the README shows. Interpreters that are missing are named, and fail where ``CI`` is set.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from qa.pythons import VERSIONS, interpreters
from tests.blocks import ROOT, blocks, commands, page, with_free_ports

START_TIMEOUT = 20.0
"""Seconds in which the README's server has to answer."""
TYPED = """
import trio
from rsocket_trio import Responder
from rsocket_trio.testing import connected_pair

responder = Responder()
responder.serve_as(Orders, OrderBook())

async def main():
    async with connected_pair(responder) as (connection, _):
        assert await connection.remote(Orders).place(Order("ACME", 10)) == 25.0

trio.run(main)
"""
OVER_TRIO_WEBSOCKET = """
import sys

import trio
from rsocket_trio import Responder, open_connection_over, serve_stream

assert "trio_websocket" not in sys.modules
from trio_websocket import open_websocket_url, serve_websocket

responder = Responder()

@responder.request_response("greet")
def greet(request):
    return f"hello, {request.text}"

async def main():
    async def accept(request):
        await serve_stream(responder, await request.accept(), grace=0)

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, accept, "127.0.0.1", 0, None)
        async with open_websocket_url(f"ws://127.0.0.1:{server.port}") as websocket:
            async with open_connection_over(websocket) as connection:
                assert (await connection.request_response("Ada", route="greet")).text == "hello, Ada"
        nursery.cancel_scope.cancel()

trio.run(main)
"""
"""A connection of trio-websocket, on a plain install, is a transport; the library loads it only then."""


def main() -> int:
    """Build, check and try a release. Return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
        [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        relative = re.findall(r"\]\((?!https?:|#)[^)]*\)", long_description(wheel))
        if relative:
            sys.exit(f"links of the README that lead nowhere on an index: {', '.join(relative)}")
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {sdist.name}: {sdist.stat().st_size:,} bytes")
        pythons = {interpreter.version: Path(interpreter.path) for interpreter in interpreters()}
        for version, python in pythons.items():
            try_wheel(wheel, python, Path(folder) / version)
            print(f"Python {version}: the wheel alone runs every program of the README")
    missing = [version for version in VERSIONS if version not in pythons]
    if missing:
        print(f"Python {', '.join(missing)} is lacking: not on PATH, and pyenv has none")
    return 1 if missing and os.environ.get("CI") else 0


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Return the output of a command. Exit with it if the command fails."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def long_description(wheel: Path) -> str:
    """Return the README as an index shows it."""
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(metadata).decode().partition("\n\n")[2]


def try_wheel(wheel: Path, python: Path, folder: Path) -> None:
    """Install the wheel alone in an empty environment, and run what the README shows there."""
    run(python, "-m", "venv", folder)
    bin_folder = folder / "bin"
    run(bin_folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[cli]")
    version = run(
        bin_folder / "python", "-c", "import rsocket_trio; print(rsocket_trio.__version__)", cwd=folder
    ).strip()
    if f"-{version}-" not in wheel.name:
        sys.exit(f"rsocket_trio.__version__ is {version} in {wheel.name}")
    text = with_free_ports(page("README.md"))
    server, client, typed = (block.text for block in blocks(text) if block.language == "python")
    (folder / "server.py").write_text(server)
    (folder / "client.py").write_text(client)
    (folder / "typed.py").write_text(typed + TYPED)
    (folder / "over_trio_websocket.py").write_text(OVER_TRIO_WEBSOCKET)
    run(bin_folder / "python", "typed.py", cwd=folder)
    run(bin_folder / "python", "over_trio_websocket.py", cwd=folder)
    run_commands, look = (commands(block.text) for block in blocks(text) if block.language == "console")
    serving = subprocess.Popen([bin_folder / "python", "server.py"], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        wait_for_server(re.findall(r"tcp://127.0.0.1:(\d+)", server)[0])
        for command, shown in (run_commands[1], *look):
            program, *arguments = command.split()
            printed = run(bin_folder / program, *arguments, cwd=folder)
            if printed != shown:
                sys.exit(f"{command} printed {printed!r}, not {shown!r}, on {python}")
    finally:
        serving.terminate()
        serving.wait(START_TIMEOUT)


def wait_for_server(port: str) -> None:
    """Wait until something listens on a port of this machine."""
    ends = time.monotonic() + START_TIMEOUT
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                return
        if time.monotonic() > ends:
            sys.exit(f"the README's server does not listen on {port}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
