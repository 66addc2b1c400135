"""Files as chunks, and chunks as files that are whole or not there."""

from __future__ import annotations

import errno
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio import ApplicationError, Channel, Incoming, Invalid, Payload, Responder
from rsocket_trio.services import FileTransferError, chunks, inside, save
from tests.connection.pairs import connected_pair

CONTENT = bytes(range(256)) * 4000
"""A million bytes, about: more than threads read at once."""


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "film"
    path.write_bytes(CONTENT)
    return path


async def content(*items: bytes | str | Payload) -> AsyncIterator[bytes | str | Payload]:
    for item in items:
        await trio.lowlevel.checkpoint()
        yield item


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Chunks


@pytest.mark.parametrize("size", [1000, 65_536, len(CONTENT), 10 * len(CONTENT)])
async def test_the_chunks_of_a_file_are_its_content(film: Path, size: int) -> None:
    pieces = [piece async for piece in chunks(film, size=size)]

    assert b"".join(pieces) == CONTENT
    assert {len(piece) for piece in pieces[:-1]} <= {size}


async def test_progress_counts_what_was_handed_on(film: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    pieces = chunks(film, size=400_000, progress=lambda done, total: seen.append((done, total)))
    await anext(pieces)
    assert seen == []
    await anext(pieces)
    assert seen == [(400_000, 1_024_000)]
    assert len([piece async for piece in pieces]) == 1

    assert [done for done, _ in seen] == [400_000, 800_000, 1_024_000]


@pytest.mark.parametrize(
    ("make", "kind"),
    [(lambda path: None, FileNotFoundError), (Path.mkdir, IsADirectoryError)],
    ids=["absent", "a directory"],
)
async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make: Callable[[Path], None], kind: type) -> None:
    path = tmp_path / "film"
    make(path)
    pieces = chunks(path)
    with pytest.raises(kind) as caught:
        await anext(pieces)

    assert str(path) in str(caught.value)


def test_chunks_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="chunks of 0 bytes"):
        chunks("film", size=0)


# Saving


async def test_what_a_stream_brings_becomes_a_file(tmp_path: Path) -> None:
    items = content(b"bytes, ", "text, ", Payload(b"payloads"), bytes(300_000), b"end")
    size = await save(items, tmp_path / "new")

    assert (tmp_path / "new").read_bytes() == b"bytes, text, payloads" + bytes(300_000) + b"end"
    assert size == 300_024
    assert names(tmp_path) == ["new"]


async def test_the_old_file_stands_until_the_new_one_is_whole(film: Path) -> None:
    async def items() -> AsyncIterator[bytes]:
        yield bytes(300_000)
        assert content_of(film) == CONTENT
        assert len(names(film.parent)) == 2
        assert names(film.parent)[0].startswith(".")
        yield b"end"

    await save(items(), film)

    assert content_of(film) == bytes(300_000) + b"end"
    assert names(film.parent) == ["film"]


async def test_a_stream_that_fails_leaves_nothing(film: Path) -> None:
    async def items() -> AsyncIterator[bytes]:
        yield bytes(300_000)
        raise ApplicationError("the disk of the peer")

    with pytest.raises(ApplicationError, match="the disk of the peer"):
        await save(items(), film)

    assert content_of(film) == CONTENT
    assert names(film.parent) == ["film"]


@pytest.mark.parametrize("sent", [0, 10, 300_000])
async def test_a_cancelled_save_leaves_nothing_and_closes_its_generator(film: Path, sent: int) -> None:
    closed = trio.Event()
    scope = trio.CancelScope()

    async def items() -> AsyncIterator[bytes]:
        try:
            yield bytes(sent)
            scope.cancel()
            await trio.sleep_forever()
        finally:
            closed.set()

    with scope:
        await save(items(), film)

    assert scope.cancelled_caught
    assert closed.is_set()
    assert content_of(film) == CONTENT
    assert names(film.parent) == ["film"]


