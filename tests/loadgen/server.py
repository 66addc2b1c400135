"""A server to load, as a process: it says its URI, and serves the handlers of ``loading`` until it is killed."""

from __future__ import annotations

import trio

from rsocket_trio import serve
from tests.loadgen.loads import usual


async def main() -> None:
    """Serve."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, usual(), ["tcp://127.0.0.1:0"])
        print(uri, flush=True)


if __name__ == "__main__":
    trio.run(main)
