"""Entry point of the ``rsocket-trio`` command; reports in one line if the extra ``cli`` is missing."""

from __future__ import annotations

import sys

from rsocket_trio.cli.interrupts import command_starts


def main() -> None:
    """Run the command line. Exits with 2 where click is not installed, with 130 after Ctrl-C."""
    command_starts()
    try:
        from rsocket_trio.cli.main import main as command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        from rsocket_trio.extras import install_command

        print(f"rsocket-trio needs its command line extra: {install_command('cli')}", file=sys.stderr)
        sys.exit(2)
    command()
