"""Holds the table of client command options, each with its name in our commands and in rsc's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import attrs
import click

from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.near_misses import nearest
from rsocket_trio.cli.terminal import show_log
from rsocket_trio.client.options import DIALECT
from rsocket_trio.connection.protocols import ALL, IN_SHORT, SHORT
from rsocket_trio.metadata.mime import SHORT_NAMES
from rsocket_trio.rsocket.peers import PEERS, peer_named
from rsocket_trio.terms import MAX_REQUESTS
from rsocket_trio.transports.schemes import parse_uri

Callback = TypeVar("Callback", bound=Callable[..., Any])
T = TypeVar("T")
LEVELS = ("debug", "info", "warning", "error")


def uri(text: str) -> str:
    """Return a URI of ours unchanged, after a check."""
    return checked(parse_uri, text)[1]


def dialect(text: str) -> str:
    """Return the full name of a dialect, from its full or its short name."""
    name = SHORT.get(text, text)
    if name not in ALL:
        meant = nearest(text, ALL)
        hint = "" if meant is None else f"did you mean '{meant}'? "
        raise click.BadParameter(f"{text!r}: {hint}the known ones are {', '.join(ALL)}, in short {IN_SHORT}")
    return name


def peer(text: str) -> str:
    """Return the name of a peer, after a check."""
    return checked(peer_named, text)[1]


def mime(text: str) -> str:
    """Return the full MIME type of a short name, or the text itself; only some dialects take text of another form."""
    return SHORT_NAMES.get(text, text)


def header(text: str) -> tuple[str, str]:
    """Return the name and the text of ``Name: text`` or ``Name=text``."""
    name, found, content = text.partition(":" if ":" in text else "=")
    if not found or not name.strip() or not name.isascii():
        raise click.BadParameter(f"{text!r}: a header is written 'Name: text'")
    return name.strip(), content.strip()


def checked(read: Callable[[str], T], text: str) -> tuple[T, str]:
    """Return the result of a function for a text, and the text. Its ``ValueError`` becomes a usage error."""
    try:
        return read(text), text
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def is_seconds(word: str) -> bool:
    """Return whether a word can only be a number of seconds."""
    return word.replace(".", "", 1).isdigit()


OPTIONAL: dict[str, tuple[Callable[[str], bool], str]] = {
    "--retry": (str.isdigit, "10"),
    "--resume": (is_seconds, "60"),
    "--log": (LEVELS.__contains__, "info"),
}
"""Options of ``call`` with an optional value: the test for words that are a value, and the default."""
RESUME_ONLY = ("--resume",)
"""Options with an optional value in our own commands."""


def spelled_out(args: list[str], names: Collection[str] = tuple(OPTIONAL)) -> list[str]:
    """Return the arguments with the default filled in for every optional value that is missing."""
    result: list[str] = []
    for place, arg in enumerate(args):
        if arg == "--":
            return result + args[place:]
        if arg in names:
            fits, default = OPTIONAL[arg]
            following = args[place + 1 : place + 2]
            if not following or not fits(following[0]):
                result.append(f"{arg}={default}")
                continue
        result.append(arg)
    return result


class ResumeCommand(Command):
    """A command whose ``--resume`` may stand without its seconds."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Fill in the optional values, then parse."""
        return super().parse_args(ctx, spelled_out(args, RESUME_ONLY))


SECONDS = click.FloatRange(min=0, min_open=True)
COUNT = click.IntRange(1, MAX_REQUESTS)
FILE = click.Path(exists=True, dir_okay=False)
FLAG: dict[str, Any] = {"is_flag": True}
MANY: dict[str, Any] = {"multiple": True}


@attrs.frozen
class Row:
    """One option: its parameter, its names in our commands and in ``call``, its help, and its settings for click."""

    parameter: str
    ours: str
    rsc: str
    help: str
    settings: dict[str, Any]

    def option(self, names: str) -> Callable[[Callback], Callback]:
        """Return a decorator that adds the option under these names."""
        return click.option(*names.split(), self.parameter, help=self.help, **self.settings)


