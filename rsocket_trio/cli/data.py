"""Where does a payload come from? The command line, standard input, a file or a URL."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import attrs
import trio

from rsocket_trio.cli.running import Failure

STDIN = 0
READ_SIZE = 65536
URL_SCHEMES = ("http://", "https://", "file://")
URL_TIMEOUT = 30.0


@attrs.frozen
class Text:
    """Data as it stands on the command line."""

    text: str

    async def whole(self) -> bytes:
        """All of it, as one payload."""
        return os.fsencode(self.text)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The payloads that it makes in a channel: itself."""
        yield await self.whole()


@attrs.frozen
class Stdin:
    """Data from standard input: as one payload with every byte of it, in a channel a payload a line."""

    async def whole(self) -> bytes:
        """Everything up to the end of the input."""
        chunks: list[bytes] = []
        while chunk := await _in_thread(_read_stdin):
            chunks.append(chunk)
        return b"".join(chunks)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Each line as it comes, without its newline; a last line need not have one."""
        rest = b""
        while chunk := await _in_thread(_read_stdin):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r")
        if rest:
            yield rest


@attrs.frozen
class Loaded:
    """Data out of a file, or from a URL."""

    place: str

    async def whole(self) -> bytes:
        """All of it, as one payload. Raises ``Failure`` where it can't be read."""
        return await _in_thread(self.read)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The payloads that it makes in a channel: one."""
        yield await self.whole()

    def read(self) -> bytes:
        """The same, while everybody waits."""
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
    """What a ``--data`` means: ``-`` is standard input, ``@name`` a file; any other text is the data itself."""
    if value == "-":
        return Stdin()
    if len(value) > 1 and value.startswith("@"):
        return Loaded(value[1:])
    return Text(value)


async def whole(sources: Sequence[Source]) -> bytes:
    """The one payload of a request; empty without sources. Raises ``ValueError`` for more than one."""
    if len(sources) > 1:
        raise ValueError(f"data given {len(sources)} times: only a channel takes more than one payload")
    return await sources[0].whole() if sources else b""


async def each(sources: Sequence[Source]) -> AsyncGenerator[bytes, None]:
    """The payloads of a channel, in order; standard input gives one a line."""
    for source in sources:
        async with aclosing(source.lines()) as lines:
            async for line in lines:
                yield line


async def _in_thread(read: Callable[[], bytes]) -> bytes:
    # Nobody can interrupt a read of a terminal: whoever is cancelled leaves the thread behind, which ends with us.
    return await trio.to_thread.run_sync(read, abandon_on_cancel=True)


def _read_stdin() -> bytes:
    # Not sys.stdin: its lock, held by a thread left behind, would make the interpreter's end fail.
    try:
        return os.read(STDIN, READ_SIZE)
    except OSError as error:
        raise Failure(f"cannot read standard input: {error.strerror}") from error


def stdin_lines() -> Iterator[str]:
    """Standard input line by line, as it comes; bytes that are no UTF-8 are replaced."""
    rest = b""
    while chunk := _read_stdin():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
