"""A listening socket that several processes share, and what waits at a listener that is about to be closed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio.transports import listen
from rsocket_trio.transports.listen import take_waiting
from rsocket_trio.transports.sockets import STEP_BACK, QueueListener, SharedListener, SocketListener


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket that listens, as a supervisor has one."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as bound:
        yield bound


def share(listening: socket.socket) -> SharedListener:
    return SharedListener(os.dup(listening.fileno()))


def alone(listening: socket.socket) -> SocketListener:
    return SocketListener(listening.dup())


async def test_idle_processes_take_turns(listening: socket.socket, autojump_clock: MockClock) -> None:
    got: list[str] = []
    took = trio.Semaphore(0)
    one, other = share(listening), share(listening)

    async def accept(name: str, listener: SharedListener) -> None:
        while True:
            stream = await listener.accept()
            got.append(name)
            took.release()
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept, "one", one)
        nursery.start_soon(accept, "other", other)
        for _ in range(6):
            # Both are waiting when the connection comes: neither steps back still.
            await trio.sleep(2 * STEP_BACK)
            with socket.create_connection(listening.getsockname()):
                await took.acquire()
        nursery.cancel_scope.cancel()
    await one.aclose()
    await other.aclose()

    assert sorted(got[:2]) == sorted(got[2:4]) == sorted(got[4:]) == ["one", "other"]


@pytest.mark.parametrize("listen", [share, alone])
async def test_a_listener_that_is_closed_wakes_who_waits_and_the_socket_listens_on(
    listening: socket.socket, listen: Callable[[socket.socket], SocketListener]
) -> None:
    listener = listen(listening)
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        await listener.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
    await listener.aclose()
    socket.create_connection(listening.getsockname()).close()


class Stream(trio.abc.AsyncResource):
    """A connection that only is one."""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Queue(QueueListener[Stream]):
    """A listener at which something waits for as long as its outcomes go on."""

    def __init__(self, outcomes: Iterator[Stream | None]) -> None:
        self._outcomes = outcomes

    async def accept(self) -> Stream:
        raise AssertionError("nothing is waited for")

    def take_or_close(self) -> Stream | None:
        return next(self._outcomes)

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
    monkeypatch.setattr(listen, "BACKLOG", 70)
    assert await taken(Queue(iter([Stream() for _ in range(70)]))) == 70
