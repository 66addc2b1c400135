"""The help of a command: its usage and options, then examples and the exit codes; and hints at words that are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import click

from rsocket_trio.cli.exit_codes import MEANINGS, OF_EVERY_COMMAND


class Command(click.Command):
    """A command whose help ends with examples and exit codes.

    ``examples`` are command lines without the name of the program; ``codes`` are the exit codes beside those of every
    command, or instead of them, with their meanings.
    """

    def __init__(
        self, *args: Any, examples: Sequence[str], codes: Mapping[int, str] = OF_EVERY_COMMAND, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.examples = examples
        self.codes = {**OF_EVERY_COMMAND, **codes}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and the exit codes behind the options."""
        program = ctx.find_root().info_name
        with formatter.section("Examples"):
            for example in self.examples:
                # As it is: a line that was wrapped could not be copied.
                formatter.write(f"{'':>{formatter.current_indent}}{program} {example}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), self.codes[code]) for code in MEANINGS if code in self.codes])


class CommandGroup(Command, click.Group):
    """A command with commands of its own, one of which is needed."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raise ``UsageError`` if there are none, unless the group does something by itself."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            raise click.UsageError(f"a command is missing: {' or '.join(self.commands)}", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raise ``UsageError``, with the name that is like the word."""
        word, known = args[0], self.list_commands(ctx)
        if word not in known and not word.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(with_hint(f"no such command '{word}'", word, known), ctx)
        return super().resolve_command(ctx, args)


def with_hint(text: str, word: str, known: Iterable[str]) -> str:
    """Return the text of an error about a wrong ``word``, with the known word that is like it, upper case or not."""
    by_lower_case = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower_case, n=1)
    return f"{text}: did you mean '{by_lower_case[matches[0]]}'?" if matches else text
