"""The command ``conformance``: holds a server or client that somebody else wrote to the documents, case by case."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shutil import which
from types import SimpleNamespace

import click
import trio

from rsocket_trio.cli.client_command import credentials
from rsocket_trio.cli.connections import client_tls
from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, ENDED, FAILED, Failure, run_client
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import FLAG, Row, Settings, add_rows, mime, rows_of
from rsocket_trio.cli.options import dialect as dialect_named
from rsocket_trio.cli.options import uri as checked_uri
from rsocket_trio.cli.output import Output
from rsocket_trio.conformance import clients, report, routes, run
from rsocket_trio.conformance.catalogue import NEEDS, OPTIONS, Case, chosen
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.errors import readable
from rsocket_trio.metadata import COMPOSITE_METADATA, OCTET_STREAM
from rsocket_trio.transports.schemes import parse_uri

MAX_ROUTE_BYTES = MAX_MIME_BYTES = 255
"""Bytes that a routing tag can have, and a MIME type of SETUP."""
Cases = Callable[[Output], Awaitable[Sequence[CaseResult]]]


def _reports(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    for path in paths:
        if path.suffix not in report.WRITERS:
            raise click.BadParameter(f"{path}: the ending says what to write: {', '.join(report.WRITERS)}")
        if not path.parent.is_dir():
            raise click.BadParameter(f"{path}: there is no folder {path.parent}")
    return paths


def _patterns(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if not text.strip(","):
            # As of a variable that is not set: it does not mean all cases.
            raise click.BadParameter("a name or a pattern is missing")
    return tuple(pattern for text in texts for pattern in text.split(",") if pattern)


def _routes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for text in texts:
        name, sign, path = text.partition("=")
        if not sign or not path or name not in NEEDS:
            raise click.BadParameter(f"{text!r}: a route is written NAME=PATH, with one of {', '.join(NEEDS)}")
        if len(path.encode()) > MAX_ROUTE_BYTES:
            raise click.BadParameter(f"{name}: a route of {len(path.encode())} bytes, limit {MAX_ROUTE_BYTES}")
        paths[name] = path
    return paths


def _many(types: Sequence[str]) -> Settings:
    return {"multiple": True, "type": click.Choice(types)}


# fmt: off
ROWS = (
    Row("role",         "--role", "What is tested.",
                        {"type": click.Choice(["server", "client"]), "default": "server", "show_default": True}),
    Row("listen",       "--listen", "Where to listen for clients; with port 0 each case has its own.",
                        {"metavar": "URI"}),
    Row("dialect",      "--dialect", "The protocol, by its full or short name.",
                        {"default": "rsocket/1.0", "show_default": True}),
    Row("clauses",      "--clause", "Run only cases with this name or clause; * and ? match any characters. Commas "
                        "separate several.", {"multiple": True, "callback": _patterns}),
    Row("without",      "--without", "An interaction that the peer lacks.", _many(list(NEEDS))),
    Row("routes",       "--route", f"The route of an interaction: {', '.join(NEEDS)}.",
                        {"multiple": True, "metavar": "NAME=PATH", "callback": _routes}),
    Row("metadata_mime", "--metadata-mime", "Metadata type of the SETUP.", {"type": mime, "metavar": "MIME"}),
    Row("data_mime",    "--data-mime", "Data type of the SETUP.", {"type": mime, "metavar": "MIME"}),
    Row("options",      "--with", "An option that the peer has.", _many(list(OPTIONS))),
    Row("reports",      "--report", "A file to write: .json or .xml (JUnit).",
                        {"multiple": True, "type": click.Path(path_type=Path, dir_okay=False), "callback": _reports}),
    Row("baseline",     "--baseline", "The .json of an earlier run: only failures that are not in it count.",
                        {"type": click.Path(path_type=Path, exists=True, dir_okay=False)}),
    Row("patience",     "--patience", "Seconds for each step.",
                        {"default": run.PATIENCE, "type": click.FloatRange(0.1, 60), "show_default": True}),
    Row("again",        "--again", "Further plays of a case that ran out of time, with four times the "
                        "patience.", {"default": run.AGAIN, "type": click.IntRange(0, 10), "show_default": True}),
    Row("wait",         "--wait", f"Seconds in which a client has to connect ({clients.WAIT:g}).",
                        {"type": click.FloatRange(0.1, 3600)}),
    Row("at_once",      "--at-once", "Cases that run at the same time, each over a connection of its own.",
                        {"default": run.AT_ONCE, "type": click.IntRange(1, 256), "show_default": True}),
    *rows_of("simple", "bearer", "trust", "untrusted", "cert", "key", "headers"),
    Row("heavy",        "--heavy", "Also run the cases with large frames and many streams.", FLAG),
    Row("with_hex",     "--hex", "Also show the bytes of the frames of a case.", FLAG),
    Row("lists",        "--list", "Show the names of the cases, and run none.", FLAG),
    Row("explain",      "--explain", "Show a case with its steps and the clauses behind it, and run none.",
                        {"metavar": "CASE"}),
)
# fmt: on
OF_SERVERS = (
    *("trust", "cert", "key", "untrusted", "headers", "simple", "bearer", "routes"),
    *("metadata_mime", "data_mime"),
)
"""Parameters that are for servers: clients connect, and send their SETUP, by themselves."""


@click.command(
    "conformance",
    cls=Command,
    examples=(
        "conformance tcp://127.0.0.1:7878",
        "conformance tcp://127.0.0.1:7878 --route echo=demo.echo --auth-bearer TOKEN --report conformance.json",
        "conformance --role client --listen tcp://127.0.0.1:0 -- python client.py",
    ),
    codes={
        0: "no case failed",
        FAILED: "cases failed, or something else did",
        CANNOT_CONNECT: "the server is not there, or speaks something else",
    },
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="URI | -- COMMAND ...")
@partial(add_rows, rows=ROWS)
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **parameters: object) -> None:
    """Run the cases of a protocol against the server at URI, and show those that fail.

    It has to have a request/response that echoes, a stream that counts, and a channel that echoes, without routes or
    with those that --route names.

    With --role client and --listen, COMMAND is started for each case and ended with it. RSOCKET_URI says where it has
    to connect, RSOCKET_DIALECT how, RSOCKET_WITH with which options of --with, and RSOCKET_ASKS what it asks then:
    nothing, request, stream, subscription or channel, in Streamux nothing, request, chunks, several, large, cancel or
    ping.
    """
    options = SimpleNamespace(**parameters)
    name = dialect_named(options.dialect)
    patterns = options.clauses if options.explain is None else (options.explain,)
    every = options.heavy or options.lists or options.explain is not None
    cases = chosen(name, role=options.role, patterns=patterns, heavy=every)
    if options.explain is not None:
        click.echo("\n\n".join(report.explained(case) for case in cases))
        return
    if options.lists:
        for case in cases:
            click.echo(f"{case.id}  {case.level.value}  {case.title}")
        return
    play_against = _tested_server if options.role == "server" else _tested_clients
    baseline = {} if options.baseline is None else report.outcomes_in(options.baseline, name, options.role)
    tested, play = play_against(options, name, words, cases)
    ctx.exit(run_client(partial(_run, tested, name, options, play, baseline)))


def _tested_server(
    options: SimpleNamespace, dialect: str, words: tuple[str, ...], cases: list[Case]
) -> tuple[str, Cases]:
    """Return the name of the server under test, and the function that plays the cases against it."""
    if options.wait is not None:
        raise click.UsageError("--wait is for --role client")
    uri = _one_uri(words, options.listen)
    tls = client_tls(options.trust, options.cert, options.key, untrusted=options.untrusted)
    target = run.Target(
        run.dial_to(uri, tls, options.headers),
        _abilities(options),
        options.patience,
        options.at_once,
        _ways(options, dialect),
        options.again,
    )
    return uri, partial(_against_server, uri, dialect, cases, target)


def _tested_clients(
    options: SimpleNamespace, dialect: str, words: tuple[str, ...], cases: list[Case]
) -> tuple[str, Cases]:
    """Return the name of the clients under test, and the function that plays the cases against them."""
    for name in OF_SERVERS:
        if getattr(options, name):
            raise click.UsageError(f"{name.replace('_', ' ')}: that is for --role server, a client has its own")
    uri, max_at_once = _address(options.listen)
    if not words:
        raise click.UsageError("--role client needs the command that starts the client, as in -- python client.py")
    start = clients.command(_program(words))
    at_once, wait = min(options.at_once, max_at_once), options.wait or clients.WAIT
    listening = clients.Listening(uri, start, _abilities(options), options.patience, at_once, wait, again=options.again)
    return readable(" ".join(words)), partial(_against_clients, cases, listening)


def _abilities(options: SimpleNamespace) -> frozenset[str]:
    return frozenset(NEEDS) - frozenset(options.without) | frozenset(options.options)


def _ways(options: SimpleNamespace, dialect: str) -> routes.Routes | None:
    """Return how requests find their handlers and what they carry, ``None`` if nothing is said about it."""
    auth = credentials(options.simple, options.bearer, dialect)
    paths, metadata_mime, data_mime = options.routes, options.metadata_mime, options.data_mime
    if not paths and metadata_mime is None and data_mime is None and auth is None:
        return None
    if dialect != routes.DIALECT:
        raise click.UsageError(f"routes, MIME types and credentials are for {routes.DIALECT}")
    if auth is not None and metadata_mime not in (None, COMPOSITE_METADATA):
        raise click.UsageError(f"credentials need composite metadata, not {metadata_mime}")
    for text in (metadata_mime or "", data_mime or ""):
        if not text.isascii() or len(text) > MAX_MIME_BYTES:
            raise click.UsageError(f"{text[:40]!r}: a MIME type has {MAX_MIME_BYTES} characters of ASCII at most")
    usual = COMPOSITE_METADATA if paths or auth is not None else OCTET_STREAM
    return routes.Routes(paths, metadata_mime or usual, data_mime or OCTET_STREAM, auth)


def _one_uri(words: tuple[str, ...], listen: str | None) -> str:
    """Return the URI of a server under test."""
    if listen is not None:
        raise click.UsageError("--listen is for --role client")
    if not words:
        raise click.UsageError("the URI of the server is missing")
    if len(words) > 1:
        raise click.UsageError(f"one URI is tested, not {len(words)}: a command is for --role client")
    return checked_uri(words[0])


def _address(listen: str | None) -> tuple[str, int]:
    """Return where the tester listens, and the number of clients that can be started at once there."""
    if listen is None:
        raise click.UsageError("--role client needs --listen, as in --listen tcp://127.0.0.1:7900")
    endpoint = parse_uri(checked_uri(listen))
    if endpoint.uses_tls or endpoint.row.is_local:
        raise click.UsageError(f"{listen}: clients are tested over tcp, ws and unix")
    has_ports = bool(endpoint.host)
    return listen, clients.CLIENTS_AT_ONCE if has_ports and not endpoint.port else 1


def _program(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with the path of its program."""
    program = which(words[0])
    if program is None:
        raise click.UsageError(f"there is no command {words[0]!r}")
    return program, *words[1:]


