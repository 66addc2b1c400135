"""Reading blocks of a segment, and finding what is left of the last one after its writer died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.layer import FileLayer
from rsocket_trio.replay.records import SEGMENT_HEADER, Damage, heads, missing, was_durable

BLOCK = 2**20


def recover_segment(
    layer: FileLayer, fd: int, path: Path, first: int, note: Callable[[int, int], None]
) -> tuple[int, int]:
    """How many bytes of a segment are whole records, and the position behind them; each is told to ``note``.

    What follows is a torn tail that may be cut off. Raises ``CorruptLog`` if it is not: if a later record says that
    the damaged one was on the disk once.
    """
    offset, position = SEGMENT_HEADER, first
    size = layer.size(fd)
    while offset < size:
        block = read_block(layer, fd, offset, size, BLOCK)
        try:
            for head in heads(block, offset, size, position, check=True):
                note(head.offset, head.position)
                offset, position = head.stop, head.position + head.count
        except Damage as damage:
            tail = layer.read(fd, size - damage.offset, damage.offset)
            if was_durable(tail, damage.offset, damage.offset, damage.position):
                raise CorruptLog(path, damage.offset, damage.position, damage.reason) from None
            return offset, position
    return offset, position


def read_block(layer: FileLayer, fd: int, offset: int, limit: int, size: int) -> bytes:
    """About ``size`` bytes of a file from an offset on, but the whole first record, if ``limit`` does not cut it."""
    left = limit - offset
    block = layer.read(fd, min(size, left), offset)
    while more := missing(block, left):
        longer = layer.read(fd, more, offset)
        if len(longer) <= len(block):
            break
        block = longer
    return block
