"""The type checker finds a wrong handler where it is decorated, and lets a right one stay what it is.

That it takes right ones of every form is shown by the handlers of all other tests, which it reads as well.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.blocks import ROOT
from tests.missing import require

PATIENCE = 300.0

RIGHT = """
from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Protocol, assert_type

import attrs

from rsocket_trio import Connection, Lease, Outgoing, Payload, ReconnectingClient, Responder, Setup
from rsocket_trio.services import Service, Stream, TypedChannel
from rsocket_trio.services import fire_and_forget, request_channel, request_response, request_stream

responder = Responder()


@responder.request_response
async def echo(request: Payload) -> Payload:
    return request


@responder.request_response("upper")
def upper(request: Payload) -> bytes:
    return request.data.upper()


@responder.request_stream("items")
async def items(request: Payload) -> AsyncIterator[str]:
    yield "one"


@responder.lease
async def permits(setup: Setup) -> AsyncIterator[Lease]:
    yield Lease(1, 1)


# Partial and bound


async def with_database(database: str, request: Payload) -> bytes:
    return database.encode()


responder.request_response("partial")(functools.partial(with_database, "database"))


class Greeter:
    async def greet(self, request: Payload) -> bytes:
        return b"hello"

    async def __call__(self, request: Payload, out: Outgoing) -> None:
        await out.send(b"hello")


responder.request_response("greet")(Greeter().greet)
responder.request_stream("service")(Greeter())

# What is decorated stays what it was.

assert_type(upper(Payload()), bytes)
assert_type(items(Payload()), AsyncIterator[str])
assert_type(permits(Setup(dialect="rsocket/1.0")), AsyncIterator[Lease])


async def calls() -> None:
    assert_type(await echo(Payload()), Payload)


# Typed handlers


@attrs.frozen
class Order:
    symbol: str


@attrs.frozen
class Receipt:
    number: int


@responder.request_channel("bargain", requires=lambda user, call: user == "ada")
async def bargain(channel: TypedChannel[Order, Receipt]) -> None:
    async for order in channel:
        assert_type(order, Order)
        await channel.send(Receipt(1))


async def typed_calls(connection: Connection) -> None:
    assert_type(await connection.request_response(Order("A"), route="orders.place", reply=Receipt), Receipt)
    assert_type(await connection.request_response(b"", route="bytes"), Payload)
    async with connection.request_stream(route="ticks.A", items=Receipt) as stream:
        async for item in stream:
            assert_type(item, Receipt)
    async with connection.request_stream(route="bytes") as payloads:
        assert_type(await anext(payloads), Payload)
    async with connection.request_channel(route="negotiate", items=Receipt) as channel:
        await channel.send(Order("A"))
        assert_type(await anext(channel), Receipt)


# Contracts


class Orders(Service, Protocol, route="orders"):
    @request_response
    async def place(self, order: Order) -> Receipt: ...

    @request_stream("ticks.{symbol}")
    def ticks(self, symbol: str) -> Stream[Receipt]: ...

    @request_channel
    def negotiate(self) -> TypedChannel[Receipt, Order]: ...

    @fire_and_forget
    async def log(self, text: str) -> None: ...


async def remote_calls(connection: Connection, client: ReconnectingClient) -> None:
    orders = connection.remote(Orders)
    assert_type(await orders.place(Order("A")), Receipt)
    async with orders.ticks("A") as stream:
        assert_type(await anext(stream), Receipt)
    async with client.remote(Orders).negotiate() as channel:
        await channel.send(Order("A"))
        assert_type(await anext(channel), Receipt)
"""

WRONG = """
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from rsocket_trio import Channel, Connection, Lease, Payload, Responder, Setup
from rsocket_trio.services import Service, Stream, request_response, request_stream

responder = Responder()


@responder.request_stream("one")  # wrong
async def one(request: Payload) -> bytes:
    return b""


@responder.request_subscription  # wrong
async def price(request: Payload) -> bytes:
    return b""


@responder.request_channel("plain")  # wrong
def chat_at_once(channel: Channel) -> None:
    return


@responder.metadata_push  # wrong
async def pushed(metadata: Payload) -> None:
    return


@responder.setup  # wrong
async def meet(setup: Setup) -> None:
    return


@responder.lease  # wrong
async def permit(setup: Setup) -> Lease:
    return Lease(1, 1)


@responder.extension(7)  # wrong
async def take(stream_id: int, body: bytes) -> None:
    return


@responder.extension_entry("acme")  # wrong
def take_entry(content: object) -> None:
    return


@responder.on_error  # wrong
def report(error: Exception) -> None:
    return


@responder.around  # wrong
async def around_nothing() -> AsyncIterator[None]:
    yield


class Orders(Service, Protocol, route="orders"):
    @request_response
    async def place(self, order: str) -> int: ...

    @request_stream
    def ticks(self) -> Stream[int]: ...


class Misfit(Orders):
    async def place(self, order: int) -> int:  # wrong
        return order

    @request_stream
    async def ticks(self) -> AsyncIterator[int]:
        yield 1


class Incomplete(Orders):
    async def place(self, order: str) -> int:
        return 1


responder.serve_as(Orders, Incomplete())  # wrong


class OfItsOwn:
    async def place(self, order: str) -> int:
        return 1


class OfOtherItems(OfItsOwn):
    @request_stream
    async def ticks(self) -> AsyncIterator[str]:
        yield ""


class Undecorated(OfItsOwn):
    async def ticks(self) -> AsyncIterator[int]:
        yield 1


responder.serve_as(Orders, OfItsOwn())  # wrong
responder.serve_as(Orders, OfOtherItems())  # wrong
responder.serve_as(Orders, Undecorated())  # wrong
responder.serve_as(OfItsOwn, OfItsOwn())  # wrong
"""


class Finding(NamedTuple):
    """One error of the type checker."""

    line: int
    text: str


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    """Return what the type checker says of both."""
    require(None if find_spec("mypy") else "mypy is not installed")
    folder = tmp_path_factory.mktemp("handlers")
    files = {"right.py": RIGHT, "wrong.py": WRONG}
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary"]
    done = subprocess.run(
        [*command, *(str(folder / name) for name in files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    found: dict[str, list[Finding]] = {name: [] for name in files}
    for path, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found[Path(path).name].append(Finding(int(line), text))
    assert done.stderr == ""
    return found


def test_what_is_decorated_called_or_asked_for_has_its_own_type(findings: dict[str, list[Finding]]) -> None:
    assert findings["right.py"] == []


def test_every_wrong_handler_is_found_where_it_is_decorated(findings: dict[str, list[Finding]]) -> None:
    wrong = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")]

    assert [finding.line for finding in findings["wrong.py"]] == wrong


def test_the_errors_name_the_decorator_or_its_handler_and_the_type_that_was_found(
    findings: dict[str, list[Finding]],
) -> None:
    texts = [finding.text for finding in findings["wrong.py"]]

    assert texts[0] == (
        'Value of type variable "RequestStreamHandler" of function cannot be '
        '"Callable[[Payload], Coroutine[Any, Any, bytes]]"  [type-var]'
    )
    for text in texts:
        assert re.search(
            r'variable "\w+" .*cannot be "|variant of "\w+" of "Responder" matches argument type "'
            r'|incompatible with supertype "Orders"|abstract class "Incomplete" with abstract attribute "ticks"'
            r'|parameter "ServiceT" of "serve_as"|expected "Contract\[OfItsOwn\]"',
            text,
        )
