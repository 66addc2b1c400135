"""A server of a log in a file that kills itself, with SIGKILL, in the middle of a write or a sync.

``python mortal_server.py FOLDER``: says where it listens. The route ``die`` takes the call to the disk with which it
dies: ``write 3`` is the third from then on.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import apsw
import trio

from rsocket_trio import Payload, Responder, serve
from rsocket_trio.replay import Ledger, Log, add_sink, add_source


class KillingDisk(apsw.VFS):
    """Counts the calls that change something, once it is told to."""

    call = b""
    left = 0

    def __init__(self) -> None:
        super().__init__("killing disk", "unix", makedefault=True)

    def count(self, call: bytes) -> bool:
        """Return whether this call is the last."""
        self.left -= self.call == call
        return self.call == call and not self.left

    def xOpen(self, name: Any, flags: list[int]) -> KillingFile:  # noqa: N802
        return KillingFile(self, name, flags)


class KillingFile(apsw.VFSFile):
    """A file on it, which may be read only: SQLite takes no notice that it then can't be locked to be closed."""

    def __init__(self, disk: KillingDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.count(b"write"):
            super().xWrite(data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.count(b"sync"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().xSync(flags)

    def xLock(self, level: int) -> None:  # noqa: N802
        try:
            super().xLock(level)
        except apsw.IOError:
            raise apsw.BusyError from None


async def run(folder: Path) -> None:
    disk, responder = KillingDisk(), Responder()

    @responder.request_response("die")
    def die(request: Payload) -> bytes:
        disk.call, number = request.data.split()
        disk.left = int(number)
        return b""

    async with Log(folder / "rows.log", 2) as log, trio.open_nursery() as nursery:
        add_source(responder, "rows", log)
        add_sink(responder, "sink", Ledger(log))
        [uri] = await nursery.start(serve, responder, "tcp://127.0.0.1:0")
        print(uri, flush=True)


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]))
