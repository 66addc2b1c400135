"""A server for sinks, as a process: python -m tests.spark.jvm.sink_server PORT

Routes: ``orders`` with a ledger of two partitions; ``picky``, which refuses what ends with 7. It says its URI; then a
line of its input is ``dump``, and is answered with what counts, and what ``picky`` took, in JSON.
"""

from __future__ import annotations

import json
import sys

import trio

from rsocket_trio import ApplicationError, Payload, Responder, serve
from rsocket_trio.replay import Ledger, MemoryLog, Record, add_sink


async def everything(log: MemoryLog) -> list[Record]:
    """All that counts."""
    found: list[Record] = []
    for partition in log.partitions():
        start, end = log.bounds(partition)
        while start < end:
            found += await log.read_some(partition, start, end)
            start = found[-1].end
    return found


async def main() -> None:
    """Serve until the input ends."""
    log = MemoryLog(2)
    responder = Responder()
    add_sink(responder, "orders", Ledger(log))
    taken: list[str] = []

    @responder.request_response("picky")
    def picky(request: Payload) -> bytes:
        if request.data.endswith(b"7"):
            raise ApplicationError("no sevens")
        taken.append(request.text)
        return b""

    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, [f"tcp://127.0.0.1:{sys.argv[1]}"])
        print(uri, flush=True)
        async for _ in trio.wrap_file(sys.stdin):
            records = [
                (record.data.hex(), (record.metadata or b"").hex(), record.count, (record.key or b"").hex())
                for record in await everything(log)
            ]
            print(json.dumps({"orders": records, "picky": taken}), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
