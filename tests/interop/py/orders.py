"""The asyncio peer of the orders service, with the library's own router, serializers, routes and credentials.

``python -m tests.interop.py.orders``: prints ``listening URI``, then does one check for each line of standard input,
which says CHECK URI MIME, and answers ``ok CHECK`` or ``FAILED CHECK: why``. README.md lists routes and checks.
"""

# No annotations from the future: the router looks at the types themselves.
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import cbor2
from reactivestreams.subscriber import Subscriber
from rsocket.awaitable.awaitable_rsocket import AwaitableRSocket
from rsocket.error_codes import ErrorCode
from rsocket.exceptions import RSocketProtocolError
from rsocket.extensions.authentication import AuthenticationBearer, AuthenticationSimple
from rsocket.extensions.authentication_content import AuthenticationContent
from rsocket.extensions.composite_metadata import CompositeMetadata
from rsocket.extensions.helpers import (
    authenticate_bearer,
    authenticate_simple,
    composite,
    data_mime_type,
    data_mime_types,
    require_route,
    route,
)
from rsocket.payload import Payload
from rsocket.routing.request_router import RequestRouter
from rsocket.routing.routing_request_handler import RoutingRequestHandler
from rsocket.rsocket_client import RSocketClient
from rsocket.rsocket_server import RSocketServer
from rsocket.streams.stream_from_generator import StreamFromGenerator
from rsocket.transports.tcp import TransportTCP

from tests.interop.py.client import transports
from tests.interop.py.peer import COMPOSITE, HOST, Ahead, Queue, Source, lines, say
from tests.interop.py.server import serve_tcp

PATIENCE = 20.0
PRICE = 2.5
TICKS = 500
CREDIT = 32
JSON = b"application/json"
CBOR = b"application/cbor"
OCTETS = "application/octet-stream"
PASSWORDS = {"ann": "secret", "root": "toor"}
TOKENS = {"token-of-ann": "ann", "token-of-root": "root"}


@dataclass(frozen=True)
class Order:
    symbol: str
    amount: int


@dataclass(frozen=True)
class Receipt:
    id: str
    total: float


@dataclass(frozen=True)
class Tick:
    symbol: str
    number: int
    price: float


@dataclass(frozen=True)
class Offer:
    price: float


@dataclass(frozen=True)
class Answer:
    price: float
    accepted: bool


@dataclass(frozen=True)
class Hello:
    name: str


def encode(value: Any) -> bytes:
    return json.dumps(asdict(value) if is_dataclass(value) and not isinstance(value, type) else value).encode()


def decode(kind: Any, data: Any) -> Any:
    content = json.loads(bytes(data))
    return kind(**content) if isinstance(kind, type) and is_dataclass(kind) else content


def serialize(kind: Any, value: Any) -> Payload:
    """Texts go as they are, as Spring sends them."""
    return Payload(value.encode() if isinstance(value, str) else encode(value))


def deserialize(kind: Any, payload: Payload) -> Any:
    return decode(kind, payload.data)


def ticks(symbol: str, since: int = 0) -> Iterator[Tick]:
    return (Tick(symbol, number, number * PRICE) for number in range(since, TICKS))


def stream(items: Iterator[Any]) -> Source:
    return Source(Ahead(Payload(encode(item)) for item in items))


# ---- what it serves


class Credentials:
    """Who sent some metadata."""

    @staticmethod
    def user(metadata: CompositeMetadata) -> str | None:
        """Return the user, or ``None`` if there are no credentials. Raise if they are wrong."""
        for item in metadata.items:
            if isinstance(item, AuthenticationContent):
                return Credentials.check(item.authentication)
        return None

    @staticmethod
    def check(authentication: Any) -> str:
        if isinstance(authentication, AuthenticationBearer) and authentication.token.decode() in TOKENS:
            return TOKENS[authentication.token.decode()]
        if isinstance(authentication, AuthenticationSimple):
            name, password = str(authentication.username, "utf-8"), str(authentication.password, "utf-8")
            if PASSWORDS.get(name) == password:
                return name
        raise RSocketProtocolError(ErrorCode.REJECTED, data="not allowed")


class Answers(Subscriber):  # type: ignore[misc,unused-ignore]  # the library has no types
    """The offers of a channel, each answered."""

    def __init__(self, first: Payload) -> None:
        self.queue = Queue()
        self.source = Source(self.queue.following)
        if first.data:
            self.on_next(first)

    def on_subscribe(self, subscription: Any) -> None:
        self.subscription = subscription
        # The library subscribes before it has heard of the requester's end.
        asyncio.get_running_loop().call_soon(subscription.request, 2**31 - 1)

    def on_next(self, value: Payload, is_complete: bool = False) -> None:
        if value.data:
            offer = decode(Offer, value.data)
            self.queue.items.append(Payload(encode(Answer(offer.price, offer.price >= PRICE))))
        self.queue.ended = self.queue.ended or is_complete
        self.source.wake()

    def on_complete(self) -> None:
        self.queue.ended = True
        self.source.wake()

    def on_error(self, exception: Exception) -> None:
        self.source.cancel()


