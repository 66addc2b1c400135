"""Files over streams: their content as chunks, and chunks as a file that appears when it is whole. A thread does the
file I/O."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self, TypeAlias, cast

import trio

from rsocket_trio.errors import ApplicationError, Invalid, readable
from rsocket_trio.payload import Payload, PayloadLike, as_bytes

StrPath: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[int, int | None], object]
"""A plain function of the bytes done and the bytes in all, ``None`` if nobody knows them."""

IO_SIZE = 262_144
"""Bytes that one visit of a thread reads or writes, about: a visit costs as much as reading 200 KiB."""
LONGEST_NAME = 255
"""Bytes of UTF-8 of one part of a name; what file systems allow."""


class FileTransferError(ApplicationError):
    """A file that was sent or received is not what it was said to be: too large, too short, or of another size.

    ``data`` is the text, which names the file without its directory. A handler that lets it through tells its peer, and
    does not count as failed.
    """


class BinaryFile(Protocol):
    """The part of a file object in binary mode that ``chunks`` uses."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        ...

    def seekable(self) -> bool:
        """Return whether the file has positions."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to ``offset``, counted from the place that ``whence`` says."""
        ...

    def tell(self) -> int:
        """Return the position."""
        ...


class AsyncBinaryFile(Protocol):
    """A file of ``trio.open_file`` in binary mode."""

    @property
    def wrapped(self) -> BinaryFile:
        """The file object that it stands for."""
        ...


def chunks(
    file: StrPath | BinaryFile | AsyncBinaryFile,
    *,
    size: int = 65_536,
    progress: Progress | None = None,
    offset: int = 0,
) -> Chunks:
    """Return the content of a file as an async iterator of bytes, to be yielded or sent by a handler.

    ``file`` is a path, or a file object in binary mode, which is read from its position on and left open. ``size`` is
    the bytes of a chunk; the last is shorter. ``progress`` is called with the position in the file and its size
    whenever a chunk was handed on and the next one is asked for, and at the end; for an empty file once. ``offset`` is
    the number of bytes to skip.

    Raise ``ValueError`` for a size below 1, ``FileTransferError`` for an offset below 0 or, at the first chunk, beyond
    the end. The first chunk also raises the ``OSError`` of opening. Every error names the file.
    """
    return Chunks(file, size, progress, offset)


