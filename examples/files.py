"""Files over Streamux: downloads and an upload in chunks, and pings that overtake them.

The protocol has no routes, so the first line of a request says what is wanted: ``get NAME`` or ``put NAME``. It has no
errors either: here an answer begins with ``+``, and with ``-`` where ``encode_error`` made it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    Responder,
    RSocketError,
    StreamuxOptions,
    open_connection,
    serve,
)
from rsocket_trio.services import chunks, inside, save

LONGEST_LINE = 200
MIB = 2**20
LARGEST_UPLOAD = 64 * MIB


def file_server(folder: Path) -> Responder:
    """Serves the files of a folder and of those in it, and takes new ones."""
    responder = Responder()

    @responder.request_channel
    async def files(channel: Channel) -> None:
        verb, name, rest = await first_line(channel)
        path = inside(folder, name)  # raises Invalid for a name that leads out, and for what is hidden
        if verb == "get" and await trio.Path(path).is_file():
            await send_file(channel, path)
        elif verb == "put":
            size = await save(content(rest, channel), path, limit=LARGEST_UPLOAD)
            await channel.send(f"+stored {size} bytes")
        else:
            raise ApplicationError(f"cannot {verb} {name!r}")

    return responder


async def first_line(channel: Channel) -> tuple[str, str, bytes]:
    """Its two words, and what came behind it: the borders of chunks mean nothing."""
    came = b""
    async for chunk in channel:
        came += chunk.data
        line, newline, rest = came.partition(b"\n")
        if newline and len(line) <= LONGEST_LINE:
            verb, _, name = line.decode(errors="replace").partition(" ")
            return verb, name, rest
        if len(came) > LONGEST_LINE:
            break
    raise ApplicationError("the first line must be 'get NAME' or 'put NAME'")


async def content(rest: bytes, channel: Channel) -> AsyncIterator[bytes]:
    """Yield the bytes that came behind the first line, and all that follow."""
    yield rest
    async for chunk in channel:
        yield chunk.data


async def send_file(channel: Channel, path: Path) -> None:
    await channel.send("+")
    try:
        async for piece in chunks(path):
            await channel.send(piece)  # waits while too much waits to be written
    except trio.Cancelled:
        print(f"server: {path.name} was not wanted to its end")
        raise


def as_answer(error: RSocketError) -> bytes:
    return f"-{error}".encode()


async def begin(channel: Channel) -> bytes:
    """Return the data behind the ``+`` of an answer. Raise ``ApplicationError`` with the text behind a ``-``."""
    first = (await anext(channel)).data
    if first.startswith(b"+"):
        return first[1:]
    raise ApplicationError((first[1:] + b"".join([chunk.data async for chunk in channel])).decode())


async def download(connection: Connection, name: str, target: Path, *, at_most: float = float("inf")) -> int:
    """Get a file, or stop when so many bytes came, and keep nothing; how many came."""
    came = 0

    def count(done: int, total: int | None) -> None:
        nonlocal came
        came = done
        if done >= at_most:
            enough.cancel()

    with trio.CancelScope() as enough:
        async with connection.request_channel(f"get {name}\n") as channel:
            await channel.send_eof()
            await save(content(await begin(channel), channel), target, progress=count)
    return came


async def upload(connection: Connection, source: Path) -> str:
    """Send a file; the server's word about it."""
    async with connection.request_channel(f"put {source.name}\n") as channel:
        # A server that answers before it has all of it wants no more: then its answer says why.
        with suppress(Canceled):
            async for piece in chunks(source):
                await channel.send(piece)
            await channel.send_eof()
        return (await begin(channel)).decode()


async def show_pings(connection: Connection) -> None:
    while True:
        print(f"ping: {1000 * await connection.ping():.1f} ms")
        await trio.sleep(0.05)


async def talk(connection: Connection, folder: Path) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show_pings, connection)
        size = await download(connection, "film", folder / "film")
        print(f"downloaded {size // MIB} MiB while pings went to and fro")
        nursery.cancel_scope.cancel()

    size = await download(connection, "film", folder / "half", at_most=size / 2)
    print(f"left the second download half way: {size // MIB} MiB")

    (folder / "notes").write_text("a few lines\n")
    print(f"uploaded notes: {await upload(connection, folder / 'notes')}")

    try:
        await download(connection, "../film", folder / "stolen")
    except ApplicationError as error:
        print(f"refused: {error}")


async def run(served: Path, own: Path) -> None:
    (served / "film").write_bytes(bytes(64 * MIB))
    options = StreamuxOptions(qa=True, encode_error=as_answer)
    async with trio.open_nursery() as nursery:
        start = partial(serve, file_server(served), "tcp://127.0.0.1:0", dialects="streamux/1", streamux=options)
        [uri] = await nursery.start(start)
        async with open_connection(uri, dialect="streamux/1") as connection:
            await talk(connection, own)
        nursery.cancel_scope.cancel()


def main() -> None:
    with tempfile.TemporaryDirectory() as served, tempfile.TemporaryDirectory() as own:
        trio.run(run, Path(served), Path(own))


if __name__ == "__main__":
    main()
