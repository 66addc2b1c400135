"""Aeron by a driver that is not ours, but written in Java."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
import trio

from rsocket_trio import Connection, open_connection
from tests.interop.peers import ROOT
from tests.missing import missing_aeron, require
from tests.serving import running_server
from tests.transports.aeron.echo_server import responder

JAR = ROOT / "build/aeron/aeron-all.jar"
OPENED = ("--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED", "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED")
"""The parts of Java's own that the driver uses."""
DRIVER = "io.aeron.driver.MediaDriver"
PATIENCE = 60
"""Seconds that a machine busy with other things may take."""
LARGE = bytes(range(256)) * 4096
ITEMS = 2000


@pytest.fixture(autouse=True)
def aeron() -> None:
    require(missing_aeron())


async def every_interaction(connection: Connection) -> None:
    """Ask for all kinds of answers, and check every byte of them."""
    assert (await connection.request_response(b"hello")).data == b"hello"
    assert (await connection.request_response(LARGE)).data == LARGE
    async with connection.request_stream(b"%d" % ITEMS) as items:
        assert [int(item.data) async for item in items] == list(range(ITEMS))
    async with connection.request_channel(b"0") as channel, trio.open_nursery() as nursery:

        async def send() -> None:
            for number in range(1, 100):
                await channel.send(b"%d" % number)
            await channel.send_eof()

        nursery.start_soon(send)
        assert [int(item.data) async for item in channel] == list(range(100))


@pytest.fixture
def java_driver() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A media driver written in Java, and its directory."""
    require(None if JAR.is_file() and shutil.which("java") else "Aeron's jar is missing: make build/aeron/.built")
    folder = Path(mkdtemp(prefix="aeron-java-", dir="/dev/shm"))
    directory = folder / "driver"
    settings = {"aeron.dir": directory, "aeron.threading.mode": "SHARED", "aeron.term.buffer.length": "1m"}
    process = subprocess.Popen(
        ["java", *OPENED, *(f"-D{each}={text}" for each, text in settings.items()), "-cp", JAR, DRIVER],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, directory
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


async def driven(directory: Path) -> None:
    """Wait until a driver serves a directory, which its file of commands and counters tells."""
    with trio.fail_after(PATIENCE):
        while not (directory / "cnc.dat").is_file() or not (directory / "cnc.dat").read_bytes()[:4].strip(b"\0"):  # noqa: ASYNC110
            await trio.sleep(0.05)  # nothing tells of it


@pytest.mark.parametrize("channel", ["udp?endpoint=127.0.0.1:0|directory=", "ipc?directory="])
async def test_a_driver_in_java_carries_connections(
    java_driver: tuple[subprocess.Popen[bytes], Path], channel: str
) -> None:
    process, directory = java_driver
    await driven(directory)
    async with running_server(responder, f"aeron:{channel}{directory}") as uri, open_connection(uri) as connection:
        await every_interaction(connection)

    assert process.poll() is None
    assert directory.is_dir(), "the directory is the driver's, and stays"