async def _against_server(
    uri: str, dialect: str, cases: list[Case], target: run.Target, out: Output
) -> list[CaseResult]:
    try:
        await run.check_server(target, dialect)
    except run.WrongServer as error:
        raise Failure(f"{uri}: {str(error).removeprefix(f'{uri}: ')}", CANNOT_CONNECT) from None
    return await run.run(cases, target)


async def _against_clients(cases: list[Case], listening: clients.Listening, out: Output) -> list[CaseResult]:
    """Run the cases; SIGTERM ends the clients that were started, too."""
    results: list[CaseResult] = []
    is_ended = False

    async def end_on_signal() -> None:
        nonlocal is_ended
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                is_ended = True
                nursery.cancel_scope.cancel()

    fault: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal)
        try:
            results = await clients.run_clients(cases, listening)
        except (clients.WrongClient, OSError) as error:
            fault = error
        nursery.cancel_scope.cancel()
    if is_ended:
        raise Failure("ended by SIGTERM", ENDED)
    if fault is not None:
        text = fault.strerror if isinstance(fault, OSError) else fault
        raise Failure(f"{text}", CANNOT_CONNECT)
    return results


async def _run(
    tested: str, dialect: str, options: SimpleNamespace, play: Cases, baseline: Mapping[str, CaseOutcome], out: Output
) -> None:
    """Run the cases, print what failed and the table, and write the reports."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    begun = trio.current_time()
    results = await play(out)
    done = report.CaseRun(tested, dialect, options.role, began, results, trio.current_time() - begun, baseline)
    for result in results:
        if done.is_known(result):
            await out.write_line(report.told_known(result).encode())
        elif result.outcome in report.BROKEN:
            await out.write_line("\n".join(report.told(result, with_hex=options.with_hex)).encode())
    await out.write_line(report.table(done).encode())
    await out.write_line(report.cost(done).encode())
    faults: list[str] = []
    for path in options.reports:
        try:
            report.write(done, path)
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
    failed = [result for result in results if result.outcome is CaseOutcome.FAIL and not done.is_known(result)]
    if failed:
        lost = sum(result.why.startswith(run.UNREACHABLE) for result in results)
        old = " that did not in the baseline" if baseline else ""
        gone = f"; for {lost} of them {run.UNREACHABLE}" if lost else ""
        faults.append(f"{len(failed)} of {len(results)} cases failed{old}{gone}")
    if faults:
        raise Failure("; ".join(faults), FAILED)
