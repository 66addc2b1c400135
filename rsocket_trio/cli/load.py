"""The command ``load``: makes requests at a rate from worker processes or tasks of Spark, and prints a table."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click
import trio

from rsocket_trio import errors
from rsocket_trio.cli import interrupts
from rsocket_trio.cli.client_command import Ask
from rsocket_trio.cli.data import read_data
from rsocket_trio.cli.exit_codes import (
    CANNOT_CONNECT,
    FAILED,
    MEANINGS,
    NAME,
    TIMED_OUT,
    Failure,
    code_of,
    complain,
    public_name,
)
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.interrupts import INTERRUPTED
from rsocket_trio.cli.options import (
    FLAG,
    NUMBER,
    OF_ONE_RUN,
    SECONDS,
    Row,
    Settings,
    add_rows,
    our_options,
    set_up_logging,
    uri,
)
from rsocket_trio.cli.options import ROWS as CLIENT_ROWS
from rsocket_trio.cli.output import write_text
from rsocket_trio.cli.spark_job import SETTINGS, running_spark
from rsocket_trio.extras import install_command
from rsocket_trio.server.signals import until_interrupted

if TYPE_CHECKING:
    from rsocket_trio.loadgen.plan import Plan
    from rsocket_trio.loadgen.summary import Summary

NO_SPARK = f"a load from Spark needs pyspark: {install_command('spark')}, or leave out --master"
NOT_HERE = ({*OF_ONE_RUN} | {"data", "resume"}) - {"log"}
"""Options of the other commands of a client that this command has not, or with another meaning."""
OF_CONNECTION = ("dialect", "quirks", "peer", "setup", "data_mime", "metadata_mime", "keepalive", "lease", "headers")
"""Options of a connection that a load has as well."""
INTERACTIONS = ("response", "stream", "fnf", "channel")
ARRIVALS = ("constant", "poisson")


def sizes(text: str) -> tuple[int, ...]:
    """Return numbers of bytes, from text with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: numbers of bytes, as in 100 or 16,100,4000") from None


N = NUMBER
S: Settings = {"type": SECONDS, "metavar": "S"}
R: Settings = {"type": click.FloatRange(min=0, min_open=True), "metavar": "R"}
# fmt: off
ROWS = (
    Row("rate",         "--rate", "Requests per second of all workers together.", {**R, "required": True}),
    Row("seconds",      "--seconds", "Seconds that are measured (10).", S),
    Row("requests",     "-n --requests", "Requests of all workers together, instead of --seconds.", N),
    Row("workers",      "--workers", "Worker processes on this machine (1).", N),
    Row("tasks",        "--tasks", "Tasks of Spark, with --master, instead of --workers.", N),
    Row("connections",  "--connections", "Connections of each worker.", {**N, "default": 1, "show_default": True}),
    Row("interaction",  "--interaction", "The interaction of each request.",
                        {"type": click.Choice(INTERACTIONS), "default": INTERACTIONS[0], "show_default": True}),
    Row("data",         "-d --data", "The data of each request; @FILE is a file, - standard input.",
                        {"metavar": "TEXT|@FILE|-"}),
    Row("sizes",        "--size", "Random data of one of these sizes, instead of --data.",
                        {"type": sizes, "metavar": "BYTES[,...]"}),
    Row("items",        "--items", "Payloads that a channel sends (1).", N),
    Row("arrivals",     "--arrivals", "When requests are due: at equal distances, or at random, as from many users.",
                        {"type": click.Choice(ARRIVALS), "default": ARRIVALS[0], "show_default": True}),
    Row("in_flight",    "--in-flight", "Requests of a worker that may wait for answers (1024).", N),
    Row("timeout",      "--timeout", "Seconds that a request may take.",
                        {"type": SECONDS, "metavar": "SECONDS", "default": 10.0, "show_default": True}),
    Row("warm_up",      "--warm-up", "Seconds of load before measuring.",
                        {"type": click.FloatRange(min=0), "metavar": "SECONDS"}),
    Row("seed",         "--seed", "Seed of all random choices, to repeat them.", {"type": int, "metavar": "N"}),
    Row("no_probe",     "--no-probe", "Begin without the first request, which must be answered.", FLAG),
    Row("master",       "--master", "Make the load from tasks of this Spark, as in local[2].", {"metavar": "URL"}),
    SETTINGS,
    Row("as_json",      "--json", "Print JSON instead of a table.", FLAG),
    Row("quiet",        "-q --quiet", "Show no lines for single seconds.", FLAG),
)
# fmt: on


