"""The command ``conformance``: holds a server that somebody else wrote to the documents, case by case."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, FAILED, Failure, run_client
from rsocket_trio.cli.options import dialect as dialect_named
from rsocket_trio.cli.options import uri as checked_uri
from rsocket_trio.cli.output import Output
from rsocket_trio.conformance.catalogue import NEEDS, Case, chosen
from rsocket_trio.conformance.play import Outcome, Result
from rsocket_trio.conformance.report import BROKEN, WRITERS, Run, explained, failures_in, table, told, write
from rsocket_trio.conformance.run import PATIENCE, Target, WrongServer, check_server, dial_to, run


def _reports(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    for path in paths:
        if path.suffix not in WRITERS:
            raise click.BadParameter(f"{path}: the ending says what to write: {', '.join(WRITERS)}")
        if not path.parent.is_dir():
            raise click.BadParameter(f"{path}: there is no folder {path.parent}")
    return paths


def _baseline(ctx: click.Context, param: click.Parameter, path: Path | None) -> set[str]:
    try:
        return set() if path is None else failures_in(path)
    except (OSError, ValueError) as error:
        raise click.BadParameter(str(error)) from None


@click.command("conformance")
@click.argument("uri", required=False)
@click.option("--dialect", default="rsocket/1.0", show_default=True, help="The protocol, by its full or short name.")
@click.option(
    "--clause", "clauses", multiple=True, help="Only cases of this name, or that show this clause; * and ? fit any."
)
@click.option(
    "--without", multiple=True, type=click.Choice(list(NEEDS)), help="An interaction that the server does not have."
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_reports,
    help="A file to write: .html, .json or .xml (JUnit).",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    callback=_baseline,
    help="The .json of an earlier run: only failures that are not in it count.",
)
@click.option(
    "--patience", default=PATIENCE, show_default=True, type=click.FloatRange(0.1, 60), help="Seconds for each step."
)
@click.option("--heavy", is_flag=True, help="Run the cases with large frames and many streams, too.")
@click.option("--list", "lists", is_flag=True, help="Name the cases, and run none.")
@click.option("--explain", metavar="CASE", help="Show a case with its steps and the clauses behind it, and run none.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    uri: str | None,
    dialect: str,
    clauses: tuple[str, ...],
    without: tuple[str, ...],
    reports: tuple[Path, ...],
    baseline: set[str],
    patience: float,
    heavy: bool,
    lists: bool,
    explain: str | None,
) -> None:
    """Run the cases of a protocol against the server at URI, and tell which it fails.

    It has to have, without routes: a request/response that echoes, a stream that counts, a channel that echoes.
    """
    name = dialect_named(dialect)
    try:
        if explain is not None:
            cases = chosen(name, role="server", patterns=(explain,), heavy=True)
        else:
            cases = chosen(name, role="server", patterns=clauses, heavy=heavy or lists)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if explain is not None:
        click.echo("\n\n".join(explained(case) for case in cases))
        return
    if lists:
        for case in cases:
            click.echo(f"{case.id}  {case.level.value}  {case.title}")
        return
    if uri is None:
        raise click.UsageError("the URI of the server is missing")
    target = Target(dial_to(checked_uri(uri)), frozenset(NEEDS) - frozenset(without), patience)
    ctx.exit(run_client(partial(_run, uri, name, cases, target, reports, baseline)))


async def _run(
    uri: str,
    dialect: str,
    cases: list[Case],
    target: Target,
    reports: tuple[Path, ...],
    baseline: set[str],
    out: Output,
) -> None:
    """Run the cases, print what failed and the table, and write the reports."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        await check_server(target, dialect)
    except WrongServer as error:
        raise Failure(f"rsocket-trio: {error}", CANNOT_CONNECT) from None
    results = await run(cases, target)
    done = Run(uri, dialect, "server", began, results)
    for result in results:
        if result.outcome in BROKEN:
            await out.write_line("\n".join(told(result)).encode())
    await out.write_line(table(done).encode())
    for path in reports:
        try:
            write(done, path)
        except OSError as error:
            raise Failure(f"rsocket-trio: {path}: {error.strerror}") from None
    failed = [result.case.id for result in results if is_new(result, baseline)]
    if failed:
        raise Failure(f"{len(failed)} of {len(results)} cases failed", FAILED)


def is_new(result: Result, baseline: set[str]) -> bool:
    """Return whether the case failed, and did not in the run that this one is compared with."""
    return result.outcome is Outcome.FAIL and result.case.id not in baseline
