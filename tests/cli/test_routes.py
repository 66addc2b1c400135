"""``routes``: what it prints of a server, and how it ends where there is no description; ``serve`` counts routes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rsocket_trio import Responder
from rsocket_trio.cli import routes
from rsocket_trio.services.description import DESCRIPTION_ROUTE
from tests.cli.commands import hosting, run, started
from tests.each_row import each_row
from tests.missing import require

APP = """
from collections.abc import AsyncIterator
from dataclasses import dataclass
from rsocket_trio import Payload, Responder
from rsocket_trio.services import Receiving

responder = Responder(describe=True)

@dataclass
class Order:
    symbol: str
    amount: int

@dataclass
class Receipt:
    order: Order

@responder.request_response("orders.place")
async def place(order: Order) -> Receipt:
    return Receipt(order)

@responder.request_response("orders.find.{number}")
async def find(number: int, text: str, limit: int = 10) -> list[Receipt] | None:
    return None

@responder.request_stream("ticks.{symbol}")
async def ticks(symbol: str, since: float = 0.0) -> AsyncIterator[dict[str, float]]:
    yield {}

@responder.request_channel("negotiate")
async def negotiate(offers: Receiving[Order]) -> AsyncIterator[Receipt]:
    async for offer in offers:
        yield Receipt(offer)

@responder.fire_and_forget("note")
async def note(text: str) -> None:
    return

@responder.request_response("ping")
async def ping() -> str:
    return "pong"

@responder.request_response
def echo(request: Payload) -> Payload:
    return request
"""
LINES = [
    "-                     request_response  bytes -> bytes",
    "negotiate             request_channel   stream of Order -> stream of Receipt",
    "note                  fire_and_forget   str",
    "orders.find.{number}  request_response  {text: str, limit?: int} -> list[Receipt] | None",
    "orders.place          request_response  Order -> Receipt",
    "ping                  request_response  () -> str",
    "ticks.{symbol}        request_stream    float -> stream of dict[str, float]",
]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A directory with the module ``app``."""
    require(None if find_spec("msgspec") else "msgspec is not installed")
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def answering(function: Any) -> Responder:
    responder = Responder()
    responder.request_response(DESCRIPTION_ROUTE)(function)
    return responder


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["here", "workers"])
async def test_serve_counts_its_routes_and_routes_shows_them(app: Path, workers: tuple[str, ...]) -> None:
    listen = ["--listen", "tcp://127.0.0.1:0", "--listen", "ws://127.0.0.1:0/rsocket"]
    async with started("serve", "app:responder", *listen, *workers, cwd=app) as server:
        uris = [(await server.line()).removeprefix("listening ") for _ in range(2)]
        counted = await server.line()
        shown = [await run("routes", uri) for uri in uris]

    assert counted == "routes 7"
    for each in shown:
        assert (each.code, each.stderr) == (0, "")
        assert each.stdout.splitlines() == LINES


async def test_a_server_without_a_description_is_code_5() -> None:
    async with hosting(Responder()) as uri:
        shown = await run("routes", uri)

    said = "Rejected: the server does not describe its routes, as a Responder(describe=True) does\n"
    assert (shown.code, shown.stdout, shown.stderr) == (5, "", said)


@each_row(
    ("answer", "reason"),
    [
        (b"hello", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"routes": [1]}', "no list of routes"),
        (b"[" * 100_000, "too many levels of JSON"),
    ],
    ids=["text", "numbers", "deep"],
)
async def test_an_answer_that_is_no_description_is_code_1(answer: bytes, reason: str) -> None:
    async with hosting(answering(lambda request: answer)) as uri:
        shown = await run("routes", uri, "--json")

    assert (shown.code, shown.stdout) == (1, "")
    assert shown.stderr == f"rsocket-trio: the server's answer on '$routes' describes no routes: {reason}\n"


INT, BYTES = {"type": "integer"}, {"contentMediaType": "application/octet-stream"}


@each_row(
    ("interaction", "body", "items", "reply", "text"),
    [
        ("request_response", None, None, None, "() -> ()"),
        ("request_stream", None, None, INT, "() -> stream of int"),
        ("request_channel", BYTES, BYTES, BYTES, "stream of bytes -> stream of bytes"),
        ("fire_and_forget", INT, None, None, "int"),
    ],
)
def test_what_a_route_takes_and_gives_is_one_text(
    interaction: str, body: Any, items: Any, reply: Any, text: str
) -> None:
    assert routes.types_text({"interaction": interaction, "body": body, "items": items, "reply": reply}) == text


@each_row(
    ("schema", "text"),
    [
        ({"type": "string", "contentEncoding": "base64"}, "bytes"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"type": "array", "items": {"$ref": "#/$defs/Order"}}, "list[Order]"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"}, "{a?: str}"),
    ],
    ids=str,
)
def test_a_type_is_shown_as_python_writes_it(schema: Any, text: str) -> None:
    assert routes.schema_text(schema) == text


def test_a_name_with_control_characters_keeps_its_line() -> None:
    route: dict[str, Any] = {"route": "a\nb", "interaction": "request_response", "body": {}, "reply": None}

    assert routes.route_lines({"routes": [route]}) == ["a\\nb  request_response  any -> ()"]
