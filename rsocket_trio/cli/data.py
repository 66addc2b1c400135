"""Reads payload data from the command line, standard input or a file, as a value of ``--data`` says.

``-`` is standard input, ``@name`` a file, other text is the data itself.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path

import trio

from rsocket_trio.cli.exit_codes import Failure

STDIN = 0
READ_SIZE = 65536


def read_data(value: str) -> bytes:
    """Return the data of a value, all of it, in this thread. Raise ``Failure`` if it cannot be read."""
    if value == "-":
        return b"".join(iter(_read_stdin, b""))
    if len(value) > 1 and value.startswith("@"):
        path = value[1:]
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise Failure(f"cannot read {path}: {error.strerror or error}") from error
    return os.fsencode(value)


async def whole(values: Sequence[str]) -> bytes:
    """Return the payload of a request; empty without values. Raise ``ValueError`` for more than one."""
    if len(values) > 1:
        raise ValueError(f"data given {len(values)} times: only a channel takes more than one payload")
    return await _in_thread(lambda: read_data(values[0])) if values else b""


async def each(values: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """Yield the payloads of a channel, in order; standard input gives one for each line, as it arrives."""
    for value in values:
        if value != "-":
            yield await whole([value])
            continue
        rest = b""
        while chunk := await _in_thread(_read_stdin):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r")
        if rest:
            # The last line need not have a newline.
            yield rest


async def _in_thread(read: Callable[[], bytes]) -> bytes:
    # A read of a terminal cannot be interrupted: a cancelled task abandons the thread, which ends with the process.
    return await trio.to_thread.run_sync(read, abandon_on_cancel=True)


def _read_stdin() -> bytes:
    # Not sys.stdin: its lock, held by an abandoned thread, would make the interpreter fail at exit.
    try:
        return os.read(STDIN, READ_SIZE)
    except OSError as error:
        raise Failure(f"cannot read standard input: {error.strerror}") from error


def stdin_lines() -> Iterator[str]:
    """Yield the lines of standard input as they arrive; bytes that are not UTF-8 are replaced."""
    rest = b""
    while chunk := _read_stdin():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
