"""The commands ``routes``, ``sources`` and ``readers``: ask a server what it serves, and show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import click

from rsocket_trio import Connection
from rsocket_trio.cli.client_command import ROUTE, Ask, Wish, answer_of, read_description
from rsocket_trio.cli.exit_codes import FAILED, MEANINGS, Failure
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import connection_options, uri
from rsocket_trio.cli.output import Output, columns, escaped_text
from rsocket_trio.replay.source_routes import SOURCES_ROUTE, Source, is_like, read_sources

Described: TypeAlias = dict[str, Any]
"""An object of JSON that a server has sent."""
NO_ROUTE = "-"
NOTHING = "()"
NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "object": "object"}
"""The types of JSON Schema, as Python calls them."""
MAX_DEPTH = 8
"""Levels of a type that a line shows."""
READERS = ".readers"
"""Behind a route: where its named readers are asked for."""


async def write(output: Output, lines: Sequence[str]) -> None:
    """Write the lines."""
    for line in lines:
        await output.write_line(line.encode())


def json_lines(content: object) -> Sequence[str]:
    """Return lines of indented JSON. Raise ``Failure`` for too many levels."""
    try:
        return json.dumps(content, indent=2).splitlines()
    except RecursionError as error:
        raise Failure("the answer has too many levels of JSON", FAILED) from error


# routes


@click.command(
    "routes",
    cls=Command,
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

    async def show(connection: Connection, wish: Wish, output: Output) -> None:
        absent = "the server does not describe its routes, as a Responder(describe=True) does"
        answer = await answer_of(connection, wish, b"", absent=absent)
        try:
            description = read_description(answer)
        except ValueError as error:
            raise Failure(f"the server's answer on '{ROUTE}' describes no routes: {error}", FAILED) from error
        await write(output, json_lines(description) if as_json else route_lines(description))

    ctx.exit(Ask(route=ROUTE, **parameters).run(show))


def route_lines(description: Described) -> list[str]:
    """Return a line for each route of a description, in columns."""
    rows = []
    for route in description["routes"]:
        name = NO_ROUTE if route.get("route") is None else str(route["route"])
        rows.append([escaped_text(text) for text in (name, str(route.get("interaction")), types_text(route))])
    return columns(rows, "<<<")


def types_text(route: Described) -> str:
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


def schema_text(schema: object, depth: int = 0) -> str:
    """Return a type for people, from its JSON Schema."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return "..."
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "contentMediaType" in schema or "contentEncoding" in schema:
        return "bytes"
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " | ".join(schema_text(member, depth + 1) for member in schema[key])
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(json.dumps, schema["enum"]))
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(NAMES.get(name, name) for name in map(str, kind))
    if kind == "array":
        return f"list[{schema_text(schema['items'], depth + 1)}]" if "items" in schema else "list"
    if kind == "object":
        return _object_text(schema, depth)
    if kind is None:
        return str(schema.get("title", "any"))
    return NAMES.get(str(kind), str(kind))


def _object_text(schema: Described, depth: int) -> str:
    members, required = schema.get("properties"), schema.get("required")
    if isinstance(members, dict):
        needed = required if isinstance(required, list) else []
        texts = (
            f"{name}{'' if name in needed else '?'}: {schema_text(kind, depth + 1)}" for name, kind in members.items()
        )
        return f"{{{', '.join(texts)}}}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {schema_text(schema['additionalProperties'], depth + 1)}]"
    return str(schema.get("title", "dict"))


# sources


