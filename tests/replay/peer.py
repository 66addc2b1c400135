"""A process that shares the file of a log: ``python peer.py PATH NUMBER`` appends so many rows, and says so.

Then each line of its input is one more row; each line of its output is the next position.
"""

from __future__ import annotations

import os
import sys

import trio

from rsocket_trio.replay import Element, Log


async def run(path: str, number: int) -> None:
    async with Log(path) as log:
        for row in range(number):
            await log.append_all({0: [Element(b"%d %d" % (os.getpid(), row))] * 2})
        print(log.bounds(0)[1], flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            await log.append(line.strip())
            print(log.bounds(0)[1], flush=True)


if __name__ == "__main__":
    trio.run(run, sys.argv[1], int(sys.argv[2]))
