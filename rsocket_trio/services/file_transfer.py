"""Files over streams: their content as chunks, and chunks as a file that appears when it is whole, in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, ParamSpec, Self, TypeAlias, TypeVar

import attrs
import trio

from rsocket_trio.errors import ApplicationError, Invalid, readable
from rsocket_trio.payload import Payload, PayloadLike, as_bytes

T = TypeVar("T")
ArgumentsT = ParamSpec("ArgumentsT")
StrPath: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[int, int | None], object]
"""A plain function of the bytes done and the bytes in all, ``None`` if nobody knows them."""

IO_SIZE = 262_144
"""Bytes that one visit of a thread reads or writes, about: a visit costs as much as reading 200 KiB."""


class FileTransferError(ApplicationError):
    """A file that was received is too large, or of another size than announced.

    Its text names the file without the directory. A handler that lets it through tells its peer, and has not failed.
    """


def chunks(path: StrPath, *, size: int = 65_536, progress: Progress | None = None) -> Chunks:
    """Return the content of the file at ``path`` as an async iterator of bytes, to be yielded or sent by a handler.

    ``size`` is the bytes of a chunk; the last is shorter. ``progress`` is called with the position in the file and its
    size whenever a chunk was handed on and the next one is asked for.

    Raise ``ValueError`` for a size below 1, ``OSError``, which names the file, at the first chunk.
    """
    if size < 1:
        raise ValueError(f"chunks of {size} bytes: must be 1 or more")
    return Chunks(path, size, progress)


@attrs.define(eq=False)
class Chunks:
    """The chunks of a file; iterate over it in one task. What ``chunks`` returns.

    A thread reads ahead about 256 KiB. The file is opened at the first chunk and closed after the last one, when
    reading fails, and when the object is dropped.
    """

    _path: StrPath
    _size: int
    _progress: Progress | None
    _done: int = 0
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
            if self._file is None:
                self._file = open(self._path, "rb")  # noqa: SIM115 - closed with the object
                self._total = self._file.seek(0, os.SEEK_END)
                self._file.seek(0)
            for _ in range(-(-IO_SIZE // self._size)):
                chunk = self._file.read(self._size)
                if chunk:
                    self._ahead.append(chunk)
                if len(chunk) < self._size:
                    self._close()
                    break
        except OSError as error:
            self._close()
            error.filename = os.fspath(self._path)
            raise

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
) -> int:
    """Write what a stream brings to a file, which appears or is replaced when it is whole. Return its bytes.

    Until then they are in a hidden file beside it, which is removed if anything fails or the task is cancelled.
    ``stream`` yields payloads or bytes: an open stream or channel, or a generator, which is closed. Its credit is the
    back-pressure: no more is taken while a thread writes, 256 KiB at a time.

    A ``path`` that a peer names goes through ``inside`` first. ``progress`` is called with the bytes of the file so far
    and ``total`` after each item. The file will have ``total`` bytes, and another number is an error; it may have
    ``limit`` bytes.

    Raise ``FileTransferError`` for too many or too few bytes, ``OSError`` for what the system refuses. Both name the
    file.
    """
    name, limit = readable(os.path.basename(path)), total if limit is None else limit
    part = Path(path).with_name(f".{os.urandom(8).hex()}.part")
    buffer, done = bytearray(), 0
    file: BinaryIO | None = None
    try:
        file = await _in_thread(path, part.open, "xb")
        async for item in stream:
            data = item.data if isinstance(item, Payload) else as_bytes(item)
            done += len(data)
            if limit is not None and done > limit:
                raise FileTransferError(f"{name}: more than {limit} bytes")
            buffer += data
            if len(buffer) >= IO_SIZE:
                await _in_thread(path, file.write, buffer)
                buffer = bytearray()
            if progress is not None:
                progress(done, total)
        if total is not None and done != total:
            raise FileTransferError(f"{name}: {done} bytes came, {total} were announced")
        await _in_thread(path, _finish, file, buffer, part, path)
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_remove, file, part)
        raise
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    return done


async def _in_thread(
    path: StrPath, function: Callable[ArgumentsT, T], *args: ArgumentsT.args, **names: ArgumentsT.kwargs
) -> T:
    """Return the result of a function in a thread. Its ``OSError`` names the file of ``path``, not that beside it."""
    try:
        return await trio.to_thread.run_sync(partial(function, *args, **names))
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _finish(file: BinaryIO, data: bytearray, part: Path, path: StrPath) -> None:
    with file:
        file.write(data)
    part.replace(path)


def _remove(file: BinaryIO | None, part: Path) -> None:
    """Remove a file that is not whole. Raise no ``OSError``: an error is on its way."""
    with suppress(OSError):
        if file is not None:
            file.close()
    with suppress(OSError):
        part.unlink()


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
