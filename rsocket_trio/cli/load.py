"""The command ``load``: makes requests at a rate from worker processes or tasks of Spark, and prints a table."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import trio

from rsocket_trio import errors, open_connection
from rsocket_trio.cli import starting
from rsocket_trio.cli.client_command import Ask
from rsocket_trio.cli.data import read_data
from rsocket_trio.cli.exit_codes import (
    CANNOT_CONNECT,
    CODES,
    FAILED,
    MEANINGS,
    NAME,
    REJECTED,
    TIMED_OUT,
    Failure,
    complain,
    public_name,
    report,
)
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import COUNT, FLAG, SECONDS, Row, add_rows, rows_of, set_up_logging, uri
from rsocket_trio.cli.output import write_text
from rsocket_trio.cli.served_routes import with_near_route
from rsocket_trio.cli.spark_job import SETTINGS, running_spark
from rsocket_trio.cli.starting import INTERRUPTED
from rsocket_trio.extras import install_command
from rsocket_trio.server.signals import until_interrupted

if TYPE_CHECKING:
    from rsocket_trio.loadgen.plan import Plan
    from rsocket_trio.loadgen.summary import Summary

Make: TypeAlias = "Callable[..., Awaitable[Summary]]"
"""``make(plan, stop=event, watch=...)`` makes the load of a plan, as ``load_workers.run_plan`` does."""

NO_SPARK = f"a load from Spark needs pyspark: {install_command('spark')}, or leave out --master"
SHARED = (
    *("route", "metadata", "take", "limit_rate", "dialect", "quirks", "peer", "mimes", "setup_data", "setup_metadata"),
    *("setup_mime", "simple", "bearer", "keepalive", "lifetime", "lease", "trust", "untrusted", "cert", "key"),
    *("headers", "log", "stacktrace", "connect_timeout", "data_mime"),
)
"""Options that mean the same as in the other commands of a client, by their parameters."""
SAME = (
    *("uri", "connections", "interaction", "items", "take", "arrivals", "in_flight", "timeout", "warm_up", "seed"),
    *("trust", "untrusted", "cert", "key"),
)
"""Options that are fields of a plan as they are."""
OF_CONNECTION = (
    *("connect_timeout", "dialect", "quirks", "peer", "setup", "data_mime", "metadata_mime", "keepalive", "lease"),
    "headers",
)
"""Options of a connection that a plan has as well."""
OF_BOUND = ("bound_latency", "bound_quantile", "bound_errors")
"""Options that are fields of a ``Bound``."""
INTERACTIONS = ("response", "stream", "fnf", "channel")
ARRIVALS = ("constant", "poisson", "closed")
DEFAULT_SECONDS = 10.0
"""The duration of a ramp without one of its own, in seconds."""


def sizes(text: str) -> tuple[int, ...]:
    """Return numbers of bytes, from text with commas between them."""
    try:
        numbers = tuple(int(number) for number in text.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        raise click.BadParameter(f"{text!r}: numbers of bytes, as in 100 or 16,100,4000")
    return numbers


def rates(text: str) -> tuple[tuple[float, float, float | None], ...]:
    """Return triples of a rate, the rate at its end and its seconds, if given, from text as in ``0..100@10,100@60``."""
    return tuple(_rate(stage, text) for stage in text.split(","))


def _rate(text: str, whole: str) -> tuple[float, float, float | None]:
    pace, at, length = text.partition("@")
    first, dots, last = pace.partition("..")
    try:
        stage = float(first), float(last if dots else first), float(length) if at else None
    except ValueError:
        stage = -1.0, -1.0, None
    begin, end, _ = stage
    # Only a stage that says how long it is may be a pause.
    if not (0 <= begin < math.inf and 0 <= end < math.inf) or not (begin or end or at):
        raise click.BadParameter(
            f"{whole!r}: requests per second, as in 500, 0..500 for a ramp, or 0..500@10,500@60 with seconds"
        )
    return stage


OF_SHARE: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "weight": ("weight", float),
    "data": ("data", str),
    "size": ("sizes", sizes),
    "items": ("items", int),
    "take": ("take", int),
    "name": ("name", str),
}
"""The keys of a share of a mix: its field, and how the value is read."""


def share(text: str) -> dict[str, Any]:
    """Return the fields of a share of a mix, from text as in ``stream:ticks weight=20 take=5``."""
    try:
        what, *pairs = shlex.split(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: INTERACTION:ROUTE is needed, as in 'stream:ticks weight=20'") from None
    interaction, colon, route = what.partition(":")
    fields: dict[str, Any] = {"interaction": interaction, "route": route if colon else None}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in OF_SHARE:
            known = ", ".join(f"{key}=" for key in OF_SHARE)
            raise click.BadParameter(f"{text!r}: {pair!r} is none of {known} behind INTERACTION:ROUTE")
        name, convert = OF_SHARE[key]
        try:
            fields[name] = convert(value)
        except ValueError:
            raise click.BadParameter(f"{text!r}: {pair!r} is not a number") from None
    return fields


N: dict[str, Any] = {"type": COUNT, "metavar": "N"}
PART: dict[str, Any] = {"type": click.FloatRange(0, 1), "metavar": "PART"}
S: dict[str, Any] = {"type": SECONDS, "metavar": "S"}
# fmt: off
ROWS = (
    Row("rate",         "--rate", "Requests per second of all workers together: 500, a ramp 0..500, or stages with "
                        "seconds, 0..500@10,500@60.", {"type": rates, "metavar": "R[..R][@S],..."}),
    Row("seconds",      "--seconds", "Seconds that are measured (10); stages have their own.", S),
    Row("requests",     "-n --requests", "Requests of all workers together, instead of --seconds.", N),
    Row("workers",      "--workers", "Worker processes on this machine (1).", N),
    Row("tasks",        "--tasks", "Tasks of Spark, with --master, instead of --workers.", N),
    Row("connections",  "--connections", "Connections of each worker.", {**N, "default": 1, "show_default": True}),
    Row("interaction",  "--interaction", "The interaction of each request.",
                        {"type": click.Choice(INTERACTIONS), "default": INTERACTIONS[0], "show_default": True}),
    Row("find_limit",   "--find-limit", "Find the highest rate that is held, from --rate (100) on, in trials of 5 s.",
                        FLAG),
    Row("bound_latency", "--bound-latency", "Seconds of latency that --find-limit allows (0.1).", S),
    Row("bound_quantile", "--bound-quantile", "Part of the requests that must be as fast (0.99).", PART),
    Row("bound_errors", "--bound-errors", "Part that may fail or be dropped (0.001).", PART),
    Row("max_rate",     "--max-rate", "The highest rate that --find-limit tries.", {"type": SECONDS, "metavar": "R"}),
    Row("precision",    "--precision", "Part that the limit may be above the result (0.05).", PART),
    Row("data",         "-d --data", "The data of each request; @FILE is a file, - standard input.",
                        {"metavar": "TEXT|@FILE|-"}),
    Row("sizes",        "--size", "Random data of one of these sizes, instead of --data.",
                        {"type": sizes, "metavar": "BYTES[,...]"}),
    Row("mix",          "--mix", "A kind of request, drawn by its weight=; also data=, size=, items=, take=, name=. "
                        "Several times.",
                        {"type": share, "multiple": True, "metavar": "'INTERACTION[:ROUTE] [KEY=VALUE ...]'"}),
    Row("items",        "--items", "Payloads that a channel sends (1).", {**N, "default": 1}),
    Row("arrivals",     "--arrivals", "When requests are due: at equal distances, at random, or each after an answer "
                        "(closed, without --rate).",
                        {"type": click.Choice(ARRIVALS), "default": ARRIVALS[0], "show_default": True}),
    Row("poisson",      "--poisson", "The same as --arrivals poisson: requests come at random, as from many users.",
                        FLAG),
    Row("in_flight",    "--in-flight", "Requests of a worker that may wait for answers (1024).", N),
    Row("timeout",      "--timeout", "Seconds that a request may take.",
                        {"type": SECONDS, "metavar": "SECONDS", "default": 10.0, "show_default": True}),
    Row("warm_up",      "--warm-up", "Seconds of load before measuring.",
                        {"type": click.FloatRange(min=0), "metavar": "SECONDS", "default": 0.0}),
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
        "load tcp://127.0.0.1:7878 --route echo --rate 500 -n 10000 --poisson --workers 2",
        "load tcp://127.0.0.1:7878 --route echo --find-limit --bound-latency 0.05",
    ),
    codes={
        **MEANINGS,
        0: "there was a load, whatever the server answered",
        FAILED: "a worker was killed, Spark failed, or --find-limit found no rate that is held",
        CANNOT_CONNECT: "the server cannot be reached, or was gone at the end",
        TIMED_OUT: "the first request was not answered within --timeout",
    },
)
@click.argument("uri", type=uri)
@partial(add_rows, rows=(*ROWS, *rows_of(*SHARED)))
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Make a load on the server at URI, and show latencies and errors of each second.

    Requests begin when they are due, also while earlier ones wait for answers; latencies count from that time. Ctrl-C
    ends the load in order and shows the counts.
    """
    set_up_logging(options["log"])
    try:
        check_engine(options)
        code = search_limit(options) if options["find_limit"] else make_load(options)
    except (Exception, KeyboardInterrupt) as error:
        code = report(error, stacktrace=options["stacktrace"])
    ctx.exit(code)