@click.command(
    "load",
    cls=Command,
    examples=(
        "load tcp://127.0.0.1:7878 --route echo --rate 500 --seconds 30",
        "load tcp://127.0.0.1:7878 --route echo --rate 500 -n 10000 --arrivals poisson --workers 2",
    ),
    codes={
        **MEANINGS,
        0: "there was a load, whatever the server answered",
        FAILED: "a worker was killed, or Spark failed",
        CANNOT_CONNECT: "the server cannot be reached, or was gone at the end",
        TIMED_OUT: "the first request was not answered within --timeout",
    },
)
@click.argument("uri", type=uri)
@partial(add_rows, rows=ROWS)
@partial(our_options, without=NOT_HERE)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Make a load on the server at URI, and show latencies and errors of each second.

    Requests begin when they are due, also while earlier ones wait for answers; latencies count from that time. Ctrl-C
    ends the load in order and shows the counts.
    """
    set_up_logging(options["log"])
    ctx.exit(make_load(options))


def make_load(options: Settings) -> int:
    """Make the load. Return the exit code. Raise ``Failure`` and ``ValueError``, before anything starts if possible."""
    from rsocket_trio.loadgen import LoadError, Plan, SlotsError, WorkerError
    from rsocket_trio.loadgen.summary import table

    check_engine(options)
    plan = Plan(**terms_of(options))
    try:
        summary = summary_of(plan, options)
    except LoadError as error:
        raise failure_of(str(error)) from error
    except (WorkerError, SlotsError) as error:
        raise Failure(str(error), FAILED) from error
    if summary.interrupted and not summary.measured and not options["as_json"]:
        complain(interrupts.INTERRUPTED_TEXT)
        return INTERRUPTED
    per_second = not options["quiet"]
    write_text(json.dumps(summary.to_dict()) if options["as_json"] else table(summary, per_second=per_second))
    if summary.interrupted:
        return INTERRUPTED
    if summary.lost is not None:
        complain(f"{NAME}: the load ended without a connection: {summary.lost}")
        return CANNOT_CONNECT
    return 0


def summary_of(plan: Plan, options: Settings) -> Summary:
    """Make the load by processes, or by a Spark of its own. Raise ``Failure`` if Spark is missing or fails."""
    if options["master"] is None:
        from rsocket_trio.loadgen import run_workers

        interrupts.work_begins()
        stop = trio.Event()
        return trio.run(until_interrupted, partial(run_workers, plan, stop=stop), stop)
    # The workers are to be of this Python; without this they are whatever "python3" is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.app.name": "rsocket-trio load", **dict(options["settings"])}
    with running_spark(NO_SPARK):
        from rsocket_trio import loadgen
        from rsocket_trio.analytics.local_spark import local_session

        with local_session(options["master"], settings) as spark:
            return loadgen.run(spark, plan).summary


def check_engine(options: Settings) -> None:
    """Raise ``ValueError`` for options of Spark without it, of workers with it, and for two lengths."""
    if options["requests"] is not None and options["seconds"] is not None:
        raise ValueError("-n and --seconds exclude each other")
    if options["master"] is not None and options["workers"] is not None:
        raise ValueError("--workers are processes of this machine: with --master, --tasks are those of Spark")
    if options["master"] is None and (options["tasks"] is not None or options["settings"]):
        raise ValueError("--tasks and --conf are those of Spark and need --master")


def failure_of(problem: str) -> Failure:
    """Return the failure of a load that was not made: of the kind of error that the text begins with."""
    name, _, text = problem.partition(": ")
    kind = trio.TooSlowError if name == trio.TooSlowError.__name__ else getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return Failure(problem)
    return Failure(text, code_of(kind) or FAILED, name=public_name(kind))


def terms_of(options: Settings) -> Settings:
    """Return the fields of a plan that the options stand for. Raise ``ValueError``."""
    from rsocket_trio.loadgen import Plan

    shared = {row.parameter for row in CLIENT_ROWS} - NOT_HERE
    connection, ask = Ask(uri=options["uri"], **{name: options[name] for name in shared}).planned()
    terms = {field.name: options.get(field.name) for field in attrs.fields(Plan)}
    terms = {name: term for name, term in terms.items() if term is not None}
    terms["connection"] = {name: dict(connection)[name] for name in OF_CONNECTION}
    if ask.limit_rate is not None:
        terms["credit"] = ask.limit_rate
    return {
        **terms,
        "tasks": options["tasks"] or options["workers"] or 1,
        "route": ask.route,
        "metadata": ask.content,
        "data": read_data(options["data"] or ""),
        "probe": not options["no_probe"],
    }
