"""The applications of the page on asyncio, behind real servers of HTTP: FastAPI's under uvicorn, Starlette's under
Hypercorn's Trio worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocks import blocks, file_name, page, with_free_ports
from tests.missing import missing_module, require
from tests.programs import run_program

PAGE = "docs/howto/asyncio.md"
SERVED_BY_UVICORN = """
import asyncio
import threading

import httpx
import trio
import uvicorn
from greeter import greet
from rsocket_trio import Responder, serve
from web import app

responder, left, loop = Responder(), asyncio.Event(), None
responder.request_response("greet")(greet)


@responder.request_stream("count")
async def count(request):
    try:
        for number in range(int(request.text)):
            yield str(number)
    except BaseException:
        loop.call_soon_threadsafe(left.set)
        raise


async def main():
    global loop
    loop = asyncio.get_running_loop()
    threading.Thread(target=trio.run, args=(serve, responder, "tcp://127.0.0.1:7878"), daemon=True).start()
    server = uvicorn.Server(uvicorn.Config(app, port=7879, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    async with httpx.AsyncClient(base_url="http://127.0.0.1:7879", trust_env=False) as browser:
        print((await browser.get("/greet/Ada")).text)
        print(repr((await browser.get("/count/2")).text))
        async with browser.stream("GET", "/count/1000000000") as events:
            print(await anext(events.aiter_lines()))
        await left.wait()
        print("cancelled")
    server.should_exit = True
    await serving


asyncio.run(main())
"""
SERVED_BY_HYPERCORN = """
import functools

import httpx
import trio
from asgi import app
from hypercorn.config import Config
from hypercorn.trio import serve
from rsocket_trio import open_connection


async def main():
    async with trio.open_nursery() as nursery:
        config = Config()
        config.bind, config.errorlog = ["127.0.0.1:7880"], None
        await nursery.start(functools.partial(serve, app, config, mode="asgi"))
        async with open_connection("ws://127.0.0.1:7880/rsocket") as connection:
            print((await connection.request_response("Ada", route="greet")).text)
            large = await connection.request_response("x" * 300_000, route="greet")
            print(len(large.data))
        async with httpx.AsyncClient(trust_env=False) as browser:
            print((await browser.get("http://127.0.0.1:7880/")).text)
        nursery.cancel_scope.cancel()


trio.run(main)
"""
BLOCKING = """
import subprocess
import sys
import socket
import time

server = subprocess.Popen([sys.executable, "greeter.py"])
try:
    while socket.socket().connect_ex(("127.0.0.1", 7878)):
        time.sleep(0.05)
    import blocking
finally:
    server.terminate()
    server.wait()
"""


@pytest.mark.parametrize(
    ("libraries", "driver", "printed"),
    [
        pytest.param(
            ("fastapi", "uvicorn", "httpx"),
            SERVED_BY_UVICORN,
            ['"hello, Ada"', repr("data: 0\n\ndata: 1\n\n"), "data: 0", "cancelled"],
            id="FastAPI under uvicorn",
        ),
        pytest.param(
            ("starlette", "hypercorn", "httpx"),
            SERVED_BY_HYPERCORN,
            ["hello, Ada, at /rsocket", str(300_000 + len("hello, , at /rsocket")), "a page beside it"],
            id="Starlette under Hypercorn",
        ),
        pytest.param(
            ("quart_trio", "hypercorn", "httpx"),
            SERVED_BY_HYPERCORN.replace("from asgi", "from quart_app"),
            ["hello, Ada, at /rsocket", str(300_000 + len("hello, , at /rsocket")), "a page beside it"],
            id="Quart-Trio under Hypercorn",
        ),
        pytest.param(("anyio",), BLOCKING, ["hello, Ada"], id="blocking code"),
    ],
)
async def test_the_application_runs_as_it_stands(
    tmp_path: Path, libraries: tuple[str, ...], driver: str, printed: list[str]
) -> None:
    for name in libraries:
        require(missing_module(name))
    text = with_free_ports(f"{page(PAGE)}\n```python\n# driver.py\n{driver}```\n")
    for block in blocks(text):
        name_of_file = file_name(block)
        if name_of_file is not None:
            (tmp_path / name_of_file).write_text(block.text)

    done = await run_program(tmp_path / "driver.py", cwd=tmp_path)

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == printed
