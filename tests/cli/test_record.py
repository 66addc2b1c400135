"""``record`` as a process: what it keeps and serves, when it asks again, and every way in which it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ApplicationError, Channel, Outgoing, Payload, Responder, connect_forever, open_connection
from rsocket_trio.cli.client_command import Ask
from rsocket_trio.cli.record import StreamRecorder
from rsocket_trio.replay import Log, Record, read_source_payload
from tests.cli.commands import Running, hosting, run, started

LISTEN = "tcp://127.0.0.1:0"


class Feed:
    """A server whose stream sends the items that it is given, each once, and then what ``then`` says."""

    def __init__(self) -> None:
        self.sends, self._items = trio.open_memory_channel[object](1000)
        self.requests: list[bytes] = []
        self.responder = Responder()

        @self.responder.request_stream("ticks")
        async def ticks(request: Payload, out: Outgoing) -> None:
            await self._pass_on(request, out)

        @self.responder.request_channel("ticks")
        async def talk(channel: Channel) -> None:
            await self._pass_on(channel.request, channel)

        @self.responder.request_stream("broken")
        async def broken(request: Payload, out: Outgoing) -> None:
            raise ApplicationError("out of order")

    async def _pass_on(self, request: Payload, out: Outgoing | Channel) -> None:
        self.requests.append(request.data)
        async for item in self._items:
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            assert isinstance(item, Payload)
            await out.send(item)

    def send(self, *items: object) -> None:
        """Have the stream send these: text, payloads, an exception to fail with, ``None`` to complete."""
        for item in items:
            self.sends.send_nowait(Payload(item.encode()) if isinstance(item, str) else item)

    def serving(self, uri: str = LISTEN) -> AbstractAsyncContextManager[str]:
        """Serve it for as long as the block, and yield where."""
        return hosting(self.responder, uri)


@asynccontextmanager
async def recording(*words: object, cwd: Path, bound: int = 1) -> AsyncIterator[tuple[Running, list[str]]]:
    """The command, and the URIs that it prints."""
    async with started("record", *map(str, words), cwd=cwd) as recorder:
        lines = [await recorder.line() for _ in range(bound)]
        assert all(line.startswith("listening ") for line in lines), (lines, await recorder.end())
        yield recorder, [line.removeprefix("listening ") for line in lines]


async def rows(uri: str, count: int, route: str = "ticks", **options: Any) -> list[Record]:
    """Return so many rows from the first that there is, as soon as they are there."""
    found: list[Record] = []
    async with open_connection(uri, **options) as client:
        bounds = json.loads((await client.request_response(route=f"{route}.offsets")).data)
        wanted = json.dumps({"partition": 0, "from": bounds["0"]["earliest"]})
        async with client.request_stream(wanted, route=route) as items:
            while len(found) < count:
                found.append(read_source_payload(await anext(items)))
    return found


def datas(found: list[Record]) -> list[str]:
    return [(one.data or b"").decode() for one in found]


async def said(recorder: Running, text: str) -> str:
    """The next line on stderr with this text."""
    while line := await recorder.line("stderr"):
        if text in line:
            return line
    raise AssertionError(f"nothing with {text!r}")


@pytest.mark.parametrize("interaction", ["stream", "channel"])
async def test_a_live_stream_is_kept_and_can_be_read_again(interaction: str, tmp_path: Path) -> None:
    feed = Feed()
    words = ("ticks", "--to", "ticks.log", "--listen", LISTEN, "--interaction", interaction, "--data", "ACME")
    async with feed.serving() as uri, recording(uri, *words, cwd=tmp_path) as (_, (source,)):
        feed.send("one", Payload(b"two", b"beside it"))
        for _ in range(2):
            found = await rows(source, 2)
            assert [(one.position, one.data, one.metadata) for one in found] == [
                (0, b"one", None),
                (1, b"two", b"beside it"),
            ]

    assert feed.requests == [b"ACME"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_signal_ends_it_with_0_and_the_file_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    feed = Feed()
    words = ("ticks", "--to", "ticks.log", "--listen", LISTEN, "--log", "warning")
    async with feed.serving() as uri:
        async with recording(uri, *words, cwd=tmp_path) as (recorder, (source,)):
            feed.send("one")
            await rows(source, 1)
            recorder.process.send_signal(number)
            assert await recorder.end() == (0, "")
        async with recording(uri, *words, cwd=tmp_path) as (_, (source,)):
            feed.send("two")
            assert datas(await rows(source, 2)) == ["one", "two"]


async def test_a_server_that_is_away_is_waited_for_and_a_lost_connection_is_counted(tmp_path: Path) -> None:
    feed = Feed()
    uri = f"unix://{tmp_path}/feed"
    async with recording(uri, "ticks", "--to", "ticks.log", "--listen", LISTEN, cwd=tmp_path) as (recorder, (source,)):
        await said(recorder, "trying again")
        for number in range(2):
            async with feed.serving(uri):
                await said(recorder, f"ticks of {uri}: recording from position {number} on")
                feed.send(str(number))
                await rows(source, number + 1)
            line = await said(recorder, "the connection broke")
            assert f"behind {number + 1} items (reconnect {number + 1}), up to 256 that were on their way" in line

        assert datas(await rows(source, 2)) == ["0", "1"]


async def test_a_stream_that_completes_is_asked_for_again_on_the_next_connection_only(tmp_path: Path) -> None:
    feed = Feed()
    uri = f"unix://{tmp_path}/feed"
    async with recording(uri, "ticks", "--to", "ticks.log", "--listen", LISTEN, cwd=tmp_path) as (recorder, (source,)):
        async with feed.serving(uri):
            feed.send("one", None, "two")
            await said(recorder, "complete behind 1 items; it is asked for again on the next connection")
            assert datas(await rows(source, 1)) == ["one"]
            assert len(feed.requests) == 1
        async with feed.serving(uri):
            assert datas(await rows(source, 2)) == ["one", "two"]


@pytest.mark.parametrize(
    ("route", "code", "text"),
    [
        ("tickz", 5, "Rejected: no request_stream handler for route 'tickz'"),
        ("broken", 6, "ApplicationError: out of order"),
    ],
)
async def test_a_first_request_that_fails_is_an_error(route: str, code: int, text: str, tmp_path: Path) -> None:
    async with Feed().serving() as uri:
        result = await run(
            "record", uri, route, "--to", "ticks.log", "--listen", LISTEN, "--log", "error", cwd=tmp_path
        )

    assert (result.code, result.stderr.count("\n")) == (code, 1)
    assert result.stderr.startswith(text)


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("--listen", LISTEN), 2, "rsocket-trio record: missing option '--to'"),
    (("--to", "a.log", "--listen", "tls://127.0.0.1:0"), 2, "needs a certificate: --listen-cert"),
    (("--to", ".", "--listen", LISTEN), 1, ": a log is a file, and this is a folder"),
    (("--to", "text", "--listen", LISTEN), 1, "text: the log is damaged: file is not a database"),
]


@pytest.mark.parametrize(("words", "code", "text"), WRONG, ids=[text for _, _, text in WRONG])
async def test_a_mistake_is_one_line(words: tuple[str, ...], code: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no log, but long enough for one\n" * 100)
    result = await run("record", "tcp://127.0.0.1:9", "ticks", *words, "--log", "error", cwd=tmp_path)

    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert text in result.stderr


# The recorder in this process


@asynccontextmanager
async def recorder_of(feed: Feed, log: Log, credit: int, uri: str) -> AsyncIterator[trio.Nursery]:
    """Record the feed for as long as the block."""
    ask = Ask(uri=uri, route="ticks", limit_rate=credit)
    async with log, feed.serving(uri), trio.open_nursery() as nursery:
        recorder = StreamRecorder(log, Payload(b""), ask, uri, is_channel=False)
        async with connect_forever(uri, on_state=recorder.on_state) as client:
            nursery.start_soon(recorder.run, client)
            yield nursery
            nursery.cancel_scope.cancel()


async def test_credit_is_granted_for_what_is_committed_only(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, log, append_all = Feed(), Log(), Log.append_all

    async def slowly(self: Log, *args: Any, **more: Any) -> Any:
        await trio.sleep(100)
        return await append_all(self, *args, **more)

    monkeypatch.setattr(Log, "append_all", slowly)
    feed.send(*map(str, range(1000)))

    def sent() -> int:
        return 1000 - feed.sends.statistics().current_buffer_used

    async with recorder_of(feed, log, 10, "memory://recorded"):
        await trio.sleep(99)
        # One more is in the hands of the handler, which waits for credit.
        assert (log.bounds(0), sent()) == ((0, 0), 11)
        for _ in range(20):
            await trio.sleep(50)
            assert sent() <= log.bounds(0)[1] + 11
        assert log.bounds(0)[1] > 20
