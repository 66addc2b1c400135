"""A client of rsocket-py that asks what a conformance case wants: ``rsocket-trio conformance --role client`` starts it.

Install ``rsocket``. ``RSOCKET_URI`` says where it connects, and ``RSOCKET_ASKS`` what it asks then.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from reactivestreams.publisher import Publisher
from reactivestreams.subscriber import Subscriber
from reactivestreams.subscription import Subscription
from rsocket.payload import Payload
from rsocket.request_handler import BaseRequestHandler
from rsocket.rsocket_client import RSocketClient
from rsocket.transports.tcp import TransportTCP

OCTETS = b"application/octet-stream"
CREDIT = 2
"""Items that a stream or channel asks for, once."""


class Echo(BaseRequestHandler):  # type: ignore[misc,unused-ignore]  # the library has no types
    """Answers each request/response with itself."""

    async def request_response(self, payload: Payload) -> asyncio.Future[Payload]:
        """Answer with the request."""
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(payload)
        return answer


class Items(Subscriber):  # type: ignore[misc,unused-ignore]
    """Takes the items of a stream. ``last`` is the last one, once the stream has completed."""

    def __init__(self) -> None:
        self.seen: deque[Payload] = deque(maxlen=1)
        self.last: asyncio.Future[Payload] = asyncio.get_running_loop().create_future()

    def on_subscribe(self, subscription: Subscription) -> None:
        """Ask for nothing more than at first."""

    def on_next(self, value: Payload, is_complete: bool = False) -> None:
        """Keep the item."""
        self.seen.append(value)
        if is_complete:
            self.on_complete()

    def on_complete(self) -> None:
        """Give the last item out."""
        if self.seen and not self.last.done():
            self.last.set_result(self.seen[0])

    def on_error(self, exception: Exception) -> None:
        """Stay: the connection is to go on."""


class Back(Publisher, Subscription, Subscriber):  # type: ignore[misc,unused-ignore]
    """Both halves of a channel that sends back what comes, as far as there is credit for it."""

    def __init__(self) -> None:
        self.waiting: deque[Payload] = deque()
        self.credit = 0
        self.sink: Any = None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Begin to send to this subscriber."""
        self.sink = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int) -> None:
        """Add credit."""
        self.credit += n
        asyncio.get_running_loop().call_soon(self.send)

    def cancel(self) -> None:
        """Send nothing more."""
        self.waiting.clear()

    def send(self) -> None:
        """Send what can be sent."""
        while self.credit and self.waiting:
            self.credit -= 1
            self.sink.on_next(Payload(self.waiting.popleft().data), False)

    def on_subscribe(self, subscription: Subscription) -> None:
        """Ask for nothing more than at first."""

    def on_next(self, value: Payload, is_complete: bool = False) -> None:
        """Send the item back."""
        self.waiting.append(value)
        self.send()

    def on_complete(self) -> None:
        """Stay."""

    def on_error(self, exception: Exception) -> None:
        """Stay."""


async def transports() -> AsyncIterator[TransportTCP]:
    """Connect once."""
    uri = urlsplit(os.environ["RSOCKET_URI"])
    yield TransportTCP(*await asyncio.open_connection(uri.hostname, uri.port))


async def main() -> None:
    """Connect, make the request and one more with what answered it, and stay."""
    asks = os.environ["RSOCKET_ASKS"]
    async with RSocketClient(
        transports(),
        handler_factory=Echo,
        data_encoding=OCTETS,
        metadata_encoding=OCTETS,
        keep_alive_period=timedelta(seconds=2),
        max_lifetime_period=timedelta(seconds=8),
    ) as client:
        answer: asyncio.Future[Payload] | None = None
        if asks == "request":
            answer = client.request_response(Payload(b"q"))
        elif asks == "stream":
            items = Items()
            client.request_stream(Payload(b"s")).initial_request_n(CREDIT).subscribe(items)
            answer = items.last
        elif asks == "channel":
            back = Back()
            client.request_channel(Payload(b"c"), back).initial_request_n(CREDIT).subscribe(back)
        if answer is not None:
            # A request that fails is no reason to go.
            with suppress(Exception):
                await client.request_response(Payload((await answer).data))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
