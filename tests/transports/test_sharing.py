"""A listening socket that several processes accept from: they take turns, and share what waits in the queue."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio.transports.sockets import IN_A_ROW, STEP_BACK, SharedListener, SocketListener


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


async def test_of_what_waits_in_the_queue_some_are_left_to_others(
    listening: socket.socket, autojump_clock: MockClock
) -> None:
    listener = share(listening)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(2 * IN_A_ROW + 1)]
    times: list[float] = []
    for client in clients:
        stream = await listener.accept()
        times.append(trio.current_time())
        await stream.aclose()
        client.close()
    await listener.aclose()

    pauses = [number // IN_A_ROW for number in range(len(clients))]
    assert times == pytest.approx([STEP_BACK * pause for pause in pauses])


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


class Troubled:
    """A socket whose first accept fails."""

    def __init__(self, inner: socket.socket, number: int) -> None:
        self._inner = inner
        self._numbers = [number]

    def accept(self) -> Any:
        if self._numbers:
            raise OSError(self._numbers.pop(), "trouble")
        return self._inner.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_one_connection_that_was_aborted_is_not_the_end(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = share(listening)
    monkeypatch.setattr(listener, "socket", Troubled(listener.socket, errno.ECONNABORTED))
    with socket.create_connection(listening.getsockname()):
        stream = await listener.accept()
        await stream.aclose()
    await listener.aclose()


async def test_a_lack_of_descriptors_is_the_callers_business(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = share(listening)
    monkeypatch.setattr(listener, "socket", Troubled(listener.socket, errno.EMFILE))
    with pytest.raises(OSError, match="trouble"):
        await listener.accept()
    await listener.aclose()
