"""The chat of ``examples/chat.py`` for browsers: serves a page, and its WebSocket.

    python examples/web_chat/serve.py                        then open http://127.0.0.1:8000/
    python examples/web_chat/serve.py --port 8000 --listen ws://127.0.0.1:7879/chat --listen tcp://127.0.0.1:7878

Rooms and members are those of the chat in terminals: who comes by TCP meets who comes by a browser. The page is in
``public/``, its program in ``src/``; npm makes one file of it (``npm install && npm run build``, which ``make`` does at
its set-up).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trio

from rsocket_trio import serve

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent.parent))

from examples.chat import responder, until_interrupted  # noqa: E402

PROGRAM = FOLDER / "public" / "chat.js"
HOST = "127.0.0.1"


class Page(SimpleHTTPRequestHandler):
    """Serves the page, and at ``server`` the URI of the WebSocket."""

    uri = ""

    def do_GET(self) -> None:
        if self.path != "/server":
            return super().do_GET()
        body = self.uri.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *_: object) -> None:
        """Say nothing about each request."""


async def run(port: int, uris: Sequence[str]) -> None:
    """Serve page and chat until the program is interrupted."""
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(partial(serve, responder, uris, grace=0))
        Page.uri = next(uri for uri in bound if uri.startswith("ws"))
        with ThreadingHTTPServer((HOST, port), partial(Page, directory=str(FOLDER / "public"))) as pages:
            print(f"open http://{HOST}:{pages.server_port}/ for the chat at {', '.join(bound)}", flush=True)
            try:
                await trio.to_thread.run_sync(pages.serve_forever, abandon_on_cancel=True)
            finally:
                pages.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="serve.py", description="The chat for browsers.")
    parser.add_argument("--port", type=int, default=8000, help="of the page; 0 for any")
    parser.add_argument("--listen", metavar="URI", action="append", help="where the chat listens, one of them ws://")
    options = parser.parse_args(argv)
    uris = options.listen or ["ws://127.0.0.1:7879/chat"]
    if not PROGRAM.exists():
        print(f"{PROGRAM.relative_to(FOLDER.parent.parent)} is missing: npm makes it, by 'make setup'", file=sys.stderr)
        return 1
    if not any(uri.startswith("ws:") for uri in uris):
        parser.error("a browser needs a ws:// URI")
    trio.run(until_interrupted, partial(run, options.port, uris))
    return 0


if __name__ == "__main__":
    sys.exit(main())