async def test_more_than_the_limit_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    assert await save(content(b"12345", b"67890"), tmp_path / "new", limit=10) == 10
    with pytest.raises(FileTransferError, match=r"^large: more than 10 bytes$"):
        await save(content(b"12345", b"67890", b"!"), tmp_path / "large", limit=10)

    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize(
    ("items", "text"),
    [((b"123", b"45"), "5 bytes came, 6 were announced"), ((b"1234", b"567"), "more than 6 bytes")],
)
async def test_a_file_of_another_size_than_announced_is_none(
    tmp_path: Path, items: tuple[bytes, ...], text: str
) -> None:
    with pytest.raises(FileTransferError, match=f"^new: {text}"):
        await save(content(*items), tmp_path / "new", total=6)

    assert names(tmp_path) == []
    assert await save(content(b"123456"), tmp_path / "new", total=6) == 6


@pytest.mark.parametrize("path", ["absent/new", "folder"])
async def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    items = content(b"abc")
    with pytest.raises(OSError, match=f"{tmp_path}/{path}'$"):
        await save(items, tmp_path / path)

    assert names(tmp_path) == ["folder"]


def fill_disk(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let files that are written have so many bytes."""

    class Disk(io.FileIO):
        def write(self, data: Any, /) -> int:
            rest = room - self.tell()
            if rest <= 0:
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().write(memoryview(data)[: min(rest, 100_000)]) or 0

    monkeypatch.setattr(Path, "open", lambda path, mode: io.BufferedWriter(Disk(path, mode)))


async def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch, 0)
    with pytest.raises(OSError, match=f"no space left on device: '{tmp_path}/new'"):
        await save(content(b"abc"), tmp_path / "new")
    monkeypatch.undo()

    assert names(tmp_path) == []


# Names that a peer gives


@pytest.mark.parametrize("name", ["film", "films/new one", "films/linked", "f\u00fcr", 255 * "x"])
def test_a_name_inside_of_a_directory_is_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "linked").symlink_to(tmp_path / "film")

    assert inside(str(tmp_path), name).is_relative_to(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", ".", "..", "/etc/passwd", "../secret", "films/../../secret", "films/", "films//film", "./film"),
        *(".hidden", "films/.hidden", "a\0b", "a\nb", "a\\b", "\ud800"),
        *("out", "out/secret", "circle", "circle/film", "self"),
    ],
)
def test_a_name_that_leads_out_is_refused_without_the_directory(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "self").symlink_to(folder)
    with pytest.raises(Invalid, match=r"is no name of a file here$") as caught:
        inside(folder, name)

    assert str(tmp_path) not in str(caught.value).replace(name, "")


# Over a connection


async def test_a_file_goes_down_and_up_again(film: Path) -> None:
    responder = Responder()
    sent: list[int] = []

    @responder.request_stream("get")
    async def get(request: Payload) -> AsyncIterator[bytes]:
        path = inside(film.parent, request.text)
        async for piece in chunks(path, progress=lambda done, total: sent.append(done)):
            yield piece

    @responder.request_channel("put")
    async def put(channel: Channel) -> None:
        size = await save(channel, inside(film.parent, channel.request.text), limit=2_000_000)
        await channel.send(f"{size} bytes")

    async with connected_pair(responder) as pair:
        connection = pair.client
        async with connection.request_stream("film", route="get") as stream:
            assert await save(stream, film.with_name("copy"), total=len(CONTENT)) == len(CONTENT)
        assert film.with_name("copy").read_bytes() == CONTENT
        assert sent[-1] == len(CONTENT)

        async with connection.request_channel("again", route="put") as channel:
            async for piece in chunks(film):
                await channel.send(piece)
            await channel.send_eof()
            assert (await anext(channel)).text == f"{len(CONTENT)} bytes"
        assert film.with_name("again").read_bytes() == CONTENT

        with pytest.raises(Invalid, match=r"'\.\./film' is no name"):
            await rest_of(connection.request_stream("../film", route="get"))
        assert names(film.parent) == ["again", "copy", "film"]
        assert pair.server.faults.handler_errors == 0


async def rest_of(stream: Incoming) -> list[Payload]:
    async with stream:
        return [item async for item in stream]
