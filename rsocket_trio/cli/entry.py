"""Entry point of the ``rsocket-trio`` command; reports in one line if the extra ``cli`` is missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exits with 2 where click is not installed, with 130 after Ctrl-C."""
    try:
        from rsocket_trio.cli.starting import begin, end
    except KeyboardInterrupt:
        print("rsocket-trio: interrupted", file=sys.stderr)
        sys.exit(130)
    try:
        begin()
        from rsocket_trio.cli.main import main as command
    except KeyboardInterrupt:
        end()
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        from rsocket_trio.extras import install_command

        print(f"rsocket-trio needs its command line extra: {install_command('cli')}", file=sys.stderr)
        sys.exit(2)
    command()
