"""The command ``conformance``: holds a server or client that somebody else wrote to the documents, case by case."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import trio

from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, ENDED, FAILED, Failure, run_client
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import FLAG, Row, Settings, add_rows, rows_of
from rsocket_trio.cli.options import dialect as dialect_named
from rsocket_trio.cli.options import uri as checked_uri
from rsocket_trio.cli.output import Output
from rsocket_trio.conformance import report, run
from rsocket_trio.conformance.catalogue import NEEDS, OPTIONS, Case, chosen
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.errors import readable
from rsocket_trio.server.signals import Stop
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.transports.sockets import client_context

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
    Row("options",      "--with", "An option that the peer has.", _many(list(OPTIONS))),
    Row("reports",      "--report", "A file to write: .json or .xml (JUnit).",
                        {"multiple": True, "type": click.Path(path_type=Path, dir_okay=False), "callback": _reports}),
    Row("baseline",     "--baseline", "The .json of an earlier run: only failures that are not in it count.",
                        {"type": click.Path(path_type=Path, exists=True, dir_okay=False)}),
    Row("patience",     "--patience", "Seconds for each step.",
                        {"default": run.STEP_TIMEOUT, "type": click.FloatRange(0.1, 60), "show_default": True}),
    Row("wait",         "--wait", f"Seconds in which a client has to connect ({run.WAIT:g}).",
                        {"type": click.FloatRange(0.1, 3600)}),
    Row("at_once",      "--at-once", "Cases that run at the same time, each over a connection of its own.",
                        {"default": run.AT_ONCE, "type": click.IntRange(1, 256), "show_default": True}),
    *rows_of("trust", "untrusted", "cert", "key", "headers"),
    Row("heavy",        "--heavy", "Also run the cases with large frames and many streams.", FLAG),
    Row("with_hex",     "--hex", "Also show the bytes of the frames of a case.", FLAG),
    Row("lists",        "--list", "Show the names of the cases, and run none.", FLAG),
    Row("explain",      "--explain", "Show a case with its steps and the clauses behind it, and run none.",
                        {"metavar": "CASE"}),
)
# fmt: on
OF_SERVERS = ("trust", "cert", "key", "untrusted", "headers")
"""Parameters that are for servers: clients connect by themselves."""


@click.command(
    "conformance",
    cls=Command,
    examples=(
        "conformance tcp://127.0.0.1:7878",
        "conformance tcp://127.0.0.1:7878 --report conformance.json",
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

    It has to have a request/response that echoes, a stream that counts, and a channel that echoes, without routes.

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
    if options.wait is not None or options.listen is not None:
        raise click.UsageError(f"--{'listen' if options.wait is None else 'wait'} is for --role client")
    if len(words) != 1:
        raise click.UsageError(f"{len(words)} words, the URI of one server is expected; a command is for --role client")
    uri = checked_uri(words[0])
    tls = client_context(options.trust, options.cert, options.key, untrusted=options.untrusted)
    dial = run.dial_to(uri, tls, options.headers)
    target = run.Target(dial, _abilities(options), options.patience, options.at_once)
    return uri, partial(_against_server, uri, dialect, cases, target)


def _tested_clients(
    options: SimpleNamespace, dialect: str, words: tuple[str, ...], cases: list[Case]
) -> tuple[str, Cases]:
    """Return the name of the clients under test, and the function that plays the cases against them."""
    for name in OF_SERVERS:
        if getattr(options, name):
            raise click.UsageError(f"{name.replace('_', ' ')}: that is for --role server, a client has its own")
    if options.listen is None or not words:
        raise click.UsageError("--role client needs --listen and a command, as in --listen URI -- python client.py")
    endpoint = parse_uri(checked_uri(options.listen))
    if endpoint.uses_tls or endpoint.row.is_local:
        raise click.UsageError(f"{options.listen}: clients are tested over tcp, ws and unix")
    # Only where each client has a port of its own several can be told apart.
    at_once = min(options.at_once, run.CLIENTS_AT_ONCE) if endpoint.host and not endpoint.port else 1
    start, wait = run.command(words), options.wait or run.WAIT
    listening = run.Listening(options.listen, start, _abilities(options), options.patience, at_once, wait)
    return readable(" ".join(words)), partial(_against_clients, cases, listening)


def _abilities(options: SimpleNamespace) -> frozenset[str]:
    return frozenset(NEEDS) - frozenset(options.without) | frozenset(options.options)


async def _against_server(
    uri: str, dialect: str, cases: list[Case], target: run.Target, out: Output
) -> list[CaseResult]:
    try:
        await run.check_server(target, dialect)
    except run.WrongPeer as error:
        raise Failure(f"{uri}: {str(error).removeprefix(f'{uri}: ')}", CANNOT_CONNECT) from None
    return await run.run(cases, target)


async def _against_clients(cases: list[Case], listening: run.Listening, out: Output) -> list[CaseResult]:
    """Run the cases; SIGTERM ends the clients that were started, too."""
    results: list[CaseResult] = []

    async def play() -> None:
        results.extend(await run.run_clients(cases, listening))

    try:
        with Stop() as stop:
            await stop.run(play)
    except (run.WrongPeer, OSError) as error:
        raise Failure(str(getattr(error, "strerror", None) or error), CANNOT_CONNECT) from None
    if stop.number == signal.SIGINT:
        raise KeyboardInterrupt
    if stop.number is not None:
        raise Failure("ended by SIGTERM", ENDED)
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
            known = f"{result.outcome.value}, as in the baseline: {result.case.id}: {result.case.title}"
            await out.write_line(known.encode())
        elif result.outcome in report.BROKEN:
            await out.write_line("\n".join(report.failure_lines(result, with_hex=options.with_hex)).encode())
    await out.write_line(report.table(done).encode())
    await out.write_line(report.cost(done).encode())
    faults: list[str] = []
    for path in options.reports:
        try:
            path.write_text(report.WRITERS[path.suffix](done), "utf-8")
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
