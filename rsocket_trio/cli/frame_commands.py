"""The commands ``frames decode``, ``frames encode`` and ``detect``: standard input to standard output, line by line."""

from __future__ import annotations

from collections.abc import Iterable

import click

from rsocket_trio.cli import starting
from rsocket_trio.cli.data import stdin_lines
from rsocket_trio.cli.frames import Answer, decode_lines, detect_lines, encode_lines, run
from rsocket_trio.cli.options import dialect as dialect_name
from rsocket_trio.cli.output import write_text
from rsocket_trio.cli.running import report
from rsocket_trio.connection.dialects import SHORT
from rsocket_trio.rsocket.dialects import DIALECTS, RSOCKET_1_0, dialect_named

STREAMUX = ("streamux/1", "streamux")
SHORT_WITH_FRAMES = ", ".join(short for short, name in SHORT.items() if name in DIALECTS)


def dialect_with_frames(text: str) -> str:
    """The name of a dialect in full. Refuses Streamux: how wide a chunk's fields are, its bytes don't say."""
    if text in STREAMUX:
        raise click.BadParameter(
            f"{text!r}: its chunks depend on a negotiation; the known ones are {', '.join(DIALECTS)}"
        )
    return dialect_name(text)


dialect_option = click.option(
    "--dialect",
    type=dialect_with_frames,
    metavar="NAME",
    default=RSOCKET_1_0.name,
    show_default=True,
    help=f"Whose frames they are, in full or in short: {SHORT_WITH_FRAMES}.",
)
tcp_option = click.option("--tcp", is_flag=True, help="With length prefixes, as on a byte stream.")


@click.group("frames", invoke_without_command=True)
@click.pass_context
def frames_group(ctx: click.Context, /) -> None:
    """Translate frames between bytes and JSON."""
    if ctx.invoked_subcommand is None:
        raise click.UsageError(f"a command is missing: {' or '.join(frames_group.commands)}", ctx)


@frames_group.command("decode")
@dialect_option
@tcp_option
@click.pass_context
def decode(ctx: click.Context, /, dialect: str, tcp: bool) -> None:
    """Frames in hex, one a line, as JSON; with --tcp all lines are one byte stream."""
    ctx.exit(answer(decode_lines(dialect_named(dialect), stdin_lines(), tcp=tcp)))


@frames_group.command("encode")
@dialect_option
@tcp_option
@click.pass_context
def encode(ctx: click.Context, /, dialect: str, tcp: bool) -> None:
    """Frames in JSON, one a line, as hex."""
    ctx.exit(answer(encode_lines(dialect_named(dialect), stdin_lines(), tcp=tcp)))


@click.command("detect")
@click.pass_context
def detect_command(ctx: click.Context, /) -> None:
    """Name the dialect that the first bytes of a connection speak, in hex, or say "unknown"."""
    ctx.exit(answer(detect_lines(stdin_lines())))


def answer(answers: Iterable[Answer]) -> int:
    """Write every answer as it comes. Returns the exit code."""
    starting.done()
    try:
        return run(answers, write_text)
    except BaseException as error:
        return report(error)
