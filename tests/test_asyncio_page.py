"""The application of the page on asyncio: FastAPI's routes ask a server of RSocket through a portal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocks import blocks, file_name, page, with_free_ports
from tests.missing import missing_module, require
from tests.programs import run_program

PAGE = "docs/howto/asyncio.md"
DRIVER = '''
import asyncio

from anyio.from_thread import start_blocking_portal
from from_asyncio import responder
from rsocket_trio import serve
from web import app


async def get(path):
    """Return the body of an answer, as a server of ASGI would get it."""
    body = []

    async def receive():
        await asyncio.sleep(3600)  # the browser stays

    async def send(message):
        body.append(message.get("body", b"").decode())

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": [], "root_path": ""}
    await app(scope, receive, send)
    return "".join(body)


async def main():
    with start_blocking_portal("trio") as portal:
        server, _ = portal.start_task(serve, responder, "tcp://127.0.0.1:7878")
        async with app.router.lifespan_context(app):
            print(await get("/greet/Ada"))
            print(repr(await get("/count/2")))
        server.cancel()


asyncio.run(main())
'''


@pytest.fixture
def libraries() -> None:
    for name in ("anyio", "fastapi"):
        require(missing_module(name))


@pytest.mark.usefixtures("libraries")
async def test_the_routes_of_the_application_ask_the_server(tmp_path: Path) -> None:
    text = with_free_ports(f"{page(PAGE)}\n```python\n# driver.py\n{DRIVER}```\n")
    for block in blocks(text):
        name = file_name(block)
        if name is not None:
            (tmp_path / name).write_text(block.text)

    done = await run_program(tmp_path / "driver.py", cwd=tmp_path)

    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == '"hello, Ada"\n' + repr("data: 0\n\ndata: 1\n\n") + "\n"
