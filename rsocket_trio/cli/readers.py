"""The command ``readers``: shows the named readers of a replayable route, and forgets one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from rsocket_trio import Connection
from rsocket_trio.cli.client_command import Ask, Wish, answer_of
from rsocket_trio.cli.exit_codes import FAILED, MEANINGS, Failure
from rsocket_trio.cli.options import ResumeCommand, connection_options, uri
from rsocket_trio.cli.output import Output, columns
from rsocket_trio.cli.terminal import escaped_text

SUFFIX = ".readers"


async def ask_readers(connection: Connection, wish: Wish, forget: str | None) -> dict[str, Any]:
    """Return the named readers of a route, after forgetting one of them. Raise ``Failure``."""
    route = str(wish.route).removesuffix(SUFFIX)
    absent = f"'{route}' is no source of this server, or its version is older than named readers"
    data = b"" if forget is None else json.dumps({"forget": forget}).encode()
    answer = await answer_of(connection, wish, data, absent=absent)
    try:
        return {name: checked(reader) for name, reader in json.loads(answer).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failure(f"the server's answer on '{wish.route}' describes no readers: {error!r}", FAILED) from error


def checked(reader: dict[str, Any]) -> dict[str, Any]:
    """Return a reader as a server shows it. Raise an error of any kind for anything else."""
    ends, behind = ({int(key): int(number) for key, number in reader[name].items()} for name in ("ends", "behind"))
    return {"ends": ends, "behind": behind, "seen": int(reader["seen"])}


def reader_lines(found: dict[str, Any]) -> list[str]:
    """Return a line for each partition of each reader: name, position, rows behind, last acknowledgement in UTC."""
    rows = []
    for name, reader in found.items():
        try:
            seen = f"{datetime.fromtimestamp(reader['seen'] / 1e6, UTC):%Y-%m-%d %H:%M:%S}"
        except (ValueError, OverflowError, OSError):
            seen = "-"
        for partition, behind in reader["behind"].items():
            end = str(reader["ends"].get(partition, "-"))
            rows.append((escaped_text(name), str(partition), end, str(behind), seen))
    return columns(rows, "<>>><")


@click.command(
    "readers",
    cls=ResumeCommand,
    examples=("readers tcp://127.0.0.1:7878 prices", "readers tcp://127.0.0.1:7878 prices --forget old-job"),
    codes=MEANINGS,
)
@click.argument("uri", type=uri)
@click.argument("source")
@connection_options
@click.option("--forget", metavar="NAME", help="Forget this reader: nothing is kept for it any more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: by reader its positions and how far it is behind.")
@click.pass_context
def command(ctx: click.Context, /, source: str, forget: str | None, as_json: bool, **parameters: Any) -> None:
    """Show the named readers of the route SOURCE of the server at URI.

    A line for each partition: reader, partition, the position below which it needs nothing any more, how many rows it
    is behind, and when it last acknowledged, in UTC.
    """

    async def show(connection: Connection, wish: Wish, output: Output) -> None:
        found = await ask_readers(connection, wish, forget)
        for line in json.dumps(found, indent=2).splitlines() if as_json else reader_lines(found):
            await output.write_line(line.encode())

    ctx.exit(Ask(route=source + SUFFIX, **parameters).run(show))