class Chunks:
    """The chunks of a file; iterate over it in one task. What ``chunks`` returns.

    A thread reads ahead up to 256 KiB, in files that have positions. The file is opened at the first chunk and closed
    after the last one, when reading fails, and when the object is dropped; ``async with`` closes it with its block.
    """

    def __init__(
        self, file: StrPath | BinaryFile | AsyncBinaryFile, size: int, progress: Progress | None, offset: int
    ) -> None:
        if size < 1:
            raise ValueError(f"chunks of {size} bytes: must be 1 or more")
        self._path = os.fspath(file) if isinstance(file, str | os.PathLike) else None
        self._given: BinaryFile | None = None
        if not isinstance(file, str | os.PathLike):
            wrapped: BinaryFile | None = getattr(file, "wrapped", None)
            self._given = wrapped if wrapped is not None else cast("BinaryFile", file)
        self._name = name_of(self._path or getattr(self._given, "name", None))
        if offset < 0:
            raise FileTransferError(f"{self._name}: offset {offset}, must be 0 or more")
        self._file: BinaryFile | None = None
        self._own: BinaryIO | None = None
        self._size = size
        self._progress = progress
        self._offset = offset
        self._done = 0
        self._handed_on = 0
        self._total: int | None = None
        self._ahead: deque[bytes] = deque()
        self._ended = False
        self._reported = False
        self._reading = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._handed_on:
            self._done += self._handed_on
            self._handed_on = 0
            self._report()
        if self._ahead or self._ended:
            await trio.lowlevel.checkpoint()
        else:
            await self._read()
        if not self._ahead:
            if not self._reported:
                self._report()
            raise StopAsyncIteration
        chunk = self._ahead.popleft()
        self._handed_on = len(chunk)
        return chunk

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def aclose(self) -> None:
        """Do what ``close`` does; a checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Read no more, and close the file unless it was given as an object. Do nothing the second time."""
        self._ended = True
        self._ahead.clear()
        if not self._reading:
            self._close_file()

    def __del__(self) -> None:
        # A handler that its peer cancels drops the iterator that it is in the middle of.
        own = getattr(self, "_own", None)
        if own is not None:
            own.close()

    def _report(self) -> None:
        self._reported = True
        if self._progress is not None:
            self._progress(self._done, self._total)

    async def _read(self) -> None:
        if self._reading:
            raise trio.BusyResourceError("another task reads these chunks")
        self._reading = True
        try:
            await trio.to_thread.run_sync(self._read_ahead)
        except OSError as error:
            error.filename = error.filename or self._path or self._name
            raise
        finally:
            self._reading = False
            if self._ended:
                self._close_file()

    def _read_ahead(self) -> None:
        """Open the file if need be, and read some chunks. Runs in a thread."""
        try:
            file = self._file or self._open()
            left = IO_SIZE if self._total is not None else 1
            while left > 0:
                chunk: object = file.read(self._size)
                if not isinstance(chunk, bytes):
                    raise TypeError(f"{self._name}: not in binary mode, reading gives {type(chunk).__name__}")
                if not chunk:
                    self._ended = True
                    return
                self._ahead.append(chunk)
                left -= len(chunk)
        except BaseException:
            self._ahead.clear()
            self._ended = True
            raise

    def _open(self) -> BinaryFile:
        if self._path is not None:
            self._own = open(self._path, "rb")  # noqa: SIM115 - closed with the object
        file = self._own or self._given
        assert file is not None
        if file.seekable():
            start = file.tell()
            self._total = file.seek(0, os.SEEK_END)
            self._done = start + self._offset
            if self._done > self._total:
                raise FileTransferError(f"{self._name}: offset {self._offset} is beyond its {self._total} bytes")
            file.seek(self._done)
        elif self._offset:
            raise FileTransferError(f"{self._name}: has no offsets")
        self._file = file
        return file

    def _close_file(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()


async def save(
    stream: AsyncIterable[PayloadLike],
    path: StrPath,
    *,
    progress: Progress | None = None,
    total: int | None = None,
    limit: int | None = None,
    fsync: bool = False,
    partial: StrPath | None = None,
    offset: int = 0,
) -> int:
    """Write what a stream brings to a file, which appears or is replaced when it is whole. Return its bytes.

    Until then the bytes are in a hidden file beside it, which is removed if anything fails or the task is cancelled. If
    ``save`` returns, the file is in its place; if it raises, what was there is unchanged, but for a directory that does
    not reach the disk under ``fsync``. ``stream`` yields payloads or bytes: an open stream or channel, or a generator,
    which is closed. Its credit is the back-pressure: no more is taken while a thread writes, 256 KiB at a time.

    ``path`` is the file; one that a peer names goes through ``inside`` first. ``progress`` is called with the bytes of
    the file so far and ``total`` after each item, and once for an empty file. ``total`` is the number of bytes that the
    file will have; another number is an error. ``limit`` is the number of bytes that it may have. With ``fsync`` the
    file and its name are on the disk when ``save`` returns.

    To go on after a failure, give ``partial``, a path on the same file system: the bytes go there, and are kept if
    anything fails. ``offset`` of them are kept from the time before, and the stream brings what follows.

    Raise ``FileTransferError`` for too many or too few bytes, ``OSError`` for what the system refuses, ``ValueError``
    for an offset below 0 or without ``partial``. Every error names the file.
    """
    if offset < 0 or (offset and partial is None):
        raise ValueError(f"offset {offset}: must be 0 or more, and needs the file that is partial")
    writer = _Writer(path, partial, offset, fsync=fsync)
    buffer = bytearray()
    done = offset
    try:
        await writer.open()
        async for item in stream:
            data = item.data if isinstance(item, Payload) else as_bytes(item)
            done += len(data)
            if limit is not None and done > limit:
                raise FileTransferError(f"{writer.name}: more than {limit} bytes")
            if total is not None and done > total:
                raise FileTransferError(f"{writer.name}: more than the {total} bytes that were announced")
            buffer += data
            if len(buffer) >= IO_SIZE:
                await writer.write(buffer)
                buffer.clear()
            if progress is not None:
                progress(done, total)
        if total is not None and done < total:
            raise FileTransferError(f"{writer.name}: {done} bytes came, {total} were announced")
        if done == offset and progress is not None:
            progress(done, total)
        await writer.finish(buffer)
    except BaseException:
        await writer.give_up(buffer)
        raise
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    return done


class _Writer:
    """The file that ``save`` writes, under its temporary name."""

    def __init__(self, path: StrPath, partial: StrPath | None, offset: int, *, fsync: bool) -> None:
        self._path = Path(path)
        self._keeps = partial is not None
        self._part = self._path.with_name(f".{os.urandom(8).hex()}.part") if partial is None else Path(partial)
        self._offset = offset
        self._fsync = fsync
        self._file: int | None = None
        self._is_partial = False
        self._failed = False
        self.name = name_of(path)

    async def open(self) -> None:
        await self._in_thread(self._open)

    async def write(self, data: bytearray) -> None:
        await self._in_thread(self._write, data)

    async def finish(self, data: bytearray) -> None:
        """Write the last bytes, and have the file take its place."""
        await self._in_thread(self._finish, data)

    async def give_up(self, data: bytearray) -> None:
        """Remove the file, or keep it with the bytes that came last. Raise no ``OSError``: an error is on its way."""
        if self._is_partial:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._give_up, data)

    async def _in_thread(self, function: Callable[..., None], *arguments: bytearray) -> None:
        try:
            await trio.to_thread.run_sync(function, *arguments)
        except OSError as error:
            self._failed = True
            # The caller knows the file that was asked for, not the one beside it.
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error

    def _open(self) -> None:
        if self._path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(self._path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._part, flags if self._keeps else flags | os.O_EXCL, 0o666)
        self._is_partial = True
        size = os.fstat(self._file).st_size
        if size < self._offset:
            raise FileTransferError(f"{name_of(self._part)}: offset {self._offset} is beyond its {size} bytes")
        os.ftruncate(self._file, self._offset)
        os.lseek(self._file, self._offset, os.SEEK_SET)

    def _write(self, data: bytearray) -> None:
        assert self._file is not None
        with memoryview(data) as rest:
            written = 0
            while written < len(rest):
                written += os.write(self._file, rest[written:])

    def _finish(self, data: bytearray) -> None:
        assert self._file is not None
        self._write(data)
        if self._fsync:
            os.fsync(self._file)
        self._close()
        self._part.replace(self._path)
        self._is_partial = False
        if self._fsync:
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _give_up(self, data: bytearray) -> None:
        with suppress(OSError):
            if self._keeps and not self._failed:
                self._write(data)
        with suppress(OSError):
            self._close()
        if not self._keeps:
            with suppress(OSError):
                self._part.unlink()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def inside(directory: StrPath, name: str) -> Path:
    """Return the path of the file ``name`` in ``directory``, for a name that a peer gave: no path leads out of it.

    A name has printable parts, parted by slashes, none of which begins with a dot: nothing above the directory, and
    nothing hidden, such as a file that is not whole. Links are followed, and must not lead out. That holds as long as
    nobody else makes links in the directory. Looks at the file system, and does not wait for slow ones.

    Raise ``Invalid``, which names the name and not the directory.
    """
    parts = name.split("/")
    if name.isprintable() and "\\" not in name and all(_is_plain(part) for part in parts):
        folder = Path(directory).resolve()
        try:
            path = folder.joinpath(*parts).resolve()
        except (OSError, RuntimeError):  # links in a circle, before Python 3.13
            path = folder
        if _is_circle(path):
            path = folder
        if path != folder and path.is_relative_to(folder):
            return path
    raise Invalid(f"{readable(name)!r} is no name of a file here")


def _is_circle(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _is_plain(part: str) -> bool:
    return part != "" and part[0] != "." and len(part.encode()) <= LONGEST_NAME


def name_of(path: object) -> str:
    """Return the last part of a path in a form that fits a message, or a word for a file without one."""
    return readable(os.path.basename(path)) if isinstance(path, str | os.PathLike) else "file"
