"""``call``: the same interactions for fingers that know rsc's flags."""

from __future__ import annotations

from typing import Any

import click

from rsocket_trio.cli.asking import RSC, Ask
from rsocket_trio.cli.interactions import Kind
from rsocket_trio.cli.options import (
    OPTIONAL,
    completion_option,
    mime,
    rsc_options,
    spelled_out,
    uri,
    version_option,
)
from rsocket_trio.cli.opts_file import words_of

MODELS = {
    "REQUEST_RESPONSE": Kind.REQUEST,
    "REQUEST_STREAM": Kind.STREAM,
    "REQUEST_CHANNEL": Kind.CHANNEL,
    "FIRE_AND_FORGET": Kind.FNF,
    "METADATA_PUSH": Kind.PUSH,
}
"""The names of ``--im``."""

OPTS_FILE = "opts_file"


class RscCommand(click.Command):
    """A command whose options may have optional values, and may come from a file.

    A word behind an option that can't be its value is the next one. What the command line says, the file does not.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say what was left out, and before it what a file says, then parse as ever."""
        args = spelled_out(args)
        if not ctx.resilient_parsing:
            args = spelled_out(self._words_of_file(ctx, args)) + args
        return super().parse_args(ctx, args)

    def _words_of_file(self, ctx: click.Context, args: list[str]) -> list[str]:
        found, _, said = self.make_parser(ctx).parse_args(list(args))
        path = found.get(OPTS_FILE)
        if path is None or any(param.is_eager for param in said):
            return []
        options = {
            name.removeprefix("--"): param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and not param.is_eager and param.name != OPTS_FILE
            for name in (*param.opts, *param.secondary_opts)
            if name.startswith("--")
        }
        bare = {name.removeprefix("--") for name in OPTIONAL}
        try:
            return words_of(path, options, {str(param.name) for param in said}, bare)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param_hint="--optsFile") from error


def _model(name: str) -> str:
    return name.upper().replace("-", "_")


@click.command(cls=RscCommand)
@click.argument("uri", type=uri)
@click.option("--request", "kind", flag_value=Kind.REQUEST.value, help="Ask for one answer (default).")
@click.option("--stream", "kind", flag_value=Kind.STREAM.value, help="Ask for a stream.")
@click.option("--channel", "kind", flag_value=Kind.CHANNEL.value, help="Open a channel.")
@click.option("--fnf", "kind", flag_value=Kind.FNF.value, help="Send what is never answered.")
@click.option("--metadataPush", "kind", flag_value=Kind.PUSH.value, help="Push metadata.")
@click.option("--im", "model", metavar="MODEL", help=f"The interaction by name: {', '.join(MODELS)}.")
@rsc_options
@click.option(
    "--dmt",
    "--dataMimeType",
    "--dataFormat",
    "data_mime",
    type=mime,
    metavar="MIME",
    help="MIME type of the data (application/json).",
)
@click.option(
    "--first-opens/--empty-opening",
    "first_opens",
    default=None,
    help="Whether a channel's first payload travels in the frame that opens it, as by default, or that one is empty.",
)
@click.option(
    "--optsFile",
    OPTS_FILE,
    type=click.Path(),
    expose_value=False,
    metavar="FILE",
    help="More options from a YAML file, by their long names; those of the command line win.",
)
@completion_option
@version_option
@click.pass_context
def call(ctx: click.Context, /, kind: str | None, model: str | None, **parameters: Any) -> None:
    """Make one request, with the flags of rsc.

    With --channel the first datum travels in the frame that opens the channel, as rsc and Java peers do it, while
    "rsocket-trio channel" opens with an empty payload and sends every datum as an item; --empty-opening and
    --first-opens switch either to the other way.
    """
    chosen = Kind(kind) if kind is not None else Kind.REQUEST
    if model is not None:
        if _model(model) not in MODELS:
            raise click.BadParameter(f"{model!r}: one of {', '.join(MODELS)}", ctx, param_hint="--im")
        chosen = MODELS[_model(model)]
    ctx.exit(Ask(**parameters).run(chosen, RSC))
