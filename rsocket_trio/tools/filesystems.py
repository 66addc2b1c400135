"""The kinds of file systems, and which of them other machines may write, too."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

REMOTE: Final = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "ceph-fuse", "lustre", "afs", "gfs2", "ocfs2", "glusterfs"),
    *("ncpfs", "sshfs", "s3fs"),
}
"""Types of file systems on which several machines may write: locks and shared memory do not reach that far."""


def filesystem_of(folder: Path) -> str:
    """Return the type of a folder's file system, as Linux tells it; empty where that is not known."""
    with suppress(OSError):
        # Bytes: only spaces, tabs, ends of lines and backslashes are escaped, and names may be in any encoding.
        mounts = [line.split(b" ") for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n") if line]
        kinds = {unescaped(fields[4]): fields[fields.index(b"-") + 1].decode() for fields in mounts}
        return kinds[max(filter(folder.is_relative_to, kinds), key=len)]
    return ""


def unescaped(name: bytes) -> str:
    return os.fsdecode(name.decode("unicode_escape").encode("latin-1"))


def is_shared(kind: str) -> bool | None:
    """Return whether several machines may write on a file system of a type, ``None`` where that is not known."""
    if kind.removeprefix("fuse.") in REMOTE:
        return True
    return None if not kind or kind.startswith("fuse") or kind in {"9p", "virtiofs"} else False
