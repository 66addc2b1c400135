"""Aeron as others see it: a network that loses, a driver in Java, and a dissector that knows none of our code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
import trio

from rsocket_trio import Channel, Connection, ConnectionLost, Payload, Responder, open_connection, serve
from rsocket_trio.transports.aeron.media_driver import open_media_driver
from tests.interop.peers import ROOT
from tests.interop.udp_proxy import UdpProxy, udp_proxy, unlucky
from tests.missing import missing_aeron, require

JAR = ROOT / "build/aeron/aeron-all.jar"
OPENED = ("--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED", "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED")
"""The parts of Java's own that the driver uses."""
DRIVER = "io.aeron.driver.MediaDriver"
PATIENCE = 60
"""Seconds that a machine busy with other things may take."""
LARGE = bytes(range(256)) * 4096
ITEMS = 2000
SETUP = "4294967295"
"""The stream of SETUPs, -1, as a number without a sign."""

responder = Responder()


@responder.request_response("never")
async def never(request: Payload) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


@responder.request_response
async def echo(request: Payload) -> Payload:
    return request


@responder.request_stream
async def count(request: Payload) -> AsyncIterator[bytes]:
    for number in range(ITEMS):
        yield b"%d" % number


@responder.request_channel
async def echo_all(channel: Channel) -> None:
    async for item in channel:
        await channel.send(item)


@pytest.fixture(autouse=True)
def aeron() -> None:
    require(missing_aeron())


async def every_interaction(connection: Connection) -> None:
    """Ask for all kinds of answers, and check every byte of them."""
    assert (await connection.request_response(b"hello")).data == b"hello"
    assert (await connection.request_response(LARGE)).data == LARGE
    async with connection.request_stream(b"") as items:
        assert [int(item.data) async for item in items] == list(range(ITEMS))
    async with connection.request_channel(b"") as channel, trio.open_nursery() as nursery:

        async def send() -> None:
            for number in range(100):
                await channel.send(b"%d" % number)
            await channel.send_eof()

        nursery.start_soon(send)
        assert [int(item.data) async for item in channel] == list(range(100))


@asynccontextmanager
async def through_a_proxy(every: int = 0, path: Path | None = None) -> AsyncIterator[tuple[UdpProxy, str]]:
    """A server, a proxy before it, and the URI that goes through it."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["aeron:udp?endpoint=127.0.0.1:0"])
        port = int(uri.rpartition(":")[2])
        fate = {"fate": unlucky(every)} if every else {}
        with trio.fail_after(PATIENCE):
            async with udp_proxy(port, path=path, **fate) as proxy:
                yield proxy, f"aeron:udp?endpoint=127.0.0.1:{proxy.port}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("every", [50, 12])
async def test_a_network_that_loses_repeats_and_reorders_changes_nothing(every: int) -> None:
    async with through_a_proxy(every) as (proxy, uri):
        async with open_connection(uri) as connection:
            await every_interaction(connection)

        assert proxy.lost > 3
        assert proxy.disturbed > proxy.lost


async def test_a_dissector_finds_the_streams_of_the_handshake_and_whole_messages(tmp_path: Path) -> None:
    require(None if shutil.which("tshark") else "tshark is missing: make system-packages installs it")
    path = tmp_path / "aeron.pcap"
    async with through_a_proxy(path=path) as (_, uri), open_connection(uri) as connection:
        await every_interaction(connection)

    fields = ["aeron.data.stream_id", "aeron.data.session_id", "aeron.setup.stream_id", "aeron.sm.stream_id"]
    rows = await dissected(path, *fields, "_ws.malformed", "frame.protocols")
    data, sessions, setups, status, malformed, protocols = zip(*rows, strict=True)

    assert set(malformed) == {""}
    assert all(each.startswith("raw:ip:udp:aeron") for each in protocols)
    # A SETUP, then the client's first stream, with its answer, and the server's, as docs/aeron.md numbers them.
    assert streams_of(data) == streams_of(setups) == streams_of(status) == {SETUP, "2", "1"}
    both = {session for stream, session in zip(data, sessions, strict=True) if set(stream.split(",")) <= {"1", "2"}}
    assert len({each for session in both for each in session.split(",")}) == 1, "both sides use one session id"


async def test_the_first_message_of_a_dissected_stream_is_a_setup_without_a_length(tmp_path: Path) -> None:
    require(None if shutil.which("tshark") else "tshark is missing: make system-packages installs it")
    path = tmp_path / "aeron.pcap"
    async with through_a_proxy(path=path) as (_, uri), open_connection(uri) as connection:
        assert (await connection.request_response(b"seen by others")).data == b"seen by others"

    payloads = [
        bytes.fromhex(text.replace(":", ""))
        for [streams, offsets, text] in await dissected(
            path, "aeron.data.stream_id", "aeron.data.term_offset", "udp.payload"
        )
        if streams.split(",")[0] == "1" and offsets.split(",")[0] == "0"
    ]
    # A data frame has a header of 32 bytes; a SETUP of RSocket 1.0 has stream 0, type 1 and version 1.0.
    assert payloads[0][32:][:4] == bytes(4)
    assert payloads[0][36] >> 2 == 1
    assert payloads[0][38:42] == bytes([0, 1, 0, 0])


async def dissected(path: Path, *fields: str) -> list[list[str]]:
    """The fields of every packet of a file, as the dissector finds them."""
    wanted = [word for field in fields for word in ("-e", field)]
    done = await trio.run_process(
        ["tshark", "-n", "-r", path, "--enable-heuristic", "aeron_udp", "-T", "fields", *wanted],
        capture_stdout=True,
        capture_stderr=True,
    )
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert rows
    return rows


def streams_of(column: tuple[str, ...]) -> set[str]:
    return {stream for cell in column for stream in cell.split(",") if stream}


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
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, [f"aeron:{channel}{directory}"])
        async with open_connection(uri) as connection:
            await every_interaction(connection)
        nursery.cancel_scope.cancel()

    assert process.poll() is None
    assert directory.is_dir(), "the directory is the driver's, and stays"


async def test_a_driver_in_java_that_is_killed_ends_its_connections(
    java_driver: tuple[subprocess.Popen[bytes], Path],
) -> None:
    process, directory = java_driver
    await driven(directory)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, responder, [f"aeron:ipc?directory={directory}"])
            async with open_connection(uri) as connection:
                await connection.request_response(b"it works")
                os.kill(process.pid, signal.SIGKILL)
                with pytest.raises(ConnectionLost, match=f"the media driver in {directory} is gone"):
                    await connection.request_response(b"never answered", route="never")
            nursery.cancel_scope.cancel()


async def test_a_driver_of_another_layout_is_refused_with_both_versions(tmp_path: Path) -> None:
    async with open_media_driver() as driver:
        layout = (Path(driver.directory) / "cnc.dat").read_bytes()
    (tmp_path / "cnc.dat").write_bytes((9 << 16 | 1).to_bytes(4, "little") + layout[4:])

    with pytest.raises(ConnectionLost, match=r"has files of layout 9\.0\.1, known is 0\.2"):
        async with open_connection(f"aeron:ipc?directory={tmp_path}"):
            pass
