"""The command ``detect``: names the dialect of the first bytes of a connection, given in hex."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from rsocket_trio.cli.data import stdin_lines
from rsocket_trio.cli.exit_codes import FAILED
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.hex_lines import Answer, answer, error_at, unhex
from rsocket_trio.connection.protocols import detect_protocol, name_of
from rsocket_trio.rsocket.detection import Undecided


@click.command(
    "detect",
    cls=Command,
    examples=("detect < first-bytes.hex",),
    codes={FAILED: "a line was not hex"},
)
@click.pass_context
def command(ctx: click.Context, /) -> None:
    """Name the dialect that the first bytes of a connection speak, in hex, or say "unknown"."""
    ctx.exit(answer(detect_lines(stdin_lines())))


def detect_lines(lines: Iterable[str]) -> Iterator[Answer]:
    """Detect the dialect of each line, which holds the first bytes of a byte stream in hex; or say ``unknown``."""
    for line in lines:
        if line.strip():
            yield _detected(line)


def _detected(line: str) -> Answer:
    try:
        found = detect_protocol(unhex(line), message=False, ended=True)
    except ValueError as error:
        return error_at(str(error))
    return ("unknown" if found is None or isinstance(found, Undecided) else name_of(found)), True
