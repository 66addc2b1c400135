"""SQLite below a log: versions that keep what was committed, errors in our terms, and where its files may lie."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rsocket_trio.extras import install_command
from rsocket_trio.replay.errors import CorruptLog

if TYPE_CHECKING:
    import apsw

WHOLE_SQLITE: Final = (3, 51, 3)
"""From this version on SQLite does not lose pages when one connection begins the WAL anew."""
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "ceph-fuse", "lustre", "afs", "gfs2", "ocfs2", "glusterfs"}
REMOTE |= {"ncpfs", "sshfs", "s3fs"}
"""Types of file systems on which several machines may write: SQLite's locks and shared memory do not reach that far."""

logger = logging.getLogger("rsocket_trio.replay")


def require_sqlite() -> None:
    """Raise ``ModuleNotFoundError`` without APSW, ``RuntimeError`` if its SQLite can lose committed pages."""
    try:
        import apsw
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"a log is a SQLite database: {install_command('log')}", name="apsw") from error
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split("."))[:3] < WHOLE_SQLITE:
        raise RuntimeError(
            f"SQLite {version} can lose rows that are safe, when its WAL begins anew while another process writes: "
            f"a log needs {'.'.join(map(str, WHOLE_SQLITE))} or later"
        )


@contextmanager
def translated(
    path: Path | None, connection: apsw.Connection | None = None, *, is_transaction: bool = False
) -> Iterator[None]:
    """Translate SQLite's errors: what the disk did, and a lock, are ``OSError``, all others ``CorruptLog``.

    A transaction of the block is committed, or rolled back if the block fails.
    """
    import apsw

    try:
        with connection if connection is not None and is_transaction else nullcontext():
            yield
    except CorruptLog as error:
        error.file = error.file or path
        raise
    except apsw.BusyError as error:
        raise OSError(errno.EBUSY, "somebody else holds its lock", str(path)) from error
    except apsw.NoMemError as error:
        raise MemoryError(f"{path}: {error}") from error
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ:
            raise CorruptLog(path, "it is shorter than it says") from error
        by_class = {apsw.FullError: errno.ENOSPC, apsw.ReadOnlyError: errno.EROFS}
        number = by_class.get(type(error)) or (connection and connection.system_errno) or errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error
    except (apsw.Error, UnicodeDecodeError) as error:
        raise CorruptLog(path, str(error) or type(error).__name__) from error


def check_filesystem(file: Path, path: Path) -> None:
    """Raise ``OSError`` for a file that can't be opened or is on a network file system; warn where that is unknown.

    ``path`` is what errors name, a link perhaps to the ``file``.
    """
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a log is a file, and this is a folder", str(path))
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no folder for it", str(path))
    if not os.access(file if file.exists() else file.parent, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    kind = filesystem_of(file.parent)
    if kind.removeprefix("fuse.") in REMOTE:
        raise OSError(errno.ENOTSUP, f"a log has to be on a local disk, and this one is on {kind}", str(path))
    if not kind or kind.startswith("fuse") or kind in {"9p", "virtiofs"}:
        logger.warning(
            "%s: the file system (%s) may be shared with other machines, which a log does not bear", path, kind or "?"
        )


def filesystem_of(folder: Path) -> str:
    """Return the type of the file system of a folder, as Linux tells it; empty where that is not known."""
    kind, longest = "", -1
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split()
            point = fields[4].encode().decode("unicode_escape")
            if folder.is_relative_to(point) and len(point) >= longest:
                kind, longest = fields[fields.index("-") + 1], len(point)
    return kind