def make_load(options: dict[str, Any]) -> int:
    """Make the load. Return the exit code. Raise ``Failure`` and ``ValueError``, before anything starts if possible."""
    from rsocket_trio.loadgen.load_task import LoadError
    from rsocket_trio.loadgen.load_workers import WorkerError
    from rsocket_trio.loadgen.plan import Plan

    plan, stop = Plan(**terms_of(options)), trio.Event()
    try:
        with maker(options, plan.tasks) as make:
            summary = trio.run(until_interrupted, partial(make, plan, stop=stop), stop)
    except LoadError as error:
        failure = failure_of(str(error))
        if failure.code == REJECTED:
            failure = trio.run(with_near_routes, plan, failure)
        raise failure from error
    except WorkerError as error:
        show(error.summary, options)
        raise Failure(str(error), FAILED) from error
    if summary.interrupted and not summary.measured and not options["as_json"]:
        complain(starting.SAID)
        return INTERRUPTED
    show(summary, options)
    if summary.interrupted:
        return INTERRUPTED
    if summary.lost is not None:
        complain(f"{NAME}: the load ended without a connection: {summary.lost}")
        return CANNOT_CONNECT
    return 0


def check_engine(options: dict[str, Any]) -> None:
    """Raise ``ValueError`` for options of Spark without it, and of workers with it."""
    if options["master"] is not None and options["workers"] is not None:
        raise ValueError("--workers are processes of this machine: with --master, --tasks are those of Spark")
    if options["master"] is None and options["tasks"] is not None:
        raise ValueError("--tasks are those of Spark and need --master; --workers are processes of this machine")
    if options["master"] is None and options["settings"]:
        raise ValueError("--conf is a setting of Spark and needs --master")
    if not options["find_limit"]:
        for name in (*OF_BOUND, "max_rate", "precision"):
            if options[name] is not None:
                raise ValueError(f"--{name.replace('_', '-')} is for --find-limit")