# fmt: off
ROWS = (
    Row("route",    "-r --route", "-r --route", "The route of the handler.", {}),
    Row("data",     "-d --data", "-d --data -i --input", "The data; @FILE is a file's content, - is standard "
                    "input, in a channel a payload a line.", {**MANY, "metavar": "TEXT|@FILE|-"}),
    Row("load",     "", "-l --load", "Data from a file or URL.", {**MANY, "metavar": "FILE|URL"}),
    Row("metadata", "-m --metadata", "-m --metadata", "Metadata; several make composite metadata.", MANY),
    Row("take",     "--take", "--take", "Stop after so many items.", {"type": COUNT, "metavar": "N"}),
    Row("limit_rate", "--limit-rate", "--limitRate --requestn", "Ask for so many items first, topped up at half.",
                    {"type": COUNT, "metavar": "N"}),
    Row("delay",    "", "--delayElements", "Milliseconds before each item is shown.",
                    {"type": click.IntRange(min=0), "default": 0, "metavar": "MS"}),
    Row("timeout",  "--timeout", "--timeout", "Seconds for all of it.", {"type": SECONDS, "metavar": "SECONDS"}),
    Row("connect_timeout", "--connect-timeout", "--connect-timeout", "Seconds until a connection is open, with all "
                    "handshakes.", {"type": SECONDS, "metavar": "SECONDS"}),
    Row("dialect",  "--dialect", "--dialect", f"The protocol and version, in full or in short: {IN_SHORT}.",
                    {"type": dialect, "metavar": "NAME", "default": DIALECT, "show_default": True}),
    Row("quirks",   "--quirk", "--quirk", "A deviation of the peer to accept.", MANY),
    Row("peer",     "--peer", "--peer", f"A peer by name, which sets all that it needs: {', '.join(PEERS)}.",
                    {"type": peer, "metavar": "NAME"}),
    Row("mimes",    "--metadata-mime", "--mmt --metadataMimeType --metadataFormat",
                    "MIME type of the metadata; of several one for each.",
                    {**MANY, "type": mime, "metavar": "MIME"}),
    Row("setup_data", "--setup-data", "--sd --setup --setupData", "Data of the SETUP.", {}),
    Row("setup_metadata", "--setup-metadata", "--sm --setupMetadata", "Metadata of the SETUP.", {}),
    Row("setup_mime", "--setup-metadata-mime", "--smmt --setupMetadataMimeType", "MIME type of that metadata.",
                    {"type": mime, "metavar": "MIME"}),
    Row("simple",   "-u --auth-simple", "-u --as --authSimple", "Credentials, sent with the SETUP and each request.",
                    {"metavar": "USER:PASSWORD"}),
    Row("bearer",   "--auth-bearer", "--ab --authBearer", "A token, sent with the SETUP and each request.",
                    {"metavar": "TOKEN"}),
    Row("keepalive", "--keepalive", "--keepalive", "Seconds between keepalives (20).",
                    {"type": SECONDS, "metavar": "SECONDS"}),
    Row("lifetime", "--lifetime", "--lifetime", "Seconds of silence that end the connection (90).",
                    {"type": SECONDS, "metavar": "SECONDS"}),
    Row("lease",    "--lease", "--lease", "Agree on leases: requests wait for a permit.", FLAG),
    Row("trust",    "--trust-cert", "--trustCert", "Certificates to trust, PEM.", {"type": FILE}),
    Row("untrusted", "--allow-untrusted", "--allowUntrustedSsl", "Trust every certificate.", FLAG),
    Row("cert",     "--cert", "--cert", "The certificate of this client, PEM.", {"type": FILE}),
    Row("key",      "--key", "--key", "The key of that certificate, PEM.", {"type": FILE}),
    Row("headers",  "-H --header", "-H --header --wsHeader --wsh --httpHeader", "A header for the WebSocket handshake.",
                    {**MANY, "type": header, "metavar": "'NAME: TEXT'"}),
    Row("retries",  "--retry", "--retry", "Further tries to connect, a second apart.",
                    {"type": click.IntRange(min=0), "default": 0, "metavar": "N"}),
    Row("resume",   "--resume", "--resume", "Go on over a new connection when one breaks, within so many seconds "
                    "(60); the server must allow it.", {"type": SECONDS, "metavar": "[SECONDS]"}),
    Row("capture",  "--capture", "--capture", "Record the frames in this directory.", {"metavar": "DIR"}),
    Row("debug",    "--debug", "--debug", "Show frames on stderr, a line each.", FLAG),
    Row("hexadecimal", "--hex", "--hex", "Show frames with all their bytes; of credentials, **.", FLAG),
    Row("wiretap",  "", "-w --wiretap", "Show a dump of the bytes on stderr; of credentials, **.", FLAG),
    Row("quiet",    "-q --quiet", "-q --quiet", "Show no items.", FLAG),
    Row("log",      "--log", "--log", "Show log lines on stderr, from this level on.",
                    {"type": click.Choice(LEVELS), "metavar": "LEVEL"}),
    Row("stacktrace", "--stacktrace", "--stacktrace", "Show where an error came from.", FLAG),
)
# fmt: on


def our_options(command: Callback, *, without: Collection[str] = ()) -> Callback:
    """Add every option under its name in our commands, ``without`` those that are not for the command."""
    for row in reversed(ROWS):
        if row.ours and row.parameter not in without:
            command = row.option(row.ours)(command)
    return command


SET_BY_LISTS: dict[str, Any] = {
    "route": None,
    "data": (),
    "metadata": (),
    "take": None,
    "limit_rate": None,
    "mimes": (),
    "quiet": False,
    "data_mime": None,
}
"""Parameters of the client commands that commands which ask for a list set themselves."""


def connection_options(command: Callback, *, without: Collection[str] = ()) -> Callback:
    """Add the options of the connection, ``without`` those that mean something of its own to the command."""
    return our_options(command, without={*SET_BY_LISTS, *without})


def rsc_options(command: Callback) -> Callback:
    """Add every option under the names that rsc uses."""
    for row in reversed(ROWS):
        command = row.option(row.rsc)(command)
    return command


def set_up_logging(level: str | None) -> None:
    """Write log lines from this level on to stderr; with ``None`` write none, as a failing command prints one line."""
    if level is None:
        logging.getLogger().addHandler(logging.NullHandler())
    else:
        show_log(level)


def completion_option(command: Callback) -> Callback:
    """Add ``--completion SHELL``, which prints the script for the shell's start file."""

    def show(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
        if shell is None or ctx.resilient_parsing:
            return
        from click.shell_completion import get_completion_class

        # Bash's class asks an installed bash for its version; the machine that writes the script may have no bash.
        kind = get_completion_class(shell)
        assert kind is not None
        complete = kind(ctx.find_root().command, {}, "rsocket-trio", "_RSOCKET_TRIO_COMPLETE")
        click.echo(kind.source_template % complete.source_vars())
        ctx.exit()

    return click.option(
        "--completion",
        type=click.Choice(["bash", "zsh", "fish"]),
        callback=show,
        expose_value=False,
        is_eager=True,
        help="Print the completion script of this shell.",
    )(command)


def version_option(command: Callback) -> Callback:
    """Add ``-v`` and ``--version``."""
    return click.version_option(
        None, "-v", "--version", package_name="rsocket-trio", prog_name="rsocket-trio", message="%(prog)s %(version)s"
    )(command)
