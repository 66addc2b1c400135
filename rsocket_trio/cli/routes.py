"""The commands ``routes``, ``sources`` and ``readers``: ask a server what it serves, and show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import click
import msgspec

from rsocket_trio import Connection, Payload, Rejected
from rsocket_trio.cli.client_command import ROUTE, Ask, read_description
from rsocket_trio.cli.exit_codes import FAILED, MEANINGS, REJECTED, Failure
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import connection_options, uri
from rsocket_trio.cli.output import Output, columns, escaped_text
from rsocket_trio.replay.elements import SOURCES_ROUTE, Source, read_sources

Described: TypeAlias = dict[str, Any]
"""An object of JSON that a server has sent."""
NO_ROUTE = "-"
NOTHING = "()"
NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
"""The types of JSON Schema, as Python calls them."""
READERS = ".readers"
"""Behind a route: where its named readers are asked for."""


def show_answer(ask: Ask, data: bytes, read: Callable[[bytes], list[str]], *, what: str, absent: str) -> int:
    """Ask the server, and write the lines that ``read`` makes of its answer. Return the exit code.

    ``absent`` is the text of the error if the server lacks the route, ``what`` names what its answer should describe.
    """

    async def show(connection: Connection, ask: Ask, output: Output) -> None:
        try:
            answer = await connection.request_response(Payload(data, ask.content), route=ask.route)
        except Rejected as error:
            if str(ask.route) not in str(error):
                raise
            raise Failure(absent, REJECTED, name=Rejected.__name__) from error
        try:
            lines = read(answer.data)
        except (ValueError, RecursionError) as error:
            text = f"the server's answer on '{ask.route}' describes no {what}: {error}"
            raise Failure(text, FAILED) from error
        for line in lines:
            await output.write_line(line.encode())

    return ask.run(show)


def inquiry(
    *examples: str, as_json: str, codes: Mapping[int, str] = MEANINGS
) -> Callable[[Callable[..., None]], click.Command]:
    """Return the decorator of a command that asks a server what it has; ``as_json`` is the help of its ``--json``."""

    def decorate(run: Callable[..., None]) -> click.Command:
        run = click.option("--json", "as_json", is_flag=True, help=as_json)(click.pass_context(run))
        run = click.argument("uri", type=uri)(connection_options(run))
        return click.command(examples[0].split()[0], cls=Command, examples=examples, codes=codes)(run)

    return decorate


def json_lines(content: object) -> list[str]:
    """Return lines of indented JSON."""
    return json.dumps(content, indent=2).splitlines()


# routes


@inquiry(
    *("routes tcp://127.0.0.1:7878", "routes tcp://127.0.0.1:7878 --json"),
    as_json="Print the description with the JSON Schema of all types.",
)
def command(ctx: click.Context, /, as_json: bool, **parameters: Any) -> None:
    """Show the routes of the server at URI: route, interaction and types, a line each.

    The server describes them if its responder was made with describe=True.
    """

    def read(answer: bytes) -> list[str]:
        description = read_description(answer)
        return json_lines(description) if as_json else route_lines(description)

    absent = "the server does not describe its routes, as a Responder(describe=True) does"
    ctx.exit(show_answer(Ask(route=ROUTE, **parameters), b"", read, what="routes", absent=absent))


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


def schema_text(schema: object) -> str:
    """Return a type for people, from its JSON Schema."""
    if not isinstance(schema, dict):
        return "..."
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "contentMediaType" in schema or "contentEncoding" in schema:
        return "bytes"
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list):
        return " | ".join(map(schema_text, choices))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return " | ".join(map(json.dumps, values))
    kind, members = schema.get("type"), schema.get("properties")
    if isinstance(kind, list):
        return " | ".join(NAMES.get(name, name) for name in map(str, kind))
    if kind == "array":
        return f"list[{schema_text(schema['items'])}]" if "items" in schema else "list"
    if kind == "object" and isinstance(members, dict):
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        texts = (f"{name}{'' if name in needed else '?'}: {schema_text(type_)}" for name, type_ in members.items())
        return f"{{{', '.join(texts)}}}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {schema_text(schema['additionalProperties'])}]"
    if kind in (None, "object"):
        return str(schema.get("title", "any" if kind is None else "dict"))
    return NAMES.get(str(kind), str(kind))


# sources


@inquiry(
    *("sources tcp://127.0.0.1:7878", "sources tcp://127.0.0.1:7878 --pattern 'prices.*' --json"),
    as_json="Print JSON: by route and partition the earliest and the latest.",
    codes={**MEANINGS, FAILED: "no source is like the pattern, or something else failed"},
)
@click.option("--pattern", default="*", metavar="TEXT", help="Only routes like this; * is any text, ? one character.")
def sources(ctx: click.Context, /, pattern: str, as_json: bool, **parameters: Any) -> None:
    """Show the sources of the server at URI, the routes that can be read again from any position.

    A line for each partition: route, partition, the earliest position and the next one to be written.
    """

    def read(answer: bytes) -> list[str]:
        matching = read_sources(answer, pattern)
        if not matching:
            raise Failure(f"the server has no source like {escaped_text(pattern)!r}", FAILED)
        return json_lines(source_json(matching)) if as_json else source_lines(matching)

    ask, data = Ask(route=SOURCES_ROUTE, **parameters), json.dumps({"pattern": pattern}).encode()
    absent = "the server lists no sources: it has none, or its version is older than the list"
    ctx.exit(show_answer(ask, data, read, what="sources", absent=absent))


def source_lines(sources: Mapping[str, Source]) -> list[str]:
    """Return a line for each partition: route, partition, earliest and latest position, in columns."""
    rows = []
    for route, source in sources.items():
        if source.problem is not None:
            rows.append((escaped_text(route), "-", "-", "-", escaped_text(source.problem)))
        for partition, bounds in source.partitions.items():
            rows.append((escaped_text(route), str(partition), str(bounds.earliest), str(bounds.latest), ""))
    return columns(rows, "<>>><")


def source_json(sources: Mapping[str, Source]) -> dict[str, object]:
    """Return the sources by route, for JSON."""
    return {
        route: {
            "partitions": msgspec.to_builtins(source.partitions, str_keys=True),
            **({} if source.problem is None else {"problem": source.problem}),
        }
        for route, source in sources.items()
    }


# readers


@inquiry(
    *("readers tcp://127.0.0.1:7878 prices", "readers tcp://127.0.0.1:7878 prices --forget old-job"),
    as_json="Print JSON: by reader its positions and how far it is behind.",
)
@click.argument("source")
@click.option("--forget", metavar="NAME", help="Forget this reader: nothing is kept for it any more.")
def readers(ctx: click.Context, /, source: str, forget: str | None, as_json: bool, **parameters: Any) -> None:
    """Show the named readers of the route SOURCE of the server at URI.

    A line for each partition: reader, partition, the position below which it needs nothing any more, how many rows it
    is behind, and when it last acknowledged, in UTC.
    """

    def read(answer: bytes) -> list[str]:
        named = msgspec.json.decode(answer, type=dict[str, NamedReader])
        return json_lines(msgspec.to_builtins(named)) if as_json else reader_lines(named)

    data = b"" if forget is None else json.dumps({"forget": forget}).encode()
    absent = f"'{source}' is no source of this server, or its version is older than named readers"
    ctx.exit(show_answer(Ask(route=source + READERS, **parameters), data, read, what="readers", absent=absent))


class NamedReader(msgspec.Struct):
    """A named reader as a server shows it, by partition."""

    ends: dict[int, int]
    behind: dict[int, int]
    seen: int


def reader_lines(readers: dict[str, NamedReader]) -> list[str]:
    """Return a line for each partition of each reader: name, position, rows behind, last acknowledgement in UTC."""
    rows = []
    for name, reader in readers.items():
        try:
            seen = f"{datetime.fromtimestamp(reader.seen / 1e6, UTC):%Y-%m-%d %H:%M:%S}"
        except (ValueError, OverflowError, OSError):
            seen = "-"
        for partition, behind in reader.behind.items():
            end = str(reader.ends.get(partition, "-"))
            rows.append((escaped_text(name), str(partition), end, str(behind), seen))
    return columns(rows, "<>>><")
