"""Connections that wait at a listener that is about to be closed: how many are taken, and for how long."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio.transports import backlog
from rsocket_trio.transports.backlog import BACKLOG_TIMEOUT, QueueListener, take_waiting
from rsocket_trio.transports.socket_stream import SocketStream
from rsocket_trio.transports.sockets import SocketListener, bind_unix


class Stream(trio.abc.AsyncResource):
    """A connection that only is one."""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Queue(QueueListener[Stream]):
    """A listener at which something waits for as long as its outcomes go on."""

    def __init__(self, outcomes: Iterator[Stream | OSError | None]) -> None:
        self._outcomes = outcomes

    async def accept(self) -> Stream:
        raise AssertionError("nothing is waited for")

    def take_or_close(self) -> Stream | None:
        outcome = next(self._outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Slow(trio.abc.Listener[Stream]):
    """A listener that can't tell whether a connection waits: each takes some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def accept(self) -> Stream:
        await trio.sleep(self._seconds)
        return Stream()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def refuse(error: OSError) -> None:
    raise error


async def taken(listener: trio.abc.Listener[Stream]) -> int:
    """Return how many connections are taken by a task that is cancelled."""
    streams: list[Stream] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await take_waiting(listener, streams.append, refuse)
    return len(streams)


async def test_as_many_as_wait_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await taken(Queue(iter([None]))) == 0
    assert await taken(Queue(iter([*(Stream() for _ in range(100)), None]))) == 100
    monkeypatch.setattr(backlog, "DEFAULT_BACKLOG", 70)
    assert await taken(Queue(iter([Stream() for _ in range(70)]))) == 70


async def test_one_that_is_gone_already_hides_none_behind_it() -> None:
    outcomes: list[Stream | OSError | None] = [OSError(errno.ECONNABORTED, "gone"), Stream(), None]
    assert await taken(Queue(iter(outcomes))) == 1


async def test_a_lack_of_descriptors_is_waited_for_within_the_second(autojump_clock: MockClock) -> None:
    def shortage() -> Iterator[OSError]:
        while True:
            yield OSError(errno.EMFILE, "too many open files")

    waits: list[int] = []

    async def wait(error: OSError) -> None:
        assert error.errno == errno.EMFILE
        waits.append(1)
        await trio.sleep(0.3)

    await take_waiting(Queue(shortage()), lambda stream: None, wait)
    assert trio.current_time() == pytest.approx(BACKLOG_TIMEOUT)
    assert len(waits) == 4


async def test_a_listener_that_is_closed_has_none() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listener = SocketListener(listening)
    with socket.create_connection(listening.getsockname()):
        await listener.aclose()
        await take_waiting(listener, lambda stream: pytest.fail("closed"), refuse)


@pytest.mark.parametrize(("seconds", "number", "lasts"), [(0.005, 199, BACKLOG_TIMEOUT), (0.02, 0, backlog.QUIET_TIME)])
async def test_at_a_listener_that_cannot_tell_none_waits_once_none_comes(
    seconds: float, number: int, lasts: float, autojump_clock: MockClock
) -> None:
    assert await taken(Slow(seconds)) == pytest.approx(number, abs=1)
    assert trio.current_time() == pytest.approx(lasts)


async def test_the_path_of_a_unix_socket_goes_before_the_last_one_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listener = bind_unix(path, None, 8)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        seen: list[bool] = []

        def look(stream: SocketStream) -> None:
            seen.append(os.path.lexists(path))
            stream.close()

        await take_waiting(listener, look, refuse)
    await listener.aclose()
    assert seen == [False]
