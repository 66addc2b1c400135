"""Holds the table of options that the commands of a client share, and the types of their values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias, TypeVar

import attrs
import click

from rsocket_trio.cli.help_page import nearest
from rsocket_trio.cli.output import show_log
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
    name, separator, content = text.partition(":" if ":" in text else "=")
    if not separator or not name.strip() or not name.isascii():
        raise click.BadParameter(f"{text!r}: a header is written 'Name: text'")
    return name.strip(), content.strip()


def checked(read: Callable[[str], T], text: str) -> tuple[T, str]:
    """Return the result of a function for a text, and the text. Its ``ValueError`` becomes a usage error."""
    try:
        return read(text), text
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


SECONDS = click.FloatRange(min=0, min_open=True)
COUNT = click.IntRange(1, MAX_REQUESTS)
FILE = click.Path(exists=True, dir_okay=False)
Settings: TypeAlias = dict[str, Any]
"""Settings of an option, as click has them."""
FLAG: Settings = {"is_flag": True}
MANY: Settings = {"multiple": True}
IN_SECONDS: Settings = {"type": SECONDS, "metavar": "SECONDS"}


@attrs.frozen
class Row:
    """One option: its parameter, its names, its help, and its settings for click."""

    parameter: str
    names: str
    help: str
    settings: Settings

    def option(self, command: Callback) -> Callback:
        """Add the option to a command."""
        return click.option(*self.names.split(), self.parameter, help=self.help, **self.settings)(command)


# fmt: off
ROWS = (
    Row("route",    "-r --route", "The route of the handler.", {}),
    Row("data",     "-d --data", "The data; @FILE is a file's content, - is standard input, in a channel a payload a "
                    "line.", {**MANY, "metavar": "TEXT|@FILE|-"}),
    Row("metadata", "-m --metadata", "Metadata; several make composite metadata.", MANY),
    Row("take",     "--take", "Stop after so many items.", {"type": COUNT, "metavar": "N"}),
    Row("limit_rate", "--limit-rate", "Ask for so many items first, topped up at half.",
                    {"type": COUNT, "metavar": "N"}),
    Row("timeout",  "--timeout", "Seconds for all of it.", IN_SECONDS),
    Row("connect_timeout", "--connect-timeout", "Seconds until a connection is open, with all handshakes.",
                    IN_SECONDS),
    Row("dialect",  "--dialect", f"The protocol and version, in full or in short: {IN_SHORT}.",
                    {"type": dialect, "metavar": "NAME", "default": DIALECT, "show_default": True}),
    Row("quirks",   "--quirk", "A deviation of the peer to accept.", MANY),
    Row("peer",     "--peer", f"A peer by name, which sets all that it needs: {', '.join(PEERS)}.",
                    {"type": peer, "metavar": "NAME"}),
    Row("mimes",    "--metadata-mime", "MIME type of the metadata; of several one for each.",
                    {**MANY, "type": mime, "metavar": "MIME"}),
    Row("setup_data", "--setup-data", "Data of the SETUP.", {}),
    Row("setup_metadata", "--setup-metadata", "Metadata of the SETUP.", {}),
    Row("setup_mime", "--setup-metadata-mime", "MIME type of that metadata.", {"type": mime, "metavar": "MIME"}),
    Row("simple",   "-u --auth-simple", "Credentials, sent with the SETUP and each request.",
                    {"metavar": "USER:PASSWORD"}),
    Row("bearer",   "--auth-bearer", "A token, sent with the SETUP and each request.", {"metavar": "TOKEN"}),
    Row("keepalive", "--keepalive", "Seconds between keepalives (20).", IN_SECONDS),
    Row("lifetime", "--lifetime", "Seconds of silence that end the connection (90).", IN_SECONDS),
    Row("lease",    "--lease", "Agree on leases: requests wait for a permit.", FLAG),
    Row("trust",    "--trust-cert", "Certificates to trust, PEM.", {"type": FILE}),
    Row("untrusted", "--allow-untrusted", "Trust every certificate.", FLAG),
    Row("cert",     "--cert", "The certificate of this client, PEM.", {"type": FILE}),
    Row("key",      "--key", "The key of that certificate, PEM.", {"type": FILE}),
    Row("headers",  "-H --header", "A header for the WebSocket handshake.",
                    {**MANY, "type": header, "metavar": "'NAME: TEXT'"}),
    Row("retries",  "--retry", "Further tries to connect, a second apart.",
                    {"type": click.IntRange(min=0), "default": 0, "metavar": "N"}),
    Row("resume",   "--resume", "Go on over a new connection when one breaks, within so many seconds; the server must "
                    "allow it.", IN_SECONDS),
    Row("capture",  "--capture", "Record the frames in this directory.", {"metavar": "DIR"}),
    Row("debug",    "--debug", "Show frames on stderr, a line each.", FLAG),
    Row("hexadecimal", "--hex", "Show frames with all their bytes; of credentials, **.", FLAG),
    Row("quiet",    "-q --quiet", "Show no items.", FLAG),
    Row("log",      "--log", "Show log lines on stderr, from this level on.",
                    {"type": click.Choice(LEVELS), "metavar": "LEVEL"}),
    Row("stacktrace", "--stacktrace", "Show where an error came from.", FLAG),
    Row("data_mime", "--data-mime", "MIME type of the data (application/octet-stream).",
                    {"type": mime, "metavar": "MIME"}),
)
# fmt: on
OF_REQUESTS = ("route", "data", "metadata", "take", "limit_rate", "mimes", "quiet", "data_mime")
"""Parameters of the request, and not of the connection."""


def our_options(command: Callback, *, without: Collection[str] = ()) -> Callback:
    """Add every option, ``without`` those that are not for the command."""
    return add_rows(command, (row for row in ROWS if row.parameter not in without))


def connection_options(command: Callback, *, without: Collection[str] = ()) -> Callback:
    """Add the options of the connection, ``without`` those that mean something of its own to the command."""
    return our_options(command, without={*OF_REQUESTS, *without})


def add_rows(command: Callback, rows: Iterable[Row]) -> Callback:
    """Add the options of a table."""
    for row in reversed(list(rows)):
        command = row.option(command)
    return command


def rows_of(*parameters: str) -> list[Row]:
    """Return the shared options with these parameters."""
    return [row for row in ROWS if row.parameter in parameters]


def set_up_logging(level: str | None) -> None:
    """Write log lines from this level on to stderr; with ``None`` write none, as a failing command prints one line."""
    if level is None:
        logging.getLogger().addHandler(logging.NullHandler())
    else:
        show_log(level)
