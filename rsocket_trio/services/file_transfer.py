"""Files over streams: their content as chunks, and chunks as a file that appears when it is whole, in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO, Self, TypeAlias

import attrs
import trio

from rsocket_trio.errors import ApplicationError, Invalid, readable
from rsocket_trio.payload import Payload, PayloadLike, as_bytes

StrPath: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[int, int | None], object]
"""A plain function of the bytes done and the bytes in all, ``None`` if nobody knows them."""

IO_SIZE = 262_144
"""Bytes that one visit of a thread reads or writes, about: a visit costs as much as reading 200 KiB."""


class FileTransferError(ApplicationError):
    """A file that was sent or received is too large, too short, or of another size than announced.

    Its text names the file without the directory. A handler that lets it through tells its peer, and has not failed.
    """


def chunks(path: StrPath, *, size: int = 65_536, progress: Progress | None = None, offset: int = 0) -> Chunks:
    """Return the content of the file at ``path`` as an async iterator of bytes, to be yielded or sent by a handler.

    ``size`` is the bytes of a chunk; the last is shorter. ``progress`` is called with the position in the file and its
    size whenever a chunk was handed on and the next one is asked for. ``offset`` is the number of bytes to skip.

    Raise ``ValueError`` for a size below 1, ``FileTransferError`` for an offset below 0 or, at the first chunk, beyond
    the end, ``OSError`` at the first chunk. Every error names the file.
    """
    if size < 1:
        raise ValueError(f"chunks of {size} bytes: must be 1 or more")
    if offset < 0:
        raise FileTransferError(f"{name_of(path)}: offset {offset}, must be 0 or more")
    return Chunks(path, size, progress, offset)


@attrs.define(eq=False)
class Chunks:
    """The chunks of a file; iterate over it in one task. What ``chunks`` returns.

    A thread reads ahead about 256 KiB. The file is opened at the first chunk and closed after the last one, when
    reading fails, and when the object is dropped.
    """

    _path: StrPath
    _size: int
    _progress: Progress | None
    _done: int
    _handed_on: int = 0
    _total: int = 0
    _file: BinaryIO | None = None
    _ahead: deque[bytes] = attrs.field(factory=deque)
    _ended: bool = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._done += self._handed_on
        if self._handed_on and self._progress is not None:
            self._progress(self._done, self._total)
        self._handed_on = 0
        if self._ahead or self._ended:
            await trio.lowlevel.checkpoint()
        else:
            await trio.to_thread.run_sync(self._read_ahead)
        if not self._ahead:
            raise StopAsyncIteration
        chunk = self._ahead.popleft()
        self._handed_on = len(chunk)
        return chunk

    def __del__(self) -> None:
        # A handler that its peer cancels drops the iterator that it is in the middle of.
        self._close()

    def _read_ahead(self) -> None:
        """Open the file if need be, and read some chunks. Runs in a thread."""
        try:
            file = self._file or self._open()
            for _ in range(-(-IO_SIZE // self._size)):
                chunk = file.read(self._size)
                if chunk:
                    self._ahead.append(chunk)
                if len(chunk) < self._size:
                    self._close()
                    break
        except OSError as error:
            self._close()
            error.filename = os.fspath(self._path)
            raise

    def _open(self) -> BinaryIO:
        self._file = file = open(self._path, "rb")  # noqa: SIM115 - closed with the object
        self._total = file.seek(0, os.SEEK_END)
        if self._done > self._total:
            self._close()
            raise FileTransferError(f"{name_of(self._path)}: offset {self._done} is beyond its {self._total} bytes")
        file.seek(self._done)
        return file

    def _close(self) -> None:
        self._ended = True
        if self._file is not None:
            self._file.close()


async def save(
    stream: AsyncIterable[PayloadLike],
    path: StrPath,
    *,
    progress: Progress | None = None,
    total: int | None = None,
    limit: int | None = None,
    partial: StrPath | None = None,
    offset: int = 0,
) -> int:
    """Write what a stream brings to a file, which appears or is replaced when it is whole. Return its bytes.

    Until then they are in a hidden file beside it, which is removed if anything fails or the task is cancelled.
    ``stream`` yields payloads or bytes: an open stream or channel, or a generator, which is closed. Its credit is the
    back-pressure: no more is taken while a thread writes, 256 KiB at a time.

    A ``path`` that a peer names goes through ``inside`` first. ``progress`` is called with the bytes of the file so far
    and ``total`` after each item. The file will have ``total`` bytes, and another number is an error; it may have
    ``limit`` bytes.

    To go on after a failure, give ``partial``, a path on the same file system: the bytes go there, and are kept if
    anything fails. ``offset`` of them are kept from the time before, and the stream brings what follows.

    Raise ``FileTransferError`` for too many or too few bytes, ``OSError`` for what the system refuses, ``ValueError``
    for an offset below 0 or without ``partial``. Every error names the file.
    """
    if offset < 0 or (offset and partial is None):
        raise ValueError(f"offset {offset}: must be 0 or more, and needs the file that is partial")
    name, limit = name_of(path), total if limit is None else limit
    writer = _Writer(path, partial, offset)
    buffer, done = bytearray(), offset
    try:
        await writer.run(writer.open)
        async for item in stream:
            data = item.data if isinstance(item, Payload) else as_bytes(item)
            done += len(data)
            if limit is not None and done > limit:
                raise FileTransferError(f"{name}: more than {limit} bytes")
            buffer += data
            if len(buffer) >= IO_SIZE:
                await writer.run(writer.write, buffer)
            if progress is not None:
                progress(done, total)
        if total is not None and done != total:
            raise FileTransferError(f"{name}: {done} bytes came, {total} were announced")
        await writer.run(writer.finish, buffer)
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(writer.give_up, buffer)
        raise
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    return done


class _Writer:
    """The file that ``save`` writes, under its temporary name. Its methods run in threads, by ``run``."""

    def __init__(self, path: StrPath, partial: StrPath | None, offset: int) -> None:
        self._path = Path(path)
        self._keeps = partial is not None
        self._part = self._path.with_name(f".{os.urandom(8).hex()}.part") if partial is None else Path(partial)
        self._offset = offset
        self._file: BinaryIO | None = None

    async def run(self, function: Callable[..., None], *arguments: bytearray) -> None:
        """Run a method in a thread. Its ``OSError`` names the file that was asked for, not the one beside it."""
        try:
            await trio.to_thread.run_sync(function, *arguments)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error

    def open(self) -> None:
        """Make the file, or open the one that is partial."""
        self._file = self._part.open("ab" if self._keeps else "xb")
        size = self._file.tell()
        if size < self._offset:
            raise FileTransferError(f"{name_of(self._part)}: offset {self._offset} is beyond its {size} bytes")
        self._file.truncate(self._offset)

    def write(self, data: bytearray) -> None:
        """Write all bytes, and clear ``data``, which is not written again if that fails."""
        assert self._file is not None
        taken = bytes(data)
        data.clear()
        self._file.write(taken)
        self._file.flush()

    def finish(self, data: bytearray) -> None:
        """Write the last bytes, and have the file take its place."""
        assert self._file is not None
        self.write(data)
        self._file.close()
        self._part.replace(self._path)

    def give_up(self, data: bytearray) -> None:
        """Remove the file, or keep it with the bytes that came last. Raise no ``OSError``: an error is on its way."""
        if self._file is None:
            return
        with suppress(OSError), closing(self._file):
            if self._keeps:
                self.write(data)
        if not self._keeps:
            self._part.unlink(missing_ok=True)


def inside(directory: StrPath, name: str) -> Path:
    """Return the path of the file ``name`` in ``directory``, for a name that a peer gave: no path leads out of it.

    A name has printable parts, parted by slashes, none of which begins with a dot: nothing above the directory, and
    nothing hidden, such as a file that is not whole. Links are followed, and must not lead out. That holds as long as
    nobody else makes links in the directory. Looks at the file system, and does not wait for slow ones.

    Raise ``Invalid``, which names the name and not the directory.
    """
    parts = name.split("/")
    if name.isprintable() and "\\" not in name and all(part and part[0] != "." for part in parts):
        folder = Path(directory).resolve()
        try:
            path = folder.joinpath(*parts).resolve()
        except (OSError, RuntimeError):  # too long, or links in a circle
            path = folder
        if path != folder and path.is_relative_to(folder):
            return path
    raise Invalid(f"{readable(name)!r} is no name of a file here")


def name_of(path: StrPath) -> str:
    """Return the last part of a path in a form that fits a message."""
    return readable(os.path.basename(path))
