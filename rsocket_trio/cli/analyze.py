"""The command ``analyze``: makes one page of a capture that any browser shows without a network."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from rsocket_trio.cli import starting
from rsocket_trio.cli.exit_codes import FAILED, MISUSED, Failure, report
from rsocket_trio.cli.output import write_text
from rsocket_trio.cli.spark_job import aside, last_line, reason, setting

NO_SPARK = "an analysis needs pyspark: pip install 'rsocket-trio[spark,report]'"


@click.command("analyze")
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="Where the report goes.",
)
@click.option(
    "--server",
    type=click.Path(),
    metavar="DIR",
    help="A second capture, of the other side: says what is network and what is service.",
)
@click.option("--frames-only", is_flag=True, help="A capture of others, with frames alone: they are paired first.")
@click.option("--title", metavar="TEXT", help="What the report is called; DIR by default.")
@click.option("--master", metavar="URL", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option(
    "--conf", "settings", multiple=True, type=setting, metavar="KEY=VALUE", help="A setting of Spark; several times."
)
@click.option("--stacktrace", is_flag=True, help="When it fails, show where.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    directory: str,
    out: str,
    server: str | None,
    frames_only: bool,
    title: str | None,
    master: str,
    settings: tuple[tuple[str, str], ...],
    stacktrace: bool,
) -> None:
    """Make a report of the capture in DIR: latency, credit, errors, connections."""
    try:
        page = make_report(
            directory,
            server=server,
            paired=not frames_only,
            title=title or f"Capture {os.path.basename(os.path.abspath(directory))}",
            master=master,
            settings=dict(settings),
        )
        write_page(Path(out), page)
        write_text(out)
    except BaseException as error:
        ctx.exit(report(error, stacktrace=stacktrace))


def make_report(
    directory: str, *, server: str | None, paired: bool, title: str, master: str, settings: dict[str, str]
) -> str:
    """Return the page. Raise ``Failure`` if a package or Java is missing, and ``ValueError`` for no capture.

    All of that is checked before Spark starts, which takes seconds.
    """
    try:
        from rsocket_trio.analytics.capture_tables import capture_files
        from rsocket_trio.analytics.local_spark import local_session
        from rsocket_trio.analytics.report import need_report, render
        from rsocket_trio.analytics.views import answers
        from rsocket_trio.spark import JavaNotFoundError, ensure_java
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise Failure(NO_SPARK, MISUSED) from error
    try:
        need_report()
    except ModuleNotFoundError as error:
        raise Failure(str(error), MISUSED) from error
    size = 0
    for one in (directory, *([server] if server is not None else [])):
        found = capture_files(one, ("frames", "interactions", "connections") if paired else ("frames",))
        size += sum(files.size for files in found.values())
    try:
        ensure_java()
    except JavaNotFoundError as error:
        raise Failure(str(error), FAILED) from error
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    starting.done()

    with tempfile.TemporaryFile() as said:
        try:
            with aside(said), local_session(master, settings, size=size) as spark:
                told = {answer.view: answer for answer in answers(spark, directory, server=server, paired=paired)}
        except (PySparkException, Py4JError) as error:
            raise Failure(f"Spark failed: {reason(str(error)) or last_line(said)}", FAILED) from error
    return render(told, title=title)


def write_page(path: Path, page: str) -> None:
    """Write a file whole, or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            fresh.write_text(page, "utf-8")
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Failure(f"can't write {path}: {error.strerror or error}", FAILED) from error
