"""The command ``call``: makes one request with the flags of rsc, which a YAML file may hold as well."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rsocket_trio.cli.client_command import RSC, Ask
from rsocket_trio.cli.exit_codes import MEANINGS
from rsocket_trio.cli.help_page import Command
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
from rsocket_trio.errors import readable
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    import yaml

MODELS = {
    "REQUEST_RESPONSE": Kind.REQUEST,
    "REQUEST_STREAM": Kind.STREAM,
    "REQUEST_CHANNEL": Kind.CHANNEL,
    "FIRE_AND_FORGET": Kind.FNF,
    "METADATA_PUSH": Kind.PUSH,
}
"""The names of ``--im``."""

OPTS_FILE = "opts_file"

NULL = "tag:yaml.org,2002:null"
BOOL = "tag:yaml.org,2002:bool"
TRUE = ("true", "yes", "on")

RIVALS = ({"kind", "model"}, {"simple", "bearer"}, {"data", "load"})
"""Parameters that exclude each other: one of them on the command line silences the others in the file."""


class RscCommand(Command):
    """A command whose options may have optional values, and may come from a file.

    A word behind an option that can't be its value is the next argument. The command line overrides the file.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Fill in the omitted values, put the words of a file before the arguments, then parse."""
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


@click.command(
    "call",
    cls=RscCommand,
    examples=(
        "call --request --route greet --data Ada tcp://127.0.0.1:7878",
        "call --stream --route prices --limitRate 16 --take 5 tcp://127.0.0.1:7878",
    ),
    codes=MEANINGS,
)
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
def command(ctx: click.Context, /, kind: str | None, model: str | None, **parameters: Any) -> None:
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


def words_of(path: str, options: Mapping[str, click.Option], said: Collection[str], bare: Collection[str]) -> list[str]:
    """Return the words of the file, without the parameters in ``said``, which the command line has set already.

    ``options`` are those that a file may set, by their names without dashes; ``bare`` names those whose value may be
    left out. Values are taken as they are written: ``1.10`` stays ``1.10``. Raise ``ValueError`` with one line of text.
    """
    silent = set(said).union(*(rivals for rivals in RIVALS if not rivals.isdisjoint(said)))
    words: list[str] = []
    seen: set[str] = set()
    for key, node in _pairs(path):
        where = f"{path}, line {key.start_mark.line + 1}"
        name = key.value
        if not isinstance(name, str) or name not in options:
            raise ValueError(f"{where}: {_shown(name)} is no option that a file may set")
        if name in seen:
            raise ValueError(f"{where}: {name} stands there twice")
        seen.add(name)
        try:
            found = _words(name, options[name], node, bare)
        except ValueError as error:
            raise ValueError(f"{where}: {name} {error}") from None
        if options[name].name not in silent:
            words += found
    return words


def _pairs(path: str) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield the keys and values of the mapping in a file; none if the file is empty."""
    try:
        import yaml  # an extra, and slow to load
    except ModuleNotFoundError:
        raise ValueError(f"PyYAML is missing: {install_command('cli')}") from None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    try:
        # Nodes, not objects: they know the text and the line of each value.
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ValueError(f"{path}{line}: no YAML: {readable(error.problem or '')}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: no YAML: {readable(str(error).partition(chr(10))[0])}") from error
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path}: not a mapping of options to values")  # noqa: TRY004 - it is what a user wrote
    yield from root.value


def _words(name: str, option: click.Option, node: yaml.Node, bare: Collection[str]) -> list[str]:
    """Return one option with its values. Raise ``ValueError`` with the text that follows its name in the message."""
    if isinstance(node.value, list):
        if not option.multiple:
            raise ValueError("takes one value")
        if not all(map(_is_text, node.value)):
            raise ValueError("takes a list of plain values")
        return [f"--{name}={each.value}" for each in node.value]
    if node.tag == BOOL and (option.is_flag or name in bare):
        return _switched(name, option, on=node.value.lower() in TRUE)
    if option.is_flag:
        raise ValueError("is a flag: true or false")
    if node.tag == NULL:
        if name not in bare:
            raise ValueError("needs a value")
        return [f"--{name}"]
    return [f"--{name}={node.value}"]


def _switched(name: str, option: click.Option, *, on: bool) -> list[str]:
    """Return a flag, or for false its opposite; most flags have no opposite."""
    if on:
        return [f"--{name}"]
    return list(option.secondary_opts if f"--{name}" in option.opts else option.opts) if option.secondary_opts else []


def _is_text(item: yaml.Node | tuple[yaml.Node, yaml.Node]) -> bool:
    """Return whether an item is one value: not a list, not null, and not a pair as in a mapping."""
    return not isinstance(item, tuple) and isinstance(item.value, str) and item.tag != NULL


def _shown(name: object) -> str:
    return repr(readable(name)) if isinstance(name, str) else "a key that is no text"
