"""The options that the commands of a client share, the fields of one class; and the types of their values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeAlias, TypeVar

import attrs
import click

from rsocket_trio.cli.help_page import with_hint
from rsocket_trio.cli.output import show_log
from rsocket_trio.client.options import DIALECT
from rsocket_trio.connection.protocols import ALL, IN_SHORT, SHORT
from rsocket_trio.metadata.mime import SHORT_NAMES
from rsocket_trio.rsocket.quirks import PEERS, peer_named
from rsocket_trio.terms import MAX_REQUESTS
from rsocket_trio.transports.schemes import parse_uri

Callback = TypeVar("Callback", bound=Callable[..., object])
T = TypeVar("T")
LEVELS = ("debug", "info", "warning", "error")


def uri(text: str) -> str:
    """Return a URI of ours unchanged, after a check."""
    return checked(parse_uri, text)[1]


def dialect(text: str) -> str:
    """Return the full name of a dialect, from its full or its short name."""
    name = SHORT.get(text, text)
    if name not in ALL:
        known = f"{text!r}: the known ones are {', '.join(ALL)}, in short {IN_SHORT}"
        raise click.BadParameter(with_hint(known, text, ALL))
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
NUMBER: Settings = {"type": COUNT, "metavar": "N"}
PEM: Settings = {"type": FILE}


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


def option(names: str, help: str, *, is_secret: bool = False, **settings: object) -> Any:
    """Return the field of an option, with its settings for click. A secret one is in no ``repr``."""
    empty = False if "is_flag" in settings else () if "multiple" in settings else None
    return attrs.field(
        default=settings.get("default", empty), repr=not is_secret, metadata={"row": (names, help, settings)}
    )


@attrs.frozen(kw_only=True)
class ClientOptions:
    """The parameters of a command of a client: its URI and its options, with defaults for those that it has not."""

    # fmt: off
    uri: str
    route: str | None = option("-r --route", "The route of the handler.")
    data: tuple[str, ...] = option("-d --data", "The data; @FILE is a file's content, - is standard input, in a "
        "channel a payload a line.", **MANY, metavar="TEXT|@FILE|-")
    metadata: tuple[str, ...] = option("-m --metadata", "Metadata; several make composite metadata.", **MANY,
        is_secret=True)
    take: int | None = option("--take", "Stop after so many items.", **NUMBER)
    limit_rate: int | None = option("--limit-rate", "Ask for so many items first, topped up at half.", **NUMBER)
    timeout: float | None = option("--timeout", "Seconds for all of it.", **IN_SECONDS)
    connect_timeout: float | None = option("--connect-timeout", "Seconds until a connection is open, with all "
        "handshakes.", **IN_SECONDS)
    dialect: str = option("--dialect", f"The protocol and version, in full or in short: {IN_SHORT}.",
        type=dialect, metavar="NAME", default=DIALECT, show_default=True)
    quirks: tuple[str, ...] = option("--quirk", "A deviation of the peer to accept.", **MANY)
    peer: str | None = option("--peer", f"A peer by name, which sets all that it needs: {', '.join(PEERS)}.",
        type=peer, metavar="NAME")
    mimes: tuple[str, ...] = option("--metadata-mime", "MIME type of the metadata; of several one for each.",
        **MANY, type=mime, metavar="MIME")
    setup_data: str | None = option("--setup-data", "Data of the SETUP.")
    setup_metadata: str | None = option("--setup-metadata", "Metadata of the SETUP.", is_secret=True)
    setup_mime: str | None = option("--setup-metadata-mime", "MIME type of that metadata.", type=mime, metavar="MIME")
    simple: str | None = option("-u --auth-simple", "Credentials, sent with the SETUP and each request.",
        metavar="USER:PASSWORD", is_secret=True)
    bearer: str | None = option("--auth-bearer", "A token, sent with the SETUP and each request.",
        metavar="TOKEN", is_secret=True)
    keepalive: float | None = option("--keepalive", "Seconds between keepalives (20).", **IN_SECONDS)
    lifetime: float | None = option("--lifetime", "Seconds of silence that end the connection (90).", **IN_SECONDS)
    lease: bool = option("--lease", "Agree on leases: requests wait for a permit.", **FLAG)
    trust: str | None = option("--trust-cert", "Certificates to trust, PEM.", **PEM)
    untrusted: bool = option("--allow-untrusted", "Trust every certificate.", **FLAG)
    cert: str | None = option("--cert", "The certificate of this client, PEM.", **PEM)
    key: str | None = option("--key", "The key of that certificate, PEM.", **PEM)
    headers: tuple[tuple[str, str], ...] = option("-H --header", "A header for the WebSocket handshake.", **MANY,
        type=header, metavar="'NAME: TEXT'", is_secret=True)
    retries: int = option("--retry", "Further tries to connect, a second apart.",
        type=click.IntRange(min=0), default=0, metavar="N")
    resume: float | None = option("--resume", "Go on over a new connection when one breaks, within so many seconds; "
        "the server must allow it.", **IN_SECONDS)
    capture: str | None = option("--capture", "Record the frames in this directory.", metavar="DIR")
    debug: bool = option("--debug", "Show frames on stderr, a line each.", **FLAG)
    hexadecimal: bool = option("--hex", "Show frames with all their bytes; of credentials, **.", **FLAG)
    quiet: bool = option("-q --quiet", "Show no items.", **FLAG)
    log: str | None = option("--log", "Show log lines on stderr, from this level on.",
        type=click.Choice(LEVELS), metavar="LEVEL")
    data_mime: str | None = option("--data-mime", "MIME type of the data (application/octet-stream).",
        type=mime, metavar="MIME")
    first_opens: bool = option("--first-opens/--empty-opening", "Whether the first payload travels in the frame that "
        "opens the channel; by default that one is empty.", default=False)
    as_json: bool = option("--json", "Show each item as a JSON object: data, encoding (text, json or base64) and "
        "metadata; of credentials, **.", **FLAG)
    # fmt: on


def noted(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Note the value of an option in the context, for whoever reports an error of the command."""
    ctx.meta[str(param.name)] = value


STACKTRACE = Row(
    *("stacktrace", "--stacktrace", "Show where an error came from."),
    {**FLAG, "expose_value": False, "callback": noted},
)
ROWS = [Row(field.name, *field.metadata["row"]) for field in attrs.fields(ClientOptions) if field.metadata]
OF_REQUESTS = (
    *("route", "data", "metadata", "take", "limit_rate"),
    *("mimes", "quiet", "data_mime", "first_opens", "as_json"),
)
"""Parameters of the request, and not of the connection."""


OF_ONE_RUN = ("timeout", "retries", "capture", "debug", "hexadecimal", "quiet", "log", "first_opens", "as_json")
"""Parameters of a command that makes one request, and ends with it."""


def our_options(command: Callback, *, without: Collection[str] = ()) -> Callback:
    """Add every option, ``without`` those that are not for the command."""
    return add_rows(command, (*(row for row in ROWS if row.parameter not in without), STACKTRACE))


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
