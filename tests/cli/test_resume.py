"""``--resume``: commands whose connection breaks go on over another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from qa.resume.proxy import FIN, RST, Cut, Proxy, cutting_proxy
from qa.resume.recorder import SERVER
from tests.cli.commands import run, started
from tests.each_row import each_row

SERVICE = """
from rsocket_trio import Responder

responder = Responder()

@responder.request_stream
async def numbers(request):
    for number in range(1000):
        yield f"{number} {'.' * 90}"

@responder.request_channel
async def echo(channel):
    async for item in channel:
        await channel.send(item)
"""
CUTS = (Cut(SERVER, 3_000, RST), Cut(SERVER, 20_000, FIN, deliver=False), Cut(SERVER, 10_000, FIN))


@asynccontextmanager
async def cut_off(folder: Path, *options: str, scheme: str = "tcp") -> AsyncIterator[Proxy]:
    """A proxy that cuts, before a ``serve`` with these options."""
    (folder / "service.py").write_text(SERVICE)
    listen = ("--listen", f"{scheme}://127.0.0.1:0", "--log", "error")
    async with started("serve", "service:responder", *listen, *options, cwd=folder) as server:
        port = int((await server.line()).rpartition(":")[2])
        async with cutting_proxy(port, iter(CUTS)) as proxy:
            yield proxy


@each_row(
    ("scheme", "arguments"),
    [
        ("tcp", ("stream", "--resume", "30")),
        ("tcp", ("stream", "--resume", "60", "--debug")),
        ("h2", ("stream", "--resume", "60")),
    ],
    ids=str,
)
async def test_a_stream_goes_on_where_it_was(scheme: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    command, *options = arguments
    async with cut_off(tmp_path, "--resume", "60", scheme=scheme) as proxy:
        result = await run(command, *options, proxy.uri.replace("tcp", scheme))

    assert [line.split()[0] for line in result.stdout.splitlines()] == [str(number) for number in range(1000)]
    assert result.code == 0
    assert proxy.made == len(CUTS)
    assert ("RESUME_OK" in result.stderr) is ("--debug" in arguments)
