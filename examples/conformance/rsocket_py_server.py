"""A server of rsocket-py with the interactions that the conformance cases need: ``python rsocket_py_server.py [PORT]``.

Install ``rsocket``. It prints ``listening URI`` and serves until it is ended. It grants leases if ``RSOCKET_WITH`` is
``leases``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from abc import abstractmethod
from collections import deque
from datetime import timedelta
from typing import Any

from reactivestreams.publisher import Publisher
from reactivestreams.subscriber import Subscriber
from reactivestreams.subscription import Subscription
from rsocket.lease import DefinedLease, LeasePublisher
from rsocket.payload import Payload
from rsocket.request_handler import BaseRequestHandler
from rsocket.rsocket_server import RSocketServer
from rsocket.transports.tcp import TransportTCP

HOST = "127.0.0.1"
PORT = 7878
BATCH = 64
"""Items that are sent before other tasks run."""
ITEMS_AHEAD = 4
"""Items that a channel's requester may send before one of them was echoed."""


class Source(Publisher, Subscription):  # type: ignore[misc,unused-ignore]  # the library has no types
    """Items, as far as there is credit for them."""

    def __init__(self) -> None:
        self.credit = 0
        self.done = False
        self.scheduled = False
        self.sink: Any = None

    @abstractmethod
    def is_over(self) -> bool:
        """Return whether no item is left, and none can come."""

    @abstractmethod
    def take(self) -> Payload | None:
        """Return the next item, or ``None`` if there is none yet."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Begin to send to this subscriber."""
        self.sink = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int) -> None:
        """Add credit."""
        self.credit += n
        self.wake()

    def cancel(self) -> None:
        """Send nothing more."""
        self.done = True

    def wake(self) -> None:
        """Send soon what can be sent."""
        if not self.scheduled and not self.done:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.send)

    def send(self) -> None:
        """Send a batch of items, and the end once nothing is left."""
        self.scheduled = False
        for _ in range(BATCH):
            if self.done:
                return
            if self.is_over():
                self.done = True
                self.sink.on_complete()
                return
            item = self.take() if self.credit else None
            if item is None:
                return
            self.credit -= 1
            self.sink.on_next(item, False)
        self.wake()


class Count(Source):
    """The numbers from 0, as many as were asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.next = 0
        self.end = int(data) if data else None

    def is_over(self) -> bool:
        """Return whether all numbers were sent."""
        return self.next == self.end

    def take(self) -> Payload:
        """Return the next number."""
        self.next += 1
        return Payload(b"%d" % (self.next - 1))


class Talk(Source, Subscriber):  # type: ignore[misc,unused-ignore]
    """Both halves of a channel that sends back what comes."""

    def __init__(self, first: Payload) -> None:
        super().__init__()
        self.waiting = deque([first])
        self.ended = False
        self.incoming: Any = None

    def is_over(self) -> bool:
        """Return whether the requester has completed, and all of its items were sent back."""
        return self.ended and not self.waiting

    def take(self) -> Payload | None:
        """Return the oldest item that was not sent back yet."""
        return self.waiting.popleft() if self.waiting else None

    def on_subscribe(self, subscription: Subscription) -> None:
        """Grant the first items."""
        self.incoming = subscription
        asyncio.get_running_loop().call_soon(subscription.request, ITEMS_AHEAD)

    def on_next(self, value: Payload, is_complete: bool = False) -> None:
        """Keep an item to send it back, and grant another one."""
        self.waiting.append(value)
        self.ended = is_complete
        if not is_complete:
            self.incoming.request(1)
        self.wake()

    def on_complete(self) -> None:
        """Complete once everything was sent back."""
        self.ended = True
        self.wake()

    def on_error(self, exception: Exception) -> None:
        """Send nothing more."""
        self.cancel()


class Leases(LeasePublisher):  # type: ignore[misc,unused-ignore]
    """Grants 3 requests for 2 seconds, and that again every 3 seconds."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Grant at once, and go on."""
        subscriber.on_next(DefinedLease(3, timedelta(seconds=2)))
        asyncio.get_running_loop().call_later(3, self.subscribe, subscriber)


class Handler(BaseRequestHandler):  # type: ignore[misc,unused-ignore]
    """The interactions, none of which needs a route."""

    async def request_response(self, payload: Payload) -> asyncio.Future[Payload]:
        """Answer with the request; never answer one that says ``silent``."""
        answer = asyncio.get_running_loop().create_future()
        if payload.data != b"silent":
            answer.set_result(Payload(payload.data, payload.metadata))
        return answer

    async def request_stream(self, payload: Payload) -> Count:
        """Count."""
        return Count(bytes(payload.data or b""))

    async def request_channel(self, payload: Payload) -> tuple[Talk, Talk]:
        """Send back each item."""
        talk = Talk(payload)
        return talk, talk


async def main(port: int) -> None:
    """Serve for ever."""

    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leases = Leases() if os.environ.get("RSOCKET_WITH") == "leases" else None
        RSocketServer(TransportTCP(reader, writer), handler_factory=Handler, lease_publisher=leases)

    server = await asyncio.start_server(session, HOST, port)
    print(f"listening tcp://{HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else PORT))
