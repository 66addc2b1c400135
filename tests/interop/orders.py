"""The orders service of this side: its types, its typed handlers, and what its users may do.

README.md lists the routes. A text is its UTF-8 on any connection, as a ``String`` of Spring is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol
from weakref import WeakKeyDictionary

import attrs

from rsocket_trio import ApplicationError, Connection, RejectedSetup, Responder, Setup, current_connection
from rsocket_trio.codecs import DEFAULT_CODECS, find_codec
from rsocket_trio.metadata import Credentials, route_of
from rsocket_trio.services import (
    Bearer,
    Receiving,
    Service,
    Simple,
    Stream,
    TypedChannel,
    current_user,
    fire_and_forget,
    request_channel,
    request_response,
    request_stream,
)

PRICE = 2.5
TICKS = 500
PASSWORDS = {"ann": "secret", "root": "toor"}
TOKENS = {"token-of-ann": "ann", "token-of-root": "root"}
ANN = Simple("ann", "secret")
ROOT = Simple("root", "toor")
TOKEN = Bearer("token-of-ann")


@attrs.frozen
class Order:
    symbol: str
    amount: int


@attrs.frozen
class Receipt:
    id: str
    total: float


@attrs.frozen
class Tick:
    symbol: str
    number: int
    price: float


@attrs.frozen
class Offer:
    price: float


@attrs.frozen
class Answer:
    price: float
    accepted: bool


@attrs.frozen
class Document:
    text: str


@attrs.frozen
class Reason:
    """The details of an error."""

    reason: str
    left: int


@attrs.frozen
class Hello:
    """The data of a SETUP."""

    name: str


REASON = Reason("sold out", 2)


def ticks_of(symbol: str, since: int = 0) -> list[Tick]:
    """Return all ticks of a symbol from this number on."""
    return [Tick(symbol, number, number * PRICE) for number in range(since, TICKS)]


def answer_to(offer: Offer) -> Answer:
    return Answer(offer.price, offer.price >= PRICE)


class Orders(Service, Protocol, route="orders"):
    """The contract of the orders."""

    @request_response
    async def place(self, order: Order) -> Receipt: ...
    @fire_and_forget
    async def note(self, order: Order) -> None: ...
    @request_response
    async def notes(self) -> list[Order]: ...
    @request_response
    async def clear(self) -> None: ...


class Market(Service, Protocol):
    """The contract of the rest: its routes begin with no common word."""

    @request_stream("ticks.{symbol}")
    def ticks(self, symbol: str, since: int = 0) -> Stream[Tick]: ...
    @request_channel
    def negotiate(self) -> TypedChannel[Answer, Offer]: ...
    @request_response
    async def large(self, document: Document) -> Document: ...
    @request_response
    async def fail(self, order: Order) -> Receipt: ...


class OrderBook:
    """The orders as this side serves them."""

    def __init__(self) -> None:
        self._notes: list[Order] = []

    async def place(self, order: Order) -> Receipt:
        return Receipt(f"{order.symbol}-{order.amount}", order.amount * PRICE)

    async def note(self, order: Order) -> None:
        self._notes.append(order)

    async def notes(self) -> list[Order]:
        return self._notes

    async def clear(self) -> None:
        self._notes.clear()


class OpenMarket:
    """The market as this side serves it."""

    @request_stream
    async def ticks(self, symbol: str, since: int = 0) -> AsyncIterator[Tick]:
        for tick in ticks_of(symbol, since):
            yield tick

    @request_channel
    async def negotiate(self, offers: Receiving[Offer]) -> AsyncIterator[Answer]:
        async for offer in offers:
            yield answer_to(offer)

    async def large(self, document: Document) -> Document:
        return Document(document.text + "!")

    async def fail(self, order: Order) -> Receipt:
        raise ApplicationError(details=REASON)


def user_of(credentials: Credentials) -> str:
    """Return the name of a user. Raise ``LookupError`` for wrong credentials."""
    match credentials:
        case Bearer(token):
            return TOKENS[token]
        case Simple(name, password) if PASSWORDS.get(name) == password:
            return name
        case _:
            raise LookupError("no such user")


def orders_responder(*, auth_required: bool = False) -> Responder:
    """Return the service. With ``auth_required`` a SETUP without credentials is refused."""
    responder = Responder(auth_required=auth_required)
    names: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()

    @responder.authenticate
    def authenticate(credentials: Credentials, where: object) -> str:
        return user_of(credentials)

    @responder.setup
    def setup(setup: Setup, connection: Connection) -> None:
        route = route_of(setup.payload.metadata, setup.metadata_mime)
        if route is None:
            return
        word, _, place = route.partition(".")
        if word != "hello":
            raise RejectedSetup(f"no route {route}")
        octets = setup.data_mime == "application/octet-stream"
        codec = DEFAULT_CODECS[0] if octets else find_codec(DEFAULT_CODECS, str(setup.data_mime))
        hello: Hello = codec.decode(setup.payload.data, Hello)
        names[connection] = f"{hello.name} of {place}"

    @responder.request_response("name")
    def name() -> str:
        return names.get(current_connection(), "nobody")

    responder.serve_as(Orders, OrderBook())
    responder.serve_as(Market, OpenMarket())

    @responder.request_channel("negotiate.{symbol}")
    async def negotiate_about(symbol: str, channel: TypedChannel[Offer, str]) -> None:
        async for offer in channel:
            await channel.send(f"{symbol} at {offer.price}")

    @responder.request_stream("fail.stream")
    async def fail_stream() -> AsyncIterator[Tick]:
        for tick in ticks_of("ACME")[:3]:
            yield tick
        raise ApplicationError(details=REASON)

    @responder.request_channel("fail.channel")
    async def fail_channel(offers: Receiving[Offer]) -> AsyncIterator[Answer]:
        count = 0
        async for offer in offers:
            yield Answer(offer.price, True)
            count += 1
            if count == 2:
                raise ApplicationError(details=REASON)

    @responder.request_response("whoami")
    async def whoami() -> str:
        return str(current_user() or "nobody")

    @responder.request_response("secret", requires=lambda user, call: True)
    async def secret() -> str:
        return str(current_user())

    @responder.request_response("admin", requires=lambda user, call: user == "root")
    async def admin() -> str:
        return str(current_user())

    @responder.request_response("greet")
    async def greet(name: str) -> str:
        return f"Hello {name}"

    @responder.request_response("callback")
    async def callback() -> str:
        connection = current_connection()
        name = await connection.request_response(Hello("server"), route="client.name", reply=str)
        count = 0
        async with connection.request_stream(route="client.ticks.ACME", items=Tick) as ticks:
            async for _ in ticks:
                count += 1
                if count == 3:
                    break
        return f"{name} has {count}"

    return responder


def called_responder() -> Responder:
    """Return what our client serves to the server that it is connected to."""
    responder = Responder()

    @responder.request_response("client.name")
    async def name(hello: Hello) -> str:
        return f"rsocket-trio for {hello.name}"

    @responder.request_stream("client.ticks.{symbol}")
    async def ticks(symbol: str) -> AsyncIterator[Tick]:
        for tick in ticks_of(symbol):
            yield tick

    return responder
