"""Real connections, captured: both sides, all transports, sessions that resume, clients that connect anew."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import (
    ApplicationError,
    Payload,
    Responder,
    ResumeOptions,
    open_connection,
    open_connection_over,
    serve,
    serve_stream,
)
from rsocket_trio.capture import Capture
from rsocket_trio.capture.writers import TableWriter
from tests.capture.reading import Named, read
from tests.serving import running_server

PATIENCE = 60.0


def responder() -> Responder:
    """Echo by route and by default, ten ticks, and what fails."""
    made = Responder()

    @made.request_response("echo")
    @made.request_response
    def echo(request: Payload) -> bytes:
        return request.data

    @made.request_response("fail")
    def fail(request: Payload) -> bytes:
        raise ApplicationError("no")

    @made.request_stream("ticks")
    async def ticks(request: Payload) -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"%d" % number

    @made.request_stream("stuck")
    async def stuck(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        await trio.sleep_forever()

    return made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of captures."""
    return tmp_path / "capture"


@asynccontextmanager
async def serving(uri: str, **options: Any) -> AsyncIterator[str]:
    """A server for as long as the block, and where it listens."""
    with trio.fail_after(PATIENCE):
        async with running_server(responder(), uri, grace=0, **options) as bound:
            yield bound


def streams(directory: Path) -> list[tuple[Any, ...]]:
    """Return the outcome of each stream, in the order of their ends."""
    keys = ("side", "role", "route", "interaction", "n_in", "n_out", "outcome")
    return [tuple(row[key] for key in keys) for row in read(directory, "interactions")]


def add_up(frames: list[Named], connections: list[Named]) -> bool:
    """Return whether the counters of the connections are those of their rows."""
    return len(frames) == sum(int(row["frames_in"] + row["frames_out"]) for row in connections)


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0", "unix", "h2://127.0.0.1:0"])
async def test_both_sides_of_every_transport(uri: str, directory: Path, tmp_path: Path) -> None:
    where = f"unix://{tmp_path}/socket" if uri == "unix" else uri
    async with (
        serving(where, capture=directory / "server") as bound,
        open_connection(bound, capture=directory / "client") as connection,
    ):
        await connection.request_response(b"x" * 200_000, route="echo")
        with pytest.raises(ApplicationError):
            await connection.request_response(route="fail")
        async with connection.request_stream(route="ticks", initial_request_n=4) as ticks:
            assert len([tick async for tick in ticks]) == 10

    assert streams(directory / "client") == [
        ("client", "requester", "echo", "request_response", 1, 1, "complete"),
        ("client", "requester", "fail", "request_response", 0, 1, "error"),
        ("client", "requester", "ticks", "request_stream", 10, 1, "complete"),
    ]
    assert streams(directory / "server") == [
        ("server", "responder", "echo", "request_response", 1, 1, "complete"),
        ("server", "responder", "fail", "request_response", 1, 0, "error"),
        ("server", "responder", "ticks", "request_stream", 1, 10, "complete"),
    ]
    for side in "client", "server":
        frames, [connection_row] = read(directory / side, "frames"), read(directory / side, "connections")
        assert add_up(frames, [connection_row])
        assert connection_row["transport"] == bound.partition(":")[0]
        assert connection_row["drop_count"] == 0
    ours, theirs = (
        [
            (row["frame_type"], row["stream_id"], row["frame_bytes"])
            for row in read(directory / side, "frames")
            if row["dir"] == way
        ]
        for side, way in (("client", "out"), ("server", "in"))
    )
    assert ours == theirs


@pytest.mark.parametrize("dialect", ["rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft"])
async def test_a_session_that_is_resumed_is_one_on_both_sides(dialect: str, directory: Path) -> None:
    options = ResumeOptions(jitter=0, first_delay=0.01)
    cut: list[trio.SocketStream] = []
    async with serving("tcp://127.0.0.1:0", resume=options, capture=directory / "server") as bound:
        port = int(bound.rpartition(":")[2])

        async def connect() -> trio.SocketStream:
            cut.append(await trio.open_tcp_stream("127.0.0.1", port))
            return cut[-1]

        async with (
            open_connection_over(connect, dialect=dialect, resume=options, capture=directory / "client") as connection,
            connection.request_stream(route="stuck") as stuck,
        ):
            await anext(stuck)
            await cut[0].aclose()
            assert (await connection.request_response(b"after")).data == b"after"

    for side in "client", "server":
        rows = read(directory / side, "interactions")
        connections = read(directory / side, "connections")
        assert [(row["interaction"], row["outcome"]) for row in rows] == [
            ("request_response", "complete"),
            ("request_stream", "cancel"),
        ]
        assert sorted(row["resume_count"] for row in connections) == [0, 1]
        assert len({row["session_id"] for row in connections}) == 1
        assert rows[1]["conn_id"] == connections[0]["conn_id"]
    assert {row["session_id"] for row in read(directory / "client", "frames")} == {
        row["session_id"] for row in read(directory / "server", "frames")
    }


async def test_a_directory_that_cannot_be_written_to_is_refused_before_anything_is_dialled(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match=f"can't capture into {tmp_path}/file"):
        async with open_connection("tcp://127.0.0.1:1", capture=tmp_path / "file"):
            pass
    with pytest.raises(OSError, match="can't capture into"):
        await serve(Responder(), "tcp://127.0.0.1:0", capture=str(tmp_path / "file"))


@pytest.fixture
def stuck_writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The writer gets stuck until the event is set."""
    free = threading.Event()
    add = TableWriter.add

    def late(self: TableWriter, rows: Any, now: float) -> None:
        free.wait(PATIENCE)
        add(self, rows, now)

    monkeypatch.setattr(TableWriter, "add", late)
    yield free
    free.set()


async def test_a_writer_that_is_stuck_costs_frames_and_not_the_connection(
    directory: Path, stuck_writer: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    capture = Capture(directory, format="jsonl", buffer_frames=50)
    with caplog.at_level(logging.WARNING), trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: serve_stream(responder(), theirs))
            async with open_connection_over(ours, capture=capture) as connection:
                for _ in range(500):
                    await connection.request_response(b"x", route="echo")
        assert not stuck_writer.is_set()
        # What was seen before the writer got stuck is beside what the buffer holds.
        assert capture.dropped >= 800
        assert capture.error is None
        stuck_writer.set()
        await trio.to_thread.run_sync(capture.close)
    frames, [row] = read(directory, "frames"), read(directory, "connections")

    assert len(frames) + capture.dropped == 1 + 2 * 500
    assert row["drop_count"] == capture.dropped
    assert sum(frame["drop_count"] for frame in frames) <= capture.dropped
    assert caplog.records == []


async def test_bytes_that_wait_are_bounded_too(directory: Path, stuck_writer: threading.Event) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    capture = Capture(directory, format="jsonl", buffer_bytes=100_000)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: serve_stream(responder(), theirs, capture=capture))
            async with open_connection_over(ours) as connection:
                for _ in range(60):
                    await connection.request_response(b"x" * 10_000, route="echo")
    buffer = capture._buffer

    assert capture.dropped > 0
    assert buffer._put_bytes - buffer._taken_bytes < 100_000 + 2 * 65536
    stuck_writer.set()
    await trio.to_thread.run_sync(capture.close)
    assert len(read(directory, "frames")) + capture.dropped == 1 + 2 * 60
