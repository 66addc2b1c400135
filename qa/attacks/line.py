"""The attacker's end of a connection: bytes out and bytes in by plain sockets, with nothing of the code under test."""

from __future__ import annotations

import select
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from tests.conformance.raw import Raw, ask, parsed, prefixed, setup

CHUNK = 1 << 16


class Line:
    """One connection. ``came`` are the bytes read, ``sent`` counts bytes written, ``ended`` that the other closed."""

    def __init__(self, port: int | socket.socket) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30) if isinstance(port, int) else port
        self.socket.setblocking(False)
        self.opened = time.monotonic()
        self.came = bytearray()
        self.received = 0
        self.sent = 0
        self.first_at = 0.0
        """The time at which the first byte came."""
        self.ended = False
        self.ended_at = 0.0
        self.keeps = True
        """True if received bytes are kept, False if they are only counted."""

    def pour(
        self, chunks: Iterable[bytes], *, read: bool = True, patience: float = 10.0, longest: float = 120.0
    ) -> str:
        """Write all of this: ``sent``, or the other side ``closed``, or is ``stuck``: took nothing for so long."""
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT | (select.POLLIN if read else 0))
        until = time.monotonic() + longest
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                ready = poll.poll(patience * 1000)
                if not ready or time.monotonic() > until:
                    return "stuck"
                mask = ready[0][1]
                if mask & select.POLLIN:
                    self.take()
                if self.ended:
                    return "closed"
                if mask & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                    try:
                        count = self.socket.send(view[:CHUNK])
                    except BlockingIOError:
                        continue
                    except ConnectionError:
                        self._end()
                        return "closed"
                    self.sent += count
                    view = view[count:]
        return "sent"

    def send(self, data: bytes) -> bool:
        """Write a few bytes at once. Return whether the other side is still there."""
        try:
            self.socket.send(data)
        except BlockingIOError:
            return True
        except ConnectionError:
            self._end()
        return not self.ended

    def take(self) -> None:
        """Read the bytes that are there."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._end()
            return
        if not self.received:
            self.first_at = time.monotonic()
        self.received += len(data)
        if self.keeps:
            self.came += data

    def read(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Read until the other side closes, or until this holds. Return whether that was in time."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not (self.ended if until is None else until()):
            left = deadline - time.monotonic()
            if left <= 0 or (self.ended and until is not None):
                return False
            if poll.poll(min(left, 0.1) * 1000):
                self.take()
        return True

    def read_bytes(self, size: int, seconds: float = 10.0) -> bool:
        """Read so many bytes in sum."""
        return self.read(seconds, lambda: self.received >= size)

    @property
    def frames(self) -> list[Raw]:
        """The whole frames that came, behind lengths of 24 bits."""
        found, at, data = [], 0, bytes(self.came)
        while at + 3 <= len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            if at + 3 + size > len(data):
                break
            found.append(parsed(data[at + 3 : at + 3 + size]))
            at += 3 + size
        return found

    def close(self) -> None:
        """Go."""
        self.socket.close()

    def _end(self) -> None:
        self.ended = True
        self.ended_at = time.monotonic()


def warmed(port: int) -> Line:
    """A connection whose first request was answered: what that costs is not to count."""
    line = Line(port)
    line.send(prefixed(setup(), ask(1, b"warm")))
    assert line.read_bytes(13), "the first request was not answered"
    return line


def repeated(one: bytes, count: int) -> Iterable[bytes]:
    """The same bytes so often, in chunks of about 64 KiB."""
    per = max(1, CHUNK // len(one))
    whole, rest = divmod(count, per)
    block = one * per
    for _ in range(whole):
        yield block
    yield one * rest


def joined(parts: Iterable[bytes], size: int = CHUNK) -> Iterable[bytes]:
    """Small parts in chunks."""
    held: list[bytes] = []
    length = 0
    for part in parts:
        held.append(part)
        length += len(part)
        if length >= size:
            yield b"".join(held)
            held, length = [], 0
    yield b"".join(held)


def lifetimes(
    lines: Sequence[Line], seconds: float, *, drip: Callable[[int], bytes] | None = None, every: float = 0.2
) -> list[float]:
    """Wait until the other side has closed each of these lines: after how many seconds of its life.

    ``drip`` gives the byte of each turn, which goes to all of them.
    """
    waiting = selectors.DefaultSelector()
    for line in lines:
        waiting.register(line.socket, selectors.EVENT_READ, line)
    left, turn = len(lines), 0
    until = time.monotonic() + seconds
    due = time.monotonic()
    while left and time.monotonic() < until:
        if drip is not None and time.monotonic() >= due:
            due += every
            for line in lines:
                if not line.ended:
                    line.send(drip(turn))
            turn += 1
        for key, _ in waiting.select(min(0.05, every)):
            line = key.data
            line.take()
            if line.ended:
                waiting.unregister(line.socket)
                left -= 1
    waiting.close()
    return [line.ended_at - line.opened for line in lines if line.ended]
