"""The command ``rsocket-trio``: its subcommands, and how wrong usage is answered."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from rsocket_trio.cli.exit_codes import MISUSED, NAME, complain, report
from rsocket_trio.cli.help_page import CommandGroup, with_hint
from rsocket_trio.cli.output import STDOUT

COMMANDS = (
    *("analyze", "channel", "conformance", "demo", "detect", "fnf", "forward", "frames", "load", "ping", "push"),
    *("readers", "record", "request", "routes", "serve", "sources", "stream", "streamux"),
)
"""The commands: each is ``command`` in the module of its name, which is imported when it is needed."""
MODULES = {
    **dict.fromkeys(("channel", "fnf", "ping", "push", "request", "stream"), "interactions"),
    "detect": "frames",
    "readers": "routes",
    "sources": "routes",
}
"""The modules of the other commands, which have their names there."""


class Commands(CommandGroup):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command after importing its module, or ``None`` if there is none of this name."""
        if name not in COMMANDS:
            return None
        module = import_module(f"{__package__}.{MODULES.get(name, name)}")
        command: click.Command = getattr(module, name if name in MODULES else "command")
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. An error of it is a line on stderr, and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BaseException as error:
            ctx.exit(report(error, stacktrace=ctx.meta.get("stacktrace", False)))


@click.group(
    cls=Commands,
    examples=(
        "serve app:responder --listen tcp://127.0.0.1:7878",
        "request tcp://127.0.0.1:7878 --route greet --data Ada",
        "request --help",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(None, "-v", "--version", package_name=NAME, prog_name=NAME, message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context, /) -> None:
    """RSocket from the command line: serve, ask, and look at frames."""
    if ctx.invoked_subcommand is None:
        complain(ctx.get_help())
        ctx.exit(MISUSED)


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
        complain(f"{where}: {usage_text(error)} ({where} --help says more)")
        return error.exit_code
    except click.ClickException as error:
        complain(f"{NAME}: {one_line(error.format_message())}")
        return error.exit_code
    except BaseException as error:
        return report(error)
    return result if isinstance(result, int) else 0


def usage_text(error: click.UsageError) -> str:
    """Return the text of wrong usage in the form of other errors: a wrong option with the one that is like it."""
    if isinstance(error, click.NoSuchOption):
        known = [] if error.ctx is None else error.ctx.command.get_params(error.ctx)
        names = [name for param in known for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]
        return with_hint(f"no such option '{error.option_name}'", error.option_name, names)
    return one_line(error.format_message())


def one_line(text: str) -> str:
    """Return a text of click's as one line, without its capital and full stop."""
    line = " ".join(text.split()).removesuffix(".")
    return line[:1].lower() + line[1:]
