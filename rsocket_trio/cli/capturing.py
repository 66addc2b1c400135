"""``--capture DIR``: what a command records of its frames, and what it says when not all of them could be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rsocket_trio.capture import Capture
from rsocket_trio.cli.exit_codes import Failure, complain

FORMATS = ("parquet", "jsonl")


@contextmanager
def captured(directory: str | None, format: str = "parquet") -> Iterator[Capture | None]:
    """A capture into that directory for as long as the block, or none.

    Raises ``OSError`` naming a directory that can't be written to, ``Failure`` where pyarrow is missing.
    """
    if directory is None:
        yield None
        return
    try:
        capture = Capture(directory, format=format)
    except ModuleNotFoundError as error:
        raise Failure(f"rsocket-trio: {error}") from error
    try:
        yield capture
    finally:
        capture.close()
        if capture.dropped or capture.error is not None:
            why = f": {capture.error}" if capture.error is not None else ""
            complain(f"rsocket-trio: the capture lacks {capture.dropped} frames{why}")
