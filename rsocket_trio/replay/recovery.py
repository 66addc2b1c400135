"""Reads blocks of a segment, and finds the whole records of the last one after its writer died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.filesystem import FileSystem
from rsocket_trio.replay.segment_records import Damage, Head, Layout, heads, missing, was_durable

BLOCK = 2**20
"""Bytes that are read at a time."""


def recover_segment(
    filesystem: FileSystem, fd: int, path: Path, layout: Layout, first: int, note: Callable[[Head], None]
) -> tuple[int, int]:
    """Return the size of the whole records of a segment in bytes, and the position behind them.

    ``note`` is called with the head of each. The bytes behind them are a torn tail that may be cut off.
    Raise ``CorruptLog`` if a later record says that the damaged one was on the disk once.
    """
    offset, position = layout.header, first
    size = filesystem.size(fd)
    while offset < size:
        block = read_block(filesystem, fd, layout, offset, size, BLOCK)
        try:
            for head in heads(layout, block, offset, size, position, check=True):
                note(head)
                offset, position = head.stop, head.end
        except Damage as damage:
            tail = filesystem.read(fd, size - damage.offset, damage.offset)
            if was_durable(layout, tail, damage.offset, damage.offset, damage.position):
                raise CorruptLog(path, damage.offset, damage.position, damage.reason) from None
            return offset, position
    return offset, position


def read_block(filesystem: FileSystem, fd: int, layout: Layout, offset: int, limit: int, size: int) -> bytes:
    """Return about ``size`` bytes of a file from an offset on, but the whole first record, if ``limit`` does not cut
    it."""
    left = limit - offset
    block = filesystem.read(fd, min(size, left), offset)
    while more := missing(layout, block, left):
        longer = filesystem.read(fd, more, offset)
        if len(longer) <= len(block):
            break
        block = longer
    return block
