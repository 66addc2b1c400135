"""The directories of media drivers: those that this process makes, and what killed processes left behind."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from rsocket_trio.transports.aeron.library import Library

fcntl: Any = import_module("fcntl") if os.name == "posix" else None
"""Without it nothing tells that the process that made a directory is gone."""

PREFIX = "rsocket-trio-aeron-"
"""The beginning of the name of a directory that no one chose a name for."""
LOCK = "rsocket-trio.lock"
"""A file in the directory of an embedded driver. The process that embeds it holds a lock on it for as long as it lives,
so that one who gets the lock knows that the process is gone, in whatever namespace of processes it was."""
NASCENT = 60.0
"""Seconds after which a directory of ours that has no lock is what a killed process left: others get it in a moment."""
FILE = "cnc.dat"
"""The file that a media driver and its clients talk by."""
HEAD = struct.Struct("=ii")
"""Its version, and the bytes of its first buffer, at whose end the driver writes when it was last there."""
HEARTBEAT = struct.Struct("=q")
LAYOUT = 0
"""The major version that is understood."""
DRIVER_TIMEOUT = 10
"""Seconds after which a driver that was not there counts as gone."""
DIRECTORY_VARIABLE = "AERON_DIR"
"""The environment variable with the directory of the media driver, as in Aeron itself."""


def base() -> Path:
    """Return the folder of all directories: memory, where the system has a folder for that."""
    return Path("/dev/shm") if sys.platform == "linux" and os.path.isdir("/dev/shm") else Path(tempfile.gettempdir())


def private_directory() -> Path:
    """Return a path that nothing has, for a driver of this process alone."""
    while True:
        path = base() / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        if not path.exists():
            return path


def default_directory(library: Library) -> str:
    """Return where all programs of this user look for a media driver: ``AERON_DIR``, or Aeron's own default."""
    text = library.ffi.new("char[4096]")
    library.check(library.client.aeron_default_path(text, len(text)), "no default directory")
    return os.environ.get(DIRECTORY_VARIABLE) or os.fsdecode(library.ffi.string(text))


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


class DirectoryLock:
    """The proof that the process that made a directory lives. Made once the driver has made the directory."""

    def __init__(self, directory: Path) -> None:
        """Lock the directory. Raise ``OSError``."""
        self._directory = directory
        self._file = -1
        if fcntl is None:
            return
        # Locked before it has its name: whoever finds the file and gets its lock knows that its owner is gone.
        file, nameless = tempfile.mkstemp(dir=directory)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(nameless, directory / LOCK)
        except OSError:
            os.close(file)
            raise
        self._file = file

    def remove(self) -> None:
        """Remove the directory with all that is in it, and free the lock."""
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def remove_leftovers() -> None:
    """Remove the directories that killed processes of this user left behind."""
    if fcntl is None:
        return
    for path in _ours():
        remove_if_left(path)


def remove_if_left(path: Path) -> bool:
    """Remove one directory if the process that embedded a driver there is gone for sure. Return whether it was."""
    if fcntl is None:
        return False
    try:
        file = os.open(path / LOCK, os.O_RDWR)
    except OSError as error:
        if error.errno == errno.ENOENT and path.name.startswith(PREFIX) and _age(path) > NASCENT:
            shutil.rmtree(path, ignore_errors=True)
            return True
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(file)


def _ours() -> Iterator[Path]:
    """Generate the directories that have a name of ours, and belong to this user."""
    with suppress(OSError):
        for entry in os.scandir(base()):
            with suppress(OSError):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)


def _age(path: Path) -> float:
    """Return the seconds since anything was made or removed in a directory."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def hold_ipc(directory: str) -> socket.socket | None:
    """Hold the place of the one server that a driver has over IPC. Raise ``OSError`` if another holds it.

    Over UDP the port does that. ``None`` where the system has no names of sockets without files.
    """
    if sys.platform != "linux":
        return None
    name = hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0rsocket-trio-aeron-{name}")
    except OSError:
        holder.close()
        raise
    return holder
