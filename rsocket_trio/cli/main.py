"""The command ``rsocket-trio``: its subcommands, and how wrong usage is answered."""

from __future__ import annotations

import os
import sys

import click

from rsocket_trio.cli.analyzing import analyze
from rsocket_trio.cli.frame_commands import detect_command, frames_group
from rsocket_trio.cli.interactions import Kind
from rsocket_trio.cli.load_command import load_command
from rsocket_trio.cli.options import completion_option, version_option
from rsocket_trio.cli.output import STDOUT
from rsocket_trio.cli.requests import command_for
from rsocket_trio.cli.rsc import call
from rsocket_trio.cli.running import MISUSED, complain, report
from rsocket_trio.cli.serving import serve_command
from rsocket_trio.cli.streamux_commands import streamux_group

NAME = "rsocket-trio"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, invoke_without_command=True
)
@completion_option
@version_option
@click.pass_context
def commands(ctx: click.Context, /) -> None:
    """RSocket from the command line: serve, ask, and look at frames."""
    if ctx.invoked_subcommand is None:
        complain(ctx.get_help())
        ctx.exit(MISUSED)


@click.command("demo")
@click.pass_context
def demo(ctx: click.Context, /) -> None:
    """Watch a chat: a server and three clients, over real frames."""
    from rsocket_trio.cli.demo import main as run_demo

    ctx.exit(run_demo())


commands.add_command(serve_command)
for kind in Kind:
    commands.add_command(command_for(kind))
for command in (call, frames_group, streamux_group, detect_command, analyze, load_command, demo):
    commands.add_command(command)


def main() -> None:
    """Run the command line, and exit: 0, 1 when something failed, 2 for wrong usage, 130 after Ctrl-C."""
    _fill_standard_streams()
    code = _run()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Nobody reads it; without this the interpreter would complain when it flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    sys.exit(code)


def _fill_standard_streams() -> None:
    """Have something at 0, 1 and 2 where we were started without: else a socket of ours would take the place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _run() -> int:
    try:
        result = commands.main(prog_name=NAME, standalone_mode=False)
    except click.Abort:
        # What click makes of Ctrl-C.
        return report(KeyboardInterrupt())
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else NAME
        complain(f"{where}: {' '.join(error.format_message().split())} ({where} --help says more)")
        return error.exit_code
    except click.ClickException as error:
        complain(f"{NAME}: {error.format_message()}")
        return error.exit_code
    except BaseException as error:
        return report(error)
    return result if isinstance(result, int) else 0
