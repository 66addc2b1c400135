"""The command ``sources``: asks a server for its replayable routes, and shows their partitions."""

from __future__ import annotations

import json
from typing import Any

import click

from rsocket_trio import Connection
from rsocket_trio.cli.client_command import Ask, Wish, answer_of
from rsocket_trio.cli.exit_codes import FAILED, MEANINGS, Failure
from rsocket_trio.cli.options import ResumeCommand, connection_options, uri
from rsocket_trio.cli.output import Output, columns
from rsocket_trio.cli.terminal import escaped_text
from rsocket_trio.replay.source_list import SOURCES_ROUTE, Source, is_like, read_sources


def source_lines(sources: list[Source]) -> list[str]:
    """Return a line for each partition: route, partition, earliest and latest position, in columns."""
    rows = []
    for source in sources:
        if source.problem is not None:
            rows.append((escaped_text(source.route), "-", "-", "-", escaped_text(source.problem)))
        for partition, bounds in source.partitions.items():
            rows.append((escaped_text(source.route), str(partition), str(bounds.earliest), str(bounds.latest), ""))
    return columns(rows, "<>>><")


def source_json(sources: list[Source]) -> str:
    """Return the sources as JSON, indented."""
    told: dict[str, Any] = {}
    for source in sources:
        partitions = {
            str(partition): {"earliest": bounds.earliest, "latest": bounds.latest}
            for partition, bounds in source.partitions.items()
        }
        told[source.route] = (
            {"partitions": partitions} if source.problem is None else {"partitions": {}, "problem": source.problem}
        )
    return json.dumps(told, indent=2)


async def ask_sources(connection: Connection, wish: Wish, pattern: str) -> list[Source]:
    """Return the sources of a server whose routes are like ``pattern``. Raise ``Failure`` if there are none."""
    absent = "the server lists no sources: it has none, or its version is older than the list"
    answer = await answer_of(connection, wish, json.dumps({"pattern": pattern}).encode(), absent=absent)
    try:
        found = [source for source in read_sources(answer) if is_like(source.route, pattern)]
    except ValueError as error:
        raise Failure(f"the server's answer on '{SOURCES_ROUTE}': {error}", FAILED) from error
    if not found:
        raise Failure(f"the server has no source like {escaped_text(pattern)!r}", FAILED)
    return found


@click.command(
    "sources",
    cls=ResumeCommand,
    examples=("sources tcp://127.0.0.1:7878", "sources tcp://127.0.0.1:7878 --pattern 'prices.*' --json"),
    codes={**MEANINGS, FAILED: "no source is like the pattern, or something else failed"},
)
@click.argument("uri", type=uri)
@connection_options
@click.option("--pattern", default="*", metavar="TEXT", help="Only routes like this; * is any text, ? one character.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: by route and partition the earliest and the latest.")
@click.pass_context
def command(ctx: click.Context, /, pattern: str, as_json: bool, **parameters: Any) -> None:
    """Show the sources of the server at URI, the routes that can be read again from any position.

    A line for each partition: route, partition, the earliest position and the next one to be written.
    """

    async def show(connection: Connection, wish: Wish, output: Output) -> None:
        found = await ask_sources(connection, wish, pattern)
        for line in source_json(found).splitlines() if as_json else source_lines(found):
            await output.write_line(line.encode())

    ctx.exit(Ask(route=SOURCES_ROUTE, **parameters).run(show))
