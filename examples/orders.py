"""Orders as a typed service: a contract for both ends, credentials, deadlines, errors with details, live prices.

    python examples/orders.py    a server and its clients in one process

``Orders`` is what both ends know. The server implements it and ``responder.serve_as`` serves it; a client calls it on
``connection.remote``. Nobody writes a route, a codec or a check of types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from rsocket_trio import (
    ApplicationError,
    Connection,
    Invalid,
    Rejected,
    RejectedSetup,
    Responder,
    open_connection,
    serve,
)
from rsocket_trio.services import (
    Bearer,
    Broadcast,
    Call,
    Receiving,
    Service,
    Simple,
    Stream,
    TypedChannel,
    current_user,
    request_channel,
    request_response,
    request_stream,
)

LIMIT = 1000
"""Amount of the largest order."""


# What travels: types of the standard library; attrs, msgspec and pydantic will do as well


@dataclass
class Order:
    symbol: str
    amount: int


@dataclass
class Receipt:
    number: int
    customer: str
    total: float


@dataclass
class TooMuch:
    """The details of a refusal."""

    amount: int
    limit: int


@dataclass
class Tick:
    symbol: str
    price: float


@dataclass
class Answer:
    accepted: bool
    offer: float


class Orders(Service, Protocol, route="orders"):
    """The contract. Mypy holds both ends to it."""

    @request_response
    async def place(self, order: Order) -> Receipt: ...
    @request_response
    async def audit(self, year: int) -> str: ...
    @request_stream("ticks.{symbol}")
    def ticks(self, symbol: str, above: float = 0.0) -> Stream[Tick]: ...
    @request_channel
    def negotiate(self) -> TypedChannel[Answer, float]: ...


# The server


@dataclass
class User:
    name: str
    may_trade: bool = True


TOKENS = {"token of ada": User("ada"), "token of bob": User("bob", may_trade=False)}
PASSWORDS = {"carol": "secret"}


class OrderBook:
    """Implements the contract."""

    def __init__(self) -> None:
        self.prices = {"ACME": 12.0}
        self.ticks_of_all = Broadcast[Tick](size=16, policy="drop_oldest")
        self.calls: Counter[str] = Counter()
        self._placed = 0

    def set_price(self, symbol: str, price: float) -> None:
        self.prices[symbol] = price
        self.ticks_of_all.send_nowait(Tick(symbol, price))

    @request_response
    async def place(self, order: Order) -> Receipt:
        if order.symbol not in self.prices:
            raise Rejected(f"no such symbol: {order.symbol!r}")
        if order.amount > LIMIT:
            raise ApplicationError(details=TooMuch(order.amount, LIMIT), code=0x301)
        self._placed += 1
        return Receipt(self._placed, current_user(User).name, order.amount * self.prices[order.symbol])

    @request_response
    async def audit(self, year: int) -> str:
        await trio.sleep(3600)  # ended by the deadline of the caller, which travels with the call
        return f"all was well in {year}"

    @request_stream("ticks.{symbol}")
    async def ticks(self, symbol: str, above: float = 0.0) -> AsyncIterator[Tick]:
        async with self.ticks_of_all.subscribe() as ticks:
            yield Tick(symbol, self.prices[symbol])
            async for tick in ticks:
                if tick.symbol == symbol and tick.price > above:
                    yield tick

    @request_channel
    async def negotiate(self, offers: Receiving[float]) -> AsyncIterator[Answer]:
        async for offer in offers:
            accepted = offer >= self.prices["ACME"]
            yield Answer(accepted, offer)
            if accepted:
                return


def order_server(book: OrderBook) -> Responder:
    responder = Responder(auth_required=True)

    @responder.authenticate
    async def who_is_it(credentials: object, where: object) -> User | None:
        match credentials:
            case Bearer(token=token):
                return TOKENS.get(token)
            case Simple(username=name, password=password) if PASSWORDS.get(name) == password:
                return User(name)
        return None

    @responder.around
    async def count(call: Call) -> AsyncIterator[None]:
        try:
            yield
        finally:
            book.calls[f"{call.route} {call.outcome}"] += 1

    responder.serve_as(Orders, book, requires=lambda user, call: user.may_trade or call.interaction == "request_stream")
    return responder


# The clients


async def trade(connection: Connection, book: OrderBook) -> None:
    orders = connection.remote(Orders)
    receipt = await orders.place(Order("ACME", 10))
    print(f"{receipt.customer} bought 10 ACME for {receipt.total:.2f}, order {receipt.number}")
    try:
        await orders.place(Order("ACME", 5000))
    except ApplicationError as error:
        refusal = error.details_as(TooMuch)
        print(f"refused: {refusal.amount} are too many, {refusal.limit} is the limit")
    try:
        await orders.place(Order("NONE", 1))
    except Rejected as error:
        print(f"refused: {error}")
    try:
        await connection.request_response({"symbol": "ACME", "amount": "ten"}, route="orders.place")
    except Invalid as error:
        print(f"invalid: {error}")

    async with orders.ticks("ACME") as ticks:
        items = aiter(ticks)
        print(f"the price is {(await anext(items)).price}")
        for price in (12.5, 13.0):
            book.set_price("ACME", price)
            print(f"the price is {(await anext(items)).price}")

    async with orders.negotiate() as negotiation:
        for offer in (11.0, 12.5, 13.5):
            await negotiation.send(offer)
            answer = await anext(aiter(negotiation))
            print(f"offered {answer.offer}: {'accepted' if answer.accepted else 'refused'}")

    with trio.move_on_after(0.1):
        await orders.audit(2026)
    print("the audit took too long")


async def run() -> None:
    book = OrderBook()
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, order_server(book), "tcp://127.0.0.1:0"))
        async with open_connection(uri, auth=Bearer("token of ada"), deadlines=True) as connection:
            await trade(connection, book)
        async with open_connection(uri, auth=Bearer("token of bob")) as connection:
            try:
                await connection.remote(Orders).place(Order("ACME", 1))
            except Rejected as error:
                print(f"bob: {error}")
            receipt = await connection.remote(Orders, auth=Simple("carol", "secret")).place(Order("ACME", 1))
            print(f"{receipt.customer} bought 1 ACME for {receipt.total:.2f}, order {receipt.number}")
        try:
            async with open_connection(uri) as connection:
                await connection.remote(Orders).place(Order("ACME", 1))
        except RejectedSetup as error:
            print(f"without credentials: {error}")
        for call, times in sorted(book.calls.items()):
            print(f"{times} {call}")
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(run)
