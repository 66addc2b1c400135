"""The option ``--capture DIR``: records the frames of a command, and reports those that could not be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rsocket_trio.capture import Capture
from rsocket_trio.cli.exit_codes import Failure, complain

FORMATS = ("parquet", "jsonl")


@contextmanager
def captured(directory: str | None, format: str = "parquet") -> Iterator[Capture | None]:
    """Provide a capture into that directory for as long as the block; ``None`` without a directory.

    Raise ``OSError`` naming a directory that can't be written to, and ``Failure`` if pyarrow is missing.
    """
    if directory is None:
        yield None
        return
    try:
        capture = Capture(directory, format=format)
    except ModuleNotFoundError as error:
        raise Failure(f"{error}") from error
    try:
        yield capture
    finally:
        capture.close()
        if capture.dropped or capture.error is not None:
            why = f": {capture.error}" if capture.error is not None else ""
            complain(f"rsocket-trio: the capture lacks {capture.dropped} frames{why}")
