"""A server with a source and a sink on files that kills itself, with SIGKILL, in the middle of a write or a sync.

``python mortal_server.py FOLDER``: says where it listens. The route ``die`` takes the number of the call to the disk
with which it dies.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio

from rsocket_trio import Payload, Responder, serve
from rsocket_trio.replay import FileLedger, FileLog, Ledger, Retention, add_sink, add_source
from rsocket_trio.replay.filesystem import FileSystem


class KillingDisk(FileSystem):
    """Counts the calls that change something, once it is told to."""

    left = -1

    def count(self) -> bool:
        self.left -= 1
        return self.left == 0

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self.count():
            super().write(fd, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        if self.count():
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync(fd)

    def remove(self, path: Path) -> None:
        if self.count():
            os.kill(os.getpid(), signal.SIGKILL)
        super().remove(path)

    def rename(self, old: Path, new: Path) -> None:
        if self.count():
            os.kill(os.getpid(), signal.SIGKILL)
        super().rename(old, new)


async def run(folder: Path) -> None:
    disk, responder = KillingDisk(), Responder()

    @responder.request_response("die")
    def die(request: Payload) -> bytes:
        disk.left = int(request.data)
        return b""

    async with (
        FileLog(folder / "log", 2, filesystem=disk) as log,
        FileLedger(folder / "ledger", log, filesystem=disk) as ledger,
        FileLog(folder / "states", segment_bytes=4000, filesystem=disk) as states,
        trio.open_nursery() as nursery,
    ):
        add_source(responder, "states", states, retention=Retention(compact=True))
        add_sink(responder, "states", Ledger(states))
        add_source(responder, "rows", log)
        add_sink(responder, "sink", ledger)
        [uri] = await nursery.start(serve, responder, "tcp://127.0.0.1:0")
        print(uri, flush=True)


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]))
