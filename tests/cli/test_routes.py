"""``routes``: what it prints of a server, and how it ends where there is no description; ``serve`` counts routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio import ApplicationError, Payload, Rejected, Responder, serve
from rsocket_trio.cli import client_command, routes
from rsocket_trio.services import Bearer
from rsocket_trio.services.description import DESCRIPTION_ROUTE
from tests.cli.commands import run, started
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


@asynccontextmanager
async def serving(responder: Responder) -> AsyncIterator[str]:
    """Serve in the test, and give the URI."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        yield uri
        nursery.cancel_scope.cancel()


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


async def test_json_is_the_description_with_the_schemas(app: Path) -> None:
    async with started("serve", "app:responder", "--listen", "tcp://127.0.0.1:0", cwd=app) as server:
        uri = (await server.line()).removeprefix("listening ")
        shown = await run("routes", uri, "--json")

    described = json.loads(shown.stdout)
    assert (shown.code, shown.stderr) == (0, "")
    routes = {each["route"]: each for each in described["routes"]}
    assert [*routes][-1] == "ticks.{symbol}"
    assert routes["orders.place"]["body"]["$defs"]["Order"]["properties"]["amount"] == {"type": "integer"}
    assert described["codecs"][0] == "application/json"


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "ext"])
async def test_routes_are_shown_in_other_dialects(dialect: str) -> None:
    responder = Responder(describe=True)
    responder.request_response("greet")(lambda request: b"")
    async with serving(responder) as uri:
        shown = await run("routes", uri, "--dialect", dialect)

    assert (shown.code, shown.stdout, shown.stderr) == (0, "greet  request_response  bytes -> bytes\n", "")


async def test_a_dialect_without_routes_has_none_to_show() -> None:
    async with serving(Responder(describe=True)) as uri:
        shown = await run("routes", uri, "--dialect", "streamux/1")

    assert (shown.code, shown.stdout, shown.stderr) == (1, "", "Unsupported: streamux/1 has no routes\n")


async def test_a_server_without_a_description_is_code_5() -> None:
    async with serving(Responder()) as uri:
        shown = await run("routes", uri)

    said = "Rejected: the server does not describe its routes, as a Responder(describe=True) does\n"
    assert (shown.code, shown.stdout, shown.stderr) == (5, "", said)


async def test_a_server_that_requires_credentials_gets_them_with_the_setup() -> None:
    responder = Responder(describe=True, auth_required=True)
    responder.authenticate(lambda credentials, where: "ann" if credentials == Bearer("sesame") else None)
    responder.request_response("greet")(lambda request: b"")
    mime = ("--setup-metadata-mime", "message/x.rsocket.authentication.v0")
    async with serving(responder) as uri:
        shown = await run("routes", uri, "--setup-metadata", "bearer:sesame", *mime)
        refused = await run("routes", uri, "--setup-metadata", "bearer:guess", *mime)

    assert (shown.code, shown.stdout) == (0, "greet  request_response  bytes -> bytes\n")
    assert (refused.code, refused.stderr) == (4, "RejectedSetup: not allowed\n")


async def test_other_errors_keep_their_codes_and_texts() -> None:
    def refuse(request: Payload) -> bytes:
        raise Rejected("not now")

    def fail(request: Payload) -> bytes:
        raise ApplicationError("it broke")

    async with serving(answering(refuse)) as uri:
        refused = await run("routes", uri)
    async with serving(answering(fail)) as uri:
        failed = await run("routes", uri)
    missing = await run("routes", "tcp://127.0.0.1:1")

    assert (refused.code, refused.stderr) == (5, "Rejected: not now\n")
    assert (failed.code, failed.stderr) == (6, "ApplicationError: it broke\n")
    assert missing.code == 3


@each_row(
    ("answer", "reason"),
    [
        (b"hello", "Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[]", "no list of routes"),
        (b'{"routes": [1]}', "no list of routes"),
        (b"[" * 100_000, "too many levels of JSON"),
    ],
    ids=["text", "bytes", "list", "numbers", "deep"],
)
async def test_an_answer_that_is_no_description_is_code_1(answer: bytes, reason: str) -> None:
    async with serving(answering(lambda request: answer)) as uri:
        shown = await run("routes", uri, "--json")

    assert (shown.code, shown.stdout) == (1, "")
    assert shown.stderr == f"rsocket-trio: the server's answer on '$routes' describes no routes: {reason}\n"


INT, BYTES = {"type": "integer"}, {"contentMediaType": "application/octet-stream"}


@each_row(
    ("interaction", "body", "items", "reply", "text"),
    [
        ("request_response", None, None, None, "() -> ()"),
        ("request_response", INT, None, {}, "int -> any"),
        ("request_stream", None, None, INT, "() -> stream of int"),
        ("request_subscription", INT, None, INT, "int -> stream of int"),
        ("request_channel", BYTES, BYTES, BYTES, "stream of bytes -> stream of bytes"),
        ("request_channel", INT, INT, None, "int, stream of int -> ()"),
        ("request_channel", None, INT, INT, "stream of int -> stream of int"),
        ("fire_and_forget", INT, None, None, "int"),
        ("fire_and_forget", None, None, None, "()"),
    ],
)
def test_what_a_route_takes_and_gives_is_one_text(
    interaction: str, body: Any, items: Any, reply: Any, text: str
) -> None:
    assert routes.types_text({"interaction": interaction, "body": body, "items": items, "reply": reply}) == text


@each_row(
    ("schema", "text"),
    [
        ({}, "any"),
        (7, "..."),
        ({"title": "Point"}, "Point"),
        ({"type": "string", "contentEncoding": "base64"}, "bytes"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"const": "x"}, '"x"'),
        ({"type": "array"}, "list"),
        ({"type": "array", "items": {"$ref": "#/$defs/Order"}}, "list[Order]"),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, "bool | int"),
        ({"type": "object"}, "dict"),
        ({"type": "object", "title": "Order"}, "Order"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"}, "{a?: str}"),
        ({"type": "decimal"}, "decimal"),
        ({"type": {}}, "{}"),
        ({"$ref": 5}, "5"),
    ],
    ids=str,
)
def test_a_type_is_shown_as_python_writes_it(schema: Any, text: str) -> None:
    assert routes.schema_text(schema) == text


def test_types_of_many_levels_are_cut() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}

    assert routes.schema_text(schema) == "list[" * 9 + "..." + "]" * 9


def test_a_name_with_control_characters_keeps_its_line() -> None:
    route: dict[str, Any] = {"route": "a\nb", "interaction": "request_response", "body": {}, "reply": None}

    assert routes.route_lines({"routes": [route]}) == ["a\\nb  request_response  any -> ()"]


def test_the_command_asks_on_the_route_that_a_responder_reserves() -> None:
    assert client_command.ROUTE == DESCRIPTION_ROUTE