@click.command(
    "sources",
    cls=Command,
    examples=("sources tcp://127.0.0.1:7878", "sources tcp://127.0.0.1:7878 --pattern 'prices.*' --json"),
    codes={**MEANINGS, FAILED: "no source is like the pattern, or something else failed"},
)
@click.argument("uri", type=uri)
@connection_options
@click.option("--pattern", default="*", metavar="TEXT", help="Only routes like this; * is any text, ? one character.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: by route and partition the earliest and the latest.")
@click.pass_context
def sources(ctx: click.Context, /, pattern: str, as_json: bool, **parameters: Any) -> None:
    """Show the sources of the server at URI, the routes that can be read again from any position.

    A line for each partition: route, partition, the earliest position and the next one to be written.
    """

    async def show(connection: Connection, wish: Wish, output: Output) -> None:
        absent = "the server lists no sources: it has none, or its version is older than the list"
        answer = await answer_of(connection, wish, json.dumps({"pattern": pattern}).encode(), absent=absent)
        try:
            matching = [source for source in read_sources(answer) if is_like(source.route, pattern)]
        except ValueError as error:
            raise Failure(f"the server's answer on '{SOURCES_ROUTE}': {error}", FAILED) from error
        if not matching:
            raise Failure(f"the server has no source like {escaped_text(pattern)!r}", FAILED)
        await write(output, json_lines(source_json(matching)) if as_json else source_lines(matching))

    ctx.exit(Ask(route=SOURCES_ROUTE, **parameters).run(show))


def source_lines(sources: list[Source]) -> list[str]:
    """Return a line for each partition: route, partition, earliest and latest position, in columns."""
    rows = []
    for source in sources:
        if source.problem is not None:
            rows.append((escaped_text(source.route), "-", "-", "-", escaped_text(source.problem)))
        for partition, bounds in source.partitions.items():
            rows.append((escaped_text(source.route), str(partition), str(bounds.earliest), str(bounds.latest), ""))
    return columns(rows, "<>>><")


def source_json(sources: list[Source]) -> dict[str, object]:
    """Return the sources by route, for JSON."""
    result: dict[str, object] = {}
    for source in sources:
        partitions = {
            str(partition): {"earliest": bounds.earliest, "latest": bounds.latest}
            for partition, bounds in source.partitions.items()
        }
        problem = {} if source.problem is None else {"problem": source.problem}
        result[source.route] = {"partitions": {} if problem else partitions, **problem}
    return result


# readers


@click.command(
    "readers",
    cls=Command,
    examples=("readers tcp://127.0.0.1:7878 prices", "readers tcp://127.0.0.1:7878 prices --forget old-job"),
    codes=MEANINGS,
)
@click.argument("uri", type=uri)
@click.argument("source")
@connection_options
@click.option("--forget", metavar="NAME", help="Forget this reader: nothing is kept for it any more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: by reader its positions and how far it is behind.")
@click.pass_context
def readers(ctx: click.Context, /, source: str, forget: str | None, as_json: bool, **parameters: Any) -> None:
    """Show the named readers of the route SOURCE of the server at URI.

    A line for each partition: reader, partition, the position below which it needs nothing any more, how many rows it
    is behind, and when it last acknowledged, in UTC.
    """

    async def show(connection: Connection, wish: Wish, output: Output) -> None:
        absent = f"'{source}' is no source of this server, or its version is older than named readers"
        data = b"" if forget is None else json.dumps({"forget": forget}).encode()
        answer = await answer_of(connection, wish, data, absent=absent)
        try:
            named = {name: checked_reader(reader) for name, reader in json.loads(answer).items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            text = f"the server's answer on '{source}{READERS}' describes no readers: {error!r}"
            raise Failure(text, FAILED) from error
        await write(output, json_lines(named) if as_json else reader_lines(named))

    ctx.exit(Ask(route=source + READERS, **parameters).run(show))


def checked_reader(reader: Described) -> Described:
    """Return a reader as a server shows it. Raise an error of any kind for anything else."""
    ends, behind = ({int(key): int(number) for key, number in reader[name].items()} for name in ("ends", "behind"))
    return {"ends": ends, "behind": behind, "seen": int(reader["seen"])}


def reader_lines(readers: dict[str, Described]) -> list[str]:
    """Return a line for each partition of each reader: name, position, rows behind, last acknowledgement in UTC."""
    rows = []
    for name, reader in readers.items():
        try:
            seen = f"{datetime.fromtimestamp(reader['seen'] / 1e6, UTC):%Y-%m-%d %H:%M:%S}"
        except (ValueError, OverflowError, OSError):
            seen = "-"
        for partition, behind in reader["behind"].items():
            end = str(reader["ends"].get(partition, "-"))
            rows.append((escaped_text(name), str(partition), end, str(behind), seen))
    return columns(rows, "<>>><")


COMMANDS: Final = {"sources": sources, "readers": readers}
"""The commands of this module beside the one of its name."""
