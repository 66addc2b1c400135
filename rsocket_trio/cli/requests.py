"""The commands that make one request: ``request``, ``stream``, ``channel``, ``fnf`` and ``push``."""

from __future__ import annotations

from typing import Any

import click

from rsocket_trio.cli.asking import OURS, Ask
from rsocket_trio.cli.interactions import Kind
from rsocket_trio.cli.options import ResumeCommand, mime, our_options, uri

# fmt: off
COMMANDS = {
    Kind.REQUEST: "Ask for one answer, and show it.",
    Kind.STREAM:  "Ask for a stream, and show its items, one a line.",
    Kind.CHANNEL: "Send items and show those that come back, one a line.",
    Kind.FNF:     "Send a request that is never answered.",
    Kind.PUSH:    "Send metadata that concerns the connection as a whole.",
}
# fmt: on


def command_for(kind: Kind) -> click.Command:
    """The command of an interaction."""

    @click.pass_context
    def run(ctx: click.Context, /, **parameters: Any) -> None:
        ctx.exit(Ask(**parameters).run(kind, OURS))

    run = our_options(run)
    run = click.option(
        "--data-mime", type=mime, metavar="MIME", help="MIME type of the data (application/octet-stream)."
    )(run)
    if kind is Kind.CHANNEL:
        run = click.option(
            "--first-opens/--empty-opening",
            "first_opens",
            default=None,
            help="Whether the first payload travels in the frame that opens the channel; by default that one is empty.",
        )(run)
    run = click.argument("uri", type=uri)(run)
    return click.command(kind.value, cls=ResumeCommand, help=COMMANDS[kind])(run)
