"""The command ``routes``: asks a server for the description of its routes, and shows it."""

from __future__ import annotations

import json
from typing import Any

import click

from rsocket_trio import Connection
from rsocket_trio.cli.client_command import Ask, Wish, answer_of
from rsocket_trio.cli.exit_codes import FAILED, MEANINGS, Failure
from rsocket_trio.cli.options import ResumeCommand, connection_options, uri
from rsocket_trio.cli.output import Output, columns
from rsocket_trio.cli.served_routes import ROUTE, read_description
from rsocket_trio.cli.terminal import escaped_text

NO_ROUTE = "-"
NOTHING = "()"
NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "object": "object"}
"""The types of JSON Schema, as Python calls them."""
DEEPEST = 8
"""Levels of a type that a line shows."""


async def show_lines(connection: Connection, wish: Wish, output: Output) -> None:
    """Write a line for each route: route, interaction and types, in columns."""
    for line in route_lines(await _described(connection, wish)):
        await output.write_line(line.encode())


async def show_json(connection: Connection, wish: Wish, output: Output) -> None:
    """Write the description as JSON, indented."""
    description = await _described(connection, wish)
    try:
        text = json.dumps(description, indent=2)
    except RecursionError as error:
        raise Failure("the description has too many levels of JSON", FAILED) from error
    for line in text.splitlines():
        await output.write_line(line.encode())


async def _described(connection: Connection, wish: Wish) -> dict[str, Any]:
    absent = "the server does not describe its routes, as a Responder(describe=True) does"
    answer = await answer_of(connection, wish, b"", absent=absent)
    try:
        return read_description(answer)
    except ValueError as error:
        raise Failure(f"the server's answer on '{ROUTE}' describes no routes: {error}", FAILED) from error


def route_lines(description: dict[str, Any]) -> list[str]:
    """Return a line for each route of a description, in columns."""
    rows = [
        (
            NO_ROUTE if each.get("route") is None else escaped_text(str(each["route"])),
            escaped_text(str(each.get("interaction"))),
            escaped_text(types_text(each)),
        )
        for each in description["routes"]
    ]
    return columns(rows, "<<<")


def types_text(route: dict[str, Any]) -> str:
    """Return what a route of a description takes and gives: ``Order -> Receipt``, ``str -> stream of Tick``."""
    interaction = route.get("interaction")
    body, items, reply = (
        None if route.get(name) is None else schema_text(route[name]) for name in ("body", "items", "reply")
    )
    taken = [] if body is None else [body]
    if items is not None:
        # The opening payload of a channel of bytes is one of them.
        taken = [*([] if body == items == "bytes" else taken), f"stream of {items}"]
    text = ", ".join(taken) or NOTHING
    if interaction == "fire_and_forget":
        return text
    if interaction != "request_response" and reply is not None:
        reply = f"stream of {reply}"
    return f"{text} -> {NOTHING if reply is None else reply}"


def schema_text(schema: Any, depth: int = 0) -> str:
    """Return a type for people, from its JSON Schema."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return "..."
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "contentMediaType" in schema or "contentEncoding" in schema:
        return "bytes"
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " | ".join(schema_text(each, depth + 1) for each in schema[key])
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(json.dumps, schema["enum"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(NAMES.get(each, str(each)) for each in map(str, kind))
    if kind == "array":
        return f"list[{schema_text(schema['items'], depth + 1)}]" if "items" in schema else "list"
    if kind == "object":
        return _object_text(schema, depth)
    if kind is None:
        return str(schema.get("title", "any"))
    return NAMES.get(str(kind), str(kind))


def _object_text(schema: dict[str, Any], depth: int) -> str:
    members, required = schema.get("properties"), schema.get("required")
    if isinstance(members, dict):
        needed = required if isinstance(required, list) else []
        texts = (
            f"{name}{'' if name in needed else '?'}: {schema_text(each, depth + 1)}" for name, each in members.items()
        )
        return f"{{{', '.join(texts)}}}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {schema_text(schema['additionalProperties'], depth + 1)}]"
    return str(schema.get("title", "dict"))


@click.command(
    "routes",
    cls=ResumeCommand,
    examples=("routes tcp://127.0.0.1:7878", "routes tcp://127.0.0.1:7878 --json"),
    codes=MEANINGS,
)
@click.argument("uri", type=uri)
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print the description with the JSON Schema of all types.")
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, **parameters: Any) -> None:
    """Show the routes of the server at URI: route, interaction and types, a line each.

    The server describes them if its responder was made with describe=True.
    """
    ctx.exit(Ask(route=ROUTE, **parameters).run(show_json if as_json else show_lines))
