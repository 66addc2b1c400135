"""Reads payload data from the command line, standard input, a file or a URL."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import attrs
import trio

from rsocket_trio.cli.exit_codes import Failure

STDIN = 0
READ_SIZE = 65536
URL_SCHEMES = ("http://", "https://", "file://")
URL_TIMEOUT = 30.0


@attrs.frozen
class Text:
    """Data given on the command line."""

    text: str

    async def whole(self) -> bytes:
        """Return all data as one payload."""
        return os.fsencode(self.text)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the payloads for a channel: the text, as one payload."""
        yield await self.whole()


@attrs.frozen
class Stdin:
    """Data from standard input: one payload with all its bytes or, in a channel, one payload for each line."""

    async def whole(self) -> bytes:
        """Return the input up to its end."""
        chunks: list[bytes] = []
        while chunk := await _in_thread(_read_stdin):
            chunks.append(chunk)
        return b"".join(chunks)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield each line as it arrives, without its newline; the last line need not have one."""
        rest = b""
        while chunk := await _in_thread(_read_stdin):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r")
        if rest:
            yield rest


@attrs.frozen
class Loaded:
    """Data from a file or a URL."""

    place: str

    async def whole(self) -> bytes:
        """Return all data as one payload. Raise ``Failure`` if it cannot be read."""
        return await _in_thread(self.read)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the payloads for a channel: all data, as one payload."""
        yield await self.whole()

    def read(self) -> bytes:
        """Return all data; blocks the thread. Raise ``Failure`` if it cannot be read."""
        try:
            if self.place.startswith(URL_SCHEMES):
                import urllib.request  # as much to load as all of our own commands

                with urllib.request.urlopen(self.place, timeout=URL_TIMEOUT) as answer:
                    content: bytes = answer.read()
                return content
            return Path(self.place).read_bytes()
        except OSError as error:
            raise Failure(f"cannot read {self.place}: {error.strerror or error}") from error


Source = Text | Stdin | Loaded


def source_of(value: str) -> Source:
    """Return the source of a ``--data`` value: ``-`` is standard input, ``@name`` a file or URL, other text is data."""
    if value == "-":
        return Stdin()
    if len(value) > 1 and value.startswith("@"):
        return Loaded(value[1:])
    return Text(value)


async def whole(sources: Sequence[Source]) -> bytes:
    """Return the payload of a request; empty without sources. Raise ``ValueError`` for more than one source."""
    if len(sources) > 1:
        raise ValueError(f"data given {len(sources)} times: only a channel takes more than one payload")
    return await sources[0].whole() if sources else b""


async def each(sources: Sequence[Source]) -> AsyncGenerator[bytes, None]:
    """Yield the payloads of a channel, in order; standard input gives one for each line."""
    for source in sources:
        async with aclosing(source.lines()) as lines:
            async for line in lines:
                yield line


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
