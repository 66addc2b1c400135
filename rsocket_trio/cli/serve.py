"""The command ``serve``: serves a responder on any number of URIs until SIGINT or SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import click
import trio

from rsocket_trio import Responder, ResumeOptions, serve
from rsocket_trio.capture.writers import FORMATS
from rsocket_trio.cli.connections import captured, tls_maker
from rsocket_trio.cli.exit_codes import ENDED, FAILED, MISUSED, Failure
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.interrupts import INTERRUPTED
from rsocket_trio.cli.options import IN_SECONDS, LEVELS, MANY, PEM, STACKTRACE, Row, add_rows, checked, dialect, uri
from rsocket_trio.cli.output import ReaderGone, show_log, write_text
from rsocket_trio.connection.protocols import ALL, IN_SHORT
from rsocket_trio.server.processes.import_responder import find_responder, split_name
from rsocket_trio.server.serve import ServeOptions, serve_inherited, serve_options
from rsocket_trio.server.signals import Stop, collecting_rarely
from rsocket_trio.transports.listen import Inherited
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.transports.websocket.origins import parse_origins


def mode(text: str) -> int:
    """Return the permissions of a file, from octal digits."""
    try:
        number = int(text, 8)
    except ValueError:
        number = -1
    if not 0 <= number <= 0o777:
        raise click.BadParameter(f"{text!r}: three octal digits, as in 660")
    return number


def origin(text: str) -> str:
    """Return an origin unchanged, after a check."""
    return checked(parse_origins, text)[1]


# fmt: off
ORIGINS = Row("origins", "--origin", "An origin whose pages may open a WebSocket, as https://app.example, beside the "
                         "own host; '*' for all.", {**MANY, "type": origin, "metavar": "ORIGIN"})
ROWS = (
    Row("listen",    "--listen", "Where to listen; may be given several times.",
                     {**MANY, "type": uri, "metavar": "URI"}),
    Row("dialects",  "--dialect", f"A dialect to speak, in full or in short: {IN_SHORT}; all of them by default.",
                     {**MANY, "type": dialect, "metavar": "NAME"}),
    Row("quirks",    "--quirk", "A deviation of peers to accept.", MANY),
    Row("cert",      "--cert", "The certificate for tls, wss and h2s, PEM.", PEM),
    Row("key",       "--key", "Its key, PEM, if not in the same file.", PEM),
    Row("client_ca", "--client-ca", "Clients of tls, wss and h2s must show a certificate of one of these authorities, "
                     "PEM.", PEM),
    ORIGINS,
    Row("unix_mode", "--unix-mode", "Permissions of a Unix socket, as in 660.", {"type": mode, "metavar": "MODE"}),
    Row("grace",     "--grace", "Seconds that streams get to finish at the end.",
                     {"type": click.FloatRange(min=0), "default": 10.0, "show_default": True, "metavar": "SECONDS"}),
    Row("resume",    "--resume", "Let clients go on over a new connection when one breaks, within so many seconds.",
                     IN_SECONDS),
    Row("workers",   "--workers", "Serve with so many processes; SIGHUP replaces them without refusing a connection.",
                     {"type": click.IntRange(min=1), "metavar": "N"}),
    Row("capture",   "--capture", "Record the frames of all connections in this directory.", {"metavar": "DIR"}),
    Row("capture_format", "--capture-format", "The format of the capture; parquet needs pyarrow.",
                     {"type": click.Choice([*FORMATS]), "default": "parquet", "show_default": True}),
    Row("log",       "--log", "Show log lines from this level on.",
                     {"type": click.Choice(LEVELS), "default": "warning"}),
    STACKTRACE,
)
# fmt: on


@click.command(
    "serve",
    cls=Command,
    examples=(
        "serve app:responder --listen tcp://127.0.0.1:7878",
        "serve app:responder --listen tls://0.0.0.0:7879 --cert cert.pem --key key.pem --workers 4",
    ),
    codes={
        0: "SIGINT or SIGTERM ended it: what was under way has finished",
        FAILED: "it cannot listen, the module failed, or workers ended again and again",
        MISUSED: "wrong arguments, or there is no such module or responder",
        INTERRUPTED: "Ctrl-C before it served",
        ENDED: "SIGTERM before it served",
    },
)
@click.argument("target", metavar="MODULE:RESPONDER")
@click.argument("more", nargs=-1, type=uri, metavar="")
@partial(add_rows, rows=ROWS)
@click.pass_context
def command(ctx: click.Context, /, target: str, more: tuple[str, ...], **parameters: object) -> None:
    """Serve the RESPONDER of a MODULE; the current directory is searched first.

    Prints "listening URI" for each URI that is bound, then "routes" and their number. SIGINT and SIGTERM let what is
    under way finish. With --workers SIGHUP starts new processes, which import the module anew, and lets the old ones
    finish.
    """
    chosen = SimpleNamespace(**parameters)
    split_name(target)
    uris = [*chosen.listen, *more]
    if not uris:
        raise click.UsageError("where to listen is missing, as in --listen tcp://127.0.0.1:7878", ctx)
    make_context = tls_maker(ctx, uris, chosen.cert, chosen.key, chosen.client_ca, option="--cert")
    if chosen.client_ca is not None and not any(parse_uri(uri).uses_tls for uri in uris):
        raise click.UsageError("--client-ca asks for certificates, which only clients of TLS can show", ctx)
    show_log(chosen.log)
    options = serve_options(
        dialects=chosen.dialects or ALL,
        ssl_context=make_context,
        resume=ResumeOptions(session_seconds=chosen.resume) if chosen.resume is not None else None,
        **{name: getattr(chosen, name) for name in ("quirks", "unix_mode", "grace", "origins", "workers")},
    )
    capture = chosen.capture, chosen.capture_format
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if chosen.workers is not None:
        from rsocket_trio.server.processes.supervisor import serve_in_processes

        worker = partial(serve_as_worker, options, chosen.log, capture)
        counted: list[int] = []
        supervise = partial(serve_in_processes, target, uris, worker, options, on_routes=counted.append)
        serve_until_stopped(supervise, counted.pop)
    else:
        responder = find_responder(target)
        with captured(*capture) as recording:
            options["capture"] = recording
            serve_until_stopped(partial(serve, responder, uris, **options), lambda: len(responder.routes))


async def serve_as_worker(
    options: ServeOptions,
    log: str,
    capture: tuple[str | None, str],
    responder: Responder,
    inherited: Sequence[Inherited],
    *,
    retiring: trio.Event,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    """Serve in a worker process of the command, which shows the log and captures as one process does."""
    show_log(log)
    with captured(*capture) as recording:
        here: ServeOptions = {**options, "capture": recording}
        await serve_inherited(here, responder, inherited, retiring=retiring, task_status=task_status)


def serve_until_stopped(serve: Callable[..., Awaitable[object]], count_routes: Callable[[], int]) -> None:
    """Serve until SIGINT or SIGTERM, and print the URIs and the number of routes; a second signal kills.

    Raise ``Failure`` for a SIGINT that comes before it serves.
    """
    serves = False

    def announce(uris: list[str]) -> None:
        nonlocal serves
        serves = True
        with suppress(ReaderGone):
            for uri in uris:
                write_text(f"listening {uri}")
            if uris:
                write_text(f"routes {count_routes()}")

    with Stop() as stop, collecting_rarely():
        trio.run(stop.run, _serve_and_announce, serve, announce)
    if not serves and stop.number == signal.SIGINT:
        raise Failure("interrupted", INTERRUPTED)


async def _serve_and_announce(serve: Callable[..., Awaitable[object]], announce: Callable[[list[str]], object]) -> None:
    async with trio.open_nursery() as nursery:
        announce(await nursery.start(serve))
