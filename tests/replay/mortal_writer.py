"""A writer that kills itself with SIGKILL in the middle of a write or a sync of its commit.

``python mortal_writer.py FILE BATCH CALL NUMBER``: ``write 3`` is the third write of the commit. Before, it commits the
batch below once more, and says whether that was promoted.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

import trio

from rsocket_trio.replay import Element, Ledger, Log
from tests.replay.stored import WatchedDisk, WatchedFile

ROWS = 50


class KillingDisk(WatchedDisk):
    """Counts the calls of one kind once they are to be counted, and kills the process with the last."""

    call = ""
    left = 0

    def _is_last(self, call: str) -> bool:
        self.left -= self.call == call
        return self.call == call and not self.left

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        if self._is_last("write"):
            file.write_half(data, offset)
            os.kill(os.getpid(), signal.SIGKILL)

    def sync(self) -> None:
        if self._is_last("sync"):
            os.kill(os.getpid(), signal.SIGKILL)


async def stage(ledger: Ledger, batch: int) -> list[str]:
    """Stage a batch of two attempts. Return their names."""
    attempts = [f"{os.getpid()}-{batch}-{partition}" for partition in range(2)]
    for partition, attempt in enumerate(attempts):
        staged = await ledger.begin("sink", attempt, partition)
        for row in range(ROWS):
            await staged.add(Element(f"{batch}-{partition}-{row}".encode()))
        await staged.seal()
    return attempts


async def run(path: str, batch: str, call: str, number: str) -> None:
    disk = KillingDisk()
    async with Log(path, 2) as log, Ledger(log) as ledger:
        if int(batch):
            done = await ledger.commit("sink", int(batch) - 1, dict.fromkeys(await stage(ledger, int(batch) - 1), ROWS))
            print(done.promoted, flush=True)
        attempts = await stage(ledger, int(batch))
        disk.call, disk.left = call, int(number)
        await ledger.commit("sink", int(batch), dict.fromkeys(attempts, ROWS))


if __name__ == "__main__":
    trio.run(partial(run, *sys.argv[1:]))