def failure_of(problem: str) -> Failure:
    """Return the failure of a load that was not made: of the kind of error that the text begins with."""
    name, _, text = problem.partition(": ")
    kind = trio.TooSlowError if name == trio.TooSlowError.__name__ else getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return Failure(problem)
    code = next((code for base, code in CODES if issubclass(kind, base)), FAILED)
    return Failure(text, code, name=public_name(kind))


def show(summary: Summary, options: dict[str, Any]) -> None:
    """Print the results as the options ask for."""
    from rsocket_trio.loadgen.summary import table

    write_text(json.dumps(summary.to_dict()) if options["as_json"] else table(summary, per_second=not options["quiet"]))


async def with_near_routes(plan: Plan, failure: Failure) -> Failure:
    """Return the failure of a rejected route with the one that is like it, if the server describes its routes."""
    text = str(failure)
    try:
        async with open_connection(plan.uri, **plan._connection_options()) as connection:
            for route in {share.route for share in plan.shares} - {None}:
                text = await with_near_route(connection, str(route), plan._request_metadata, text)
    except errors.RSocketError:
        # The server is gone in the meantime: there is no more to say.
        return failure
    return Failure(text, failure.code, name=failure.name)


@contextmanager
def maker(options: dict[str, Any], tasks: int) -> Iterator[Make]:
    """Provide the function that makes loads of so many tasks: by processes, or by a Spark that runs for the block.

    Raise ``Failure`` if Spark is missing or fails.
    """
    if options["master"] is None:
        from rsocket_trio.loadgen.load_workers import run_plan

        starting.done()
        yield run_plan
        return
    # The workers are to be of this Python; without this they are whatever "python3" is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.app.name": "rsocket-trio load", **dict(options["settings"])}
    with running_spark(NO_SPARK):
        from rsocket_trio.analytics.local_spark import local_session
        from rsocket_trio.loadgen import spark_load

        with local_session(options["master"], settings) as spark:
            try:
                spark_load.check_slots(spark, tasks)
            except spark_load.SlotsError as error:
                raise Failure(str(error), FAILED) from error

            async def make(plan: Plan, *, stop: trio.Event, watch: object = None) -> Summary:
                # A task of Spark delivers its counts at its end: there is nothing to watch.
                return (await spark_load.run_plan(spark, plan, stop=stop)).summary

            yield make


