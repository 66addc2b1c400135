"""The command ``analyze``: makes one page of a capture that any browser shows without a network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from rsocket_trio.cli import interrupts
from rsocket_trio.cli.exit_codes import FAILED, Failure
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import STACKTRACE, Row, add_rows
from rsocket_trio.cli.output import write_text
from rsocket_trio.cli.spark_job import MAX_REASON, SETTINGS, running_spark
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from rsocket_trio.analytics.views import Answer

NO_SPARK = f"an analysis in Spark needs pyspark: {install_command('spark', 'report')}"


# fmt: off
ROWS = (
    Row("out",         "--out", "Where the report goes.", {"type": click.Path(dir_okay=False), "metavar": "FILE",
                       "default": "report.html", "show_default": True}),
    Row("server",      "--server", "A capture of the server, which tells time on the network from time in the service.",
                       {"type": click.Path(), "metavar": "DIR"}),
    Row("title",       "--title", "The title of the report; DIR by default.", {"metavar": "TEXT"}),
    Row("engine",      "--engine", "The engine: DuckDB in this process, the default, or Spark, which needs Java.",
                       {"type": click.Choice(["duckdb", "spark"])}),
    Row("master",      "--master", "Where Spark runs (local[2]); implies --engine spark.", {"metavar": "URL"}),
    SETTINGS,
    STACKTRACE,
)
# fmt: on


@click.command(
    "analyze",
    cls=Command,
    examples=("analyze capture", "analyze client-capture --server server-capture --out report.html"),
)
@click.argument("directory", metavar="DIR", type=click.Path())
@partial(add_rows, rows=ROWS)
def command(directory: str, **parameters: object) -> None:
    """Make a report of the capture in DIR: latency, credit, errors, connections."""
    options = SimpleNamespace(**parameters)
    title = options.title or f"Capture {os.path.basename(os.path.abspath(directory))}"
    write_page(Path(options.out), make_report(directory, options, title))
    write_text(options.out)


def make_report(directory: str, options: SimpleNamespace, title: str) -> str:
    """Return the page. Raise ``ModuleNotFoundError`` without a package, and ``ValueError`` for no capture.

    All of that is checked before Spark starts, which takes seconds.
    """
    from rsocket_trio.analytics.report import need_report, render

    engine = options.engine or ("duckdb" if options.master is None else "spark")
    if engine == "duckdb" and options.master is not None:
        raise ValueError(f"--master {options.master} is where Spark runs, and --engine is duckdb")
    if engine == "duckdb" and options.settings:
        raise ValueError(f"--conf {options.settings[0][0]} is a setting of Spark: --engine spark is missing")
    need_report()
    with _in_duckdb(directory, options) if engine == "duckdb" else _in_spark(directory, options) as answers:
        return render({answer.view: answer for answer in answers}, title=title)


@contextmanager
def _in_duckdb(directory: str, options: SimpleNamespace) -> Iterator[Iterator[Answer]]:
    from rsocket_trio.analytics.capture_tables import first_line, need_duckdb
    from rsocket_trio.analytics.views import Damaged, answers, open_duckdb

    duckdb = need_duckdb()
    interrupts.work_begins()
    try:
        with open_duckdb(directory, server=options.server) as engine:
            yield answers(engine.ask)
    except Damaged as error:
        raise Failure(f"{error}", FAILED) from error
    except duckdb.Error as error:
        raise Failure(f"DuckDB failed: {first_line(error)[:MAX_REASON]}", FAILED) from error


@contextmanager
def _in_spark(directory: str, options: SimpleNamespace) -> Iterator[Iterator[Answer]]:
    from rsocket_trio.analytics.local_spark import open_spark
    from rsocket_trio.analytics.sql import need_sqlglot
    from rsocket_trio.analytics.views import answers

    need_sqlglot()
    terms = {"server": options.server, "master": options.master or "local[2]"}
    with running_spark(NO_SPARK), open_spark(directory, settings=dict(options.settings), **terms) as engine:
        yield answers(engine.ask)


def write_page(path: Path, page: str) -> None:
    """Write a file whole, or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(page, "utf-8")
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise Failure(f"can't write {path}: {error.strerror or error}", FAILED) from error