class Handler(RoutingRequestHandler):  # type: ignore[misc,unused-ignore]  # the library has no types
    """Serves one connection."""

    notes: ClassVar[list[Order]] = []

    def __init__(self) -> None:
        super().__init__(self.routes())
        self.socket: Any = None
        self.user: str | None = None
        self.name = "nobody"
        self.failed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def on_setup(self, data_encoding: bytes, metadata_encoding: bytes, payload: Payload) -> None:
        await super().on_setup(data_encoding, metadata_encoding, payload)
        if payload.metadata:
            metadata = CompositeMetadata().parse(payload.metadata)
            self.user = Credentials.user(metadata)
            if payload.data:
                _, _, place = require_route(metadata).partition(".")
                self.name = f"{decode(Hello, payload.data).name} of {place}"

    async def on_error(self, error_code: ErrorCode, payload: Payload) -> None:
        if not self.failed.done():
            self.failed.set_result((int(error_code), bytes(payload.data or b"").decode()))

    async def on_close(self, rsocket: Any, exception: Exception | None = None) -> None:
        pass

    def who(self, metadata: CompositeMetadata) -> str | None:
        return Credentials.user(metadata) or self.user

    def routes(self) -> RequestRouter:
        router = RequestRouter(deserialize, serialize)

        @router.response("orders.place")
        async def place(order: Order) -> Receipt:
            return Receipt(f"{order.symbol}-{order.amount}", order.amount * PRICE)

        @router.fire_and_forget("orders.note")
        async def note(order: Order) -> None:
            self.notes.append(order)

        @router.response("orders.notes")
        async def notes() -> list:  # type: ignore[type-arg]
            return [asdict(note) for note in self.notes]

        @router.response("orders.clear")
        async def clear() -> Payload:
            self.notes.clear()
            return Payload()

        # The router has no variables.
        @router.stream("ticks.ACME")
        async def stream_of_ticks(payload: Payload) -> Source:
            return stream(ticks("ACME", json.loads(bytes(payload.data)) if payload.data else 0))

        @router.channel("negotiate")
        async def negotiate(payload: Payload) -> tuple[Source, Answers]:
            found = Answers(payload)
            return found.source, found

        @router.response("whoami")
        async def whoami(composite_metadata: CompositeMetadata) -> str:
            return self.who(composite_metadata) or "nobody"

        @router.response("secret")
        async def secret(composite_metadata: CompositeMetadata) -> str:
            if user := self.who(composite_metadata):
                return user
            raise RSocketProtocolError(ErrorCode.REJECTED, data="not allowed")

        @router.response("name")
        async def name() -> str:
            return self.name

        return router


# ---- what it asks


class Client:
    """A connection, with requests as the library's helpers make them. ``mime`` is the connection's data MIME type, or
    ``entry`` for one of octets whose requests each say that they are JSON."""

    def __init__(self, socket: Any, mime: str) -> None:
        self.socket = socket
        self.plain = AwaitableRSocket(socket)
        self.mime = mime

    def payload(self, name: str, value: Any = None, *entries: Any) -> Payload:
        if self.mime == "entry":
            entries = (*entries, data_mime_type(JSON))
        return Payload(b"" if value is None else encode(value), composite(route(name), *entries))

    async def ask(self, name: str, value: Any = None, *entries: Any) -> bytes:
        return bytes((await self.plain.request_response(self.payload(name, value, *entries))).data or b"")

    async def lives(self) -> None:
        expect(Receipt("ACME-3", 7.5), decode(Receipt, await self.ask("orders.place", Order("ACME", 3))))

    async def fails(self, name: str, value: Any = None, *entries: Any) -> Exception:
        try:
            await self.ask(name, value, *entries)
        except (RSocketProtocolError, RuntimeError) as error:
            return error
        raise AssertionError("it did not fail")


@asynccontextmanager
async def connected(uri: str, mime: str, setup: Payload | None = None) -> AsyncIterator[Client]:
    settings = {
        "handler_factory": Handler,
        "data_encoding": OCTETS if mime == "entry" else mime,
        "metadata_encoding": COMPOSITE,
        "setup_payload": setup,
    }
    async with RSocketClient(transports("tcp", urlsplit(uri).port or 0), **settings) as socket:
        yield Client(socket, mime)


def expect(expected: Any, got: Any) -> None:
    if expected != got:
        raise AssertionError(f"expected {str(expected)[:200]}, got {str(got)[:200]}")


async def response(client: Client) -> None:
    for amount in range(20):
        reply = decode(Receipt, await client.ask("orders.place", Order("ACME", amount)))
        expect(Receipt(f"ACME-{amount}", amount * PRICE), reply)


async def whole_stream(client: Client) -> None:
    items = await client.plain.request_stream(client.payload("ticks.ACME"), CREDIT)
    expect(list(ticks("ACME")), [decode(Tick, item.data) for item in items if item.data])


