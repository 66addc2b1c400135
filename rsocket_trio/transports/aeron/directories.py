"""The directories of media drivers: those that this process makes, and what killed processes left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "rsocket-trio-aeron-"
"""The beginning of the name of a directory that no one chose a name for."""
LOCK = "rsocket-trio.lock"
"""A file in the directory of an embedded driver. The process that embeds it holds a lock on it for as long as it lives,
so that one who gets the lock knows that the process is gone, in whatever namespace of processes it was."""
FILE = "cnc.dat"
"""The file that a media driver and its clients talk by."""
HEAD = struct.Struct("=ii")
"""Its version, and the bytes of its first buffer, at whose end the driver writes when it was last there."""
HEARTBEAT = struct.Struct("=q")
LAYOUT = 0
"""The major version that is understood."""
DRIVER_TIMEOUT = 10
"""Seconds after which a driver that was not there counts as gone."""


def base() -> Path:
    """Return the folder of all directories: memory, where the system has a folder for that."""
    return Path("/dev/shm") if sys.platform == "linux" and os.path.isdir("/dev/shm") else Path(tempfile.gettempdir())


def is_alive(directory: Path) -> bool:
    """Return whether a media driver runs in a directory. Raise ``OSError`` for one whose files are of another layout.

    Neither the client nor the driver is asked: one waits for a driver that is not there, and the other removes the
    directory of one that it does not understand.
    """
    try:
        with open(directory / FILE, "rb") as file:
            version, length = HEAD.unpack(file.read(HEAD.size))
            file.seek(length)  # two lines of cache of the head more, and two of the end less
            (heard,) = HEARTBEAT.unpack(file.read(HEARTBEAT.size))
    except (OSError, struct.error):
        return False
    if heard / 1000 < time.time() - DRIVER_TIMEOUT:
        return False
    if version >> 16 != LAYOUT:
        text = f"{version >> 16 & 255}.{version >> 8 & 255}.{version & 255}"
        raise OSError(
            errno.EPROTONOSUPPORT, f"the media driver in {directory} has files of layout {text}, known is 0.2"
        )
    return True


def lock_directory(directory: Path) -> int:
    """Prove that the process that made a directory lives. Return the descriptor that holds the lock. Raise ``OSError``.

    Called once the driver has made the directory.
    """
    # Locked before it has its name: whoever finds the file and gets its lock knows that its owner is gone.
    file, nameless = tempfile.mkstemp(dir=directory)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(nameless, directory / LOCK)
    except OSError:
        os.close(file)
        raise
    return file


def remove_leftovers() -> None:
    """Remove the directories with a name of ours that killed processes of this user left behind."""
    for path in base().glob(f"{PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and not path.is_symlink():
                remove_if_left(path)


def remove_if_left(path: Path) -> None:
    """Remove one directory if the process that embedded a driver there is gone for sure."""
    try:
        file = os.open(path / LOCK, os.O_RDWR)
    except OSError:
        return
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    os.close(file)