def search_limit(options: dict[str, Any]) -> int:
    """Find the highest rate that the server holds, and show it. Return the exit code."""
    from rsocket_trio.loadgen.find_limit import Bound, first_plan, search
    from rsocket_trio.loadgen.load_task import LoadError
    from rsocket_trio.loadgen.load_workers import WorkerError

    bound = Bound(**{name.removeprefix("bound_"): options[name] for name in OF_BOUND if options[name] is not None})
    terms: dict[str, Any] = {name: options[name] for name in ("max_rate", "precision") if options[name] is not None}
    if not options["as_json"] and not options["quiet"]:
        terms["on_trial"] = lambda trial: write_text(str(trial))
    plan, stop = first_plan(**terms_of(options)), trio.Event()
    try:
        with maker(options, plan.tasks) as make:
            limit = trio.run(until_interrupted, partial(search, make, plan, bound, stop, **terms), stop)
    except LoadError as error:
        raise failure_of(str(error)) from error
    except WorkerError as error:
        raise Failure(str(error), FAILED) from error
    write_text(json.dumps(limit.to_dict()) if options["as_json"] else str(limit))
    if limit.interrupted:
        return INTERRUPTED
    if limit.problem is not None:
        raise failure_of(limit.problem)
    return 0 if limit.rate is not None else FAILED


def schedule_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan for its rate: one rate or stages, and seconds. Raise ``ValueError``."""
    from rsocket_trio.loadgen.stages import Stage

    stages, seconds = options["rate"], options["seconds"]
    terms = {} if seconds is None else {"seconds": seconds}
    if options["requests"] is not None:
        if seconds is not None:
            raise ValueError("-n and --seconds exclude each other: so many requests take as long as the rate says")
        if stages is not None and (len(stages) > 1 or stages[0][0] != stages[0][1] or stages[0][2] is not None):
            raise ValueError("-n is for one rate: a ramp and stages have seconds")
        terms["requests"] = options["requests"]
    if stages is None:
        return terms
    [first, *others] = stages
    if not others and first[0] == first[1] and first[2] is None:
        return {**terms, "rate": first[0]}
    if len(stages) == 1 and first[2] is None:
        return {"stages": (Stage(first[0], seconds or DEFAULT_SECONDS, first[1]),)}
    if seconds is not None:
        raise ValueError("--seconds is that of a rate without stages: each stage has its own, as in 0..500@10,500@60")
    if any(stage[2] is None for stage in stages):
        raise ValueError("--rate with several stages needs the seconds of each, as in 0..500@10,500@60")
    return {"stages": tuple(Stage(rate, length, end) for rate, end, length in stages)}


def mix_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan for a mix of requests, if there is one. Raise ``ValueError``."""
    from rsocket_trio.loadgen.mix import Share

    if not options["mix"]:
        return {}
    for name, option in (("route", "--route"), ("data", "--data"), ("sizes", "--size"), ("take", "--take")):
        if options[name] is not None:
            raise ValueError(f"--mix and {option} exclude each other: each share has its own")
    # Data is read here, and not with the options: a file that can't be read is no wrong usage.
    shares = (
        fields if "data" not in fields else {**fields, "data": read_data(fields["data"])} for fields in options["mix"]
    )
    return {"mix": tuple(Share(**fields) for fields in shares)}


def terms_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that the options stand for. Raise ``ValueError``."""
    # In a mix any route decides about the MIME type, and each share brings its own.
    route = next((fields["route"] for fields in options["mix"] if fields["route"] is not None), options["route"])
    shared = {name: options[name] for name in SHARED}
    dial, wish = Ask(**shared | {"uri": options["uri"], "route": route}).planned()
    terms = {name: options[name] for name in SAME} | {name: dict(dial.options)[name] for name in OF_CONNECTION}
    if options["poisson"]:
        if options["arrivals"] == "closed":
            raise ValueError("--poisson and --arrivals closed exclude each other")
        terms["arrivals"] = "poisson"
    if wish.limit_rate is not None:
        terms["credit"] = wish.limit_rate
    return {
        **terms,
        **schedule_of(options),
        **mix_of(options),
        "tasks": options["tasks"] or options["workers"] or 1,
        "route": None if options["mix"] else wish.route,
        "metadata": wish.metadata,
        "data": read_data(options["data"] or ""),
        "sizes": options["sizes"] or (),
        "probe": not options["no_probe"],
    }