async def over_channel(client: Client, name: str, offers: list[Offer]) -> list[bytes]:
    """Return the data of the answers. The first offer opens the channel."""
    items = [(Payload(encode(offer)), offer is offers[-1]) for offer in offers[1:]]
    publisher = StreamFromGenerator(lambda: iter(items)) if items else None  # type: ignore[arg-type,return-value,unused-ignore]
    opening = client.payload(name, offers[0])
    answers = await client.plain.request_channel(opening, publisher, CREDIT)
    return [bytes(item.data) for item in answers if item.data]


async def channel(client: Client) -> None:
    offers = [Offer(float(price)) for price in range(100)]
    answers = [decode(Answer, data) for data in await over_channel(client, "negotiate", offers)]
    expect([Answer(offer.price, offer.price >= PRICE) for offer in offers], answers)


async def invalid_field(client: Client) -> None:
    error = await client.fails("orders.place", {"symbol": "ACME", "amount": "many"})
    assert isinstance(error, RSocketProtocolError)
    expect((ErrorCode.INVALID, "$.amount: expected int, got str"), (error.error_code, error.data))


async def mime_entry(client: Client) -> None:
    metadata = composite(route("orders.place"), data_mime_type(CBOR))
    reply = await client.plain.request_response(Payload(cbor2.dumps({"symbol": "ACME", "amount": 3}), metadata))
    expect({"id": "ACME-3", "total": 7.5}, cbor2.loads(bytes(reply.data)))


async def accept_entry(client: Client) -> None:
    reply = await client.ask("orders.place", Order("ACME", 3), data_mime_types(CBOR, JSON))
    expect({"id": "ACME-3", "total": 7.5}, cbor2.loads(reply))


def user_of(credentials: Callable[[], Any]) -> Callable[[Client], Awaitable[None]]:
    async def check(client: Client) -> None:
        expect(b"ann", await client.ask("secret", None, credentials()))
        expect(b"nobody", await client.ask("whoami"))

    return check


def refused(credentials: Callable[[], Any] | None) -> Callable[[Client], Awaitable[None]]:
    async def check(client: Client) -> None:
        await client.fails("secret", None, *([credentials()] if credentials is not None else []))
        await client.lives()

    return check


CHECKS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "response": response,
    "stream": whole_stream,
    "channel": channel,
    "invalid-field": invalid_field,
    "mime-entry": mime_entry,
    "accept-entry": accept_entry,
    "simple": user_of(lambda: authenticate_simple("ann", "secret")),
    "bearer": user_of(lambda: authenticate_bearer("token-of-ann")),
    "simple-refused": refused(lambda: authenticate_simple("ann", "guess")),
    "bearer-refused": refused(lambda: authenticate_bearer("token-of-nobody")),
    "anonymous-refused": refused(None),
}


async def setup(uri: str, mime: str) -> None:
    async with connected(uri, mime, Payload(encode(Hello("ann")), composite(route("hello.Oslo")))) as client:
        expect(b"ann of Oslo", await client.ask("name"))


def user_in_setup(credentials: Callable[[], Any]) -> Callable[[str, str], Awaitable[None]]:
    async def check(uri: str, mime: str) -> None:
        async with connected(uri, mime, Payload(b"", composite(credentials()))) as client:
            expect(b"ann", await client.ask("whoami"))
            expect(b"ann", await client.ask("secret"))

    return check


def setup_refused(credentials: Callable[[], Any] | None) -> Callable[[str, str], Awaitable[None]]:
    async def check(uri: str, mime: str) -> None:
        with_credentials = Payload(b"", composite(credentials())) if credentials is not None else None
        async with connected(uri, mime, with_credentials) as client:
            code, _ = await client.socket._handler.failed
            expect(ErrorCode.REJECTED_SETUP, code)

    return check


SETUPS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "setup": setup,
    "simple-setup": user_in_setup(lambda: authenticate_simple("ann", "secret")),
    "bearer-setup": user_in_setup(lambda: authenticate_bearer("token-of-ann")),
    "simple-setup-refused": setup_refused(lambda: authenticate_simple("ann", "guess")),
    "bearer-setup-refused": setup_refused(lambda: authenticate_bearer("token-of-nobody")),
    "setup-without-user": setup_refused(None),
}


async def check(name: str, uri: str, mime: str) -> None:
    async with asyncio.timeout(PATIENCE):
        if name in SETUPS:
            await SETUPS[name](uri, mime)
        else:
            async with connected(uri, mime) as client:
                await CHECKS[name](client)


async def main() -> None:
    def start(transport: TransportTCP) -> None:
        server = RSocketServer(transport, handler_factory=Handler)
        server._handler.socket = server

    say(f"listening tcp://{HOST}:{await serve_tcp(start)}")
    reader = await lines()
    while line := (await reader.readline()).decode():
        name, uri, mime = line.split()
        try:
            await check(name, uri, mime)
        except (Exception, asyncio.CancelledError) as error:
            say(f"FAILED {name}: {type(error).__name__} {error}".replace("\n", " "))
        else:
            say(f"ok {name}")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
